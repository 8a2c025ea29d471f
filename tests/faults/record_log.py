"""Runs of a record log whose calls fail, in a process that appends and reads. Each entry is a segment.

Each run continues the log of the run before it, so it is also the check of the restart.
"""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

from streamgauge.ingest.record_log.embedded_reader import EmbeddedReader
from streamgauge.ingest.record_log.embedded_writer import EmbeddedWriter
from streamgauge.ingest.record_log.interface import LogBroken, LogFull
from tests.faults.calls import NEVER, Fault, Page
from tests.faults.forks import Forks

IMPORTS = (__name__,)
ENTRIES = 3
TRIES = 3
_ERRORS = (OSError, LogBroken, LogFull, sqlite3.Error)


class LogRuns:
    """Runs of one fault on one log."""

    def __init__(self, forks: Forks, fault: Fault) -> None:
        self._forks, self._fault, self._runs = forks, fault, 0

    def run(self, number: int) -> None:
        """One run, whose call `number` fails."""
        first, self._runs = self._runs * ENTRIES, self._runs + 1
        page = str(self._forks.page.path)
        assert (
            self._forks.run(
                f"{__name__}:work", str(self._forks.data), first, page, number, self._fault.as_json()
            )
            == 0
        )

    def check(self) -> None:
        """Each entry has been read, and in order. A run without a failure mends all files."""
        self.run(NEVER)
        with EmbeddedReader(self._forks.data / "log", READER) as reader:
            _read(reader, self._forks.data)
        found = [int(line) for line in _seen(self._forks.data).read_text().split()]
        assert list(dict.fromkeys(found)) == list(range(self._runs * ENTRIES))
        leftover = [path.name for path in (self._forks.data / "log" / "w0").iterdir() if path.name[0] == "."]
        assert leftover == []


READER = "analyze"


def work(data: str, first: int, page: str, number: int, fault: dict[str, int]) -> None:
    """Append entries and read them, as tap and analytics do: an append is repeated, and a reader starts again."""
    memory, log_dir = Page(Path(page)), Path(data) / "log"
    writer = EmbeddedWriter(log_dir, "w0", cap_bytes=2**26, segment_age_s=0.0, sync_s=0.0)
    reader = EmbeddedReader(log_dir, READER)
    memory.arm(number, Fault(**fault))  # type: ignore[arg-type]
    for entry in range(first, first + ENTRIES):
        for attempt in range(TRIES + 1):
            if attempt == TRIES:
                memory.release()
            try:
                writer.append([b"%d" % entry])
                break
            except _ERRORS:
                if attempt == TRIES:
                    raise
        try:
            _read(reader, Path(data))
        except _ERRORS:
            reader.close()
            reader = EmbeddedReader(log_dir, READER)
    for part in (writer, reader):
        with contextlib.suppress(*_ERRORS):
            part.close()
    memory.release()


def _read(reader: EmbeddedReader, data: Path) -> None:
    for partition in reader.partitions():
        reader.seek(partition, reader.released(partition))
    while entries := reader.poll(0.0, 2**20):
        with _seen(data).open("a") as seen:
            print(*(entry.payload.decode() for entry in entries), file=seen)
        for entry in entries:
            reader.release(entry.partition, entry.offset + 1)


def _seen(data: Path) -> Path:
    """The entries that have been read, outside of the folder whose calls fail."""
    return data.parent / "read"
