"""Totals of each run of a tap worker, in a file reserved at its start: `<log>/w<N>/runs`. They survive kill -9 and a full disk.

The last `Alive` of a killed tap is seconds old. So the log thread writes the totals before and after each append, in place.
The totals before an append cover all records of the run that the log may contain. `streams_in_log` covers only streams that
it certainly contains. The difference is at most the last append.

The file has room for MAX_RUNS runs, which is written at its creation: later writes need no further space. Each entry has a
checksum, because a power cut can tear it.

Between two appends, and while appends fail, the number of opened streams is exact in memory that outlives the process, if the machine
has `/dev/shm` (`OpenedInMemory`): the event loop cannot wait for a disk, and mapped blocks of a disk that is full can end a process.

A run that ended may have opened streams without a record in the log: it was killed, or its disk was full. The next run of
the partition reports them: a `Lost` for each, under an id made from the run, then the ended run's last `Alive`. Each report is
an append of the ended run, with its totals, and the checksum of its first entry shows whether it is in the log. So each stream
is reported once, even if the tap is killed during the report.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import logging
import mmap
import os
import sqlite3
import struct
import sys
import uuid
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from streamgauge.ingest.private_files import write_private
from streamgauge.ingest.record_log.embedded_writer import EmbeddedWriter
from streamgauge.ingest.record_log.interface import LogBroken, LogFull
from streamgauge.ingest.record_log.segments import list_partitions, list_segments, open_segment
from streamgauge.ingest.records import Alive, Lost, pack

log = logging.getLogger(__name__)

MAX_RUNS = 64
CAUSES = ("tap_died", "log_error", "log_full", "missing")
"""`losses.cause` of the streams without a record, by `RunTotals.cause`."""
RUNNING, ENDED, REPORTED = range(3)
_LOST_PER_APPEND = 1000
_TAP_BYTES = 255
_IDENTITY = struct.Struct(f"<16sqq{_TAP_BYTES}s")
_TOTALS = struct.Struct("<13q")
_CRC = struct.Struct("<I")
_CRC_AT = _IDENTITY.size + _TOTALS.size
_SIZE = _CRC_AT + _CRC.size
MEMORY = Path("/dev/shm")  # noqa: S108 - checked for the owner
_OPENED = struct.Struct("=q16s")
"""Streams, incarnation."""


class RunTotals(NamedTuple):
    """Totals of one run since its start."""

    streams_opened: int = 0
    streams_in_log: int = 0
    """Streams whose first record, `Opened` or `Lost`, is in the log."""
    records: int = 0
    captured_bytes: int = 0
    """Body bytes in records."""
    lost_records: int = 0
    lost_bytes: int = 0
    wall_ns: int = 0
    mono_ns: int = 0
    """When the totals were read, by both clocks. 0: the run never appended."""
    cause: int = 0
    """Index in CAUSES: why appends failed last. 0: they did not."""
    state: int = RUNNING
    """ENDED: the run closed the log without its last records. REPORTED: the log has a record of every stream and the last
    `Alive`. A killed run stays RUNNING."""
    append_offset: int = 0
    """Lower bound of the offsets of the last append."""
    append_crc: int = 0
    """Checksum of its first entry."""
    append_streams: int = 0
    """`streams_in_log` after it."""

    @property
    def missing(self) -> int:
        """Opened streams without a record in the log."""
        return max(0, self.streams_opened - self.streams_in_log)


@dataclass(slots=True)
class Run:
    """A run of a tap worker: one entry of the file."""

    incarnation: str
    number: int
    """Counts the runs of a partition in the order of their starts."""
    started_wall_ns: int
    tap: str
    totals: RunTotals = field(default_factory=RunTotals)

    _identity: bytes = field(init=False)

    def __post_init__(self) -> None:
        incarnation, tap = uuid.UUID(self.incarnation).bytes, self.tap.encode()[:_TAP_BYTES]
        self._identity = _IDENTITY.pack(incarnation, self.number, self.started_wall_ns, tap)

    def packed(self) -> bytes:
        packed = self._identity + _TOTALS.pack(*self.totals)
        return packed + _CRC.pack(zlib.crc32(packed))


class OpenedInMemory:
    """The number of streams that a run has opened, in a file of `/dev/shm`: it survives kill -9 and needs no disk."""

    def __init__(self, folder: Path, incarnation: str) -> None:
        """`folder`: of the partition. Raises OSError if there is no such memory."""
        if not _has_memory():  # on a disk, a write to mapped memory could end the process
            raise OSError(errno.ENODEV, "not mounted", str(MEMORY))
        self._path = _memory_path(folder)
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            if os.fstat(descriptor).st_uid != os.geteuid():
                raise OSError(errno.EPERM, "of another user", str(self._path))
            if sys.platform == "linux":  # always: see `_has_memory`
                os.posix_fallocate(descriptor, 0, mmap.PAGESIZE)
            memory = mmap.mmap(descriptor, mmap.PAGESIZE)
        finally:
            os.close(descriptor)
        memory[: _OPENED.size] = _OPENED.pack(0, bytes(16))
        memory[: _OPENED.size] = _OPENED.pack(0, uuid.UUID(incarnation).bytes)
        self.count = memoryview(memory)[:8].cast("q")
        """Its only element is the number."""

    def remove(self) -> None:
        self._path.unlink(missing_ok=True)


def _has_memory() -> bool:
    return sys.platform == "linux" and os.path.ismount(MEMORY)


def _memory_path(folder: Path) -> Path:
    found = folder.stat()
    return MEMORY / f"streamgauge-{os.geteuid()}-{found.st_dev:x}-{found.st_ino:x}"


def _opened_in_memory(folder: Path) -> tuple[str, int] | None:
    """(incarnation, streams that it has opened) of the last run that was not closed."""
    try:
        path = _memory_path(folder)
        if path.stat().st_uid != os.geteuid():
            return None
        opened, incarnation = _OPENED.unpack_from(path.read_bytes())
    except (OSError, struct.error):
        return None
    return str(uuid.UUID(bytes=incarnation)), opened


class RunTotalsFile:
    """Totals of one run, and of the earlier runs of its partition. Not thread-safe: one owner."""

    def __init__(self, folder: Path, incarnation: str, *, tap: str = "", started_wall_ns: int = 0) -> None:
        """Raises OSError when the file cannot be written."""
        path = folder / "runs"
        slots = _slots(path)
        if len(slots) != MAX_RUNS:
            write_private(path, bytes(MAX_RUNS * _SIZE))
            slots = [None] * MAX_RUNS

        def worth(at: int) -> tuple[int, int]:
            run = slots[at]
            if run is None or run.incarnation == incarnation:
                return int(run is None), 0
            return 2 + (run.totals.state != REPORTED), run.number

        at = min(range(MAX_RUNS), key=worth)
        number = 1 + max(run.number if run is not None else 0 for run in slots)
        self.run = slots[at] = Run(incarnation, number, started_wall_ns, tap)
        self._slots = {run.incarnation: at for at, run in enumerate(slots) if run is not None}
        self.earlier = _in_order(run for run in slots if run is not self.run)
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        self.opened: OpenedInMemory | None = None
        self._is_written = False
        try:
            for run in self.earlier:  # the memory of the last one is this run's from now on
                if run.totals.state == RUNNING:
                    self.write(run.totals, run)
            self.write(RunTotals())
            os.fsync(self._descriptor)
            with contextlib.suppress(OSError):
                self.opened = OpenedInMemory(folder, incarnation)
        except BaseException:
            self.close()
            raise

    def write(self, totals: RunTotals, run: Run | None = None) -> None:
        """Replace the totals of this run, or of an earlier one. Raises OSError."""
        run = run or self.run
        run.totals = totals
        self._is_written = False
        # In place, into blocks that exist: this works on a full disk, where replacing a file would not. A torn entry is
        # detected by its checksum.
        os.pwrite(self._descriptor, run.packed(), self._slots[run.incarnation] * _SIZE)
        self._is_written = True

    def close(self) -> None:
        os.close(self._descriptor)
        # If the last totals could not be written, only the memory has the number of streams that this run has opened.
        if self.opened is not None and self._is_written:
            self.opened.remove()


class RunTotalsWriter:
    """A `LogWriter` that stores the totals of its run before and after each append, and reports what earlier runs lost."""

    def __init__(
        self, writer: EmbeddedWriter, file: RunTotalsFile, totals: Callable[[], RunTotals], folder: Path
    ) -> None:
        """`totals` is called before each append. Its `streams_in_log` already includes the streams of that append.

        `folder` is the partition's. Nothing may have been appended since it was opened.
        """
        self._writer, self._file, self._totals = writer, file, totals
        self._worker = int(folder.name[1:])
        self._warned = False
        self._unreported = [run for run in file.earlier if run.totals.state != REPORTED]
        for run in self._unreported:  # the first append of this run hides whether their last one succeeded
            self._save(_resolved(run.totals, folder), run)

    def append(self, payloads: Sequence[bytes]) -> None:
        """Append, see `LogWriter`. Then the log accepts entries, so the losses of earlier runs are reported."""
        totals, run = self._totals(), self._file.run
        # Both bounds are stored: `streams_opened` may already include streams of this append, `streams_in_log` not yet.
        # A kill at any point leaves a range of which the truth is part.
        before = totals._replace(streams_in_log=run.totals.streams_in_log, state=RUNNING)
        self._append(payloads, run, before, totals.streams_in_log)
        while self._unreported:
            try:
                self._report(self._unreported[0])
            except (OSError, LogBroken, LogFull) as error:
                if not self._warned:
                    log.warning("cannot report the losses of an earlier run, trying again: %s", error)
                    self._warned = True
                return
            except Exception:  # a bug: it must not stop the records of this run
                log.exception("cannot report the losses of an earlier run")
            del self._unreported[0]

    def close(self) -> None:
        """Store the last totals and close the log."""
        totals, last = self._totals(), self._file.run.totals
        totals = totals._replace(
            streams_in_log=last.streams_in_log,
            cause=totals.cause or CAUSES.index("missing"),
            append_offset=last.append_offset,
            append_crc=last.append_crc,
            append_streams=last.append_streams,
        )
        state = ENDED if totals.missing or totals.state != REPORTED else REPORTED
        self._save(totals._replace(state=state), self._file.run)
        self._file.close()
        self._writer.close()

    def _append(self, payloads: Sequence[bytes], run: Run, totals: RunTotals, in_log: int) -> None:
        """Append for a run. `totals`: before the append; `in_log`: its `streams_in_log` afterwards."""
        attempt = totals._replace(
            append_offset=self._writer.next_offset,
            append_crc=zlib.crc32(payloads[0]),
            append_streams=in_log,
        )
        self._save(attempt, run)
        self._writer.append(payloads)
        if attempt.streams_in_log != in_log:
            self._save(attempt._replace(streams_in_log=in_log), run)

    def _report(self, run: Run) -> None:
        """Report the streams of an ended run that have no record. Raises what `append` raises; the next call continues."""
        cause, at_wall_ns = CAUSES[run.totals.cause], run.totals.wall_ns
        while missing := run.totals.missing:
            first = run.totals.streams_in_log
            end = first + min(missing, _LOST_PER_APPEND)
            lost = [
                Lost(_stream_id(run, n), 0, 0, cause, at_wall_ns, 0, last=True) for n in range(first, end)
            ]
            self._append([pack(lost, compress=True)], run, run.totals, end)
            log.error(
                "%d streams of a run of the tap that has ended are lost (%s): their records are not in the log",
                len(lost),
                cause,
            )
        if at_wall_ns:
            payload = pack([_last_alive(run, self._worker)], compress=False)
            self._append([payload], run, run.totals, run.totals.streams_in_log)
        self._save(run.totals._replace(state=REPORTED), run)

    def _save(self, totals: RunTotals, run: Run) -> None:
        with contextlib.suppress(OSError):  # the append reports a failing disk
            self._file.write(totals, run)


def _resolved(totals: RunTotals, folder: Path) -> RunTotals:
    """The totals of a run that has ended, with its last append if that is in the log. `folder`: the run's is the newest segment."""
    if totals.append_streams == totals.streams_in_log:
        return totals
    for segment in list_segments(folder)[-1:]:
        try:
            with contextlib.closing(open_segment(segment.path)) as connection:
                query = "SELECT 1 FROM entry WHERE offset >= ? AND crc = ?"
                found = connection.execute(query, (totals.append_offset, totals.append_crc)).fetchone()
        except (OSError, sqlite3.Error):
            found = True  # unknown: a stream must not be both stored and lost
        if found:
            return totals._replace(streams_in_log=totals.append_streams)
    return totals


