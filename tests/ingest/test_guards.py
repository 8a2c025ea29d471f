"""Guards contain exceptions, report silent and failing work by name, and run threads and tasks again."""

from __future__ import annotations

import asyncio
import logging
import threading

import pytest

from streamgauge.ingest import guards
from streamgauge.ingest.guards import MAX_GUARDS, SHOWN_S, Guards, guarded_task, guarded_thread
from tests.deadline import DEADLINE_S


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def registry(clock: Clock) -> Guards:
    return Guards(clock)


def fail(message: str = "secret") -> None:
    raise OSError(28, message)


def test_silent_work_is_named_until_it_beats_again(registry: Guards, clock: Clock) -> None:
    guard = registry.guard("log", silent_after_s=5)
    registry.guard("never judged")
    clock.now_s = 5.0
    assert registry.faults() == {}
    clock.now_s = 12.0
    assert registry.faults() == {"log": "has made no progress for 12 s"}
    guard.beat()
    assert registry.faults() == {}
    clock.now_s = 99.0
    guard.end()
    assert registry.faults() == {}


def test_failed_attempt_is_a_fault_until_one_succeeds_and_the_total_stays(
    registry: Guards, clock: Clock
) -> None:
    guard = registry.guard("backup")
    assert guard.attempt(fail) is False
    clock.now_s = 3600.0
    guard.beat()  # the loop goes on, its work does not
    assert registry.faults() == {"backup": "failed 3600 s ago: No space left on device (1 failures)"}
    assert guard.attempt(lambda: None) is True
    assert registry.faults() == {}
    assert registry.failures() == {"backup": 1}


def test_failure_caught_elsewhere_is_shown_for_a_minute(registry: Guards, clock: Clock) -> None:
    registry.guard("recorder").failed(ValueError("secret"))
    assert "ValueError" in registry.faults()["recorder"]
    clock.now_s = SHOWN_S
    assert registry.faults() == {}
    assert registry.failures() == {"recorder": 1}


def test_each_guard_logs_at_most_once_a_minute(
    registry: Guards, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    for now_s in (0.0, 1.0, SHOWN_S - 1, SHOWN_S):
        clock.now_s = now_s
        registry.guard("a").attempt(fail)
    registry.guard("b").attempt(fail)
    registry.guard("c").failed(KeyError("secret"))
    assert [r.getMessage().split()[0] for r in caplog.records] == ["a", "a", "b", "c"]
    assert [bool(r.exc_info) for r in caplog.records] == [False, False, False, True]  # a traceback for bugs
    assert all("secret" not in r.getMessage() for r in caplog.records)


def test_attempt_lets_a_cancellation_pass(registry: Guards) -> None:
    def cancel() -> None:
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        registry.guard("a").attempt(cancel)


def test_number_of_guards_is_bounded(registry: Guards) -> None:
    for number in range(MAX_GUARDS + 50):
        registry.guard(f"g{number}").attempt(fail)
    assert len(registry.failures()) == MAX_GUARDS + 1
    assert registry.failures()["other"] == 50


def test_check_is_asked_each_time_and_may_fail(registry: Guards) -> None:
    found: list[str | None] = ["is full", None]
    registry.check("disk", lambda: found.pop(0))
    assert registry.faults() == {"disk": "is full"}
    assert registry.faults() == {}
    assert registry.faults() == {"disk": "cannot be checked: IndexError"}


@pytest.mark.parametrize("error", [ValueError, SystemExit, None], ids=["error", "exit", "early return"])
def test_thread_runs_again_after_it_ended_early(
    registry: Guards, error: type[BaseException] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guards, "FIRST_PAUSE_S", 0.001)
    runs, stop, again = 0, threading.Event(), threading.Event()

    def run() -> None:
        nonlocal runs
        runs += 1
        if runs < 3:
            if error is not None:
                raise error
            return
        again.set()
        stop.wait()

    thread = guarded_thread(registry.guard("work", silent_after_s=0.0), run, stop)
    thread.start()
    assert again.wait(DEADLINE_S)
    assert registry.failures() == {"work": 2}
    assert "work" in registry.faults()
    stop.set()
    thread.join(DEADLINE_S)
    assert not thread.is_alive()


async def test_task_runs_again_and_can_be_cancelled(
    registry: Guards, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(guards, "FIRST_PAUSE_S", 0.001)
    caplog.set_level(logging.CRITICAL)
    runs, again = 0, asyncio.Event()

    async def run() -> None:
        nonlocal runs
        runs += 1
        if runs < 3:
            raise ValueError
        again.set()
        await asyncio.Event().wait()

    task = asyncio.create_task(guarded_task(registry.guard("work"), run))
    await asyncio.wait_for(again.wait(), DEADLINE_S)
    assert registry.failures() == {"work": 2}
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_task_that_returns_has_ended(registry: Guards, clock: Clock) -> None:
    async def run() -> None:
        pass

    await guarded_task(registry.guard("work", silent_after_s=1), run)
    clock.now_s = 60.0
    assert registry.faults() == {}
