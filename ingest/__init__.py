"""The tap and its log: bytes in, bytes out, records kept. Knows nothing of tokens.

The way the data goes: `tap` forwards a request and notes what it saw as `records`; `log` keeps them
(embedded segments, or Kafka); `ship` moves them from the one home to the other.
"""
