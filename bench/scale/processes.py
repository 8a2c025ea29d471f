"""CPU time of processes, and running and waiting time of their main threads, as Linux counts them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple


class Spent(NamedTuple):
    """Seconds in which a thread ran and in which it waited for a core. The rest of the wall time it slept."""

    ran_s: float
    waited_s: float


def main_thread(pid: int) -> Spent:
    """Times of a process's main thread since its start."""
    ran_ns, waited_ns, _ = map(int, Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split())
    return Spent(ran_ns / 1e9, waited_ns / 1e9)


def cpu_s_of(pid: int) -> float:
    """CPU seconds of a process since its start, including children that have ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12]) + int(fields[13]) + int(fields[14])) / os.sysconf("SC_CLK_TCK")


def family(pid: int) -> Sequence[int]:
    """A process and its children."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *map(int, children)]
