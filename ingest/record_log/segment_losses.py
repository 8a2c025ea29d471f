"""Report the records of a dropped segment as lost: their ranges by stream, and `Lost` records for them."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from streamgauge.ingest.record_log.segments import open_segment, read_rows
from streamgauge.ingest.records import Alive, AnyRecord, Closed, Damaged, Frames, Lost, Request, pack, unpack

_READ_BYTES = 4 * 2**20
_PER_ENTRY = 1000
"""`Lost` records in one entry, about 100 bytes each."""


@dataclass(slots=True)
class LostRange:
    """The records [first, last] of one stream, and the captured body bytes in them."""

    first: int
    last: int
    bytes: int
    closed: bool = False
    """The range includes the stream's last record."""


@dataclass(slots=True)
class Counts:
    """Totals of a segment's content."""

    entries: int = 0
    records: int = 0
    bytes: int = 0


Ranges = Mapping[str, Sequence[LostRange]]


def captured_bytes(record: AnyRecord) -> int:
    """Body bytes that a record carries."""
    match record:
        case Frames(frames=frames):
            return sum(len(data) for _, data in frames)
        case Request(body=body):
            return len(body)
        case Lost(bytes=size):
            return size
        case _:
            return 0


def add_ranges(ranges: dict[str, list[LostRange]], records: Iterable[AnyRecord]) -> int:
    """Add records to the ranges of their streams. Returns how many records belong to streams."""
    count = 0
    for record in records:
        if isinstance(record, (Alive, Damaged)):
            continue
        count += 1
        last = record.last_seq if isinstance(record, Lost) else record.seq
        stream_ranges = ranges.setdefault(record.stream, [])
        size = captured_bytes(record)
        if stream_ranges and stream_ranges[-1].first <= record.seq <= stream_ranges[-1].last + 1:
            stream_ranges[-1].last = max(stream_ranges[-1].last, last)
            stream_ranges[-1].bytes += size
        else:
            stream_ranges.append(LostRange(record.seq, last, size))
        stream_ranges[-1].closed |= record.last if isinstance(record, Lost) else isinstance(record, Closed)
    return count


def ranges_in(path: Path, start: int) -> tuple[Ranges, Counts, sqlite3.Error | None]:
    """Ranges of every stream in a segment's readable entries from `start` on."""
    ranges: dict[str, list[LostRange]] = {}
    counts = Counts()
    try:
        with closing(open_segment(path, complete=True)) as connection:
            while True:
                rows, error = read_rows(connection, start, _READ_BYTES)
                for _, payload, _ in rows:
                    records, _ = unpack(payload)
                    counts.entries += 1
                    counts.bytes += len(payload)
                    counts.records += add_ranges(ranges, records)
                if error is not None or not rows:
                    return ranges, counts, error
                start = rows[-1][0] + 1
    except sqlite3.Error as error:
        return ranges, counts, error


def lost_entries(ranges: Ranges, cause: str, at_wall_ns: int) -> list[bytes]:
    """Entries that report the ranges as `Lost`."""
    records: list[AnyRecord] = [
        Lost(stream, lost.first, lost.last, cause, at_wall_ns, lost.bytes, lost.closed)
        for stream, stream_ranges in ranges.items()
        for lost in stream_ranges
    ]
    return [pack(records[at : at + _PER_ENTRY], compress=True) for at in range(0, len(records), _PER_ENTRY)]
