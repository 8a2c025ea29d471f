"""What a target's processes use and where they run: each process that was named, all its threads, all its descendants.

CPU time counts threads and child processes that have ended meanwhile, too. Memory is the proportional share (PSS): what a
process has in common with its child counts once.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable
from pathlib import Path

_PER_PROCESS_CLOCK = 2
"""The kernel's clock id of a process's CPU time, beside the process's id (CPUCLOCK_SCHED)."""


def family(pids: Iterable[int]) -> list[int]:
    """These processes and their descendants, as they are now."""
    found: dict[int, None] = {}
    ahead = list(pids)
    while ahead:
        pid = ahead.pop()
        if pid not in found and Path(f"/proc/{pid}").exists():
            found[pid] = None
            ahead += children(pid)
    return list(found)


def children(pid: int) -> list[int]:
    """Whichever thread started them."""
    found: list[int] = []
    for task in _tasks(pid):
        with contextlib.suppress(OSError):
            found += map(int, Path(f"/proc/{pid}/task/{task}/children").read_text().split())
    return found


def cpu_s(pids: Iterable[int]) -> float:
    """CPU seconds used so far, by all threads and descendants, ended ones included."""
    used_s = 0.0
    for pid in family(pids):
        with contextlib.suppress(OSError):  # one that has just ended
            used_s += time.clock_gettime(~pid << 3 | _PER_PROCESS_CLOCK)
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            used_s += (int(fields[13]) + int(fields[14])) / os.sysconf("SC_CLK_TCK")  # of children waited for
    return used_s


def memory_bytes(pids: Iterable[int]) -> int:
    """Memory in RAM, each page shared out among those that have it."""
    kib = 0
    for pid in family(pids):
        with contextlib.suppress(OSError):
            text = Path(f"/proc/{pid}/smaps_rollup").read_text()
            kib += next(int(line.split()[1]) for line in text.splitlines() if line.startswith("Pss:"))
    return kib * 1024


def check_pinned(pids: Iterable[int], cores: set[int]) -> None:
    """Raise RuntimeError when a thread of these or of their descendants may run on another core."""
    for pid in family(pids):
        for task in _tasks(pid):
            with contextlib.suppress(OSError):
                if not (allowed := os.sched_getaffinity(task)) <= cores:
                    name = Path(f"/proc/{pid}/task/{task}/comm").read_text().strip()
                    raise RuntimeError(
                        f"{name} ({task} of {pid}) may run on {sorted(allowed)}, not only {sorted(cores)}"
                    )


def busy_s(cores: Iterable[int]) -> dict[int, float]:
    """Seconds that each core has not been idle, by whatever ran there (the kernel's own work and what a host took, too)."""
    wanted = {f"cpu{core}": core for core in cores}
    found: dict[int, float] = {}
    for line in Path("/proc/stat").read_text().splitlines():
        name, *ticks = line.split()
        if name in wanted:
            user, nice, system, _, _, irq, softirq, steal = map(int, ticks[:8])
            used = user + nice + system + irq + softirq + steal
            found[wanted[name]] = used / os.sysconf("SC_CLK_TCK")
    return found


def _tasks(pid: int) -> list[int]:
    with contextlib.suppress(OSError):
        return [int(task.name) for task in Path(f"/proc/{pid}/task").iterdir()]
    return []
