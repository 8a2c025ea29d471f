"""The file that says where the SQL server answers."""

from __future__ import annotations

from pathlib import Path

import pytest

from analytics.query import endpoint
from analytics.query.endpoint import Endpoint


def test_what_is_written_is_read_and_private(tmp_path: Path) -> None:
    here = Endpoint(7, "quack:localhost:9494", "t" * 20)
    endpoint.write(tmp_path, here)
    assert endpoint.read(tmp_path) == here
    assert (tmp_path / endpoint.FILE).stat().st_mode & 0o777 == 0o600
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["serve.json"]
    assert "tttt" not in repr(here)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"pid": 1}', '{"pid": "x", "quack": "", "token": ""}'])
def test_an_invalid_file_counts_as_none(tmp_path: Path, text: str) -> None:
    assert endpoint.read(tmp_path) is None
    (tmp_path / "run").mkdir()
    (tmp_path / endpoint.FILE).write_text(text)
    assert endpoint.read(tmp_path) is None


def test_only_its_own_process_removes_it(tmp_path: Path) -> None:
    endpoint.write(tmp_path, Endpoint(7, "quack:localhost:9494", "t" * 20))
    endpoint.remove(tmp_path, 8)
    assert endpoint.read(tmp_path) is not None
    endpoint.remove(tmp_path, 7)
    assert endpoint.read(tmp_path) is None
