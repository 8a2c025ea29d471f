"""`streamgauge top`: the diagnosis and the busiest streams in a terminal."""
