"""The recording of one source of exchanges: its recorders, their buffer, the log thread, and its partition of the record log.

The source calls `recorders` as `streamgauge.ingest.facts` describes, between `start` and `close`. What `wall_ns` and `clock_ns` return is
in ns. An `Alive` record is written every `alive_s`, and a last one at the end.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from streamgauge.ingest.guards import Guards
from streamgauge.ingest.metrics import Report
from streamgauge.ingest.record_log import run_totals
from streamgauge.ingest.record_log.embedded_writer import EmbeddedWriter
from streamgauge.ingest.record_log.interface import LogInUse, LogWriter
from streamgauge.ingest.recording.counters import NAMES, Counters
from streamgauge.ingest.recording.failures import RecordingFailures
from streamgauge.ingest.recording.log_thread import LogThread
from streamgauge.ingest.recording.options import RecordingOptions
from streamgauge.ingest.recording.record_buffer import RecordBuffer
from streamgauge.ingest.recording.recorder import Recorders
from streamgauge.ingest.records import Alive

_ALIVE_BYTES = 1024  # room reserved for one Alive record
_ALIVE_LATE_S = 5.0
_WRITER_COUNTERS = (
    "dropped_segments", "dropped_records", "dropped_bytes", "trimmed_segments", "corrupt_segments",
    "refused_entries", "failed_entries",
)  # fmt: skip
_CHECK_S = 0.005

Stats = dict[str, int]


class Recording:
    """One source's. Create it inside the event loop of the source."""

    def __init__(
        self,
        options: RecordingOptions,
        *,
        client_key: bytes,
        open_log: Callable[[], LogWriter] | None = None,
        wrap_log: Callable[[LogWriter], LogWriter] = lambda writer: writer,
        clock_ns: Callable[[], int] = time.monotonic_ns,
        wall_ns: Callable[[int], int] | None = None,
        more_stats: Callable[[], Mapping[str, int]] = dict,
        waiting_for_client: Callable[[], Sequence[str]] = list,
    ) -> None:
        """`open_log`: instead of the embedded log. `wrap_log`: makes the writer from that of the log. `clock_ns`: monotonic. `wall_ns`: the
        Unix time of a time of the exchanges, if `clock_ns` is not their clock. `more_stats`: the source's own. `waiting_for_client`: ids
        of streams."""
        self.options = options
        self.guards = Guards()
        self.counters = Counters()
        self.failures = RecordingFailures(self.counters, self.guards)
        self.incarnation = str(uuid.uuid4())
        self.recorders: Recorders | None = None
        self.buffer: RecordBuffer | None = None
        """None before `start`, and if it has failed."""
        self._client_key = client_key
        self._open_log = open_log or self._open_embedded
        self._wrap_log = wrap_log
        self._wall_ns = wall_ns or (lambda at_ns: time.time_ns() - clock_ns() + at_ns)
        self._more_stats, self._waiting_for_client = more_stats, waiting_for_client
        self._started_wall_ns = time.time_ns()
        self._log: LogThread | None = None
        self._writer_stats: Callable[[], Mapping[str, int]] = dict
        self._wrote_last_alive = self._stopping = False

    # --- the log

    def _open_partition(self) -> EmbeddedWriter:
        """Open the partition of this source. If another one uses it, this source takes a spare number."""
        options, log_dir = self.options, self.options.data / "log"
        numbers = [options.worker + offset for offset in (0, *options.spare_offsets)]
        # A run that has ended in one of them may have losses to report.
        numbers.sort(key=lambda number: not run_totals.has_unreported_run(log_dir / f"w{number}"))
        for number in numbers:
            try:
                writer = EmbeddedWriter(
                    log_dir,
                    f"w{number}",
                    cap_bytes=options.record_log_max_bytes,
                    max_age_s=options.record_log_max_age_s,
                )
            except LogInUse as e:
                error = e
            else:
                self.options = replace(options, worker=number, spare_offsets=())
                return writer
        raise LogInUse(
            f"{error}: another tap uses this data folder. Stop it, or choose another folder with --data."
        )

    def _open_embedded(self) -> LogWriter:
        writer, options = self._open_partition(), self.options
        with contextlib.ExitStack() as opened:  # LogThread opens the log again after any exception
            opened.callback(writer.close)
            folder = options.data / "log" / f"w{options.worker}"
            runs = run_totals.RunTotalsFile(
                folder, self.incarnation, tap=options.tap_name, started_wall_ns=self._started_wall_ns
            )
            opened.callback(runs.close)
            if runs.opened is not None:
                self._count_in(runs.opened.count)
            log = run_totals.RunTotalsWriter(writer, runs, self._run_totals, folder)
            opened.pop_all()
        self._writer_stats = writer.stats
        return self._wrap_log(log)

    def _count_in(self, memory: memoryview) -> None:
        """On the log thread: the event loop may count a stream at any moment."""
        self.counters.survives = memory
        while memory[0] != self.counters.streams_opened:
            memory[0] = self.counters.streams_opened

    def _run_totals(self) -> run_totals.RunTotals:
        counters, log = self.counters, self._log
        assert log is not None
        is_reported = self._wrote_last_alive and not log.unappended_records
        return run_totals.RunTotals(
            streams_opened=counters.streams_opened,
            streams_in_log=log.packed_streams,
            records=counters.records,
            captured_bytes=counters.captured_bytes,
            lost_records=counters.lost_records,
            lost_bytes=counters.lost_bytes,
            wall_ns=time.time_ns(),
            mono_ns=time.monotonic_ns(),
            cause=run_totals.CAUSES.index(log.failing) if log.failing else 0,
            state=run_totals.REPORTED if is_reported else run_totals.RUNNING,
        )

    # --- start and end

    def start(self) -> bool:
        """Open the log. True: exchanges that begin from now on are recorded; False: a fault, which is counted. Raises LogInUse."""
        self._log = LogThread(self._open_log, self.guards)
        self.guards.check("record log", self._fault)
        self._log.start()
        return self.guards.guard("start of recording").attempt(self._start, self._log)

    def _start(self, log: LogThread) -> None:
        buffer = RecordBuffer(log, self.failures, queue_bytes=self.options.queue_bytes)
        recorders = Recorders(
            buffer,
            self.options,
            incarnation=self.incarnation,
            client_key=self._client_key,
            wall_ns=self._wall_ns,
        )
        self.buffer = buffer
        self._write_alive_periodically()
        self.recorders = recorders

    def flush(self, most_bytes: int) -> None:
        """Hand the records over to the log, and wait until at most this much is queued. Blocks. Raises OSError if the log cannot be
        written."""
        buffer = self.buffer
        assert buffer is not None
        buffer.flush_all()
        while buffer.queued_bytes > most_bytes:
            if buffer.sink.failing:
                raise OSError(f"cannot write to {self.options.data / 'log'}: {buffer.sink.failing_reason}.")
            time.sleep(_CHECK_S)

    def end_alive(self) -> None:
        """The source stops: write no further `Alive`, except the last one."""
        self._stopping = True

    def close(self) -> None:
        """Write the last records and close the log. Each step is made, whatever the others raise."""
        self._stopping = True
        if self.buffer is None or self._log is None:
            return
        attempt = self.guards.guard("stop").attempt
        attempt(self.buffer.flush_all)
        attempt(self._write_alive, True)
        attempt(self.buffer.flush_all)
        attempt(self._log.stop, self.options.log_stop_timeout_s)

    # --- counters

    def report(self) -> Report:
        """What the admin port shows."""
        return Report(self.stats(), self.guards.faults(), self.guards.failures())

    def stats(self) -> Stats:
        """Values for /metrics and /ledger: totals, and gauges (`*_now`, `*_max_ns`)."""
        counters, log = self.counters, self._log
        stats: Stats = {name: value for name in NAMES if isinstance(value := getattr(counters, name), int)}
        stats.update({f"closed_{cause}": n for cause, n in counters.closed_by_cause.items()})
        stats["faults_now"] = len(self.guards.faults())
        stats.update(self._more_stats())
        if log is not None and self.buffer is not None:
            stats["queue_bytes_now"] = self.buffer.queued_bytes
            stats["log_append_errors"] = log.append_errors
            stats["log_entries"] = log.appended_entries
            stats["log_bytes"] = log.appended_bytes
            stats["log_failing_now"] = int(log.failing is not None)
            writer_stats = self._writer_stats()
            stats["log_size_bytes_now"] = writer_stats.get("log_bytes", 0)
            stats.update({f"log_{name}": writer_stats.get(name, 0) for name in _WRITER_COUNTERS})
        return stats

    def _fault(self) -> str | None:
        log = self._log
        if log is None or log.failing is None:
            return None
        path = self.options.data / "log"
        return f"cannot append to {path}: {log.failing_reason}. Streams are lost when the memory for waiting records is full"

    def _write_alive_periodically(self) -> None:
        alive_s = self.options.alive_s
        guard = self.guards.guard("alive records", silent_after_s=2 * alive_s + _ALIVE_LATE_S)
        if self._stopping:
            guard.end()
            return
        asyncio.get_running_loop().call_later(alive_s, self._write_alive_periodically)
        guard.attempt(self._write_alive)

    def _write_alive(self, stopping: bool = False) -> None:
        buffer, options = self.buffer, self.options
        if buffer is None:
            return
        alive = Alive(
            tap=options.tap_name,
            tap_worker=options.worker,
            incarnation=self.incarnation,
            wall_ns=time.time_ns(),
            mono_ns=time.monotonic_ns(),
            started_wall_ns=self._started_wall_ns,
            stopping=stopping,
            counters=self.stats(),
            waiting_for_client=list(self._waiting_for_client()),
        )
        is_queued = buffer.has_room(_ALIVE_BYTES, True) and buffer.append(alive) > 0
        self._wrote_last_alive = stopping and is_queued
