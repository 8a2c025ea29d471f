"""How far each reader has released each partition, and what may go because of it.

Rules
 1. A cursor only moves forward. Losing it in a power cut is safe: the reader gets entries again, and drops duplicates.
 2. A segment may go when a newer one is there and every known reader's cursor is past it. With no reader known,
    nothing may go: the reader that the log waits for has not come yet.
 3. A reader is known from its first start until `forget_reader`: one that never comes back holds everything up to
    the cap.
"""

from __future__ import annotations

import itertools
import json
import logging
import os
import re
from collections.abc import Mapping
from pathlib import Path

from ingest.private_files import make_private_folder, write_json
from ingest.record_log.interface import LogInUse
from ingest.record_log.segments import list_segments, lock_file, remove_files

log = logging.getLogger(__name__)

_READER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


class Cursors:
    """The cursors of one reader, kept in `readers/<name>.json`. One process at a time: raises LogInUse.

    `sole`: the log has no other reader from now on. The cursors of those that do not run are taken over and forgotten.
    """

    def __init__(self, log_dir: Path, name: str, *, sole: bool = False) -> None:
        if not _READER.fullmatch(name):
            raise ValueError(f"{name!r} is not a name for a reader: letters, digits, '.', '_' and '-' only")
        self._log_dir = log_dir
        self._path = log_dir / "readers" / f"{name}.json"
        make_private_folder(self._path.parent)
        self._lock = lock_file(
            self._path.with_suffix(".lock"), f"another process already reads the log {log_dir} as {name!r}"
        )
        self._offsets = _load(self._path)
        if sole:
            self._take_over(log_dir, name)
        self._save()  # from now on the log keeps what this reader has not released

    def get(self, partition: str) -> int:
        """Entries before this offset are released."""
        return self._offsets.get(partition, 0)

    def advance(self, partition: str, offset: int) -> int:
        """Move a cursor forward and unlink what may go then; how many segments went."""
        if offset <= self.get(partition):
            return 0
        self._offsets[partition] = offset
        try:
            self._save()
        except OSError:
            # The disk is full, and what this releases makes room. A cursor that is lost meanwhile only means duplicates.
            gone = trim(self._log_dir, partition, {self._path.stem: offset})
            self._save()
            return gone
        return trim(self._log_dir, partition)

    def close(self) -> None:
        os.close(self._lock)

    def _take_over(self, log_dir: Path, name: str) -> None:
        """Go on where readers left off that do not run any more, and forget them."""
        for other, offsets in read_cursors(log_dir).items():
            if other == name:
                continue
            try:
                lock = lock_file(log_dir / "readers" / f"{other}.lock", "it runs", wait=False)
            except LogInUse:
                log.warning("the log %s also waits for its reader %r, which is running", log_dir, other)
                continue
            for partition, offset in offsets.items():
                self._offsets[partition] = max(offset, self.get(partition))
            forget_reader(log_dir, other)
            os.close(lock)
            log.info("the log %s is read by %r from now on, from where %r left off", log_dir, name, other)

    def _save(self) -> None:
        write_json(self._path, self._offsets)


def _load(path: Path) -> dict[str, int]:
    try:
        loaded = json.loads(path.read_text())
        return {str(partition): int(offset) for partition, offset in loaded.items()}
    except FileNotFoundError:
        return {}
    except (ValueError, AttributeError, TypeError):
        log.warning("%s is damaged: its reader begins again at the oldest entry", path)
        return {}


def read_cursors(log_dir: Path) -> dict[str, dict[str, int]]:
    """Released offset of each partition, by reader."""
    return {path.stem: _load(path) for path in sorted((log_dir / "readers").glob("*.json"))}


def lowest_cursor(log_dir: Path, partition: str, known: Mapping[str, int] | None = None) -> int | None:
    """Entries before this offset are released by every reader; None when no reader is known.

    `known`: offsets by reader that are further than their files say.
    """
    offsets = {name: offsets.get(partition, 0) for name, offsets in read_cursors(log_dir).items()}
    return min({**offsets, **(known or {})}.values(), default=None)


def highest_cursor(log_dir: Path, partition: str) -> int:
    """The furthest that any reader has released."""
    return max((offsets.get(partition, 0) for offsets in read_cursors(log_dir).values()), default=0)


def forget_reader(log_dir: Path, name: str) -> None:
    """Stop keeping entries for a reader that will not come back."""
    (log_dir / "readers" / f"{name}.json").unlink(missing_ok=True)


def trim(log_dir: Path, partition: str, known: Mapping[str, int] | None = None) -> int:
    """Unlink the segments that may go (rule 2); how many went. Safe from any process at any time."""
    segments = list_segments(log_dir / partition)
    if len(segments) < 2:
        return 0
    lowest = lowest_cursor(log_dir, partition, known)
    if lowest is None:
        return 0
    gone = 0
    for segment, newer in itertools.pairwise(segments):
        if newer.first > lowest:
            break
        remove_files(segment.path)
        gone += 1
    return gone
