"""The comparison of rows with another commit."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import duckdb
import pytest

from tests import rows_diff

STREAM = b'data: {"object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":"hi"},"finish_reason":"stop"}]}\n\n'


def test_a_tree_without_changes_has_no_differences(tmp_path: Path) -> None:
    inside = ["git", "rev-parse", "--is-inside-work-tree"]
    if subprocess.run(inside, cwd=rows_diff.ROOT, capture_output=True, check=False).returncode:
        pytest.skip("needs a git repository")
    (tmp_path / "one.sse").write_bytes(STREAM)
    files = rows_diff.copied(rows_diff.recorded_files([tmp_path]), tmp_path / "files")
    stores = [
        rows_diff.export_rows(rows_diff.ROOT, files, tmp_path / name, bytes(32), "--capture-content")
        for name in ("base", "tree")
    ]
    with duckdb.connect() as connection:
        for name, store in zip(("base", "tree"), stores, strict=True):
            rows_diff.attach(store, name, connection)
        assert connection.execute("SELECT output_text FROM tree.streams").fetchall() == [("hi",)]
        assert [rows_diff.report_relation(connection, name) for name in rows_diff.RELATIONS] == [0] * 7


def test_differences_are_printed_by_column_with_examples(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    columns = "stream_id, tap, started_at, path, parent_session_id"
    stream = "uuid() AS stream_id, 'a.sse' AS tap, 1 AS started_at, '/v1' AS path, 's' AS parent_session_id"
    for name, row in (
        ("base", f"SELECT {stream}, 1 AS tokens, 5 AS former"),
        ("tree", f"SELECT {stream}, 2 AS tokens"),
    ):
        with duckdb.connect(str(tmp_path / name)) as store:
            store.execute(f"CREATE TABLE streams AS {row}")
            if name == "tree":
                store.execute(f"INSERT INTO streams ({columns}) SELECT uuid(), 'b.sse', 1, '/v1', NULL")
    with duckdb.connect() as connection:
        for name in ("base", "tree"):
            rows_diff.attach(tmp_path / name, name, connection)
        assert rows_diff.report_relation(connection, "streams") == 3
    assert capsys.readouterr().out.splitlines() == [
        "streams.former: only in base, with 1 values",
        "    a.sse#1: 5",
        "streams: 1 rows only in tree: b.sse#1",
        "streams.tokens: 1 rows",
        "    a.sse#1: 1 → 2",
    ]


def test_a_commit_is_checked_out_and_removed(tmp_path: Path) -> None:
    if subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=rows_diff.ROOT, capture_output=True, check=False
    ).returncode:
        pytest.skip("needs a git repository")
    with rows_diff.work_tree("HEAD") as tree:
        code = "import streamgauge; print(streamgauge.__file__)"
        found = subprocess.run(
            [sys.executable, "-c", code],
            cwd=tree,
            env={"PYTHONPATH": str(tree)},
            capture_output=True,
            text=True,
            check=True,
        )
        assert Path(found.stdout.strip()).is_relative_to(tree)
    assert not tree.exists()