def _stream_id(run: Run, number: int) -> str:
    """The id of a stream whose own id is unknown: a UUIDv7 at the end of the run, always the same for one number."""
    time_digits = f"{run.totals.wall_ns // 1_000_000 & 0xFFFFFFFFFFFF:012x}"
    tail = hashlib.sha256(f"{run.incarnation} {number}".encode()).hexdigest()
    return f"{time_digits[:8]}-{time_digits[8:]}-7{tail[:3]}-8{tail[3:6]}-{tail[6:18]}"


def _last_alive(run: Run, worker: int) -> Alive:
    totals = run.totals
    names = ("streams_opened", "records", "captured_bytes", "lost_records", "lost_bytes")
    counters = {name: int(getattr(totals, name)) for name in names}
    return Alive(
        run.tap, worker, run.incarnation, totals.wall_ns, totals.mono_ns, run.started_wall_ns, True, counters
    )


def resolve_ended_runs(folder: Path) -> None:
    """Store which last appends of ended runs are in the log. Until then their entries must not change. Requires the partition's lock."""
    path = folder / "runs"
    with contextlib.suppress(FileNotFoundError), path.open("r+b") as file:
        for at, run in enumerate(_slots(path)):
            if run is not None and run.totals.state != REPORTED:
                run.totals = _resolved(run.totals, folder)
                os.pwrite(file.fileno(), run.packed(), at * _SIZE)


