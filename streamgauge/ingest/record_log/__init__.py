"""The record log: records between the taps and analytics, in SQLite segments on this machine or in a Kafka topic.

`interface` defines both ends. `embedded_writer` and `embedded_reader` use segments (`segments` has the layout),
`kafka_writer`, `kafka_reader` and `kafka_group_reader` use a topic.
"""
