"""Faults of a pipeline without Kafka."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from functools import partial
from pathlib import Path

import httpx
import pytest

from tests.chaos.rig import Run, run
from tests.deadline import until
from tests.e2e.running import up
from tests.tables import tables


@pytest.mark.slow  # in the quick set: test_rounds
def test_kill_9_of_analytics_under_load(tmp_path: Path) -> None:
    with run(tmp_path) as chaos:
        for _ in range(2):
            chaos.wait_for_requests(20)
            chaos.kill("analyze")
        chaos.check_measurements()


@pytest.mark.slow
def test_kill_9_of_analytics_while_it_starts_and_replays(tmp_path: Path) -> None:
    with run(tmp_path, rate_per_s=20) as chaos:
        chaos.wait_for_requests(40)
        for _ in range(4):
            pid = chaos.pid("analyze")
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            started = until(partial(_child, chaos.running.process.pid, "analyze", pid), "the next analytics")
            os.kill(started, signal.SIGKILL)  # before it is ready
            chaos.wait_restarted("analyze", pid)
            chaos.wait_for_requests(10)
        chaos.check_measurements()


@pytest.mark.slow
def test_kill_9_of_the_tap_marks_streams_that_lost_data(tmp_path: Path) -> None:
    with run(tmp_path, faults=0.0) as chaos:
        chaos.wait_for_requests(25)
        chaos.kill("tap")
        chaos.wait_for_requests(25)
        status = chaos.check_measurements(may_lose=True)
        assert status["lost"] > 0
        marked = tables(chaos.data).query(
            "SELECT count(*) FROM streams WHERE outcome = 'tap_lost' AND (itl_ns IS NOT NULL OR output_tokens IS NOT NULL)"
        )
        assert marked.item() == 0
        rows = {r.request_id: r for r in chaos.ledger.rows()}
        known = set(tables(chaos.data).query("SELECT request_id FROM streams").to_series().to_list())
        for request_id in rows.keys() - known:  # its `Opened` was not appended
            since_ns = min(abs(kill_ns - rows[request_id].received_ns) for kill_ns in chaos.kills_ns)
            assert since_ns < 10**9, f"{request_id} is missing, and began {since_ns} ns before the kill"


@pytest.mark.slow
def test_sigterm_of_every_part_under_load(tmp_path: Path) -> None:
    with run(tmp_path, "--drain-timeout", "60", faults=0.0) as chaos:
        for part in ("analyze", "tap", "analyze"):
            chaos.wait_for_requests(20)
            chaos.kill(part, number=signal.SIGTERM)
        chaos.wait_for_requests(20)
        chaos.check_measurements()


@pytest.mark.slow
def test_kill_9_of_one_of_two_workers_affects_only_its_streams(tmp_path: Path) -> None:
    with run(tmp_path, "--workers", "2", faults=0.0) as chaos:
        chaos.wait_for_requests(25)
        victim = until(partial(_child, chaos.running.part("tap")["pid"], "tap-worker-1", 0), "worker 1")
        chaos.kills_ns.append(time.monotonic_ns())
        os.kill(victim, signal.SIGKILL)
        chaos.wait_for_requests(25)
        status = chaos.check_measurements(may_lose=True)
        assert status["unknown"] == []
        lost = tables(chaos.data).query(
            "SELECT DISTINCT partition FROM losses JOIN streams USING (stream_id) WHERE outcome = 'tap_lost'"
        )
        assert set(lost["partition"]) <= {"w1"}


@pytest.mark.slow
def test_kill_9_of_all_parts_at_once(tmp_path: Path) -> None:
    with run(tmp_path, faults=0.0) as chaos:
        for _ in range(2):
            chaos.wait_for_requests(25)
            pids = {part: chaos.pid(part) for part in ("analyze", "tap")}
            chaos.kills_ns.append(time.monotonic_ns())
            for pid in pids.values():
                assert pid is not None
                os.kill(pid, signal.SIGKILL)
            for part, pid in pids.items():
                chaos.wait_restarted(part, pid)
        chaos.wait_for_requests(25)
        chaos.check_measurements(may_lose=True)


@pytest.mark.slow
def test_kill_9_of_up_ends_its_parts_cleanly_and_the_next_up_continues(tmp_path: Path) -> None:
    with run(tmp_path, "--drain-timeout", "60", faults=0.0) as chaos:
        chaos.wait_for_requests(25)
        pids = [pid for part in ("tap", "analyze") if (pid := chaos.pid(part)) is not None]
        port = chaos.running.tap.rpartition(":")[2]
        os.kill(chaos.running.process.pid, signal.SIGKILL)
        chaos.running.process.wait()
        until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids) or None, "the parts to end", 90)
        with up(f"sim={chaos.upstream}", chaos.data, "--listen", f"127.0.0.1:{port}") as again:
            chaos.running = again
            chaos.wait_for_requests(25)
            chaos.check_measurements()


CLOCK = """
import time
from pathlib import Path

