"""The tap, the record log, and `ship`. This package forwards and records bytes; it does not interpret tokens.

`tap` forwards requests and writes `records` to the `record_log`: SQLite segments on this machine, or a Kafka topic.
`ship` moves the records of the segments to the topic, and `redaction` removes the text from them.
"""
