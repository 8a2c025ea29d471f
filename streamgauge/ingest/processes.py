"""Information of the system about processes: on Linux from `/proc` and prctl, elsewhere from `ps`. A process that has ended has none."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PR_SET_PDEATHSIG = 1
_PARENT_CHECK_S = 1.0
_PS_TIMEOUT_S = 5.0


def cpus() -> int:
    """CPUs that this process may use."""
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    else:
        return os.cpu_count() or 1


def age_s(pid: int) -> float | None:
    """Age of a process, with a precision of one second; None if it has ended."""
    if sys.platform == "linux":
        fields = _stat(Path(f"/proc/{pid}"))
        return time.clock_gettime(time.CLOCK_BOOTTIME) - int(fields[19]) / _TICKS_PER_S if fields else None
    else:
        return next((_seconds(row[0]) for row in _ps("etime", pid)), None)


def cpu_s(pid: int) -> float:
    """CPU seconds of a process, on Linux also of its children that have ended; 0 if it has ended itself."""
    if sys.platform == "linux":
        return sum(map(int, _stat(Path(f"/proc/{pid}"))[11:15])) / _TICKS_PER_S
    else:
        return sum(_seconds(row[0]) for row in _ps("time", pid))


def cpu_wait_s(pid: int) -> float:
    """Seconds in which the main thread of a process was ready to run and waited for a CPU; 0 if unknown, as on other systems."""
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9
    except (OSError, IndexError):
        return 0.0


def group_members(group: int) -> list[int]:
    """The other processes of a process group."""
    if sys.platform == "linux":
        pids = (int(entry) for entry in os.listdir("/proc") if entry.isdecimal())
        groups = {pid: _stat(Path(f"/proc/{pid}"))[2:3] for pid in pids if pid != group}
    else:
        groups = {int(pid): of for pid, *of in _ps("pid,pgid") if int(pid) != group}
    return [pid for pid, found in groups.items() if found == [str(group)]]


def waits_for_disk(pid: int) -> bool:
    """Whether a thread of the process is in uninterruptible sleep; without `/proc`, whether the process is."""
    try:
        threads = list(Path(f"/proc/{pid}/task").iterdir())
    except OSError:
        # Without `/proc`, or the process has ended. macOS calls the state U.
        return sys.platform != "linux" and any(row[0].startswith(("D", "U")) for row in _ps("state", pid))
    return any(fields[0] == "D" for thread in threads if (fields := _stat(thread)))


def lower_priority(niceness: int) -> None:
    """Give this process a lower priority. On Linux each thread has its own."""
    threads = os.listdir("/proc/self/task") if sys.platform == "linux" else ("0",)
    for thread in threads:
        with contextlib.suppress(OSError):  # it ended
            os.setpriority(os.PRIO_PROCESS, int(thread), niceness)


def address_space_bytes() -> int:
    """Virtual memory of this process; 0 where the system does not report it."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGESIZE")
    except OSError:
        return 0


def signal_at_end_of_parent(number: int) -> bool:
    """Let the kernel send this signal to the calling process when the thread that started it ends. False: the system cannot."""
    return sys.platform == "linux" and not ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)


def end_with_parent(parent: int) -> None:
    """Send SIGTERM to this process when its parent ends, even if that is killed."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_PARENT_CHECK_S)
        os.kill(os.getpid(), signal.SIGTERM)

    if not signal_at_end_of_parent(signal.SIGTERM):
        threading.Thread(target=watch, name="parent-watch", daemon=True).start()
    elif os.getppid() != parent:  # The parent ended before prctl, so the kernel will not send the signal.
        signal.raise_signal(signal.SIGTERM)


def _stat(folder: Path) -> list[str]:
    """The fields of `/proc/…/stat` after the name, from the state on; empty if the process or thread has ended."""
    try:
        return (folder / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def _ps(columns: str, pid: int | None = None) -> list[list[str]]:
    """The columns of one process, or of all."""
    chosen = ("-A",) if pid is None else ("-p", str(pid))
    command = ["/bin/ps", *chosen, *(word for column in columns.split(",") for word in ("-o", f"{column}="))]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_PS_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return [line.split() for line in done.stdout.splitlines() if line.strip()]


def _seconds(time_text: str) -> float:
    """Of `[[DAYS-]HOURS:]MINUTES:SECONDS`."""
    days, _, clock = time_text.rpartition("-")
    found = 0.0
    for part in clock.split(":"):
        found = found * 60 + float(part)
    return float(days or 0) * 86_400 + found
