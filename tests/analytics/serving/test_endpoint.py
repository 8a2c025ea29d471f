"""The endpoint file is whole, private, and its owner's."""

from __future__ import annotations

import os
from pathlib import Path

from analytics.serving import endpoint
from analytics.serving.endpoint import Endpoint

HERE = Endpoint("quack:localhost:9494", "secret-token", 123)


def test_what_was_written_is_read(tmp_path: Path) -> None:
    assert endpoint.read(tmp_path) is None
    endpoint.write(tmp_path, HERE)
    assert endpoint.read(tmp_path) == HERE
    assert [p.name for p in (tmp_path / "run").iterdir()] == ["analyze.json"]


def test_only_its_owner_may_read_it_and_the_token_is_not_shown(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        endpoint.write(tmp_path, HERE)
    finally:
        os.umask(old)
    assert (tmp_path / endpoint.FILE).stat().st_mode & 0o777 == 0o600
    assert "secret" not in repr(HERE)


def test_a_file_that_makes_no_sense_is_no_endpoint(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    for text in ("", "[]", "{}", '{"quack": 1}', "\xff", '{"quack":"q","token":"t","pid":"x"}'):
        (tmp_path / endpoint.FILE).write_text(text)
        assert endpoint.read(tmp_path) is None


def test_only_its_own_process_withdraws_it(tmp_path: Path) -> None:
    endpoint.write(tmp_path, HERE)
    endpoint.remove(tmp_path, 99)
    assert endpoint.read(tmp_path) == HERE
    endpoint.remove(tmp_path, 123)
    endpoint.remove(tmp_path, 123)
    assert endpoint.read(tmp_path) is None
