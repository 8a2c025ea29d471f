"""Totals of each run of a tap worker, stored so that they survive kill -9: `<log>/w<N>/runs`.

The last `Alive` of a killed tap is seconds old. So the log thread writes the totals before and after each append, in place.
The totals before an append cover all records of the run that the log may contain. `streams_in_log` covers only streams that
it certainly contains. The difference is at most the last append.

The file holds the newest MAX_RUNS runs, oldest first. Each entry has a checksum, because a power cut can tear it.
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
    """Streams whose `Opened` is in the log."""
    records: int = 0
    captured_bytes: int = 0
    """Body bytes in records."""
    lost_records: int = 0
    lost_bytes: int = 0


class RunTotalsFile:
    """Totals of one run. Not thread-safe: one owner."""

    def __init__(self, folder: Path, incarnation: str) -> None:
        """Raises OSError when the file cannot be written."""
        self._run = uuid.UUID(incarnation).bytes
        path = folder / "runs"
        kept = [entry for entry in _entries(path) if _incarnation(entry) != incarnation][-(MAX_RUNS - 1) :]
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
    """A `LogWriter` that stores the totals of its run before and after each append."""

    def __init__(self, writer: LogWriter, file: RunTotalsFile, totals: Callable[[], RunTotals]) -> None:
        """`totals` is called before each append. Its `streams_in_log` already includes the streams of that append."""
        self._writer, self._file, self._totals = writer, file, totals
        self._in_log = 0

    def append(self, payloads: Sequence[bytes]) -> None:
        """Append, see `LogWriter`."""
        totals = self._totals()
        self._save(replace(totals, streams_in_log=self._in_log))
        self._writer.append(payloads)
        self._in_log = totals.streams_in_log
        self._save(totals)

    def close(self) -> None:
        self._file.close()
        self._writer.close()

    def _save(self, totals: RunTotals) -> None:
        with contextlib.suppress(OSError):  # the append reports a failing disk
            self._file.write(totals)


def read_run_totals(log_dir: Path) -> dict[str, RunTotals]:
    """Totals of all known runs in this log, by incarnation."""
    return {
        _incarnation(entry): RunTotals(*_TOTALS.unpack_from(entry)[1:])
        for partition in list_partitions(log_dir)
        for entry in _entries(log_dir / partition / "runs")
    }


def incarnations_of(log_dir: Path, partition: str) -> list[str]:
    """Known incarnations that wrote a partition, oldest first."""
    return [_incarnation(entry) for entry in _entries(log_dir / partition / "runs")]


def _incarnation(entry: bytes) -> str:
    return str(uuid.UUID(bytes=entry[:16]))


def _entries(path: Path) -> list[bytes]:
    data = b""
    with contextlib.suppress(OSError):
        data = path.read_bytes()
    parts = (data[at : at + _SIZE] for at in range(0, len(data) - _SIZE + 1, _SIZE))
    return [e for e in parts if _CRC.unpack_from(e, _TOTALS.size)[0] == zlib.crc32(e[: _TOTALS.size])]
