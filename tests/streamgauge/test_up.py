"""The supervisor of `streamgauge up`, and its checks of the tap's addresses."""

from __future__ import annotations

import errno
import json
import logging
import os
import signal
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from streamgauge.commands import part_process, up
from streamgauge.commands.part_process import Part, PartProgress
from streamgauge.commands.up import Pipeline
from streamgauge.ingest.ready_file import read_ready_file
from streamgauge.process_logging import LastError
from streamgauge.settings.model import Settings
from tests.deadline import until
from tests.guard_injection import Fault, derived, methods

PART = """
import sys, threading, time
from pathlib import Path
from streamgauge.ingest import ready_file
path = Path(sys.argv[1])
{start}
ready_file.HEARTBEAT_S = 0.05
ready_file.write_ready_file(path, {{}})
heartbeat = ready_file.Heartbeat(path)
hang = path.with_suffix(".hang")
while True:
    heartbeat.beat()
    time.sleep(0.02)
    if hang.exists():
        hang.unlink()
        threading.Event().wait()
"""


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """The supervisor observes ten times as often."""
    monkeypatch.setattr(up, "OBSERVE_S", 0.1)
    monkeypatch.setattr(up, "SILENT_AFTER_S", 1.0)
    monkeypatch.setattr(up, "WAITING_S", 0.3)
    monkeypatch.setattr(part_process, "WINDOW_S", 0.5)


REPLACEMENT = [
    (Pipeline, "_step_replacement"),
    (Pipeline, "_step_successor"),
    (Part, "successor"),
    (Part, "start"),
]
CONTAIN_OTHERS = {"Pipeline.start", "Pipeline.watch", "Pipeline.stop", "Pipeline._step"}
ONLY_VALUES = {
    "Pipeline.hurry",
    "Pipeline.__init__",
    "Part.__init__",
    "Part.settled",
    "PartProgress.__init__",
}
METHODS = [
    (kind, name)
    for kind in (Pipeline, Part, PartProgress, LastError)
    for name in methods(kind)
    if f"{kind.__name__}.{name}"
    not in CONTAIN_OTHERS | ONLY_VALUES | {"Pipeline._step_successor", "Part.successor"}
]
EXITS_ONCE = (
    "once = path.with_suffix('.once')\nif not once.exists(): once.touch(); sys.exit(1)\ntime.sleep(0.4)"
)


def supervisor(run_dir: Path, *, start: str = "", hung_after_s: float = 60.0) -> Pipeline:
    run_dir.mkdir(exist_ok=True)
    argv = [sys.executable, "-c", PART.format(start=start), str(run_dir / "analyze.json")]
    return Pipeline(run_dir, [Part("analyze", argv, dict(os.environ), backoff_s=0.05)], hung_after_s)


@contextmanager
def watching(supervised: Pipeline) -> Iterator[Part]:
    supervised.start()
    thread = threading.Thread(target=supervised.watch)
    thread.start()
    try:
        yield supervised.parts[0]
    finally:
        supervised.stopping = True
        thread.join()
        for part in supervised.parts:
            part.grace_s = 0.1
        supervised.stop()


def in_state_file(run_dir: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run_dir / "up.json").read_text())["parts"]["analyze"]
    return found


