"""`streamgauge import` stores the streams of an exported file through the running analytics, each once."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import duckdb
import pytest
from click.testing import CliRunner, Result

from streamgauge.analytics.main import run_until
from streamgauge.analytics.storage.export import export
from streamgauge.analytics.storage.location import locate
from streamgauge.commands.store_commands import import_command
from tests.analytics.stores import ask_as_reader
from tests.deadline import DEADLINE_S, until
from tests.options import analyze_options
from tests.streamgauge.stored import analyse, write_streams

STREAMS = 6
TABLES = ("streams", "events", "usage_reports", "server_stats")
ROLLED = "SELECT sum(streams)::BIGINT, sum(output_tokens)::BIGINT FROM stream_minutes"


@contextmanager
def analytics(data: Path) -> Iterator[None]:
    """A running analytics process, as a thread."""
    stop, ready = threading.Event(), threading.Event()
    thread = threading.Thread(
        target=run_until, args=(analyze_options(data=data), stop, lambda _: ready.set())
    )
    thread.start()
    try:
        assert ready.wait(DEADLINE_S)
        yield
    finally:
        stop.set()
        thread.join()


def import_file(data: Path, path: Path) -> Result:
    return CliRunner().invoke(import_command, [str(path), "--data", str(data), "--format", "json"])


def ids(data: Path) -> set[str]:
    return {row[0] for row in ask_as_reader(locate("sqlite", data), "SELECT stream_id FROM streams")}


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A data folder with streams, and the exported file."""
    data = tmp_path_factory.mktemp("source")
    write_streams(data, range(STREAMS))
    analyse(data)
    export(locate("sqlite", data), data / "exported.duckdb")
    return data, data / "exported.duckdb"


def test_streams_are_imported_with_their_rows_and_rollups_each_once(
    exported: tuple[Path, Path], tmp_path: Path
) -> None:
    source, file = exported
    write_streams(tmp_path, range(2))  # the store has two of the streams already
    with analytics(tmp_path):
        write_streams(tmp_path, range(STREAMS, STREAMS + 1))
        until(lambda: len(ids(tmp_path)) == 3, "the streams of the log")
        done = import_file(tmp_path, file)
        assert done.exit_code == 0, done.output
        found = json.loads(done.stdout)
        assert (found["streams"], found["skipped"]) == (STREAMS - 2, 2)
        again = json.loads(import_file(tmp_path, file).stdout)
        assert (again["streams"], again["skipped"]) == (0, STREAMS)
    here, there = ids(tmp_path), ids(source)
    assert len(here) == STREAMS + 1
    assert there < here
    same = "FROM {} WHERE stream_id IN (SELECT unnest({}::UUID[])) ORDER BY ALL"
    for table in TABLES:
        rows = [
            ask_as_reader(locate("sqlite", data), same.format(table, sorted(there)[2:]))
            for data in (source, tmp_path)
        ]
        assert rows[0] == rows[1], table
    ((streams, _),) = ask_as_reader(locate("sqlite", tmp_path), ROLLED)
    assert streams == STREAMS + 1
    assert not [*(tmp_path / "import").iterdir()]


def test_file_of_a_former_version_has_null_in_the_columns_that_it_lacks(
    exported: tuple[Path, Path], tmp_path: Path
) -> None:
    former = tmp_path / "former.duckdb"
    former.write_bytes(exported[1].read_bytes())
    with duckdb.connect(str(former)) as connection:
        for (view,) in connection.execute(
            "SELECT view_name FROM duckdb_views() WHERE NOT internal"
        ).fetchall():
            connection.execute(f"DROP VIEW IF EXISTS {view}")
        connection.execute("ALTER TABLE streams DROP COLUMN gateway; DROP TABLE server_stats")
        connection.execute("ALTER TABLE streams ADD COLUMN of_a_later_version BIGINT")
    with analytics(tmp_path / "data"):
        assert import_file(tmp_path / "data", former).exit_code == 0
    counted = "SELECT count(*), count(gateway), count(response_model) > 0 FROM streams"
    assert ask_as_reader(locate("sqlite", tmp_path / "data"), counted) == [(STREAMS, 0, True)]


def test_file_that_is_no_database_is_an_error_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(os.urandom(10_000))
    with analytics(tmp_path / "data"):
        done = import_file(tmp_path / "data", tmp_path / "file")
    assert done.exit_code == 1
    assert "cannot import" in done.output
    assert not [*(tmp_path / "data" / "import").iterdir()]


def test_import_without_analytics_is_an_error(exported: tuple[Path, Path], tmp_path: Path) -> None:
    done = import_file(tmp_path, exported[1])
    assert done.exit_code == 1
    assert "analytics does not run" in done.output
    assert not (tmp_path / "import").exists()
