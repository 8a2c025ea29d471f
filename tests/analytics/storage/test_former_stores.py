"""Stores of former versions are upgraded when they are opened: with every row and figure, also if the upgrade is interrupted.

tests/former_stores/make.py adds a store for each release.
"""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import duckdb
import pytest

from streamgauge.analytics.query.query_errors import QueryRejected, StoreUnavailable
from streamgauge.analytics.query.reader import Reader
from streamgauge.analytics.schema.ddl import TABLES_VERSION, statements
from streamgauge.analytics.schema.tables import MARKERS, TABLES
from streamgauge.analytics.storage import catalog as catalog_module
from streamgauge.analytics.storage import create_schema, store, upgrade_steps
from streamgauge.analytics.storage.catalog import Catalog
from streamgauge.analytics.storage.commit import Commit
from streamgauge.analytics.storage.ducklake_format import read_layouts
from streamgauge.analytics.storage.location import StoreLocation, locate
from streamgauge.analytics.storage.store import Store
from streamgauge.analytics.storage.upkeep import Upkeep
from streamgauge.ingest.ready_file import silence, write_start
from tests import reached
from tests.analytics.storage.conftest import CATALOGS, ROOT
from tests.analytics.storage.former_stores import (
    VERSIONS,
    content,
    figures_of,
    former_figures,
    postgres_store,
    sqlite_store,
)
from tests.analytics.storage.rows import commit_of, new_ids
from tests.analytics.stores import ask, ask_as_reader

OPEN = """
import json, pathlib, sys
from streamgauge.analytics.storage.location import StoreLocation
from streamgauge.analytics.storage.store import Store
given = json.loads(sys.argv[1])
catalog = given["catalog"] and pathlib.Path(given["catalog"])
print("ready", flush=True)
Store(StoreLocation(**given | {"catalog": catalog})).close()
"""
MOMENTS = 20
NewStore = Callable[[], StoreLocation]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("former")


@pytest.fixture(params=VERSIONS)
def unpacked(request: pytest.FixtureRequest, folder: Path) -> Path:
    return content(request.param, folder)


@pytest.fixture(params=CATALOGS)
def new_store(request: pytest.FixtureRequest, unpacked: Path, tmp_path: Path) -> NewStore:
    """Makes copies of a former store."""

    def make() -> StoreLocation:
        target = tmp_path / f"store{len([*tmp_path.iterdir()])}"
        if request.param == "sqlite":
            return sqlite_store(unpacked, target)
        return postgres_store(unpacked, target, request.getfixturevalue("postgres"))

    return make


def layouts(location: StoreLocation) -> dict[str, Any]:
    """Columns of all tables, and what belongs to them in the catalog."""
    with closing(Store(location)) as opened:
        found = {name: dict(one.columns) for name, one in read_layouts(opened.catalog).items()}
        statistics = opened.catalog.query(
            "SELECT table_id, column_id, min_value, max_value FROM ducklake_table_column_stats ORDER BY 1, 2"
        )
        views = ask(
            opened, "SELECT view_name, sql, comment FROM duckdb_views() WHERE NOT internal ORDER BY 1"
        )
        sorted_by = opened.catalog.query(
            "SELECT table_id, expression FROM ducklake_sort_info AS i JOIN ducklake_sort_expression AS e "
            "USING (sort_id, table_id) WHERE i.end_snapshot IS NULL ORDER BY 1, 2"
        )
        indexes = [
            one
            for table in TABLES
            for one in opened.catalog.query(
                f"SELECT count(*) FROM pg_indexes WHERE tablename = '{opened.layouts[table.name].inlined}'"
            )
        ] if opened.catalog.is_postgres else []  # fmt: skip
        return {"tables": found, "statistics": statistics, "views": views, "sorted": sorted_by, "indexes": indexes}  # fmt: skip


