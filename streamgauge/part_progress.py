"""Whether a part of `up` makes progress.

- A part that is ready touches its ready file every second (`streamgauge.ingest.ready_file`).
- A part that is starting has no ready file. It makes progress while a process of its group uses the CPU or waits for
  the disk: the tap starts its workers one after the other.
- A part whose file another process replaced, or removed, is not judged.
- Analytics touches its file between commits. During a long commit, the second rule applies to it as well, for at most
  `LONGEST_WORK_S`.

Silence is measured in observed time: a pause of `up` or of the machine adds at most one interval.
"""

from __future__ import annotations

import os
from pathlib import Path

from streamgauge.ingest.ready_file import TICKS_PER_S, heartbeat_ns, process_stat, read_ready_file

MAX_INTERVAL_S = 2.0
WINDOW_S = 5.0
BUSY_SHARE = 0.02
"""A process that uses less of a CPU over `WINDOW_S` is idle: the other threads of a hung process use about 0.5 %."""
LONGEST_WORK_S = 3600.0


class PartProgress:
    """Observes one process."""

    def __init__(self, pid: int, ready_file: Path, *, works_silently: bool) -> None:
        """`works_silently`: CPU use counts as progress although the part is ready."""
        self.silent_s = 0.0
        """Observed seconds without progress."""
        self.ready = False
        """Whether the process has been ready. Stays True."""
        self._pid, self._ready_file, self._works_silently = pid, ready_file, works_silently
        self._heartbeat_ns: int | None = None
        self._since_heartbeat_s = 0.0
        self._start_window()

    def observe(self, elapsed_s: float) -> None:
        """Update after `elapsed_s`, which is about a second."""
        elapsed_s = min(elapsed_s, MAX_INTERVAL_S)
        content = read_ready_file(self._ready_file)
        has_file = content is not None and content["pid"] == self._pid
        self.ready = self.ready or has_file
        beat_ns = heartbeat_ns(self._ready_file) if has_file else None
        if beat_ns != self._heartbeat_ns or (self.ready and not has_file):
            self._heartbeat_ns = beat_ns
            self._since_heartbeat_s = self.silent_s = 0.0
            self._start_window()
            return
        self._since_heartbeat_s += elapsed_s
        if self._may_work() and self._works(elapsed_s):
            self.silent_s = 0.0
        else:
            self.silent_s += elapsed_s

    def _may_work(self) -> bool:
        return not self.ready or (self._works_silently and self._since_heartbeat_s < LONGEST_WORK_S)

    def _works(self, elapsed_s: float) -> bool:
        """Whether a process waits for the disk, or used the CPU in the window that ends now."""
        self._window_s += elapsed_s
        pids = self._pids()
        if self._window_s < WINDOW_S:
            return any(map(waits_for_disk, pids))
        worked = sum(map(cpu_s, pids)) - self._cpu_s >= BUSY_SHARE * self._window_s
        self._start_window()
        return worked or any(map(waits_for_disk, pids))

    def _start_window(self) -> None:
        self._window_s = 0.0
        self._cpu_s = sum(map(cpu_s, self._pids()))

    def _pids(self) -> list[int]:
        return [self._pid] if self.ready else [self._pid, *members(self._pid)]


def members(group: int) -> list[int]:
    """The other processes of a process group. `up` starts each part as the leader of one."""
    pids = [int(entry) for entry in os.listdir("/proc") if entry.isdecimal() and int(entry) != group]
    return [pid for pid in pids if process_stat(Path(f"/proc/{pid}"))[2:3] == [str(group)]]


def cpu_s(pid: int) -> float:
    """CPU seconds of a process and of its children that have ended; 0 if it has ended itself."""
    return sum(map(int, process_stat(Path(f"/proc/{pid}"))[11:15])) / TICKS_PER_S


def waits_for_disk(pid: int) -> bool:
    """Whether a thread of the process is in uninterruptible sleep."""
    try:
        threads = list(Path(f"/proc/{pid}/task").iterdir())
    except OSError:
        return False
    return any(fields[0] == "D" for thread in threads if (fields := process_stat(thread)))
