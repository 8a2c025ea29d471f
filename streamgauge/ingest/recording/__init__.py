"""Recording of exchanges: facts and bytes become records of the log. A tap and a capture each own a `Recording`."""
