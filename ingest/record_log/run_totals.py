"""What each run of a partition's writer took for the log, kept where kill -9 cannot reach it: `<log>/w<N>/runs`.

The last `Alive` of a tap that was killed is seconds old. So the log's thread writes a run's totals down around each append
(a small write, in place): before it, so that whatever is in the log of that run is in its totals; after it, so that
`streams_in_log` tells what surely is. Between the two lies what the last append may not have brought into the log.

The file holds the newest MAX_RUNS runs, oldest first; each entry has a checksum, for a power cut may tear it.
"""

from __future__ import annotations

import contextlib
import os
import struct
import uuid
import zlib
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass, replace
from pathlib import Path

from ingest.private_files import write_private
from ingest.record_log.interface import LogWriter
from ingest.record_log.segments import list_partitions

MAX_RUNS = 256
_TOTALS = struct.Struct("<16s6q")
_CRC = struct.Struct("<I")
_SIZE = _TOTALS.size + _CRC.size


@dataclass(frozen=True, slots=True)
class RunTotals:
    """Totals of one run since its start."""

    streams_opened: int = 0
    streams_in_log: int = 0
    """Of these, those whose `Opened` the log has."""
    records: int = 0
    captured_bytes: int = 0
    """Body bytes in records."""
    lost_records: int = 0
    lost_bytes: int = 0


class RunTotalsFile:
    """Where one run writes its totals. Not thread-safe: one owner."""

    def __init__(self, folder: Path, incarnation: str) -> None:
        """Raises OSError when the file cannot be written."""
        self._run = uuid.UUID(incarnation).bytes
        path = folder / "runs"
        kept = [one for one in _entries(path) if _incarnation(one) != incarnation][-(MAX_RUNS - 1) :]
        write_private(path, b"".join(kept) + self._entry(RunTotals()))
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        self._at = len(kept) * _SIZE

    def write(self, totals: RunTotals) -> None:
        """Raises OSError."""
        os.pwrite(self._descriptor, self._entry(totals), self._at)

    def close(self) -> None:
        os.close(self._descriptor)

    def _entry(self, totals: RunTotals) -> bytes:
        packed = _TOTALS.pack(self._run, *astuple(totals))
        return packed + _CRC.pack(zlib.crc32(packed))


class RunTotalsWriter:
    """A `LogWriter` that notes the totals of its run around each append."""

    def __init__(self, writer: LogWriter, file: RunTotalsFile, totals: Callable[[], RunTotals]) -> None:
        """`totals` is asked before an append, and its `streams_in_log` is what there will be after it."""
        self._writer, self._file, self._totals = writer, file, totals
        self._in_log = 0

    def append(self, payloads: Sequence[bytes]) -> None:
        """As the writer's own."""
        then = self._totals()
        self._note(replace(then, streams_in_log=self._in_log))
        self._writer.append(payloads)
        self._in_log = then.streams_in_log
        self._note(then)

    def close(self) -> None:
        self._file.close()
        self._writer.close()

    def _note(self, totals: RunTotals) -> None:
        with contextlib.suppress(OSError):  # a disk in trouble: the append says so
            self._file.write(totals)


def read_run_totals(log_dir: Path) -> dict[str, RunTotals]:
    """The totals of every run that is known in this log, by incarnation."""
    return {
        _incarnation(entry): RunTotals(*_TOTALS.unpack_from(entry)[1:])
        for partition in list_partitions(log_dir)
        for entry in _entries(log_dir / partition / "runs")
    }


def incarnations_of(log_dir: Path, partition: str) -> list[str]:
    """The incarnations that are known to have written a partition, the oldest first."""
    return [_incarnation(entry) for entry in _entries(log_dir / partition / "runs")]


def _incarnation(entry: bytes) -> str:
    return str(uuid.UUID(bytes=entry[:16]))


def _entries(path: Path) -> list[bytes]:
    data = b""
    with contextlib.suppress(OSError):
        data = path.read_bytes()
    cut = (data[at : at + _SIZE] for at in range(0, len(data) - _SIZE + 1, _SIZE))
    return [one for one in cut if _CRC.unpack_from(one, _TOTALS.size)[0] == zlib.crc32(one[: _TOTALS.size])]
