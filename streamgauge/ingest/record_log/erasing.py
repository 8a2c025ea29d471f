"""Erase the records of some streams from the embedded log. Its offsets stay valid, and a tap may write meanwhile.

Rules
 1. No reader runs (`hold_readers`): it would find a segment that changes under it damaged.
 2. A changed copy of a segment is renamed over it, after its `-wal` was emptied. So a kill leaves the old segment
    or the new one. An entry without records keeps its offset.
 3. The newest segment of a running writer is never changed: `erase` waits until the writer has a newer one, at most a minute.
 4. Before the newest segment of an ended writer changes, its run totals are resolved. They name an entry by its checksum.
 5. Damaged segments in quarantine are emptied, and data that is not a record is removed once it was read: it may be theirs. The names of
    such segments stay, because they keep their offsets from being used again.
"""

from __future__ import annotations

import contextlib
import os
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Set
from contextlib import closing
from pathlib import Path

from streamgauge.ingest.record_log import segments
from streamgauge.ingest.record_log.interface import LogBroken, LogInUse
from streamgauge.ingest.record_log.run_totals import resolve_ended_runs
from streamgauge.ingest.records import Alive, Damaged, Opened, unpack, without_streams

READ_BYTES = 8 * 2**20
MAX_WAIT_S = 180.0
"""A running tap ends its segment after 60 s, with the next heartbeat."""
_PAUSE_S = 0.25


@contextlib.contextmanager
def hold_readers(log_dir: Path) -> Iterator[None]:
    """Keep every reader from starting. Raises LogInUse if one runs."""
    with contextlib.ExitStack() as held:
        for path in sorted((log_dir / "readers").glob("*.json")):
            why = f"cannot change the record log {log_dir}: {path.stem!r} reads it. Stop it first"
            held.callback(os.close, segments.lock_file(path.with_suffix(".lock"), why, wait=False))
        yield


def find_streams(
    log_dir: Path, client_ids: Set[str | None], read_until: Mapping[str, int]
) -> tuple[set[str], set[str]]:
    """(streams of these clients, streams of any client with an unread record). `read_until`: first unread offset by partition."""
    of_clients, unread = set[str](), set[str]()
    for partition in segments.list_partitions(log_dir):
        until = read_until.get(partition, 0)
        for segment in segments.list_segments(log_dir / partition):
            for offset, payload in _entries(segment):
                records = [one for one in unpack(payload)[0] if not isinstance(one, Alive | Damaged)]
                of_clients.update(
                    r.stream for r in records if isinstance(r, Opened) and r.client_id in client_ids
                )
                unread.update(record.stream for record in records if offset >= until)
    return of_clients, unread


def erase(
    log_dir: Path,
    stream_ids: Set[str],
    read_until: Mapping[str, int],
    *,
    dry_run: bool = False,
    on_wait: Callable[[Path], None] = lambda segment: None,
) -> int:
    """Erase all records of the streams. Returns their number. Raises OSError or LogBroken.

    Requires `hold_readers`, unless `dry_run`, which only counts. Calls `on_wait` with a segment that a running tap has to end first.
    """
    erased = 0
    for partition in segments.list_partitions(log_dir):
        folder, until = log_dir / partition, read_until.get(partition, 0)
        with contextlib.nullcontext() if dry_run else _ended(folder, stream_ids, until, on_wait):
            for segment in segments.list_segments(folder):
                changed, count = _changed(segment, stream_ids, until)
                erased += count
                if changed and not dry_run:
                    with contextlib.suppress(FileNotFoundError):  # the tap has dropped it
                        segments.replace_segment(segment, changed)
    return erased


@contextlib.contextmanager
def _ended(folder: Path, stream_ids: Set[str], until: int, on_wait: Callable[[Path], None]) -> Iterator[None]:
    """No process writes the partition, or the newest segment has no record of the streams. Empties segments in quarantine."""
    with contextlib.ExitStack() as held:
        try:
            held.callback(os.close, segments.lock_file(folder / "lock", "its writer runs", wait=False))
            resolve_ended_runs(folder)
        except LogInUse:
            _await_segment_end(folder, stream_ids, until, on_wait)
        for segment in segments.list_quarantined(folder):
            for path in folder.glob(f"{segment.path.name}*"):
                os.truncate(path, 0)
        yield


def _await_segment_end(
    folder: Path, stream_ids: Set[str], until: int, on_wait: Callable[[Path], None]
) -> None:
    """Wait until the newest segment has no record of the streams. It gets none, because the streams have ended."""
    newest = segments.list_segments(folder)[-1:]
    if not any(_changed(segment, stream_ids, until)[0] for segment in newest):
        return
    on_wait(newest[0].path)
    deadline_s = time.monotonic() + MAX_WAIT_S
    while segments.list_segments(folder)[-1:] == newest:
        if time.monotonic() > deadline_s:
            raise LogBroken(
                f"cannot erase records in {newest[0].path}: its tap does not end it. Stop the tap"
            )
        time.sleep(_PAUSE_S)


def _entries(segment: segments.Segment) -> Iterator[tuple[int, bytes]]:
    """(offset, payload) of each entry, without content if its checksum is wrong. Raises LogBroken."""
    start = segment.first
    with contextlib.suppress(FileNotFoundError), closing(segments.open_segment(segment.path)) as connection:
        while True:
            rows, error = segments.read_rows(connection, start, READ_BYTES)
            for offset, payload, crc in rows:
                yield offset, payload if zlib.crc32(payload) == crc else b""
            if error is not None:
                raise LogBroken(f"cannot read {segment.path}: {error}")
            if not rows:
                return
            start = rows[-1][0] + 1


def _changed(segment: segments.Segment, stream_ids: Set[str], until: int) -> tuple[dict[int, bytes], int]:
    """(new payload by offset, number of erased records)."""
    changed, erased = dict[int, bytes](), 0
    for offset, payload in _entries(segment):
        kept, removed = without_streams(payload, stream_ids, is_read=offset < until)
        if kept is not payload:
            changed[offset] = kept
            erased += removed
    return changed, erased
