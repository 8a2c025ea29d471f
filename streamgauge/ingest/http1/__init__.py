"""HTTP/1.x as bytes and values: heads, fields, bodies, trailers, tunnels. No I/O, no clock."""