_OFFSET = Path({path!r})
_time, _time_ns = time.time, time.time_ns


def _offset_s():
    try:
        return int(_OFFSET.read_text() or 0)
    except OSError:
        return 0


time.time = lambda: _time() + _offset_s()
time.time_ns = lambda: _time_ns() + _offset_s() * 10**9
"""
"""Adds the offset in a file to the wall clock of every Python process of the pipeline. Tests may not set the real clock.
CLOCK_MONOTONIC is unchanged, as when a real clock is stepped. DuckDB's now() is not affected."""


@pytest.mark.slow
@pytest.mark.parametrize("step_s", [-3600, 3600])
def test_a_clock_step_does_not_change_measured_times(tmp_path: Path, step_s: int) -> None:
    offset = tmp_path / "offset"
    patch = tmp_path / "patch"
    patch.mkdir()
    (patch / "sitecustomize.py").write_text(CLOCK.format(path=str(offset)))
    with run(tmp_path, environment={"PYTHONPATH": str(patch)}) as chaos:
        chaos.wait_for_requests(30)
        new_offset = tmp_path / "offset.new"
        new_offset.write_text(str(step_s))
        new_offset.replace(offset)
        chaos.wait_for_requests(20)
        chaos.kill("analyze")
        chaos.wait_for_requests(20)
        chaos.check_measurements()
        spread = (
            tables(chaos.data).query("SELECT epoch(max(started_at) - min(started_at)) FROM streams").item()
        )
        assert spread > 3000, "the clock has not stepped"


@pytest.mark.slow
def test_long_stream_does_not_delay_the_release_of_the_log(tmp_path: Path) -> None:
    """The stream takes 75 s. After 60 s its records go to a checkpoint, so the log may be trimmed. Then analytics is killed."""
    with run(tmp_path, rate_per_s=4) as chaos:
        force = {"ttft_ms": 50, "gap_ms": 75_000 / 300, "tokens": 300, "fault": "none"}
        body = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "x"}]}
        headers = {"x-request-id": "long", "x-simulate": json.dumps(force)}
        with httpx.stream(
            "POST", f"{chaos.running.tap}/v1/chat/completions", json=body, headers=headers, timeout=60
        ) as response:
            killed = False
            for _ in response.iter_raw():
                if not killed and _has_checkpoint(chaos):
                    chaos.kill("analyze")
                    killed = True
        assert killed
        status = chaos.check_measurements()
        assert status["analytics"]["checkpoints"] > 0
        row = tables(chaos.data).query(
            "SELECT outcome, output_event_count FROM streams WHERE request_id = 'long'"
        )
        assert row.rows() == [("ok", 300)]


def _has_checkpoint(chaos: Run) -> bool:
    return bool(chaos.status().get("analytics", {}).get("checkpoints"))


def _child(parent: int, word: str, former: int) -> int | None:
    listed = subprocess.run(
        ["ps", "-ww", "-o", "pid=,args=", "--ppid", str(parent)], capture_output=True, text=True
    )
    for line in listed.stdout.splitlines():
        pid, _, args = line.strip().partition(" ")
        if f" {word} " in args and int(pid) != former:
            return int(pid)
    return None
