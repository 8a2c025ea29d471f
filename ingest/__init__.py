"""The tap and its log: bytes in, bytes out, records kept. Knows nothing of tokens.

The way the data goes: `tap` forwards a request and notes what it saw as `records`; `log` keeps them
(embedded segments, or Kafka); `ship` moves them from the one home to the other.

Inside a tap: a `client_connection` reads requests (`http_head`, `fields`), each becomes an `exchange` with an
`upstream_connection` (after a 101 a `tunnel`); `headers` rewrites heads, `http_body` finds where bodies end. Its `recorder`
turns what was seen into records, the `buffer` bounds and gathers them, and the `log_thread` appends them.
"""