def read_run_totals(log_dir: Path) -> dict[str, RunTotals]:
    """Totals of all known runs in this log, by incarnation."""
    return {run.incarnation: run.totals for runs in _runs(log_dir) for run in runs}


def unreported_streams(log_dir: Path) -> int:
    """Streams that ended runs have lost and no later run has reported yet."""
    return sum(
        run.totals.missing
        for runs in _runs(log_dir)
        for run in runs
        if run.totals.state == ENDED or (run.totals.state == RUNNING and run is not runs[-1])
    )


def has_unreported_run(folder: Path) -> bool:
    """Whether a run of this partition is not known to have reported all its streams."""
    return any(run is not None and run.totals.state != REPORTED for run in _slots(folder / "runs"))


def incarnations_of(log_dir: Path, partition: str) -> list[str]:
    """Known incarnations that wrote a partition, oldest first."""
    return [run.incarnation for run in _in_order(_slots(log_dir / partition / "runs"))]


def _runs(log_dir: Path) -> list[list[Run]]:
    """The runs of each partition, oldest first."""
    return [_in_order(_slots(log_dir / partition / "runs")) for partition in list_partitions(log_dir)]


def _in_order(slots: Iterable[Run | None]) -> list[Run]:
    return sorted((run for run in slots if run is not None), key=lambda run: run.number)


def _slots(path: Path) -> list[Run | None]:
    """The entries of a file. None: unused or torn."""
    data = b""
    with contextlib.suppress(OSError):
        data = path.read_bytes()
    slots = [_unpacked(data[at : at + _SIZE]) for at in range(0, len(data) - _SIZE + 1, _SIZE)]
    incarnation, opened = _opened_in_memory(path.parent) or ("", 0)
    for run in slots:
        if run is not None and run.incarnation == incarnation and run.totals.state == RUNNING:
            run.totals = run.totals._replace(
                streams_opened=max(opened, run.totals.streams_opened),
                wall_ns=run.totals.wall_ns or run.started_wall_ns,
            )
    return slots


def _unpacked(entry: bytes) -> Run | None:
    if _CRC.unpack_from(entry, _CRC_AT)[0] != zlib.crc32(entry[:_CRC_AT]):
        return None
    incarnation, number, started_wall_ns, tap = _IDENTITY.unpack_from(entry)
    totals = RunTotals(*_TOTALS.unpack_from(entry, _IDENTITY.size))
    name = tap.rstrip(b"\0").decode(errors="ignore")
    return Run(str(uuid.UUID(bytes=incarnation)), number, started_wall_ns, name, totals)
