"""What the system knows about processes, from `/proc` and, as on macOS, from `ps`."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from streamgauge.ingest import processes
from tests.deadline import until


@pytest.fixture(params=["linux", "darwin"])
def platform(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr("sys.platform", request.param)
    return str(request.param)


@pytest.fixture
def busy() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", "while True: pass"], process_group=0) as found:
        yield found
        found.kill()


def test_running_process_has_an_age_and_uses_the_cpu(platform: str, busy: subprocess.Popen[bytes]) -> None:
    began_s = time.monotonic()
    until(lambda: processes.cpu_s(busy.pid) >= 1, "a second of the CPU")
    age_s = processes.age_s(busy.pid)
    assert age_s is not None
    assert 0 <= age_s <= time.monotonic() - began_s + 2
    assert not processes.waits_for_disk(busy.pid)


def test_ended_process_has_no_values(platform: str) -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        ended.wait()
    assert processes.age_s(ended.pid) is None
    assert processes.cpu_s(ended.pid) == 0
    assert not processes.waits_for_disk(ended.pid)


def test_members_of_a_group_are_its_other_processes(platform: str, busy: subprocess.Popen[bytes]) -> None:
    assert processes.group_members(busy.pid) == []
    with subprocess.Popen([sys.executable, "-c", "while True: pass"], process_group=busy.pid) as member:
        assert processes.group_members(busy.pid) == [member.pid]
        member.kill()


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("0:00.10", 0.1), ("01:02", 62), ("11:00:01", 39_601), ("1-02:03:04", 93_784)],
)
def test_times_of_ps(text: str, seconds: float) -> None:
    assert processes._seconds(text) == seconds


def test_process_may_use_a_cpu(platform: str) -> None:
    assert 1 <= processes.cpus() <= (os.cpu_count() or 1)
