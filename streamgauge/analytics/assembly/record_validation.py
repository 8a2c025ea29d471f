"""Validate the ids and numbers of records. No I/O, no clock.

Anyone with access to the broker can write to the log. A well-formed record may still contain a stream id that is no UUID or a
number that no column holds. Such a record is rejected here, before it can make a commit fail.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from streamgauge.ingest.records import (
    Alive,
    AnyRecord,
    Closed,
    Damaged,
    Frames,
    Lost,
    Opened,
    Request,
    Wait,
    pack,
)

STREAM_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
MAX_NS = 2**61
"""Upper bound of times, sizes and counts."""
MAX_SMALL = 2**16
"""Upper bound of ports and worker numbers. Trace flags are one byte."""
MAX_COUNTERS = 1000
MAX_WAITS = 1000


@dataclass(frozen=True, slots=True)
class Failure:
    """A record that could not be processed, for `dead_letters`. If it has a stream, a row of `losses` is this stream's."""

    partition: str
    offset: int
    stream_id: str | None
    reason: str
    size: int
    sha256: str


def failure_of(partition: str, offset: int, record: AnyRecord, reason: str) -> Failure:
    """The failure without the record, which may be large."""
    payload = pack([record], compress=False)
    digest = hashlib.sha256(payload).hexdigest()
    return Failure(partition, offset, stream_of(record), reason, len(payload), digest)


def stream_of(record: AnyRecord) -> str | None:
    """The stream id of a record, or None if it has no valid one."""
    stream = None if isinstance(record, (Alive, Damaged)) else record.stream
    return stream if stream is not None and STREAM_ID.fullmatch(stream) else None


def invalid_record(record: AnyRecord) -> str | None:
    """The reason why a record is invalid, None if it is valid. `invalid_frames` checks the times within frames."""
    if isinstance(record, Alive):
        return _invalid_alive(record)
    if isinstance(record, Damaged):
        return (
            None if len(record.incarnations) <= MAX_COUNTERS and len(record.reason) <= 100 else "bad_numbers"
        )
    if not STREAM_ID.fullmatch(record.stream):
        return "bad_stream_id"
    counts: tuple[int | None, ...] = (record.seq,)
    times: tuple[int | None, ...] = ()
    if isinstance(record, Opened):
        counts += (record.wall_ns, record.mono_ns)
        times = (record.client_start_ns,)
        small = record.tap_worker, record.server_port, record.trace_flags << 8
        if record.seq != 0 or not all(0 <= n < MAX_SMALL for n in small):
            return "bad_numbers"
    elif record.seq == 0 and not isinstance(record, Lost):
        return "bad_numbers"  # the first record is `Opened`
    if isinstance(record, Request) and record.conversation is not None:
        counts += (record.conversation.turns,)
    elif isinstance(record, Closed):
        counts += (record.end_ns, record.request_bytes, record.response_bytes, record.delivered_bytes)
        times = (record.connected_ns, record.request_sent_ns, record.client_drain_ns, record.client_left_ns)
        times += (record.first_byte_ns, record.delivered_ns)
        if record.refused_status is not None and not 100 <= record.refused_status <= 999:
            return "bad_numbers"
        if record.waits and not _valid_waits(record.waits):
            return "bad_times"
    elif isinstance(record, Lost):
        counts += (record.last_seq - record.seq, record.last_seq, record.at_wall_ns, record.bytes)
    return None if _within(counts, 0) and _within(times, -MAX_NS) else "bad_numbers"


def _valid_waits(waits: Sequence[Wait]) -> bool:
    """Whether they are disjoint, sorted and bounded."""
    times = [at_ns for from_ns, until_ns, _ in waits for at_ns in (from_ns, until_ns)]
    return len(waits) <= MAX_WAITS and _within(times, 0) and times == sorted(times)


def _invalid_alive(record: Alive) -> str | None:
    counts = (record.wall_ns, record.mono_ns, record.started_wall_ns)
    small = 0 <= record.tap_worker < MAX_SMALL
    small = small and max(len(record.counters), len(record.waiting_for_client)) <= MAX_COUNTERS
    return (
        None if small and _within(counts, 0) and _within(record.counters.values(), -MAX_NS) else "bad_numbers"
    )


def invalid_frames(record: Frames, times: Sequence[int], before_ns: int) -> str | None:
    """As `invalid_record`, for frames. Their times must not decrease, neither within the record nor below `before_ns`."""
    response = record.response
    if response is not None and not (100 <= response.status <= 999 and 0 <= response.headers_ns < MAX_NS):
        return "bad_numbers"
    if not 0 <= record.uncaptured_bytes < MAX_NS:
        return "bad_numbers"
    wire = record.wire_bytes
    if wire is not None and not (len(wire) == len(record.frames) and _within(wire, 0) and sum(wire) < MAX_NS):
        return "bad_numbers"
    if record.from_client and not all(0 <= index < len(times) for index in record.from_client):
        return "bad_numbers"
    # `sorted` recognises sorted input in one pass in C, which is faster than a comparison of pairs in Python.
    if times and (times[0] < before_ns or times[-1] >= MAX_NS or list(times) != sorted(times)):
        return "bad_times"
    return None


def _within(numbers: Iterable[int | None], least: int) -> bool:
    known = [n for n in numbers if n is not None]
    return not known or (min(known) >= least and max(known) < MAX_NS)
