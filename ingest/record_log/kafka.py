"""The log's home in Kafka: a topic, whose partitions are the log's and whose messages are its entries.

The writer is `ship` (taps append to the embedded log first, always); the reader is analytics. Delivery into the topic is at
least once; (stream, seq) makes it once. Only this package imports kafka-python, and only when Kafka is used.
"""

from __future__ import annotations

from ingest.record_log.kafka_group import KafkaGroupReader
from ingest.record_log.kafka_reader import KafkaReader
from ingest.record_log.kafka_writer import KafkaWriter

__all__ = ["KafkaGroupReader", "KafkaReader", "KafkaWriter"]
