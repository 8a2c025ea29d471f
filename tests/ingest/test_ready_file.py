"""Ready files: private, written and removed by one process."""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path
from unittest.mock import Mock

import pytest

from streamgauge.ingest import ready_file
from streamgauge.ingest.ready_file import (
    SILENT_WITHOUT_UP_AFTER_S,
    Heartbeat,
    part_of_up,
    read_of_running,
    read_ready_file,
    remove_ready_file,
    silence,
    write_ready_file,
    written_faults,
)


def test_content_is_read_back_from_a_private_file(tmp_path: Path) -> None:
    path = tmp_path / "run" / "serve.json"
    write_ready_file(path, {"token": "t" * 20})
    assert read_ready_file(path) == {"pid": os.getpid(), "token": "t" * 20}
    assert path.stat().st_mode & 0o777 == 0o600
    assert [file.name for file in path.parent.iterdir()] == ["serve.json"]


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"pid": "x"}'])
def test_invalid_file_counts_as_none(tmp_path: Path, text: str) -> None:
    path = tmp_path / "serve.json"
    assert read_ready_file(path) is None
    path.write_text(text)
    assert read_ready_file(path) is None


def test_file_is_removed_only_by_the_process_that_wrote_it(tmp_path: Path) -> None:
    path = tmp_path / "serve.json"
    path.write_text(f'{{"pid": {os.getpid() + 1}}}')
    remove_ready_file(path)
    assert path.exists()
    write_ready_file(path, {})
    remove_ready_file(path)
    assert not path.exists()


def test_file_that_cannot_be_removed_does_not_fail_the_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_ready_file(tmp_path / "tap.json", {})
    with monkeypatch.context() as patched:
        patched.setattr(Path, "unlink", Mock(side_effect=OSError(errno.ENOSPC, "full")))
        remove_ready_file(tmp_path / "tap.json")
    assert read_ready_file(tmp_path / "tap.json") is not None


def test_heartbeat_touches_the_file_at_most_once_per_interval(tmp_path: Path) -> None:
    path = tmp_path / "serve.json"
    heartbeat = Heartbeat(path)
    heartbeat.beat()  # no file: ignored
    assert not path.exists()
    write_ready_file(path, {})
    heartbeat = Heartbeat(path)
    for touched in (True, False):  # the second call comes within the interval
        os.utime(path, (0, 0))
        heartbeat.beat()
        assert bool(path.stat().st_mtime_ns) is touched


def test_heartbeat_replaces_the_file_of_a_process_that_has_ended(tmp_path: Path) -> None:
    path = tmp_path / "run" / "tap.json"
    for pid, replaced in ((os.getppid(), False), (2**22 + 1, True)):  # the second is above every pid
        write_ready_file(path, {"pid": pid, "listen": "former"})
        os.utime(path, (0, 0))
        Heartbeat(path).beat()
        assert path.stat().st_mtime == 0
        Heartbeat(path, {"listen": "own"}).beat()
        assert (read_ready_file(path) == {"pid": os.getpid(), "listen": "own"}) is replaced


def test_progress_is_reported_although_the_file_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    descriptor = os.memfd_create("progress")
    monkeypatch.setattr(ready_file, "_progress_descriptor", descriptor)
    os.utime(descriptor, (0, 0))
    Heartbeat(tmp_path / "missing" / "tap.json").beat()
    assert os.fstat(descriptor).st_mtime_ns
    os.close(descriptor)


@pytest.fixture
def silent(tmp_path: Path) -> Path:
    """The ready file of this process, without a heartbeat for a while."""
    path = tmp_path / "run" / "analyze.json"
    write_ready_file(path, {})
    at_s = time.time() - 10 * SILENT_WITHOUT_UP_AFTER_S
    os.utime(path, (at_s, at_s))
    return path


def test_silence_names_the_part_and_the_time(tmp_path: Path, silent: Path) -> None:
    assert silence(tmp_path, "tap") is None
    since = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(silent.stat().st_mtime))
    found = silence(tmp_path, "analyze")
    assert found is not None
    assert found.startswith(f"analyze (pid {os.getpid()}) does not respond since {since} (60")
    write_ready_file(silent, {})
    assert silence(tmp_path, "analyze") is None


@pytest.mark.parametrize("since", [None, "2026-01-02T03:04:05+00:00"])
def test_silence_follows_the_observation_of_up(since: str | None, tmp_path: Path, silent: Path) -> None:
    parts = {"analyze": {"pid": 12345, "silent_since": since}}
    write_ready_file(tmp_path / "run" / "up.json", {"parts": parts})
    found = silence(tmp_path, "analyze")
    if since is None:
        assert found is None
    else:
        assert found is not None
        assert found.startswith("analyze (pid 12345) does not respond since 2026-01-02 03:04:05 UTC")


def test_process_that_has_the_pid_of_a_former_part_is_not_the_part(
    tmp_path: Path, silent: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "run" / "up.json").write_text(
        f'{{"pid": {os.getpid()}, "parts": {{"analyze": {{"pid": 1, "silent_since": null}}}}}}'
    )
    assert part_of_up(tmp_path, "analyze") is not None
    later = time.time() + 86_400
    monkeypatch.setattr(
        time, "time", lambda: later
    )  # as if this process had started a day after the files were written
    assert read_of_running(silent) is None
    assert part_of_up(tmp_path, "analyze") is None
    assert silence(tmp_path, "analyze") is None


def test_faults_are_in_the_file_while_there_are_any(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "run" / "analyze.json"
    write_ready_file(path, {"store": "s"})
    heartbeat = Heartbeat(path)
    monkeypatch.setattr("streamgauge.ingest.ready_file.HEARTBEAT_S", 0.0)
    for faults in ({"upkeep": "failed"}, {"upkeep": "failed again"}, {}):
        heartbeat.beat(faults)
        assert written_faults(tmp_path, "analyze") == faults
    assert read_ready_file(path) == {"pid": os.getpid(), "store": "s", "faults": {}}
    assert written_faults(tmp_path, "tap") == {}
