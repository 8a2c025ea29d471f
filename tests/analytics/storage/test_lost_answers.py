"""A commit is stored exactly once, with all its files, wherever it fails and even if only the answer to COMMIT is lost.

The steps are the statements that a commit runs, recorded from one that succeeds. Each fault is followed by a restart.
"""

from __future__ import annotations

import contextlib
import itertools
import random
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import pytest

from streamgauge.analytics.storage.catalog import Conflict, is_conflict
from streamgauge.analytics.storage.commit import StoreFailed
from streamgauge.analytics.storage.location import StoreLocation
from streamgauge.analytics.storage.store import INLINED_ROWS, Store
from streamgauge.analytics.storage.upkeep import Upkeep
from tests.analytics.storage.conftest import CATALOGS, ROOT
from tests.analytics.storage.rows import commit_of, files
from tests.analytics.stores import ask
from tests.postgres import Postgres

LARGE = INLINED_ROWS + 1
FAULTS = ("before", "after", "killed")


class Faulty:
    """A connection whose `execute` counts its calls, and fails at one of them."""

    def __init__(
        self, real: duckdb.DuckDBPyConnection, steps: list[str], fault: Callable[[bool], None]
    ) -> None:
        self._real, self._steps, self._fault = real, steps, fault

    def execute(self, sql: str, values: Sequence[object] = ()) -> duckdb.DuckDBPyConnection:
        self._steps.append(str(values[0]) if values else sql)
        self._fault(False)
        result = self._real.execute(sql, values) if values else self._real.execute(sql)
        self._fault(True)
        return result

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


def commit_number(number: int) -> Any:
    """Streams enough for a file, few events for inlined rows, kept records and counters."""
    ids = [f"0198b2d0-0000-7000-{number:04x}-{n:012d}" for n in range(LARGE)]
    commit = commit_of("log", "0", number + 1, ids)
    commit.tables = {**commit.tables, "events": commit_of("log", "0", 0, ids[:2], each=2).tables["events"]}
    commit.kept_records = [("0", ids[0], b"kept %d" % number)]
    return commit


def steps_of(store: Store, number: int, fault: Callable[[list[str], bool], None]) -> list[str]:
    """Commit, calling `fault` with the steps so far and whether the last one was done."""
    steps: list[str] = []
    for owner in (store.catalog, store._appender):
        owner._connection = Faulty(owner._connection, steps, lambda is_done: fault(steps, is_done))  # type: ignore[assignment]
    store.commit(commit_number(number))
    return steps


def names(store: Store, table: str, where: str = "true") -> set[str]:
    """Names of the files in a table of the catalog."""
    return {
        Path(str(path)).name for (path,) in store.catalog.query(f"SELECT path FROM {table} WHERE {where}")
    }


def missing_files(store: Store) -> set[str]:
    named = names(store, "ducklake_data_file", "end_snapshot IS NULL") | names(store, "ducklake_delete_file")
    return named - {Path(file).name for file in files(store)}


PROXY = """
import sys
from tests.proxy import proxy

with proxy() as forwarder:
    forwarder.target = ("127.0.0.1", int(sys.argv[1]))
    print(forwarder.port, flush=True)
    for _ in sys.stdin:
        forwarder.loses_answer = (b"ducklake_snapshot_changes", b"COMMIT\\x00")
        print("armed", flush=True)
"""
"""In another process, because DuckDB holds the GIL while it plans a COPY, which connects to the catalog."""


