"""Progress of a part: heartbeats, and work of the process without heartbeats."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from streamgauge import up
from streamgauge.ingest.ready_file import write_ready_file
from streamgauge.up import WINDOW_S, PartProgress


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """The ready file of this process."""
    path = tmp_path / "run" / "analyze.json"
    write_ready_file(path, {})
    return path


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
    before_s, end_s = up.cpu_s(pid), time.monotonic() + 30
    while up.cpu_s(pid) - before_s < 0.3:
        assert time.monotonic() < end_s
        time.sleep(0.02)


def test_heartbeats_are_progress(file: Path) -> None:
    progress = PartProgress(os.getpid(), file, works_silently=False)
    for second in range(30):
        os.utime(file, (second, second))
        progress.observe(1.0)
        assert progress.silent_s == 0
    assert observe(progress, 7) == 7


def test_pause_of_the_observer_counts_as_one_interval(file: Path) -> None:
    progress = PartProgress(os.getpid(), file, works_silently=False)
    progress.observe(1.0)
    progress.observe(86_400.0)
    assert progress.silent_s == up.MAX_INTERVAL_S


@pytest.mark.parametrize("works_silently", [True, False])
def test_work_without_heartbeats_is_progress_only_for_analytics(
    works_silently: bool, busy: subprocess.Popen[bytes], file: Path
) -> None:
    file.write_text(f'{{"pid": {busy.pid}}}')
    progress = PartProgress(busy.pid, file, works_silently=works_silently)
    progress.observe(1.0)
    until_it_used_the_cpu(busy.pid)
    assert observe(progress, int(WINDOW_S)) == (0 if works_silently else WINDOW_S)


def test_work_without_heartbeats_has_a_limit(
    busy: subprocess.Popen[bytes], file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(up, "LONGEST_WORK_S", WINDOW_S)
    file.write_text(f'{{"pid": {busy.pid}}}')
    progress = PartProgress(busy.pid, file, works_silently=True)
    progress.observe(1.0)
    until_it_used_the_cpu(busy.pid)
    assert observe(progress, int(WINDOW_S)) == WINDOW_S


def test_starting_part_makes_progress_until_it_is_stopped(busy: subprocess.Popen[bytes], file: Path) -> None:
    progress = PartProgress(busy.pid, file, works_silently=False)
    until_it_used_the_cpu(busy.pid)
    assert observe(progress, int(WINDOW_S)) == 0
    os.kill(busy.pid, signal.SIGSTOP)
    observe(progress, int(WINDOW_S))
    assert observe(progress, 20) >= 20


@pytest.mark.parametrize("replaced", [True, False])
def test_ready_part_whose_file_is_replaced_or_removed_is_not_judged(replaced: bool, file: Path) -> None:
    progress = PartProgress(os.getpid(), file, works_silently=False)
    assert observe(progress, 5) == 4
    if replaced:
        file.write_text(json.dumps({"pid": os.getppid()}))
    else:
        file.unlink()
    assert observe(progress, 30) == 0
    assert progress.ready
    write_ready_file(file, {})
    assert observe(progress, 5) == 4


WAITING_PARENT = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "while True: pass"])
print(child.pid, flush=True)
child.wait()
"""


def test_starting_part_makes_progress_while_a_child_works(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", WAITING_PARENT], stdout=subprocess.PIPE, text=True, process_group=0
    ) as part:
        assert part.stdout is not None
        child = int(part.stdout.readline())
        try:
            progress = PartProgress(part.pid, tmp_path / "tap.json", works_silently=False)
            until_it_used_the_cpu(child)
            assert observe(progress, int(WINDOW_S)) == 0
        finally:
            os.kill(child, signal.SIGKILL)
