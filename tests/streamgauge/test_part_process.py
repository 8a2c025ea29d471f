"""Progress of a part: heartbeats, and work of the process without heartbeats."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from streamgauge.commands import part_process
from streamgauge.commands.part_process import WINDOW_S, PartProgress
from streamgauge.ingest import processes
from tests.deadline import until


@pytest.fixture
def descriptor() -> Iterator[int]:
    """Of the file in memory that a part touches."""
    opened = os.memfd_create("progress")
    yield opened
    os.close(opened)


@pytest.fixture
def busy() -> Iterator[subprocess.Popen[bytes]]:
    """A process that uses a CPU."""
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    yield process
    process.kill()
    process.wait()


def observe(progress: PartProgress, times: int) -> float:
    for _ in range(times):
        progress.observe(1.0)
    return progress.silent_s


def until_it_used_the_cpu(pid: int) -> None:
    """Wait until the process has used 0.3 s of a CPU."""
    before_s, end_s = processes.cpu_s(pid), time.monotonic() + 30
    while processes.cpu_s(pid) - before_s < 0.3:
        assert time.monotonic() < end_s
        time.sleep(0.02)


def test_heartbeats_are_progress(descriptor: int) -> None:
    progress = PartProgress(os.getpid(), descriptor, works_silently=False)
    for second in range(30):
        os.utime(descriptor, (second, second))
        progress.observe(1.0)
        assert progress.silent_s == 0
    assert observe(progress, 7) == 7


def test_pause_of_the_observer_counts_as_one_interval(descriptor: int) -> None:
    progress = PartProgress(os.getpid(), descriptor, works_silently=False)
    os.utime(descriptor, (1, 1))
    progress.observe(1.0)
    progress.observe(86_400.0)
    assert progress.silent_s == part_process.MAX_INTERVAL_S


@pytest.mark.parametrize("works_silently", [True, False])
def test_work_without_heartbeats_is_progress_only_for_analytics(
    works_silently: bool, busy: subprocess.Popen[bytes], descriptor: int
) -> None:
    progress = PartProgress(busy.pid, descriptor, works_silently=works_silently)
    os.utime(descriptor, (1, 1))
    progress.observe(1.0)
    until_it_used_the_cpu(busy.pid)
    assert observe(progress, int(WINDOW_S)) == (0 if works_silently else WINDOW_S)


def test_work_without_heartbeats_has_a_limit(
    busy: subprocess.Popen[bytes], descriptor: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(part_process, "LONGEST_WORK_S", WINDOW_S)
    progress = PartProgress(busy.pid, descriptor, works_silently=True)
    os.utime(descriptor, (1, 1))
    progress.observe(1.0)
    until_it_used_the_cpu(busy.pid)
    assert observe(progress, int(WINDOW_S)) == WINDOW_S


def test_starting_part_makes_progress_until_it_is_stopped(
    busy: subprocess.Popen[bytes], descriptor: int
) -> None:
    progress = PartProgress(busy.pid, descriptor, works_silently=False)
    until_it_used_the_cpu(busy.pid)
    assert observe(progress, int(WINDOW_S)) == 0
    os.kill(busy.pid, signal.SIGSTOP)
    observe(progress, int(WINDOW_S))
    assert observe(progress, 20) >= 20


def test_starting_part_makes_progress_while_others_use_its_cpu(
    busy: subprocess.Popen[bytes], descriptor: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(part_process, "WINDOW_S", 1.0)
    cpu = {min(os.sched_getaffinity(0))}
    os.sched_setaffinity(busy.pid, cpu)
    os.sched_setscheduler(busy.pid, os.SCHED_IDLE, os.sched_param(0))
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as other:
        try:
            os.sched_setaffinity(other.pid, cpu)
            progress = PartProgress(busy.pid, descriptor, works_silently=False)
            observe(progress, 1)
            waited_s = processes.cpu_wait_s(busy.pid)
            until(lambda: processes.cpu_wait_s(busy.pid) - waited_s > 1, "a second without a CPU")
            assert observe(progress, 1) == 0
        finally:
            other.kill()


WAITING_PARENT = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "while True: pass"])
print(child.pid, flush=True)
child.wait()
"""


def test_starting_part_makes_progress_while_a_child_works(descriptor: int) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", WAITING_PARENT], stdout=subprocess.PIPE, text=True, process_group=0
    ) as part:
        assert part.stdout is not None
        child = int(part.stdout.readline())
        try:
            progress = PartProgress(part.pid, descriptor, works_silently=False)
            until_it_used_the_cpu(child)
            assert observe(progress, int(WINDOW_S)) == 0
        finally:
            os.kill(child, signal.SIGKILL)