@contextmanager
def losing_answers(postgres: Postgres) -> Iterator[tuple[int, Callable[[], None]]]:
    """The port of a proxy to PostgreSQL, and a function: the answer to the next COMMIT of a snapshot is lost."""
    process = subprocess.Popen(
        [sys.executable, "-c", PROXY, str(postgres.port)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=ROOT,
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    answers, commands = process.stdout, process.stdin

    def lose() -> None:
        commands.write("\n")
        commands.flush()
        assert answers.readline() == "armed\n"

    try:
        yield int(answers.readline()), lose
    finally:
        process.kill()
        process.communicate()


def check(location: StoreLocation, commits: int) -> None:
    """Each row of `commits` commits is stored once, and exactly the files that are named exist, once orphans are deleted."""
    with closing(Store(location)) as store, closing(Upkeep(store, events_s=None, streams_s=None)) as upkeep:
        for older_than in ("now() - INTERVAL 1 DAY", "now()"):
            upkeep._call("ducklake_delete_orphaned_files", f"older_than => {older_than}")
            assert missing_files(store) == set()
            for table, key, each in (("streams", "stream_id", LARGE), ("events", "(stream_id, seq)", 4)):
                found = ask(store, f"SELECT count({key}), count(DISTINCT {key}) FROM {table}")
                assert found == [(commits * each,) * 2]
            assert ask(store, "SELECT sum(streams)::BIGINT FROM stream_minutes") == [(commits * LARGE,)]
            assert store.totals() == {"records": commits * LARGE}
            assert len(store.kept_records("log", "0")) == commits
        known = names(store, "ducklake_data_file") | names(store, "ducklake_delete_file")
        assert {Path(file).name for file in files(store)} <= known | names(
            store, "ducklake_files_scheduled_for_deletion"
        )
        assert [*Path(store.data_path).rglob("*.link")] == []


def walk(location: StoreLocation, faults: Sequence[tuple[str, int]], postgres: Postgres | None) -> int:
    """One round for each (fault, step): a commit that fails there, a restart, and the same commit if it is not stored.

    Returns the number of commits whose answer alone was lost."""
    number = applied = 0
    for kind, at in faults:

        def fault(steps: list[str], is_done: bool, kind: str = kind, at: int = at) -> None:
            if len(steps) != at + 1 or is_done != (kind == "after"):
                return
            if kind != "killed":
                raise duckdb.Error("server closed the connection unexpectedly")
            assert postgres is not None
            postgres.end_sessions(str(location.dsn).rpartition("=")[2])

        with closing(Store(location)) as store:
            store.acquire_partition("log", "0")
            with contextlib.suppress(StoreFailed):
                steps_of(store, number, fault)
        with closing(Store(location)) as store:
            position = store.acquire_partition("log", "0")
            stored = (position.high if position else 0) - number
            assert stored in (0, 1)
            applied += stored
            if not stored:
                store.commit(commit_number(number))
        number += 1
    check(location, number)
    return applied


@pytest.mark.parametrize("catalog", CATALOGS)
@pytest.mark.parametrize(
    "rounds", [pytest.param(6), pytest.param(50, marks=[pytest.mark.slow, pytest.mark.timeout(900)])]
)
def test_commit_that_fails_at_any_step_is_stored_exactly_once(
    make_location: Callable[[str], StoreLocation], request: pytest.FixtureRequest, catalog: str, rounds: int
) -> None:
    location = make_location(catalog)
    with closing(Store(location)) as store:
        store.acquire_partition("log", "0")
        steps = steps_of(store, 0, lambda steps, is_done: None)
    assert steps[0].startswith("COPY")
    assert steps[-1] == "COMMIT"
    location = make_location(catalog)
    kinds = FAULTS if catalog == "postgres" else FAULTS[:2]
    # The step at the commit's end comes in every form, then all the others in random order.
    last = [(kind, len(steps) - 1) for kind in kinds]
    others = [*itertools.product(kinds, range(len(steps) - 1))]
    random.Random(rounds).shuffle(others)
    faults = [*itertools.islice(itertools.cycle(last + others), rounds)]
    postgres = request.getfixturevalue("postgres") if catalog == "postgres" else None
    assert walk(location, faults, postgres) >= 1


@pytest.mark.parametrize(
    "rounds", [pytest.param(2), pytest.param(50, marks=[pytest.mark.slow, pytest.mark.timeout(900)])]
)
def test_answer_of_postgres_to_commit_that_the_network_loses(
    make_location: Callable[[str], StoreLocation], postgres: Postgres, rounds: int
) -> None:
    direct = make_location("postgres")
    with losing_answers(postgres) as (port, lose_answer):
        proxied = replace(direct, dsn=str(direct.dsn).replace(f"port={postgres.port}", f"port={port}"))
        for number in range(rounds):
            with closing(Store(proxied)) as store:
                store.acquire_partition("log", "0")
                lose_answer()
                with pytest.raises(StoreFailed, match=r"Failed to commit.*closed the connection"):
                    store.commit(commit_number(number))
            with closing(Store(direct)) as store:
                position = store.acquire_partition("log", "0")
            assert position is not None
            assert position.high == number + 1
    check(direct, rounds)


def test_answers_of_postgres_to_commits_of_upkeep_that_the_network_loses(
    make_location: Callable[[str], StoreLocation], postgres: Postgres
) -> None:
    """DuckLake removes the files of a transaction whose COMMIT failed for it."""
    direct, commits = make_location("postgres"), 3
    with closing(Store(direct)) as store, losing_answers(postgres) as (port, lose_answer):
        store.acquire_partition("log", "0")
        for number in range(commits):
            store.commit(commit_number(number))
        proxied = replace(direct, dsn=str(direct.dsn).replace(f"port={postgres.port}", f"port={port}"))
        with (
            closing(Store(proxied)) as far,
            closing(Upkeep(far, events_s=None, streams_s=None)) as upkeep,
        ):
            for task in (
                lambda: upkeep.flush(least_rows=1),
                upkeep.compact_rollups,
                lambda: upkeep._call("ducklake_merge_adjacent_files", writes=upkeep._layouts),
            ):
                lose_answer()
                with pytest.raises(duckdb.Error, match="closed the connection"):
                    task()
                assert missing_files(store) == set()
                upkeep.flush(least_rows=1)
    check(direct, commits)


# -- conflicts -------------------------------------------------------------------------------------------------------------

LIES = (
    "conflict",
    'x": ERROR:  duplicate key value violates',
    "database is locked",
    "UNIQUE constraint failed",
)


@pytest.mark.parametrize("lie", LIES)
def test_text_of_users_in_an_error_is_no_conflict(store: Store, lie: str) -> None:
    text = lie.replace("'", "''")
    for sql in (
        f"INSERT INTO streamgauge_upkeep (task, done_at_s) VALUES ('{text}', NULL)",
        f"INSERT INTO streamgauge_upkeep (task, done_at_s, none) VALUES ('{text}', 1)",
        f"INSERT INTO streamgauge_upkeep (task, done_at_s) VALUES ('x', '{text}', '{text}')",
    ):
        with pytest.raises(duckdb.Error) as failed, store.catalog.transaction():
            store.catalog.change(sql)
        assert not is_conflict(failed.value), failed.value


def test_concurrent_writer_is_a_conflict(store: Store) -> None:
    """It has committed the same snapshot id."""
    newest = store.catalog.query("SELECT max(snapshot_id) FROM ducklake_snapshot")[0][0]
    taken = (
        "INSERT INTO ducklake_snapshot (snapshot_id, snapshot_time, schema_version, next_catalog_id, next_file_id) "
        f"VALUES ({newest}, '2026-01-01 00:00:00+00', 1, 1, 1)"
    )
    with pytest.raises(Conflict), store.catalog.transaction():
        store.catalog.change(taken)
    assert store.catalog.query("SELECT 1") == [("1",)]
