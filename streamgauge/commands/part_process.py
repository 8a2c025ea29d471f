"""One part of `up`: its process, and whether that makes progress, by its reports and by its use of the CPU and the disk."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from streamgauge.ingest.listening import SOCKETS_VARIABLE
from streamgauge.ingest.processes import cpu_s, cpu_wait_s, group_members, waits_for_disk
from streamgauge.ingest.ready_file import PROGRESS_VARIABLE
from streamgauge.ingest.system_files import file_in_memory
from streamgauge.process_logging import VARIABLE, LastError

MAX_INTERVAL_S = 2.0
WINDOW_S = 5.0
BUSY_SHARE = 0.02
"""A process that uses less of a CPU over `WINDOW_S` is idle: the other threads of a hung process use about 0.5 %."""
LONGEST_WORK_S = 3600.0


class PartProgress:
    """Whether one process makes progress.

    - A part that is ready reports progress every second in a file in memory (`streamgauge.ingest.ready_file`), also while the data
      folder cannot be written.
    - A part that is starting has not reported yet. It makes progress while a process of its group uses the CPU, or waits for it or for
      the disk: the tap starts its workers one after the other.
    - Analytics reports between commits. During a long commit, the second rule applies to it as well, for at most
      `LONGEST_WORK_S`.

    Silence is measured in observed time: a pause of `up` or of the machine adds at most one interval.
    """

    def __init__(self, pid: int, descriptor: int, *, works_silently: bool) -> None:
        """`descriptor`: of the file in memory. `works_silently`: CPU use counts as progress although the part is ready."""
        self.silent_s = 0.0
        """Observed seconds without progress."""
        self.ready = False
        """Whether the process has reported progress. Stays True."""
        self._pid, self._descriptor, self._works_silently = pid, descriptor, works_silently
        self._reported_ns = self._last_report_ns()
        self._since_heartbeat_s = self._window_s = self._cpu_s = self._cpu_wait_s = 0.0

    def observe(self, elapsed_s: float) -> None:
        """Update after `elapsed_s`, which is about a second."""
        # After a suspend of the machine the parts had no time to work either, so that the pause is no silence of theirs.
        elapsed_s = min(elapsed_s, MAX_INTERVAL_S)
        reported_ns = self._last_report_ns()
        if reported_ns != self._reported_ns:
            self._reported_ns, self.ready = reported_ns, True
            self._since_heartbeat_s = self.silent_s = 0.0
            self._start_window()
            return
        self._since_heartbeat_s += elapsed_s
        may_work = not self.ready or (self._works_silently and self._since_heartbeat_s < LONGEST_WORK_S)
        self.silent_s = 0.0 if may_work and self._works(elapsed_s) else self.silent_s + elapsed_s

    def _last_report_ns(self) -> int:
        return os.fstat(self._descriptor).st_mtime_ns

    def _works(self, elapsed_s: float) -> bool:
        """Whether a process waits for the disk, or used the CPU in the window that ends now."""
        self._window_s += elapsed_s
        pids = self._pids()
        if self._window_s < WINDOW_S:
            return any(map(waits_for_disk, pids))
        # A process that waits for a CPU does not hang: the share is that of the rest of the time.
        waited_s = sum(map(cpu_wait_s, pids)) - self._cpu_wait_s
        worked = sum(map(cpu_s, pids)) - self._cpu_s >= BUSY_SHARE * (self._window_s - waited_s)
        self._start_window()
        return worked or any(map(waits_for_disk, pids))

    def _start_window(self) -> None:
        self._window_s = 0.0
        pids = self._pids()
        self._cpu_s, self._cpu_wait_s = sum(map(cpu_s, pids)), sum(map(cpu_wait_s, pids))

    def _pids(self) -> list[int]:
        # The children of a part that is ready do not count: a worker that spins must not hide that its parent hangs.
        return [self._pid] if self.ready else [self._pid, *group_members(self._pid)]


BACKOFF_FIRST_S = 0.5
STOP_GRACE_S = 15.0
"""Time limit for a part to stop. The tap's drain time is added."""