def test_every_row_and_figure_of_a_former_store_stays(
    new_store: NewStore, unpacked: Path, tmp_path: Path
) -> None:
    location, steps = new_store(), list[str]()
    with closing(Store(location, report=steps.append)) as upgraded:
        assert steps[0] == "copy of the catalog"
        before = former_figures(unpacked, location)
        assert before["streams"]["rows"] > 10
        assert figures_of(location, tmp_path, before) == before
        assert ask(upgraded, "SELECT count(client_app) FROM client_minutes WHERE settled") == [(0,)]
        assert {table.name for table in TABLES} <= upgraded.layouts.keys()
        for table in TABLES:
            assert {*table.types} <= {*upgraded.layouts[table.name].columns}, table.name
        for (view,) in ask(upgraded, "SELECT view_name FROM duckdb_views() WHERE NOT internal AND schema_name = 'main'"):  # fmt: skip
            ask(upgraded, f"FROM {view}")
        # Writing, upkeep and a second start work.
        rows = before["streams"]["rows"]
        [(labelled,)] = ask(upgraded, "SELECT count(labels) FROM streams")
        upgraded.acquire_partition("new log", "0")
        upgraded.commit(commit_of("new log", "0", 1, new_ids(300), each=1))
        with closing(Upkeep(upgraded, events_s=None, streams_s=None)) as upkeep:
            upkeep.compact_rollups()
            upkeep.flush(least_rows=1)
            upkeep.merge_all()
        assert ask(upgraded, "SELECT count(*) FROM streams") == [(rows + 300,)]
    with closing(Store(location, report=steps.append)) as again:
        assert ask(again, "SELECT count(*), count(labels) FROM streams") == [(rows + 300, labelled + 300)]
        assert steps.count("copy of the catalog") == 1


def test_copy_of_before_the_upgrade_has_the_former_catalog(new_store: NewStore) -> None:
    location = new_store()
    with closing(Store(location)) as upgraded:
        if location.catalog is None:
            upgraded.catalog.query("SELECT table_id FROM streamgauge_before_upgrade.ducklake_table")
            found = upgraded.catalog.query(
                "SELECT key, value FROM streamgauge_before_upgrade.streamgauge_meta"
            )
        else:
            with closing(sqlite3.connect(location.before_upgrade)) as copy:
                copy.execute("SELECT table_id FROM ducklake_table")
                found = copy.execute("SELECT key, value FROM streamgauge_meta").fetchall()
    former = dict(found)
    assert {"schema", "fingerprint_key"} <= former.keys()
    assert int(former.get("version", 0)) < TABLES_VERSION  # former stores have none


class Injected(Exception):
    """A fault after a statement."""


class Faults:
    """Raises after the n-th statement of `prepare`."""

    def __init__(self, number: int) -> None:
        self.remaining = number

    def after(self, result: Any) -> Any:
        self.remaining -= 1
        if not self.remaining:
            raise Injected
        return result


class FailingConnection:
    def __init__(self, connection: duckdb.DuckDBPyConnection, faults: Faults) -> None:
        self._connection, self._faults = connection, faults

    def execute(self, *arguments: Any) -> Any:
        return self._faults.after(self._connection.execute(*arguments))


class FailingCatalog(Catalog):
    faults: Faults

    def change(self, sql: str) -> None:
        self.faults.after(super().change(sql))

    def execute(self, sql: str) -> None:
        self.faults.after(super().execute(sql))

    def create_index(self, name: str, table: str, columns: str) -> None:
        self.faults.after(super().create_index(name, table, columns))

    def create_statistics_triggers(self) -> None:
        self.faults.after(super().create_statistics_triggers())

    def copy_to_schema(self, schema: str) -> None:
        self.faults.after(super().copy_to_schema(schema))


