"""Ready files: private, written and removed by one process."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from ingest.ready_file import (
    SILENT_AFTER_S,
    Heartbeat,
    read_ready_file,
    remove_ready_file,
    silence,
    silent_s,
    write_ready_file,
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


def test_heartbeat_touches_the_file_at_most_once_per_interval(tmp_path: Path) -> None:
    path = tmp_path / "serve.json"
    heartbeat = Heartbeat(path)
    heartbeat.beat()  # no file: ignored
    assert silent_s(path) == 0
    write_ready_file(path, {})
    heartbeat = Heartbeat(path)
    for expected_s in (0, 3600):  # the second call comes within the interval
        os.utime(path, (0, time.time() - 3600))
        heartbeat.beat()
        assert silent_s(path) == pytest.approx(expected_s, abs=60)


def test_silence_names_the_part_and_the_time(tmp_path: Path) -> None:
    data, file = tmp_path, tmp_path / "run" / "analyze.json"
    write_ready_file(file, {})
    assert silence(data, "analyze") is None
    assert silence(data, "tap") is None
    at_s = time.time() - 10 * SILENT_AFTER_S
    os.utime(file, (at_s, at_s))
    since = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(at_s))
    found = silence(data, "analyze")
    assert found is not None
    assert found.startswith(f"analyze (pid {os.getpid()}) does not respond since {since} (10")