@dataclass
class Part:
    """One process of `up`."""

    name: str
    argv: list[str]
    environment: dict[str, str]
    grace_s: float = STOP_GRACE_S
    after: str | None = None
    """Name of the part that this one waits for, until it is ready or cannot start."""
    works_silently: bool = False
    """See `PartProgress`."""
    process: subprocess.Popen[bytes] | None = None
    is_ready: bool = False
    """The running process has been ready."""
    failure: str | None = None
    """Why the last process ended or could not start, until the next one is ready."""
    restarts: int = 0
    started_s: float = 0.0
    restart_at_s: float | None = None
    backoff_s: float = BACKOFF_FIRST_S
    progress: PartProgress | None = None
    silent_since: str | None = None
    """ISO time since which the part makes no progress, if that was reported."""
    last_error: LastError | None = None
    progress_descriptor: int | None = None
    bind_sockets: Callable[[], list[socket.socket]] = list
    """Bind the sockets that all processes of the part use. Raises OSError."""
    sockets: list[socket.socket] = field(default_factory=list)

    def start(self) -> None:
        """Raises OSError, for example if the system has too many processes."""
        if not self.sockets:
            self.sockets = self.bind_sockets()
        # One file for all processes of the part: the reason of the last one must survive until `up` has read it.
        if self.last_error is None:
            self.last_error = LastError(self.name)
        self.last_error.clear()
        descriptors = {VARIABLE: self.last_error.descriptor, PROGRESS_VARIABLE: self._new_progress_file()}
        passed = [sock.fileno() for sock in self.sockets]
        variables = {**self.environment, **{name: str(fd) for name, fd in descriptors.items()}}
        if passed:
            variables[SOCKETS_VARIABLE] = " ".join(map(str, passed))
        # Own process group: Ctrl-C in the terminal signals only `up`, which stops the parts in order.
        self.process = subprocess.Popen(
            self.argv, env=variables, pass_fds=(*descriptors.values(), *passed), stdin=subprocess.DEVNULL, process_group=0,
        )  # fmt: skip
        self.is_ready, self.silent_since, self.restart_at_s = False, None, None
        self.started_s = time.monotonic()
        self.progress = PartProgress(
            self.process.pid, descriptors[PROGRESS_VARIABLE], works_silently=self.works_silently
        )

    def close_sockets(self) -> None:
        """Connections are refused as soon as no process has the sockets."""
        for sock in self.sockets:
            sock.close()
        self.sockets.clear()  # a successor has the same list

    def successor(self) -> Part:
        """A part that has not started, with the same settings and sockets."""
        return Part(
            self.name, self.argv, self.environment, grace_s=self.grace_s, bind_sockets=self.bind_sockets,
            sockets=self.sockets, restarts=self.restarts,
        )  # fmt: skip

    def _new_progress_file(self) -> int:
        """One for each process: the former one may still run, waiting for the disk."""
        if self.progress_descriptor is not None:
            os.close(self.progress_descriptor)
            self.progress_descriptor = None
        self.progress_descriptor = file_in_memory(f"streamgauge-{self.name}-progress")
        return self.progress_descriptor

    @property
    def pid(self) -> int | None:
        """None while no process runs."""
        return self.process.pid if self.process and self.process.returncode is None else None

    @property
    def settled(self) -> bool:
        """The start of the other parts need not wait for this one."""
        # The tap never settles by a failure: `up` without a tap must not report that it is ready.
        return self.is_ready or (self.failure is not None and self.name != "tap")

    def why_it_ended(self, code: int) -> str:
        if code < 0:
            return f"signal {next((s.name for s in signal.Signals if s == -code), -code)}"
        return (self.last_error.read() if self.last_error else "") or f"exit code {code}"
