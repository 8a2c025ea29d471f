"""Generated hostile SQL changes nothing for the rest of the pipeline."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.analytics.query.test_query_pool import HOSTILE
from tests.chaos.hostile_load import MIB, PARTS, Result, attack, is_idle
from tests.chaos.rig import run
from tests.deadline import until

GROWN_BYTES = 400 * MIB
"""Of the long run: analytics grows by about 200 MiB in 7,000 streams without hostile statements, too."""
GROWN_SHORT_BYTES = 100 * MIB
FRESH_S = 2.0
OVERRUN_S = 2.0
OTHER_CORES = 0.3
"""The long run asserts exact times if other processes use fewer cores."""
BUSY_S = 60.0
"""Bound of times on a busy machine."""
BY_COMMAND = ("json literal to variant", "repeat", "recursion")
"""A crash, too much memory, and the time limit."""


def check(result: Result, *, exact_times: bool, grown_bytes: int) -> None:
    """What holds for every statement."""
    is_shared = result.observed.other_cores > OTHER_CORES
    busy = not exact_times or is_shared
    assert not result.problems, "\n".join([str(result), *result.problems])
    assert not result.observed.wrong, str(result)
    assert is_shared or not result.observed.late, str(result)
    assert not result.client_crashes, "\n".join([str(result), *map(str, result.client_crashes)])
    assert result.observed.ordinary > 0, str(result)
    assert result.overrun_s < (BUSY_S if busy else OVERRUN_S), str(result)
    assert result.observed.stale_s < (BUSY_S if busy else FRESH_S), str(result)
    assert max(result.observed.grown_bytes.values()) < grown_bytes, str(result)


@pytest.mark.parametrize("statements", [100, pytest.param(500, marks=pytest.mark.slow)])
def test_hostile_statements(tmp_path: Path, statements: int) -> None:
    """By the port and the page, then some also by the `sql` command."""
    with run(tmp_path, "--serve", "--sql-listen", "localhost:0", rate_per_s=3, faults=0.0) as chaos:
        result = attack(
            chaos,
            tmp_path,
            seed="500",
            statements=statements,
            timeout_s=0.3,
            by_port=2,
            by_page=1,
            deadline_s=180,
        )
        print(result)
        check(result, exact_times=False, grown_bytes=GROWN_SHORT_BYTES)
        pids = {part: chaos.pid(part) for part in PARTS}
        for name in BY_COMMAND:
            done = chaos.running.run("sql", "-", "--timeout", "0.5", stdin=HOSTILE[name])
            assert (done.returncode, done.stderr.count("\n")) == (2, 1), f"{name}: {done.stderr}"
        assert {part: chaos.pid(part) for part in PARTS} == pids


@pytest.mark.slow
@pytest.mark.timeout(5400)
def test_20000_hostile_statements(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Parts keep their pids and memory, statements end within 2 s of their limits, rows stay fresh, other readers get right answers."""
    with run(tmp_path, "--serve", "--sql-listen", "localhost:0", rate_per_s=5, faults=0.02) as chaos:
        result = attack(
            chaos,
            tmp_path,
            seed="20000",
            statements=20_000,
            timeout_s=1.0,
            by_port=4,
            by_page=2,
            deadline_s=5000,
        )
        with capsys.disabled():
            print(f"\n{result}")
        until(lambda: is_idle(chaos), "no statement to run on", 10)
        check(result, exact_times=True, grown_bytes=GROWN_BYTES)
        chaos.check_measurements()
