"""From entries of the embedded log to messages of Kafka: as few as may be, none larger than the broker takes. No I/O.

Rules
 1. Records of one stream keep their order. A message is an entry like any other, compressed: it holds records of all the
    streams that go to its partition, for each message costs its consumer what a few events cost.
 2. A message is cut between records, never inside one: (stream, seq) stays unique. One record that is too large even when
    compressed is replaced by a `Lost` of the same (stream, seq).
 3. Of several `Alive` of one incarnation the last is kept: it says what the earlier ones said.
 4. What is no record goes on as it is, so that analytics counts it where it counts all poison.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from ingest.record_log.segment_losses import captured_bytes
from ingest.records import PLAIN, Alive, AnyRecord, Closed, Damaged, Lost, encode, pack_encoded, unpack

TARGET_BYTES = 512 * 2**10
"""Records of about so many bytes, unpacked, are a message: large enough to compress well, half of Kafka's default limit."""
OVERHEAD_BYTES = 2048
"""Room for the record and the batch headers around a value."""

_BEFORE = {"not_messagepack": PLAIN, "not_a_record": PLAIN + b"\x91"}
"""What makes an entry again of poison that was inside one: the format, and for one element the array around it."""


@dataclass(frozen=True, slots=True)
class Message:
    """One value as Kafka gets it, and what is in it."""

    value: bytes
    records: Sequence[AnyRecord] = ()


@dataclass(slots=True)
class GroupedRecords:
    """Entries taken apart."""

    streams: dict[str, list[AnyRecord]] = field(default_factory=dict)
    alive: list[AnyRecord] = field(default_factory=list)
    """What every partition must hear: `Alive` and `Damaged`."""
    poison: list[bytes] = field(default_factory=list)
    records: int = 0


def group_by_stream(payloads: Iterable[bytes]) -> GroupedRecords:
    """Take entries apart by stream."""
    found = GroupedRecords()
    alive: dict[tuple[str, int, str], AnyRecord] = {}
    for payload in payloads:
        records, poison = unpack(payload)
        for record in records:
            if isinstance(record, Alive):
                alive[record.tap, record.tap_worker, record.incarnation] = record
            elif isinstance(record, Damaged):
                found.alive.append(record)
            else:
                found.streams.setdefault(record.stream, []).append(record)
        found.records += len(records)
        for one in poison:
            found.poison.append(_BEFORE.get(one.reason, b"") + one.payload)
    found.alive += alive.values()
    return found


def messages_of(records: Iterable[AnyRecord], limit_bytes: int, at_wall_ns: int) -> tuple[list[Message], int]:
    """Messages of these records, in order, and how many records were replaced by `Lost`.

    `limit_bytes` is what the broker takes as one batch.
    """
    room = max(1, limit_bytes - limit_bytes // 100 - OVERHEAD_BYTES)
    most = min(TARGET_BYTES, room)
    messages: list[Message] = []
    lost = 0
    part: list[AnyRecord] = []
    encoded: list[bytes] = []
    size = 0

    def cut() -> None:
        nonlocal size
        if part:
            messages.append(Message(pack_encoded(encoded), tuple(part)))
            part.clear()
            encoded.clear()
            size = 0

    for record in records:
        one = encode(record)
        if size + len(one) > most:
            cut()
        if len(one) > most and len(pack_encoded([one])) > room:
            record, one = _replacement(record, at_wall_ns)
            lost += 1
        part.append(record)
        encoded.append(one)
        size += len(one)
    cut()
    return messages, lost


def _replacement(record: AnyRecord, at_wall_ns: int) -> tuple[Lost, bytes]:
    """What is said in the place of a record that is too large."""
    assert not isinstance(record, (Alive, Damaged))
    last = record.last_seq if isinstance(record, Lost) else record.seq
    ends = record.last if isinstance(record, Lost) else isinstance(record, Closed)
    hole = Lost(record.stream, record.seq, last, "record_too_large", at_wall_ns, captured_bytes(record), ends)
    return hole, encode(hole)
