"""How far each reader has released each partition, and which segments may be deleted.

Rules
 1. A cursor only moves forward. Losing it in a power cut is safe: the reader gets entries again and drops duplicates.
 2. A segment may be deleted when a newer one exists and the cursors of all known readers are past it. Without a known reader
    nothing is deleted.
 3. A reader is known from its first start until `remove_reader`. Entries that it has not released stay, up to the cap.
"""

from __future__ import annotations

import itertools
import json
import logging
import os
import re
from collections.abc import Mapping
from pathlib import Path

from streamgauge.ingest.private_files import make_private_folder, write_json
from streamgauge.ingest.record_log.interface import LogInUse
from streamgauge.ingest.record_log.segments import list_segments, lock_file, remove_files

log = logging.getLogger(__name__)

_READER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


class Cursors:
    """The cursors of one reader, stored in `readers/<name>.json`. One process at a time: raises LogInUse.

    `sole`: take over and remove the cursors of readers that do not run.
    """

    def __init__(self, log_dir: Path, name: str, *, sole: bool = False) -> None:
        if not _READER.fullmatch(name):
            raise ValueError(f"invalid reader name {name!r}: use letters, digits, '.', '_' and '-'")
        self._log_dir = log_dir
        self._path = log_dir / "readers" / f"{name}.json"
        make_private_folder(self._path.parent)
        self._lock = lock_file(
            self._path.with_suffix(".lock"), f"another process already reads the log {log_dir} as {name!r}"
        )
        self._offsets = _load(self._path)
        self._warned = False
        if sole:
            self._take_over(log_dir, name)
        is_known = self._path.exists()
        try:
            self._save()  # from now on the log keeps entries that this reader has not released
        except OSError as error:
            if not is_known:
                os.close(self._lock)
                raise
            self._warn(error)

    def get(self, partition: str) -> int:
        """Entries before this offset are released."""
        return self._offsets.get(partition, 0)

    def advance(self, partition: str, offset: int) -> int:
        """Move a cursor forward and delete released segments. Returns the number of deleted segments."""
        if offset <= self.get(partition):
            return 0
        self._offsets[partition] = offset
        try:
            self._save()
        except OSError:
            # The disk is full, and trimming frees space. Without the stored cursor, entries may only be read again.
            # Trim first, with the offset that is not stored yet: on a full disk nothing else would ever free space.
            trimmed = trim(self._log_dir, partition, {self._path.stem: offset})
            try:
                self._save()
            except OSError as error:
                self._warn(error)
            return trimmed
        return trim(self._log_dir, partition)

    def _warn(self, error: OSError) -> None:
        if not self._warned:
            self._warned = True
            log.warning(
                "cannot store the position of a reader, so it may read entries again after a restart: %s",
                error,
            )

    def close(self) -> None:
        os.close(self._lock)

    def _take_over(self, log_dir: Path, name: str) -> None:
        """Take over the cursors of readers that do not run, and remove them."""
        for other, offsets in read_cursors(log_dir).items():
            if other == name:
                continue
            try:
                lock = lock_file(log_dir / "readers" / f"{other}.lock", "it runs", wait=False)
            except LogInUse:
                log.warning(
                    "the log %s also keeps entries for the reader %r, which is running", log_dir, other
                )
                continue
            for partition, offset in offsets.items():
                self._offsets[partition] = max(offset, self.get(partition))
            remove_reader(log_dir, other)
            os.close(lock)
            log.info("the log %s is now read by %r, starting at the position of %r", log_dir, name, other)

    def _save(self) -> None:
        write_json(self._path, self._offsets)


def _load(path: Path) -> dict[str, int]:
    try:
        loaded = json.loads(path.read_text())
        return {str(partition): int(offset) for partition, offset in loaded.items()}
    except FileNotFoundError:
        return {}
    except (ValueError, AttributeError, TypeError):
        log.warning("%s is damaged: its reader starts again at the oldest entry", path)
        return {}


def read_cursors(log_dir: Path) -> dict[str, dict[str, int]]:
    """Released offset of each partition, by reader."""
    return {path.stem: _load(path) for path in sorted((log_dir / "readers").glob("*.json"))}


def lowest_cursor(log_dir: Path, partition: str, newer: Mapping[str, int] | None = None) -> int | None:
    """Entries before this offset are released by every reader. None: there is no known reader.

    `newer`: offsets by reader that are not stored yet.
    """
    offsets = {name: offsets.get(partition, 0) for name, offsets in read_cursors(log_dir).items()}
    return min({**offsets, **(newer or {})}.values(), default=None)


def highest_cursor(log_dir: Path, partition: str) -> int:
    """The highest offset that a reader has released."""
    return max((offsets.get(partition, 0) for offsets in read_cursors(log_dir).values()), default=0)


def remove_reader(log_dir: Path, name: str) -> None:
    """Stop keeping entries for a reader that will not return."""
    (log_dir / "readers" / f"{name}.json").unlink(missing_ok=True)


def trim(log_dir: Path, partition: str, newer: Mapping[str, int] | None = None) -> int:
    """Delete segments by rule 2. Returns the number of deleted segments. Any process may call it at any time."""
    segments = list_segments(log_dir / partition)
    if len(segments) < 2:
        return 0
    lowest = lowest_cursor(log_dir, partition, newer)
    if lowest is None:
        return 0
    trimmed = 0
    for segment, following in itertools.pairwise(segments):
        if following.first > lowest:
            break
        remove_files(segment.path)
        trimmed += 1
    return trimmed
