"""Turn entries of the embedded log into Kafka messages: as few as possible, none larger than the broker accepts. No I/O.

Rules
 1. Records of one stream keep their order. A message is an entry with records of all streams of its partition, because each
    message costs its consumer as much as a few events.
 2. Messages are cut between records, so (stream, seq) stays unique. A record that is too large even when compressed is
    replaced by a `Lost` with the same (stream, seq).
 3. Of several `Alive` of one incarnation only the last is kept: its counters include the earlier ones.
 4. Data that is not a record is passed on unchanged, so analytics counts all dead letters in one place.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from streamgauge.ingest.record_log.segment_losses import captured_bytes
from streamgauge.ingest.records import (
    PLAIN,
    Alive,
    AnyRecord,
    Closed,
    Damaged,
    Lost,
    encode,
    pack_encoded,
    unpack,
)

TARGET_BYTES = 512 * 2**10
"""Unpacked size of a message: compresses well, and half of Kafka's default limit."""
OVERHEAD_BYTES = 2048
"""Size of the record and batch headers around a value."""

_PREFIX = {"not_messagepack": PLAIN, "not_a_record": PLAIN + b"\x91"}
"""Prefix that turns poison from inside an entry into a separate entry: the format, and the header of a one-element array."""


@dataclass(frozen=True, slots=True)
class Message:
    """A Kafka value and its records."""

    value: bytes
    records: Sequence[AnyRecord] = ()


@dataclass(slots=True)
class GroupedRecords:
    """Records of several entries, grouped."""

    streams: dict[str, list[AnyRecord]] = field(default_factory=dict)
    broadcast: list[AnyRecord] = field(default_factory=list)
    """`Alive` and `Damaged`, for every partition."""
    poison: list[bytes] = field(default_factory=list)
    records: int = 0


def group_by_stream(payloads: Iterable[bytes]) -> GroupedRecords:
    """Group the records of entries by stream."""
    grouped = GroupedRecords()
    alive: dict[tuple[str, int, str], AnyRecord] = {}
    for payload in payloads:
        records, poison = unpack(payload)
        for record in records:
            if isinstance(record, Alive):
                alive[record.tap, record.tap_worker, record.incarnation] = record
            elif isinstance(record, Damaged):
                grouped.broadcast.append(record)
            else:
                grouped.streams.setdefault(record.stream, []).append(record)
        grouped.records += len(records)
        for unreadable in poison:
            grouped.poison.append(_PREFIX.get(unreadable.reason, b"") + unreadable.payload)
    grouped.broadcast += alive.values()
    return grouped


def messages_of(records: Iterable[AnyRecord], limit_bytes: int, at_wall_ns: int) -> tuple[list[Message], int]:
    """(messages of these records in order, number of records replaced by `Lost`).

    `limit_bytes` is the largest batch that the broker accepts.
    """
    max_value_bytes = max(1, limit_bytes - limit_bytes // 100 - OVERHEAD_BYTES)
    target_bytes = min(TARGET_BYTES, max_value_bytes)
    messages: list[Message] = []
    lost = 0
    batch: list[AnyRecord] = []
    encoded: list[bytes] = []
    size = 0

    def cut() -> None:
        nonlocal size
        if batch:
            messages.append(Message(pack_encoded(encoded), tuple(batch)))
            batch.clear()
            encoded.clear()
            size = 0

    for record in records:
        data = encode(record)
        if size + len(data) > target_bytes:
            cut()
        if len(data) > target_bytes and len(pack_encoded([data])) > max_value_bytes:
            record, data = _replacement(record, at_wall_ns)
            lost += 1
        batch.append(record)
        encoded.append(data)
        size += len(data)
    cut()
    return messages, lost


def _replacement(record: AnyRecord, at_wall_ns: int) -> tuple[Lost, bytes]:
    """A `Lost` in place of a record that is too large, and its encoding."""
    assert not isinstance(record, (Alive, Damaged))
    last = record.last_seq if isinstance(record, Lost) else record.seq
    ends = record.last if isinstance(record, Lost) else isinstance(record, Closed)
    lost = Lost(record.stream, record.seq, last, "record_too_large", at_wall_ns, captured_bytes(record), ends)
    return lost, encode(lost)
