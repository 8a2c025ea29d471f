"""Pack records into entries of a bounded size. A record that is too large for one is replaced by a `Lost`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from streamgauge.ingest.record_log.segments import captured_bytes
from streamgauge.ingest.records import (
    MAX_ENTRY_BYTES,
    Alive,
    AnyRecord,
    Damaged,
    Lost,
    encode,
    pack_encoded,
)

TARGET_BYTES = 512 * 2**10
"""Unpacked size of a message: compresses well, and half of Kafka's default limit."""
MAX_RECORD_BYTES = MAX_ENTRY_BYTES - 64
"""Size of the largest record that readers unpack. Bodies that expand a lot are small when packed."""
OVERHEAD_BYTES = 2048
"""Size of the record and batch headers around a value."""


@dataclass(frozen=True, slots=True)
class Message:
    """An entry and its records."""

    value: bytes
    records: Sequence[AnyRecord] = ()


def messages_of(records: Iterable[AnyRecord], limit_bytes: int, at_wall_ns: int) -> tuple[list[Message], int]:
    """(messages of these records in order, number of records replaced by `Lost`).

    `limit_bytes` is the largest batch that the broker accepts. Readers unpack each message.
    """
    max_value_bytes = largest_value(limit_bytes)
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
        if len(data) > target_bytes and (
            len(data) > MAX_RECORD_BYTES or len(pack_encoded([data])) > max_value_bytes
        ):
            record, data = _replacement(record, at_wall_ns)
            lost += 1
        batch.append(record)
        encoded.append(data)
        size += len(data)
    cut()
    return messages, lost


def largest_value(limit_bytes: int) -> int:
    """Bytes of the largest value in a batch of at most `limit_bytes`."""
    return max(1, limit_bytes - limit_bytes // 100 - OVERHEAD_BYTES)


def _replacement(record: AnyRecord, at_wall_ns: int) -> tuple[Lost, bytes]:
    """A `Lost` in place of a record that is too large, and its encoding."""
    assert not isinstance(record, (Alive, Damaged))
    lost = record.lost("record_too_large", at_wall_ns, captured_bytes(record))
    return lost, encode(lost)
