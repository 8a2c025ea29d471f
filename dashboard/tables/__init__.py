"""Tables of the pages. Functions take data frames of the named query and draw them: durations in ms or s, shares in %."""
