"""The file that says where the SQL server answers."""

from __future__ import annotations

from pathlib import Path

import pytest

from analytics.query import serve_ready_file
from analytics.query.serve_ready_file import Endpoint


def test_endpoint_is_read_back_from_a_private_file(tmp_path: Path) -> None:
    here = Endpoint(7, "quack:localhost:9494", "t" * 20)
    serve_ready_file.write(tmp_path, here)
    assert serve_ready_file.read(tmp_path) == here
    assert (tmp_path / serve_ready_file.FILE).stat().st_mode & 0o777 == 0o600
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["serve.json"]
    assert "tttt" not in repr(here)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"pid": 1}', '{"pid": "x", "quack": "", "token": ""}'])
def test_invalid_file_counts_as_none(tmp_path: Path, text: str) -> None:
    assert serve_ready_file.read(tmp_path) is None
    (tmp_path / "run").mkdir()
    (tmp_path / serve_ready_file.FILE).write_text(text)
    assert serve_ready_file.read(tmp_path) is None


def test_file_is_removed_only_by_the_process_that_wrote_it(tmp_path: Path) -> None:
    serve_ready_file.write(tmp_path, Endpoint(7, "quack:localhost:9494", "t" * 20))
    serve_ready_file.remove(tmp_path, 8)
    assert serve_ready_file.read(tmp_path) is not None
    serve_ready_file.remove(tmp_path, 7)
    assert serve_ready_file.read(tmp_path) is None