@pytest.mark.parametrize("how", ["stopped", "deadlocked"])
def test_hung_part_is_reported_once_and_restarted(
    how: str, quick: None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    supervised = supervisor(tmp_path, hung_after_s=1.5)
    with watching(supervised) as part:
        pid = part.pid
        assert pid is not None
        assert in_state_file(tmp_path)["silent_since"] is None
        if how == "stopped":
            os.kill(pid, signal.SIGSTOP)
        else:
            (tmp_path / "analyze.hang").write_text("")
        until(lambda: in_state_file(tmp_path)["silent_since"], "the report")
        assert in_state_file(tmp_path)["pid"] == pid
        until(lambda: part.pid != pid and supervised.ready(part), "the restart")
        until(lambda: in_state_file(tmp_path)["failure"] is None, "the report that it is ready")
        assert in_state_file(tmp_path) == {
            "pid": part.pid, "restarts": 1, "silent_since": None, "failure": None,
        }  # fmt: skip
        assert part.pid is not None
        os.kill(part.pid, signal.SIGKILL)
        until(lambda: in_state_file(tmp_path)["pid"] is None, "the report of the end")
    messages = [record.message for record in caplog.records]
    assert sum("has made no progress for" in message for message in messages) == 1
    assert any(
        message.startswith(f"killing analyze (pid {pid}): no progress for 2 s") for message in messages
    )


def test_part_that_resumes_is_not_restarted(
    quick: None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    with watching(supervisor(tmp_path)) as part:
        pid = part.pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        until(lambda: in_state_file(tmp_path)["silent_since"], "the report")
        os.kill(pid, signal.SIGCONT)
        until(lambda: in_state_file(tmp_path)["silent_since"] is None, "the heartbeat")
        assert part.restarts == 0
    assert f"analyze (pid {pid}) makes progress again" in caplog.messages


def test_slow_start_is_waited_for_while_the_part_works(
    quick: None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    work = "end_s = time.monotonic() + 2\nwhile time.monotonic() < end_s: pass"
    with watching(supervisor(tmp_path, start=work, hung_after_s=1.0)) as part:
        assert part.restarts == 0
        assert read_ready_file(tmp_path / "analyze.json")
    assert any(
        message.startswith("still starting after") and message.endswith("analyze")
        for message in caplog.messages
    )


FAILS_UNTIL_MENDED = """
from streamgauge.process_logging import LAST_ERROR
if not path.with_suffix(".mended").exists():
    {fault}
"""


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("LAST_ERROR.write('cannot read\\nthe catalog'); sys.exit(2)", "cannot read the catalog"),
        ("sys.exit(3)", "exit code 3"),
        ("import os; os.kill(os.getpid(), 9)", "signal SIGKILL"),
        ("threading.Event().wait()", "no progress for 1 s. If it needs longer, raise --hung-after"),
    ],
)
def test_part_that_cannot_start_is_reported_with_its_reason_and_starts_when_mended(
    fault: str, reason: str, quick: None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    hung_after_s = 1.0 if reason.startswith("no progress") else 60.0  # a busy machine starts a process slowly
    supervised = supervisor(tmp_path, start=FAILS_UNTIL_MENDED.format(fault=fault), hung_after_s=hung_after_s)
    with watching(supervised) as part:  # the start has returned
        assert in_state_file(tmp_path)["failure"] == reason
        (tmp_path / "analyze.mended").touch()
        until(lambda: in_state_file(tmp_path)["failure"] is None, "the part to be ready")
        assert supervised.ready(part)
    assert reason.partition(".")[0] in caplog.text
    assert any(message.endswith("is ready") for message in caplog.messages)


def test_delays_grow_up_to_a_limit(quick: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(up, "START_BACKOFF_MAX_S", 0.4)
    supervised = supervisor(tmp_path, start="sys.exit(1)")
    (part,) = supervised.parts
    step, delays = supervised._ended, []

    def ended(*args: Any) -> None:
        delays.append(part.backoff_s)
        step(*args)

    monkeypatch.setattr(supervised, "_ended", ended)
    with watching(supervised):
        until(lambda: len(delays) > 5, "six failures")
    assert delays[:6] == [0.05, 0.1, 0.2, 0.4, 0.4, 0.4]


def test_start_continues_if_the_system_has_no_process_left(
    quick: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    supervised = supervisor(tmp_path)
    popen, refusals = (
        part_process.subprocess.Popen,
        iter([OSError(errno.EAGAIN, "Resource temporarily unavailable")] * 2),
    )

    def refuse(*args: Any, **options: Any) -> Any:
        for refusal in refusals:
            raise refusal
        return popen(*args, **options)

    monkeypatch.setattr(part_process.subprocess, "Popen", refuse)
    with watching(supervised) as part:
        until(lambda: part.is_ready, "the part to be ready")
        assert part.restarts == 2


def test_error_in_the_supervisor_is_contained(
    quick: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with watching(supervisor(tmp_path)) as part:

        def broken(*_: object) -> None:
            raise OSError(errno.EMFILE, "Too many open files")

        monkeypatch.setattr(part.progress, "observe", broken)
        until(lambda: "up failed" in caplog.text, "the report")
        assert part.pid is not None
        os.kill(part.pid, signal.SIGKILL)
        until(lambda: part.restarts == 1 and part.is_ready, "the restart")


@pytest.mark.parametrize(
    "only",
    [None, *(pytest.param(m, id=f"{m[0].__name__}.{m[1]}", marks=pytest.mark.slow) for m in METHODS)],
)
def test_an_exception_in_any_method_delays_parts_at_most(
    only: tuple[type, str] | None, quick: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The methods raise at their first call from each place, while a part starts, hangs, is killed and starts again."""
    faults = {}
    for kind, name in METHODS if only is None else [only]:
        faults[kind, name] = fault = Fault(always=False)
        monkeypatch.setattr(kind, name, derived(kind, name, fault))
    supervised = supervisor(tmp_path, start=EXITS_ONCE, hung_after_s=1.5)
    with watching(supervised) as part:
        for end in ("hang", "kill"):
            until(lambda: part.is_ready, "the part to be ready")
            assert part.process is not None
            pid, restarts = part.process.pid, part.restarts
            if end == "hang":
                (tmp_path / "analyze.hang").write_text("")
            else:
                os.kill(pid, signal.SIGKILL)
            until(lambda: part.restarts > restarts and part.is_ready, "the restart")  # noqa: B023
        until(lambda: in_state_file(tmp_path)["pid"] == part.process.pid, "the state file")
    assert [fault for fault, found in faults.items() if not found.raised] == []
    assert supervised.guard.failures >= len(faults)


@pytest.mark.parametrize("method", REPLACEMENT)
def test_an_exception_while_the_tap_is_replaced_leaves_one_that_serves(
    method: tuple[type, str], quick: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    argv = [sys.executable, "-c", PART.format(start=""), str(tmp_path / "tap.json")]
    supervised = Pipeline(tmp_path, [Part("tap", argv, dict(os.environ))], 60.0)
    with watching(supervised) as first:
        kind, name = method
        fault = Fault(always=False)
        monkeypatch.setattr(kind, name, derived(kind, name, fault))

        def is_replaced() -> bool:
            assert first.pid is not None or supervised.parts[0] is not first
            supervised.replace_tap = True
            return supervised.parts[0] is not first

        until(is_replaced, "the other tap")
        assert fault.raised
        until(lambda: first.pid is None, "the end of the first one")


def test_tap_that_refuses_its_first_start_ends_up_and_a_later_exit_does_not(tmp_path: Path) -> None:
    refuses = [sys.executable, "-c", "raise SystemExit(2)"]
    supervised = Pipeline(tmp_path, [Part("tap", refuses, dict(os.environ))], 60.0)
    supervised.start()
    supervised.stop()
    assert supervised.refused
    supervised = Pipeline(tmp_path, [part := Part("tap", refuses, dict(os.environ), restarts=1)], 60.0)
    starting = threading.Thread(target=supervised.start)
    starting.start()
    until(lambda: part.restarts > 1, "the next attempt")
    supervised.stopping = True
    starting.join()
    supervised.stop()
    assert not supervised.refused


def test_a_full_disk_is_reported_once_and_only_a_part_that_hangs_is_killed(
    quick: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(up, "write_json", full)
    # The file of a process that was killed is all that the part has.
    (tmp_path / "analyze.json").write_text('{"pid": 1}')
    monkeypatch.setattr(Path, "unlink", full)
    supervised = supervisor(tmp_path, start="ready_file.write_ready_file = lambda *_: None", hung_after_s=3.0)
    starting = threading.Thread(target=supervised.start)
    starting.start()
    (part,) = supervised.parts
    until(lambda: part.progress and part.progress.ready, "the first report of progress")
    progress = part.progress
    assert progress is not None
    observed, observe = Counter[bool](), progress.observe

    def counted(elapsed_s: float) -> None:
        observe(elapsed_s)
        observed[progress.silent_s > 0] += 1

    monkeypatch.setattr(progress, "observe", counted)
    until(lambda: observed[False] >= 10, "ten observations with progress")
    assert (part.restarts, caplog.text.count("cannot write")) == (0, 1)
    monkeypatch.undo()
    (tmp_path / "analyze.hang").write_text("")
    until(lambda: part.failure, "the hung part to be killed")
    supervised.stopping = True
    starting.join()
    part.grace_s = 0.1
    supervised.stop()


def test_stop_removes_the_ready_file_of_a_killed_part(quick: None, tmp_path: Path) -> None:
    supervised = supervisor(tmp_path / "run")
    supervised.start()
    (part,) = supervised.parts
    assert part.process is not None
    part.process.kill()
    part.process.wait()
    supervised.stop()
    assert not (tmp_path / "run" / "analyze.json").exists()


def test_capture_needs_no_tap(tmp_path: Path) -> None:
    capture, analyze = up._parts(Settings(data=tmp_path, capture="eth0:4000,5000", no_dashboard=True), ())
    assert (capture.name, analyze.name) == ("capture", "analyze")
    assert capture.argv[capture.argv.index("--interface") + 1] == "eth0:4000,5000"
    assert str(tmp_path) in capture.argv
    (capture,) = up._parts(Settings(capture="lo", no_dashboard=True), ())[:1]
    assert capture.argv[-4:-1] == ["--interface", "lo", "--admin"]


def test_capture_that_cannot_start_is_one_line(tmp_path: Path) -> None:
    with pytest.raises((OSError, ValueError), match=r"nolo|CAP_NET_RAW"):
        up.run(Settings(data=tmp_path, capture="nolo:4000", no_dashboard=True))
    assert not (tmp_path / "run" / "up.json").exists()


@pytest.mark.parametrize("text", [":4000", "lo:", "lo:0", "lo:65536", "lo:x", "lo:1,,2"])
def test_capture_of_an_invalid_interface_or_port_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="interface"):
        Settings(capture=text)
