"""An export is one DuckDB file with the rows of a time range, and the views."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import duckdb
import pytest

from streamgauge.analytics.storage.export import export
from streamgauge.analytics.storage.location import locate
from streamgauge.analytics.storage.store import Store
from tests.analytics.storage.rows import commit_of, new_ids
from tests.analytics.storage.test_upkeep import DAY_S, NOW_S, counts, fill
from tests.analytics.stores import ask, new_store

QUERY = "SELECT count(*), count(DISTINCT stream_id) FROM {}"


def found(path: Path, sql: str) -> list[tuple[object, ...]]:
    with duckdb.connect(str(path), read_only=True) as connection:
        return connection.execute(sql).fetchall()


def test_an_export_has_every_row_view_and_comment(store: Store, tmp_path: Path) -> None:
    fill(store, days=3, per_day=50, each=4)
    store.acquire_partition("log", "0")
    store.commit(commit_of("log", "0", 7, new_ids(2)))
    reported: dict[str, int] = {}
    path = tmp_path / "all.duckdb"
    assert export(store.location, path, report=reported.__setitem__) == 152
    for table, rows in counts(store).items():
        assert found(path, f"SELECT count(*) FROM {table}") == [(rows,)]
        assert reported[table] == rows
    for view in ("errors_by_minute", "throughput_by_minute", "counters"):
        with duckdb.connect(str(path), read_only=True) as connection:
            connection.execute("SET TimeZone = 'UTC'")
            exported = connection.execute(f"FROM {view} ORDER BY ALL").pl().rows()
        assert exported == ask(store, f"FROM {view} ORDER BY ALL"), view
    assert found(path, "SELECT high FROM log_positions") == [(7,)]
    assert found(
        path, "SELECT count(*) FROM duckdb_columns() WHERE table_name = 'streams' AND comment IS NULL"
    ) == [(0,)]
    assert path.stat().st_mode & 0o777 == 0o600
    assert [one.name for one in tmp_path.iterdir() if one.suffix in (".duckdb", ".part", ".wal")] == [
        path.name
    ]


def test_range_selects_streams_by_their_start(store: Store, tmp_path: Path) -> None:
    fill(store, days=5, per_day=10, each=2)
    since, until = (dt.datetime.fromtimestamp(NOW_S - days * DAY_S, dt.UTC) for days in (4, 2))
    path = tmp_path / "range.duckdb"
    assert export(store.location, path, since=since, until=until) == 20
    assert found(path, QUERY.format("streams")) == [(20, 20)]
    assert found(path, QUERY.format("events")) == [(40, 20)]
    assert found(path, QUERY.format("losses")) == [(20, 20)]
    [(first, last)] = found(path, "SELECT epoch(min(started_at)), epoch(max(started_at)) FROM streams")
    assert since.timestamp() <= float(str(first)) <= float(str(last)) < until.timestamp()


def test_export_runs_while_analytics_commits(store: Store, tmp_path: Path) -> None:
    store.acquire_partition("log", "0")
    store.commit(commit_of("log", "0", 1, new_ids(3)))

    def commit_more(table: str, rows: int) -> None:
        store.commit(commit_of("log", "0", 2, new_ids(3)))

    path = tmp_path / "one.duckdb"
    assert export(store.location, path, report=commit_more) == 3
    assert found(path, QUERY.format("streams")) == [(3, 3)]


def test_existing_file_is_not_overwritten(tmp_path: Path) -> None:
    new_store(tmp_path / "data").close()
    path = tmp_path / "there.duckdb"
    path.write_text("precious")
    with pytest.raises(OSError, match="the file exists") as refused:
        export(locate("sqlite", tmp_path / "data"), path)
    assert "\n" not in str(refused.value)
    assert path.read_text() == "precious"


@pytest.mark.parametrize("where", ["nowhere/x.duckdb", "data/analyze"])
def test_a_failed_export_leaves_no_file(tmp_path: Path, where: str) -> None:
    location = locate("sqlite", tmp_path / "data")
    if where.startswith("data"):
        (tmp_path / "data").mkdir()  # a folder without a store
    else:
        new_store(tmp_path / "data").close()
    before = {path.name for path in tmp_path.rglob("*")}
    with pytest.raises(OSError, match="cannot") as failed:
        export(location, tmp_path / where)
    assert "\n" not in str(failed.value)
    added = {path.name for path in tmp_path.rglob("*")} - before
    assert added <= {"catalog.sqlite-shm", "catalog.sqlite-wal"}  # created by every reader
