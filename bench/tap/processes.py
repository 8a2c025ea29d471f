"""CPU time, memory and core affinity of processes, including all their threads and descendants.

CPU time includes threads and child processes that have ended. Memory is the proportional set size (PSS): pages shared with a
child count once.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable
from pathlib import Path

_PER_PROCESS_CLOCK = 2
"""Low bits of the kernel's clock id for a process's CPU time (CPUCLOCK_SCHED)."""


def family(pids: Iterable[int]) -> list[int]:
    """These processes and their current descendants."""
    found: dict[int, None] = {}
    pending = list(pids)
    while pending:
        pid = pending.pop()
        if pid not in found and Path(f"/proc/{pid}").exists():
            found[pid] = None
            pending += children(pid)
    return list(found)


def children(pid: int) -> list[int]:
    """The child processes of all threads of a process."""
    found: list[int] = []
    for task in _tasks(pid):
        with contextlib.suppress(OSError):
            found += map(int, Path(f"/proc/{pid}/task/{task}/children").read_text().split())
    return found


def cpu_s(pids: Iterable[int]) -> float:
    """CPU seconds used so far by all threads and descendants, including ended ones."""
    used_s = 0.0
    for pid in family(pids):
        with contextlib.suppress(OSError):  # the process has just ended
            used_s += time.clock_gettime(~pid << 3 | _PER_PROCESS_CLOCK)
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            used_s += (int(fields[13]) + int(fields[14])) / os.sysconf("SC_CLK_TCK")  # of ended children
    return used_s


def memory_bytes(pids: Iterable[int]) -> int:
    """Resident memory; shared pages are divided among their users."""
    kib = 0
    for pid in family(pids):
        with contextlib.suppress(OSError):
            text = Path(f"/proc/{pid}/smaps_rollup").read_text()
            kib += next(int(line.split()[1]) for line in text.splitlines() if line.startswith("Pss:"))
    return kib * 1024


def check_pinned(pids: Iterable[int], cores: set[int]) -> None:
    """Raise RuntimeError if a thread of these processes or their descendants may run on another core."""
    for pid in family(pids):
        for task in _tasks(pid):
            with contextlib.suppress(OSError):
                if not (allowed := os.sched_getaffinity(task)) <= cores:
                    name = Path(f"/proc/{pid}/task/{task}/comm").read_text().strip()
                    raise RuntimeError(
                        f"{name} ({task} of {pid}) may run on {sorted(allowed)}, not only {sorted(cores)}"
                    )


def busy_s(cores: Iterable[int]) -> dict[int, float]:
    """Seconds that each core was not idle, including kernel work and time stolen by the host."""
    core_of = {f"cpu{core}": core for core in cores}
    found: dict[int, float] = {}
    for line in Path("/proc/stat").read_text().splitlines():
        name, *ticks = line.split()
        if name in core_of:
            user, nice, system, _, _, irq, softirq, steal = map(int, ticks[:8])
            used = user + nice + system + irq + softirq + steal
            found[core_of[name]] = used / os.sysconf("SC_CLK_TCK")
    return found


def _tasks(pid: int) -> list[int]:
    with contextlib.suppress(OSError):
        return [int(task.name) for task in Path(f"/proc/{pid}/task").iterdir()]
    return []
