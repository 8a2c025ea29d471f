"""Reproducible streams of 100 chat chunks as log records, and functions that fill a topic with them."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from kafka import KafkaProducer

from bench._streams import WORKLOADS, reads_of
from streamgauge.ingest.record_log.interface import Entry
from streamgauge.ingest.record_log.kafka_reader import KafkaReader
from streamgauge.ingest.record_log.kafka_writer import KafkaWriter
from streamgauge.ingest.records import AnyRecord, Closed, Frames, Opened, Request, ResponseHeaders, pack

CHAT = WORKLOADS[0]
READS = reads_of(CHAT, 97, 1)
"""100 events, one per read."""
GAP_NS = 20_000_000
INCARNATION = "01a0c450-6c00-7000-8000-000000000000"
BATCH = 200


def record_of_topic(broker: str, topic: str, streams: int, start_ms: int) -> list[Entry]:
    """Write whole streams into an empty topic as ship does, and read back all entries."""
    writer = KafkaWriter(broker, topic, {})
    for first in range(0, streams, BATCH):
        batch: list[AnyRecord] = []
        for number in range(first, min(first + BATCH, streams)):
            batch += whole_stream(number, start_ms)
        writer.append([pack(batch, compress=True)])
    writer.close()
    reader = KafkaReader(broker, topic, {})
    entries: list[Entry] = []
    while not reader.partitions() or any(
        sum(entry.partition == p for entry in entries) < reader.end(p) for p in reader.partitions()
    ):
        entries += reader.poll(1.0, 64 * 2**20)
    reader.close()
    return entries


def replay(broker: str, topic: str, entries: Sequence[Entry]) -> None:
    """Fill another topic with the same messages in the same partitions."""
    producer = KafkaProducer(
        bootstrap_servers=broker, acks="all", compression_type="zstd", batch_size=2**20, linger_ms=50
    )
    for entry in entries:
        producer.send(topic, value=entry.payload, partition=int(entry.partition))
    producer.flush()
    producer.close()


def whole_stream(number: int, start_ms: int) -> list[AnyRecord]:
    """A stream of 100 reads of one event each, in records of 100 ms."""
    sid = stream_id(number, start_ms)
    frames = [(100_000_000 + i * GAP_NS, data) for i, data in enumerate(READS)]
    records = opening(sid, start_ms)
    for at in range(0, len(frames), 5):
        records.append(Frames(sid, len(records), frames[at : at + 5], head() if at == 0 else None))
    return [*records, closing(sid, len(records), frames[-1][0])]


def stream_id(number: int, ms: int) -> str:
    """A UUIDv7."""
    return str(uuid.UUID(int=(ms << 80) | (7 << 76) | (2 << 62) | number))


def opening(sid: str, ms: int) -> list[AnyRecord]:
    """The first two records."""
    return [
        Opened(
            sid, 0, "tap-1", 0, INCARNATION, "gateway", "127.0.0.1", 8000, "POST", CHAT.path,
            ms * 1_000_000, ms * 1_000_000, -1000, sid.replace("-", ""), sid[:16].replace("-", "0"), None, 1, None, [],
        ),
        Request(sid, 1, b'{"model":"m","stream":true,"messages":[]}', False),
    ]  # fmt: skip


def head() -> ResponseHeaders:
    """Response headers, sent with the first frames."""
    return ResponseHeaders(200, [("content-type", "text/event-stream")], 50_000_000)


def closing(sid: str, seq: int, end_ns: int) -> Closed:
    """The last record."""
    size = sum(map(len, READS))
    return Closed(sid, seq, "complete", None, end_ns + 1, 1_000_000, 2_000_000, 50, size, size, end_ns + 1)
