"""Tasks run when they are due, in one process, whatever others raise."""

from __future__ import annotations

import logging
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import duckdb
import pytest

from streamgauge.analytics.storage import elected_tasks
from streamgauge.analytics.storage.elected_tasks import ElectedTasks
from streamgauge.analytics.storage.location import StoreLocation
from streamgauge.analytics.storage.store import Store
from streamgauge.ingest.guards import Guards
from tests.analytics.stores import new_store
from tests.deadline import DEADLINE_S


@pytest.fixture
def sqlite_store(tmp_path: Path) -> Iterator[Store]:
    store = new_store(tmp_path)
    yield store
    store.close()


class Clock:
    now_s = 1e9

    def __call__(self) -> float:
        return self.now_s


def test_task_is_due_after_its_interval_also_after_a_restart(sqlite_store: Store) -> None:
    clock, done = Clock(), list[int]()
    tasks = {"always": (0, lambda: done.append(1)), "seldom": (3600, lambda: done.append(2))}
    first = ElectedTasks(sqlite_store, "upkeep", tasks, Guards(), clock)
    assert first.round() == []  # a task without a last run is due after its first interval
    assert first.round() == ["always"]
    clock.now_s += 1800
    assert first.round() == ["always"]
    first.close()
    second = ElectedTasks(sqlite_store, "upkeep", tasks, Guards(), clock)
    assert second.round() == []
    clock.now_s += 1800
    assert second.round() == ["always", "seldom"]
    assert done == [1, 1, 1, 2]
    second.close()


@pytest.mark.parametrize(("took_s", "paused_s"), [(0.0, 10.0), (4.0, 6.0), (50.0, 5.0)])
def test_interval_counts_from_the_start_of_a_run(
    sqlite_store: Store, monkeypatch: pytest.MonkeyPatch, took_s: float, paused_s: float
) -> None:
    clock = Clock()
    monkeypatch.setattr(elected_tasks.time, "monotonic", clock)

    def take() -> None:
        clock.now_s += took_s

    tasks = ElectedTasks(sqlite_store, "alerts", {"task": (10, take)}, Guards(), clock)
    tasks.round()
    clock.now_s += 10
    assert tasks.round() == ["task"]
    clock.now_s += paused_s - 0.1
    assert tasks.round() == []
    clock.now_s += 0.2
    assert tasks.round() == ["task"]
    tasks.close()


def test_failed_task_is_repeated_in_the_next_round_and_the_others_run(
    sqlite_store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    guards = Guards(describe=str)

    def fail() -> None:
        raise duckdb.IOException("no space left on device")

    def conflict() -> None:
        raise duckdb.TransactionException("database is locked")

    def take_too_long() -> None:
        raise subprocess.TimeoutExpired("backup", 60)

    tasks = {"full": (0, fail), "overtaken": (0, conflict), "slow": (0, take_too_long), "works": (0, list)}
    upkeep = ElectedTasks(sqlite_store, "upkeep", tasks, guards)
    upkeep.round()
    with caplog.at_level(logging.INFO):
        assert upkeep.round() == ["works"]
        assert upkeep.round() == ["works"]
    failed = "failed, other work continues (1 failures since the start)"
    assert [record.message for record in caplog.records] == [
        f"upkeep: full {failed}: no space left on device",
        f"upkeep: slow {failed}: Command 'backup' timed out after 60 seconds",
    ]  # fmt: skip
    assert guards.faults().keys() == {"upkeep: full", "upkeep: slow"}
    tasks |= {"full": (0, list), "slow": (0, list)}
    assert upkeep.round() == ["full", "slow", "works"]
    assert guards.faults() == {}
    upkeep.close()


def test_frequent_tasks_do_not_wait_for_maintenance(sqlite_store: Store) -> None:
    clock, done = Clock(), threading.Event()
    tasks = ElectedTasks(sqlite_store, "alerts", {"task": (60, done.set)}, Guards(), clock)
    tasks.round()
    clock.now_s += 60
    with sqlite_store.catalog.maintenance():
        thread = threading.Thread(target=tasks.round)
        thread.start()
        thread.join(DEADLINE_S)
        assert not thread.is_alive()
    assert done.is_set()
    tasks.close()


def test_thread_waits_until_the_next_task_is_due(sqlite_store: Store) -> None:
    clock = Clock()
    tasks = ElectedTasks(sqlite_store, "alerts", {"a": (10, list), "b": (60, list)}, Guards(), clock)
    assert tasks._pause_s() == elected_tasks.ROUND_S
    tasks.round()
    clock.now_s += 9.5
    assert tasks._pause_s() == 0.5
    clock.now_s += 0.5
    assert tasks._pause_s() == elected_tasks.ROUND_S  # it has failed, or another process is elected
    tasks.close()


def test_thread_runs_until_close(sqlite_store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(elected_tasks, "ROUND_S", 0.01)
    done = threading.Event()
    tasks = ElectedTasks(sqlite_store, "upkeep", {"task": (0, done.set)}, Guards())
    tasks.start()
    assert done.wait(DEADLINE_S)
    tasks.close()
    done.clear()
    assert not done.wait(0.1)


def test_only_the_elected_process_runs_the_tasks(
    make_location: Callable[[str], StoreLocation],
) -> None:
    location = make_location("postgres")
    stores = [Store(location) for _ in range(2)]
    first, second = (ElectedTasks(store, "upkeep", {"task": (0, list)}, Guards()) for store in stores)
    first.round()
    with first._election.elected("alerts"):
        assert second.round() == ["task"]
    with first._election.elected("upkeep") as elected:
        assert elected
        assert second.round() == []
    assert second.round() == ["task"]
    assert first.round() == ["task"]
    for tasks in (first, second):
        tasks.close()
    for store in stores:
        store.close()