def fails_at(location: StoreLocation, number: int, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Open the store, with a fault after the n-th statement. False: there are fewer."""
    faults, prepare = Faults(number), create_schema.prepare

    def failing(connection: Any, catalog: Any, *rest: Any) -> Any:
        catalog.__class__ = FailingCatalog
        catalog.faults = faults
        try:
            return prepare(FailingConnection(connection, faults), catalog, *rest)  # type: ignore[arg-type]
        finally:
            catalog.__class__ = Catalog

    with monkeypatch.context() as patch:
        patch.setattr(store, "prepare", failing)
        try:
            Store(location).close()
        except Injected:
            return True
        return False


def check_interrupted(
    new_store: NewStore, unpacked: Path, tmp_path: Path, numbers: Iterator[int], monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    expected = layouts(new_store())
    for number in numbers:
        location = new_store()
        if not fails_at(location, number, monkeypatch):
            assert number > 50
            break
        fails_at(location, 10, monkeypatch)  # the repetition fails, too
        assert layouts(location) == expected, number
        reached.note([reached.RESUMED_UPGRADE])
        before = former_figures(unpacked, location)
        assert figures_of(location, tmp_path, before) == before, number


def test_upgrade_continues_after_a_fault(
    new_store: NewStore, unpacked: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sample: one statement for each version. The next test has all."""
    number = (8, 14, 45)[VERSIONS.index(unpacked.name) % 3]
    check_interrupted(new_store, unpacked, tmp_path, iter((number,)), monkeypatch)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_upgrade_continues_after_a_fault_after_each_statement(
    new_store: NewStore, unpacked: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_interrupted(new_store, unpacked, tmp_path, iter(range(1, 1000)), monkeypatch)


def opening(location: StoreLocation) -> subprocess.Popen[str]:
    """Another process that is about to open the store."""
    process = subprocess.Popen(
        [sys.executable, "-c", OPEN, json.dumps(asdict(location), default=str)],
        stdout=subprocess.PIPE, text=True, cwd=ROOT,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_upgrade_continues_after_kill_at_any_moment(
    new_store: NewStore, unpacked: Path, tmp_path: Path
) -> None:
    location = new_store()
    process, began_s = opening(location), time.monotonic()
    assert process.wait() == 0
    took_s, expected, killed = time.monotonic() - began_s, layouts(location), 0
    while killed < MOMENTS:
        location = new_store()
        process = opening(location)
        timer = threading.Timer(took_s * (killed + 0.5) / MOMENTS, process.kill)
        timer.start()
        code = process.wait()
        timer.cancel()
        if code == 0:  # the machine is less busy than at the first upgrade
            took_s *= 0.8
            continue
        killed += 1
        assert layouts(location) == expected, killed
        before = former_figures(unpacked, location)
        assert figures_of(location, tmp_path, before) == before, killed


# -- Versions ------------------------------------------------------------------------------------------------------------


def set_version(location: StoreLocation, number: int) -> None:
    """Give a store of this version another one, also for readers."""
    with closing(Store(location)) as opened:
        run = opened.cursor().execute
        run(f"UPDATE catalog.streamgauge_meta SET value = '{number}' WHERE key = 'version'")
        run(
            f"CREATE OR REPLACE VIEW internal.tables_version AS SELECT {number} AS number, 'another' AS digest"
        )


def test_newer_store_is_refused_with_both_versions_and_what_to_do(location: StoreLocation) -> None:
    set_version(location, TABLES_VERSION + 4)
    numbers = rf"version {TABLES_VERSION + 4}, and this version of Streamgauge has {TABLES_VERSION}\. Install"
    with pytest.raises(OSError, match=numbers) as refused:
        Store(location)
    assert "\n" not in str(refused.value)
    with pytest.raises(StoreUnavailable, match=numbers):
        Reader(location)


def test_store_of_an_unknown_version_with_an_unknown_column_is_refused_in_one_line(
    location: StoreLocation,
) -> None:
    with closing(Store(location)) as opened:
        run = opened.cursor().execute
        run("DELETE FROM catalog.streamgauge_meta WHERE key = 'version'")
        run("UPDATE catalog.streamgauge_meta SET value = 'unknown' WHERE key = 'schema'")
        run("ALTER TABLE streams ADD COLUMN of_a_branch VARCHAR")
    with pytest.raises(OSError, match=r"unknown version of Streamgauge, with the column streams\.of_a_branch") as refused:  # fmt: skip
        Store(location)
    assert "\n" not in str(refused.value)


def test_readers_of_a_former_store_say_that_it_is_being_upgraded(unpacked: Path, tmp_path: Path) -> None:
    location = sqlite_store(unpacked, tmp_path / "data")
    with pytest.raises(StoreUnavailable, match="being upgraded, or will be when analytics of this version"):
        Reader(location)
    write_start(tmp_path / "data", "analyze", "upgrading the store (views)")
    assert "upgrading the store (views)" in str(silence(tmp_path / "data", "analyze"))
    Store(location).close()
    assert ask_as_reader(location, "SELECT count(*) > 0 FROM streams") == [(True,)]


def test_reader_of_views_of_another_version_says_what_upgrades_them(location: StoreLocation) -> None:
    with closing(Store(location)) as opened:
        run = opened.cursor().execute
        run("CREATE OR REPLACE VIEW prompt_reuse AS SELECT stream_id FROM streams")
        run(
            f"CREATE OR REPLACE VIEW internal.tables_version AS SELECT {TABLES_VERSION} AS number, 'another' AS digest"
        )
    with (
        closing(Reader(location)) as reader,
        pytest.raises(
            QueryRejected, match=r"seen_tokens(?s:.*)\. The views .* Analytics of this version upgrades"
        ),
    ):
        reader.query("SELECT seen_tokens FROM prompt_reuse", max_rows=1, timeout_s=60)


def test_readers_of_a_new_store_say_that_it_is_being_created(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    location = locate("sqlite", tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(create_schema, "_replace_views", Mock(side_effect=RuntimeError("planted")))
        with pytest.raises(RuntimeError, match="planted"):
            Store(location)
    with pytest.raises(StoreUnavailable, match="it is being created"):
        Reader(location)
    Store(location).close()
    Reader(location).close()


def test_added_column_and_table_need_no_step(
    location: StoreLocation, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(Store(location)) as former:
        former.acquire_partition("log", "0")
        former.commit(commit_of("log", "0", 1, new_ids(3)))
    tables, views, comments = statements()
    for first in ("stream_id UUID", "tap VARCHAR", "log_id VARCHAR"):
        tables = tables.replace(f"(\n    {first},", f"(\n    {first}, added MAP(VARCHAR,VARCHAR),", 1)
    tables += "CREATE TABLE IF NOT EXISTS added (\n    number BIGINT\n);\n"
    monkeypatch.setattr(create_schema, "statements", lambda: (tables, views, comments))
    with closing(Store(location)) as upgraded:
        assert ask(upgraded, "SELECT count(*), count(added) FROM streams") == [(3, 0)]
        assert ask(upgraded, "FROM added") == []
        position = upgraded.acquire_partition("log", "0")
        assert position is not None
        assert position.high == 1
        upgraded.commit(commit_of("log", "0", 2, new_ids(300)))
        assert ask(upgraded, "SELECT count(*), max(high)::BIGINT FROM log_positions") == [(1, 2)]
        assert ask(upgraded, "SELECT count(*) FROM streams") == [(303,)]
    monkeypatch.undo()
    # A version without the column reads and writes the store, because the version of the tables is the same.
    with closing(Store(location)) as older:
        older.commit(Commit("", tables=commit_of("log", "0", 3, new_ids(300)).tables))
        assert ask(older, "SELECT count(*), count(added) FROM streams") == [(603, 0)]


def test_steps_run_once_in_order_and_rename_tables_and_columns(
    location: StoreLocation, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(Store(location)) as former:
        former.acquire_partition("log", "0")
        former.commit(commit_of("log", "0", 1, new_ids(3)))
    ran = []

    def rename(connection: duckdb.DuckDBPyConnection) -> None:
        ran.append(1)
        for _ in range(2):
            upgrade_steps.rename_column(connection, "streams", "outcome", "result")
            upgrade_steps.rename_column(connection, "log_positions", "high", "next")
            upgrade_steps.rename_table(connection, "markers", "marks")

    def nothing(_: duckdb.DuckDBPyConnection) -> None:
        ran.append(2)

    tables, _, _ = statements()
    for former, current in (
        ("    outcome VARCHAR,", "    result VARCHAR,"),
        ("    high BIGINT,", "    next BIGINT, added BIGINT,"),
        ("EXISTS markers (", "EXISTS marks ("),
    ):
        assert former in tables
        tables = tables.replace(former, current, 1)
    monkeypatch.setattr(create_schema, "statements", lambda: (tables, "", ""))
    renamed = tuple(replace(one, name="marks") if one is MARKERS else one for one in TABLES)
    monkeypatch.setattr(create_schema, "TABLES", renamed)
    monkeypatch.setattr(create_schema, "TABLES_VERSION", TABLES_VERSION + 2)
    monkeypatch.setattr(create_schema, "STEPS", {TABLES_VERSION + 2: nothing, TABLES_VERSION + 1: rename})
    for _ in range(2):
        with closing(Store(location)) as upgraded:
            assert ask(upgraded, "SELECT count(*), count(result) FROM streams") == [(3, 3)]
            assert ask(upgraded, "SELECT next, added FROM log_positions") == [(1, None)]
            assert ask(upgraded, "FROM marks") == []
    assert ran == [1, 2]


def test_second_process_waits_for_an_upgrade_and_then_reports_it(
    location: StoreLocation, monkeypatch: pytest.MonkeyPatch
) -> None:
    if location.catalog is not None:
        pytest.skip("a data folder has one analytics process")
    monkeypatch.setattr(catalog_module, "CREATION_WAIT_S", 0.2)
    with (
        closing(Store(location)) as first,
        first.catalog.creation(),
        pytest.raises(OSError, match="lock timeout"),
    ):
        Store(location)
