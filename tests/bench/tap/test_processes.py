"""CPU and memory of a target's processes, with children and ended threads, and the check of their cores."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from bench.tap.processes import check_pinned, children, cpu_s, family, memory_bytes

Start = Callable[[str], "subprocess.Popen[str]"]

_BURN = "import time\ndef burn():\n    while time.thread_time() < 0.2: pass\n"
_READY = "print('ready', flush=True); input()"


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts Python programs, which print `ready` and then wait for input."""
    started: list[subprocess.Popen[str]] = []

    def run(program: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        return process

    yield run
    for process in started:
        process.communicate("\n")


def test_cpu_of_a_thread_that_has_ended_counts(start: Start) -> None:
    program = f"{_BURN}import threading; t = threading.Thread(target=burn); t.start(); t.join(); {_READY}"
    assert cpu_s([start(program).pid]) > 0.2


def test_cpu_of_a_child_that_runs_counts_with_its_parent(start: Start) -> None:
    fork = "import os, time\nr, w = os.pipe()\nif os.fork() == 0: burn(); os.write(w, b'.'); time.sleep(60)\nos.read(r, 1)\n"
    program = f"{_BURN}{fork}{_READY}"
    process = start(program)
    child = children(process.pid)
    try:
        assert family([process.pid]) == [process.pid, *child]
        assert len(child) == 1
        assert cpu_s([process.pid]) - cpu_s(child) < 0.2 < cpu_s([process.pid])
    finally:
        os.kill(child[0], 9)


def test_cpu_of_a_child_that_has_ended_counts(start: Start) -> None:
    program = f"{_BURN}import os\nif os.fork() == 0: burn(); os._exit(0)\nos.wait(); {_READY}"
    process = start(program)
    assert children(process.pid) == []
    assert cpu_s([process.pid]) > 0.19  # the kernel counts hundredths


def test_memory_shared_by_parent_and_child_counts_once(start: Start) -> None:
    held = "import os, time\nheld = b'x' * (64 << 20)\n"
    process = start(f"{held}if os.fork() == 0: time.sleep(60)\n{_READY}")
    child = children(process.pid)
    try:
        assert 64 << 20 < memory_bytes([process.pid]) < 110 << 20
    finally:
        os.kill(child[0], 9)


def test_a_thread_on_another_core_is_found(start: Start) -> None:
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        pytest.skip("there is one core")
    move = f"import os, threading, time\nos.sched_setaffinity(0, {{{cores[0]}}})\n"
    process = start(f"{move}{_READY}")
    check_pinned([process.pid], {cores[0]})
    stray = f"""
done = threading.Event()
def go(): os.sched_setaffinity(0, {{{cores[1]}}}); done.set(); time.sleep(60)
threading.Thread(target=go, daemon=True).start(); done.wait()
"""
    with pytest.raises(RuntimeError, match="may run on"):
        check_pinned([start(f"{move}{stray}{_READY}").pid], {cores[0]})


def test_a_child_on_another_core_is_found(start: Start) -> None:
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        pytest.skip("there is one core")
    elsewhere = (
        f"import os, subprocess\nsubprocess.Popen(['sleep', '60']); os.sched_setaffinity(0, {{{cores[0]}}})\n"
    )
    process = start(f"{elsewhere}{_READY}")
    child = children(process.pid)
    try:
        with pytest.raises(RuntimeError, match=f"of {child[0]}"):
            check_pinned([process.pid], {cores[0]})
    finally:
        os.kill(child[0], 9)
