"""HTTP/1.x: heads, fields, bodies and their grammar. Pure: no I/O, no clock."""
