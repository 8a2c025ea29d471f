"""The contract of the store, with its catalog in SQLite and in PostgreSQL.

Tests share three consumers of one store, because opening one takes half a second. Each test uses its own log and streams.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pytest

from streamgauge.analytics.assembly.partition import LogPosition
from streamgauge.analytics.schema.ddl import statements
from streamgauge.analytics.schema.frames import frame, polars_types
from streamgauge.analytics.schema.tables import HISTOGRAM_MINUTES, LOSSES, STREAMS
from streamgauge.analytics.storage import commit as commit_module
from streamgauge.analytics.storage import ducklake_format
from streamgauge.analytics.storage import store as store_module
from streamgauge.analytics.storage.catalog import Conflict
from streamgauge.analytics.storage.commit import Commit, StoreFailed
from streamgauge.analytics.storage.database import load
from streamgauge.analytics.storage.location import StoreLocation, locate
from streamgauge.analytics.storage.partition_positions import PartitionLost
from streamgauge.analytics.storage.sqlite_catalog import create_file
from streamgauge.analytics.storage.store import INLINED_ROWS, Store
from streamgauge.analytics.storage.upkeep import Upkeep
from streamgauge.ingest.records import Alive
from tests.analytics.storage.conftest import CATALOGS, ROOT, SecondProcess
from tests.analytics.storage.rows import commit_of, count, count_of, files, new_ids, streams
from tests.analytics.stores import ask, new_store
from tests.deadline import DEADLINE_S
from tests.postgres import Postgres

LARGE = INLINED_ROWS + 1


@pytest.fixture(scope="module", params=CATALOGS)
def shared_location(
    request: pytest.FixtureRequest, make_location: Callable[[str], StoreLocation]
) -> StoreLocation:
    return make_location(request.param)


@pytest.fixture(scope="module")
def consumers(shared_location: StoreLocation) -> Iterator[list[Store]]:
    """Three consumers of one store."""
    stores = [Store(shared_location) for _ in range(3)]
    yield stores
    for store in stores:
        store.close()


@pytest.fixture(scope="module")
def second_process(shared_location: StoreLocation, consumers: list[Store]) -> Iterator[SecondProcess]:
    process = SecondProcess(shared_location)
    yield process
    process.close()


@pytest.fixture
def log_id() -> str:
    return f"cluster/{uuid.uuid4()}"


def in_threads(work: Callable[[int], object], *numbers: int) -> list[BaseException]:
    """Run `work` with each number concurrently. Returns the exceptions."""
    failures: list[BaseException] = []

    def run(number: int) -> None:
        try:
            work(number)
        except BaseException as e:
            failures.append(e)

    threads = [threading.Thread(target=run, args=(n,)) for n in numbers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_S)
        assert not thread.is_alive()
    return failures


def disturb_once(monkeypatch: pytest.MonkeyPatch, store: Store, disturb: Callable[[], object]) -> None:
    """Call `disturb` in the next transaction of this store, after its positions were moved."""
    move, done = store._positions.move, list[object]()

    def move_and_be_disturbed(*arguments: Any) -> Any:
        moved = move(*arguments)
        if not done:
            done.append(disturb())
        return moved

    monkeypatch.setattr(store._positions, "move", move_and_be_disturbed)


# -- commits -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [1, LARGE])
def test_next_owner_reads_committed_rows_positions_records_taps_and_counters(
    consumers: list[Store], log_id: str, rows: int
) -> None:
    first, second, _ = consumers
    before = second.totals().get("records", 0)
    ids, open_ids = new_ids(rows), tuple(new_ids(2))
    tap = Alive(
        "tap-1", 0, log_id, 1_790_000_001_000_000_000, 0, 1_790_000_000_000_000_000, False, {"records": 3}
    )
    assert first.acquire_partition(log_id, "w0") is None
    commit = commit_of(log_id, "w0", 7, ids, open_ids=open_ids)
    commit.kept_records = [("w0", open_ids[0], b"\x00first"), ("w0", open_ids[0], b"second")]
    commit.taps = [tap]
    first.commit(commit)
    third = Commit(log_id, positions={"w0": LogPosition(8, 6, open_ids)}, totals={"records": 1})
    third.kept_records = [("w0", open_ids[0], b"third")]
    first.commit(third)
    assert second.acquire_partition(log_id, "w0") == LogPosition(8, 6, open_ids)
    assert second.kept_records(log_id, "w0") == {open_ids[0]: [b"\x00first", b"second", b"third"]}
    assert second.totals()["records"] - before == rows + 1
    assert count_of(second, ids) == rows
    assert second.store_id == first.store_id
    second.commit(Commit(log_id, finished_stream_ids=[open_ids[0]]))
    assert second.kept_records(log_id, "w0") == {}


def test_partition_that_was_acquired_but_never_moved_has_no_position(
    consumers: list[Store], log_id: str
) -> None:
    assert consumers[0].acquire_partition(log_id, "w0") is None
    assert consumers[1].acquire_partition(log_id, "w0") is None


def test_kept_records_are_read_in_order_by_partition(consumers: list[Store], log_id: str) -> None:
    store = consumers[0]
    one, other = new_ids(2)
    for partition in ("0", "1"):
        store.acquire_partition(log_id, partition)
    for high in range(1, 4):
        commit = Commit(log_id, positions={p: LogPosition(high, 0, ()) for p in ("0", "1")})
        commit.kept_records = [("0", one, b"%d" % high), ("1", other, b"-%d" % high)]
        store.commit(commit)
    assert store.kept_records(log_id, "0") == {one: [b"1", b"2", b"3"]}
    assert store.kept_records(log_id, "1") == {other: [b"-1", b"-2", b"-3"]}


def test_taps_are_updated_in_place(consumers: list[Store], log_id: str) -> None:
    first, second, _ = consumers
    started_ns = 1_790_000_000_123_456_789
    for store, after_s, stopping in ((first, 1, False), (second, 2, False), (first, 9, True)):
        tap = Alive(
            "tap 'é", 3, log_id, started_ns + after_s * 10**9, 0, started_ns, stopping, {"n": after_s}
        )
        store.commit(Commit(log_id, taps=[tap]))
    [row] = ask(
        second,
        "SELECT tap, tap_worker, epoch_us(started_at), epoch_us(last_alive_at), stopped, counters FROM taps "
        "WHERE incarnation = ?",
        [log_id],
    )
    assert row[:-1] == ("tap 'é", 3, started_ns // 1000, started_ns // 1000 + 9_000_000, True)
    assert json.loads(row[-1]) == {"n": 9}


def test_counters_are_summed_in_one_row_for_each_name(consumers: list[Store], log_id: str) -> None:
    name = f"odd 'name' {log_id}"
    for store, value in zip(consumers, (5, -2, 2**40), strict=True):
        store.commit(Commit(log_id, totals={name: value, "zero": 0}))
    assert consumers[0].totals()[name] == 3 + 2**40
    assert "zero" not in consumers[0].totals()
    rows = ask(consumers[0], "SELECT count(*) FROM internal.counter_parts WHERE name = ?", [name])
    assert rows == [(1,)]


def test_empty_commit_creates_no_snapshot(consumers: list[Store], log_id: str) -> None:
    newest = "SELECT max(snapshot_id) FROM catalog.ducklake_snapshot"
    before = ask(consumers[0], newest)
    consumers[0].commit(Commit(log_id, tables={"streams": streams()}))
    assert ask(consumers[0], newest) == before


def test_few_rows_are_inlined_and_many_are_written_to_a_file(store: Store) -> None:
    store.commit(Commit("log", tables={"streams": streams(*new_ids(INLINED_ROWS))}))
    assert files(store, "streams") == set()
    store.commit(Commit("log", tables={"streams": streams(*new_ids(LARGE))}))
    assert len(files(store, "streams")) == 1
    assert count(store) == INLINED_ROWS + LARGE
    assert ask(store, "SELECT sum(streams)::BIGINT FROM stream_minutes") == [(INLINED_ROWS + LARGE,)]


def test_rows_are_visible_to_another_process_at_once(
    consumers: list[Store], second_process: SecondProcess, log_id: str
) -> None:
    store = consumers[0]
    for rows in (1, LARGE, 2):
        ids = new_ids(rows)
        store.commit(Commit(log_id, tables={"streams": streams(*ids, path=log_id)}))
    query = f"SELECT count(*), count(DISTINCT stream_id) FROM streams WHERE path = '{log_id}'"
    assert second_process.ask(query) == [[LARGE + 3, LARGE + 3]]


# -- values --------------------------------------------------------------------------------------------------------------

TEXTS = [
    "",
    "NULL",
    "'; DROP TABLE streams; --",
    "{a, b}",
    "[a]",
    " ",
    "trailing \\",
    "\\x41 \\' \"",
    "line\n\ttab\r",
    "é漢字🎉‮",
    "\x01\x7f",
]
FLOATS = [float("nan"), float("inf"), -float("inf"), 0.0, -0.5, 5e-324, 1.7976931348623157e308, 0.1]


def odd_streams(rows: int) -> pl.DataFrame:
    """Extreme values of every type, and NULL in every column that may be NULL."""
    values: dict[str, list[object]] = {}
    for name, kind in polars_types(STREAMS).items():
        odd: list[object]
        if kind == pl.String():
            odd = [*TEXTS, None]
        elif kind == pl.Boolean():
            odd = [True, False, None]
        elif kind == pl.Float64():
            odd = [*FLOATS, None]
        elif kind == pl.List(pl.String()):
            odd = [[], ["a-code"], TEXTS, TEXTS[::-1], [None], None]
        elif isinstance(kind, pl.Map):
            odd = [
                {"team": "search"},
                dict(zip(TEXTS, TEXTS[::-1], strict=True)),
                *({"team": t} for t in TEXTS),
                None,
            ]
        else:
            bits = {"Int64": 63, "Int32": 31, "Int16": 15}.get(str(kind), 0)
            odd = [2**bits - 1, -(2**bits), 0, None]
        values[name] = [odd[n % len(odd)] for n in range(rows)]
    values["stream_id"] = list(new_ids(rows))
    values["connection_id"] = [stream if n % 2 else None for n, stream in enumerate(new_ids(rows))]
    instants = (-62_135_596_799_999_999, -1, 0, 1_790_000_000_000_001, 253_402_300_799_999_999)
    values["started_at"] = [instants[n % 5] for n in range(rows)]
    values["outcome"] = ["ok"] * rows
    return frame(STREAMS, values)


@pytest.mark.parametrize("rows", [40, LARGE])
def test_every_value_of_every_type_is_read_back(
    consumers: list[Store], log_id: str, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        store_module, "rollups", lambda tables, stall: {}
    )  # these instants are outside the range of minutes
    given = odd_streams(rows).sort("stream_id")
    consumers[0].commit(Commit(log_id, tables={"streams": given}))
    columns = ", ".join(
        "epoch_us(started_at) AS started_at" if name == "started_at" else f'"{name}"'
        for name in STREAMS.types
    )
    found = ask(
        consumers[1],
        f"SELECT {columns} FROM streams WHERE stream_id IN (SELECT unnest(?::UUID[])) ORDER BY streams.stream_id",
        [given["stream_id"].to_list()],
    )
    expected = given.with_columns(pl.col("started_at").dt.timestamp("us")).rows()
    assert [*map(repr, found)] == [*map(repr, expected)]  # NaN is not equal to itself


@pytest.mark.parametrize("rows", [4, LARGE])
def test_lists_and_small_floats_are_read_back(consumers: list[Store], log_id: str, rows: int) -> None:
    model = f"model {log_id}"
    odd: dict[str, list[Any]] = {
        "p50": [float("nan"), None, 0.1, float("inf")],
        "buckets": [[], [-32768, 0, 32767], [1], [5] * 100],
        "counts": [[], [2**31 - 1, 0, -1], [1], [7] * 100],
    }
    values: dict[str, Any] = {
        name: [odd[name][n % 4] if name in odd else None for n in range(rows)]
        for name in HISTOGRAM_MINUTES.types
    }
    values |= {
        "minute": [60_000_000 * n for n in range(rows)], "model": [model] * rows, "metric": ["ttft_ns"] * rows,
        "settled": [True] * rows, "n": [1] * rows, "total": [1.5] * rows,
    }  # fmt: skip
    given = frame(HISTOGRAM_MINUTES, values)
    consumers[0].commit(Commit(log_id, tables={"histogram_minutes": given}))
    columns = ", ".join(name for name in HISTOGRAM_MINUTES.types if name != "minute")
    found = ask(
        consumers[1],
        f"SELECT {columns} FROM histogram_minutes WHERE model = ? ORDER BY histogram_minutes.minute",
        [model],
    )
    assert [*map(repr, found)] == [*map(repr, given.drop("minute").rows())]


@pytest.mark.parametrize("rows", [1, LARGE])
def test_text_with_a_nul_character_can_be_committed_and_read(
    consumers: list[Store], second_process: SecondProcess, log_id: str, rows: int
) -> None:
    """Text in SQLite ends at a NUL, and PostgreSQL rejects it."""
    store, ids = consumers[0], new_ids(rows)
    store.commit(Commit(log_id, tables={"streams": streams(*ids, path="a\x00b", gateway=log_id)}))
    tap = Alive("t\x00ap", 0, f"{log_id}\x00", 10**18, 0, 10**18, False, {"a\x00": 1})
    store.commit(Commit(log_id, taps=[tap], totals={f"{log_id}\x00x": 1}))
    store.commit(Commit(log_id, taps=[tap], totals={f"{log_id}\x00x": 2}))
    found = second_process.ask(
        f"SELECT DISTINCT replace(replace(path, chr(0), '-'), '\ufffd', '-') FROM streams WHERE gateway = '{log_id}'"
    )
    assert found == [["a-b"]]
    assert sum(value for name, value in store.totals().items() if name.startswith(log_id)) == 3
    assert len(ask(store, "SELECT tap FROM taps WHERE starts_with(incarnation, ?)", [log_id])) == 1


def test_columns_are_matched_by_name_and_missing_ones_are_null(consumers: list[Store], log_id: str) -> None:
    for rows in (1, LARGE):
        ids = new_ids(rows)
        given = streams(*ids, ttft_ns=5).select("outcome", "ttft_ns", "started_at", "stream_id")
        consumers[0].commit(Commit(log_id, tables={"streams": given}))
        found = ask(
            consumers[0],
            "SELECT DISTINCT outcome, ttft_ns, gateway FROM streams WHERE stream_id IN (SELECT unnest(?::UUID[]))",
            [ids],
        )
        assert found == [("ok", 5, None)]


# -- failures ------------------------------------------------------------------------------------------------------------


def test_failed_commit_leaves_no_rows_and_no_file(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    store.acquire_partition("log", "w0")
    ids = new_ids(3)
    store.commit(commit_of("log", "w0", 1, ids))

    def fail(*arguments: object) -> None:
        raise duckdb.IOException("no space left on device")

    failing = commit_of("log", "w0", 9, new_ids(LARGE), open_ids=ids)
    failing.tables = {
        **failing.tables,
        "losses": frame(LOSSES, {name: [None] for name in LOSSES.types} | {"cause": ["x"], "lost_at": [0]}),
    }
    failing.kept_records = [("w0", ids[0], b"kept")]
    with monkeypatch.context() as full:
        full.setattr(commit_module, "_keep_records", fail)  # the last statement of the transaction
        with pytest.raises(StoreFailed, match="no space left") as failed:
            store.commit(failing)
    assert "\n" not in str(failed.value)
    assert (count(store), count(store, "losses")) == (3, 0)
    assert files(store) == set()
    assert store.totals() == {"records": 3}
    assert ask(store, "SELECT high FROM log_positions") == [(1,)]
    store.commit(failing)  # the same commit succeeds
    assert (count(store), count(store, "losses")) == (3 + LARGE, 1)
    assert ask(store, "SELECT sum(streams)::BIGINT FROM stream_minutes") == [(3 + LARGE,)]


def test_commit_with_an_unwritable_file_stores_nothing(store: Store) -> None:
    store.acquire_partition("log", "w0")
    blocked = Path(store.data_path) / "main" / "events"
    blocked.parent.mkdir(parents=True, exist_ok=True)
    blocked.write_text("not a folder")
    with pytest.raises(StoreFailed, match="cannot write the store"):
        store.commit(commit_of("log", "w0", 1, new_ids(LARGE), each=2))
    assert (count(store), files(store)) == (0, set())
    blocked.unlink()
    store.commit(commit_of("log", "w0", 1, new_ids(LARGE), each=2))
    assert (count(store), count(store, "events")) == (LARGE, 2 * LARGE)


# -- owners --------------------------------------------------------------------------------------------------------------


def test_commit_of_a_former_owner_fails(consumers: list[Store], log_id: str) -> None:
    former, heir, _ = consumers
    ids = new_ids(LARGE + 2)
    former.acquire_partition(log_id, "0")
    former.commit(commit_of(log_id, "0", 1, ids[:1]))
    heir.acquire_partition(log_id, "0")
    written = files(heir)
    with pytest.raises(PartitionLost):
        former.commit(commit_of(log_id, "0", 2, ids[1:-1]))
    assert files(heir) == written
    heir.commit(commit_of(log_id, "0", 2, ids[-1:]))
    assert count_of(heir, ids) == 2
    former.acquire_partition(log_id, "0")
    former.commit(commit_of(log_id, "0", 3, ids[1:-1]))
    assert count_of(heir, ids) == LARGE + 2
    with pytest.raises(PartitionLost):
        heir.commit(commit_of(log_id, "0", 4, []))


def test_commit_of_a_former_owner_fails_even_if_it_had_begun(
    consumers: list[Store], log_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    former, heir, _ = consumers
    if not former.catalog.is_postgres:
        pytest.skip("with SQLite a commit is alone from its first statement")
    ids = new_ids(2)
    former.acquire_partition(log_id, "0")
    former.commit(commit_of(log_id, "0", 1, ids[:1]))
    move = former._positions.move

    def acquire_first(*arguments: Any) -> Any:
        if not heir._positions.versions.get((log_id, "0")):
            former.catalog.query("SELECT count(*) FROM ducklake_snapshot")  # the transaction has begun
            heir.acquire_partition(log_id, "0")
        return move(*arguments)

    monkeypatch.setattr(former._positions, "move", acquire_first)
    conflicts = former.conflicts
    with pytest.raises(PartitionLost):
        former.commit(commit_of(log_id, "0", 2, ids[1:]))
    assert former.conflicts == conflicts + 1  # its snapshot of the catalog was older than the claim
    assert count_of(heir, ids) == 1


def test_partition_that_was_not_acquired_cannot_be_committed(consumers: list[Store], log_id: str) -> None:
    with pytest.raises(PartitionLost):
        consumers[0].commit(commit_of(log_id, "0", 2, new_ids(1)))
    consumers[0].acquire_partition(log_id, "0")
    consumers[0].release_partition(log_id, "0")
    with pytest.raises(PartitionLost):
        consumers[0].commit(commit_of(log_id, "0", 2, new_ids(1)))


def test_only_one_of_several_consumers_that_acquire_a_partition_can_commit(
    consumers: list[Store], log_id: str
) -> None:
    assert in_threads(lambda n: consumers[n].acquire_partition(log_id, "0"), 0, 1, 2) == []
    ids, fenced = new_ids(3), 0
    for store, one in zip(consumers, ids, strict=True):
        try:
            store.commit(commit_of(log_id, "0", 1, [one]))
        except PartitionLost:
            fenced += 1
    assert fenced == 2
    assert count_of(consumers[0], ids) == 1
    assert ask(consumers[0], "SELECT count(*) FROM log_positions WHERE log_id = ?", [log_id]) == [(1,)]


def test_concurrent_commits_to_different_partitions_lose_nothing(consumers: list[Store], log_id: str) -> None:
    commits, name = 8, f"counted {log_id}"
    batches = [[new_ids((1, LARGE)[n % 4 == 3]) for n in range(commits)] for _ in consumers]

    def work(number: int) -> None:
        store = consumers[number]
        store.acquire_partition(log_id, str(number))
        for high, ids in enumerate(batches[number], 1):
            commit = commit_of(log_id, str(number), high, ids)
            commit.totals = {name: 1}
            store.commit(commit)

    started_s = time.monotonic()
    assert in_threads(work, 0, 1, 2) == []
    assert time.monotonic() - started_s < DEADLINE_S
    expected = [i for batch in batches for ids in batch for i in ids]
    assert count_of(consumers[0], expected) == len(expected)
    assert consumers[0].totals()[name] == 3 * commits
    positions = ask(consumers[0], "SELECT high, version FROM log_positions WHERE log_id = ?", [log_id])
    assert positions == [(commits, commits + 1)] * 3


def test_conflicting_commit_is_repeated(
    consumers: list[Store], log_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, other, _ = consumers
    if not store.catalog.is_postgres:
        pytest.skip("with SQLite a commit is alone from its first statement")
    ids = new_ids(3)
    store.acquire_partition(log_id, "0")
    other.acquire_partition(log_id, "1")
    conflicts = store.conflicts
    store.commit(commit_of(log_id, "0", 1, ids[:1]))
    assert store.conflicts == conflicts
    disturb_once(monkeypatch, store, lambda: other.commit(commit_of(log_id, "1", 1, ids[1:2])))
    store.commit(commit_of(log_id, "0", 2, ids[2:]))
    assert store.conflicts == conflicts + 1
    assert count_of(store, ids) == 3


def test_commit_that_always_conflicts_fails_in_one_line(
    consumers: list[Store], log_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "MAX_ATTEMPTS", 3)
    monkeypatch.setattr(store_module, "FIRST_PAUSE_S", 0.001)
    store, tries = consumers[0], []

    def conflict(*arguments: object) -> None:
        tries.append(1)
        raise Conflict("database is locked")

    monkeypatch.setattr(commit_module, "write_tap_reports", conflict)
    with pytest.raises(StoreFailed, match="database is locked") as failed:
        store.commit(Commit(log_id, tables={"streams": streams(*new_ids(1))}))
    assert "\n" not in str(failed.value)
    assert len(tries) == 3


def test_commits_wait_for_an_exclusive_section_up_to_a_timeout(
    consumers: list[Store], log_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, other, _ = consumers
    ids, ended = new_ids(1), []

    def commit(_: int) -> None:
        store.commit(Commit(log_id, tables={"streams": streams(*ids)}))
        ended.append(time.monotonic())

    thread = threading.Thread(target=commit, args=(0,))
    with other.catalog.exclusive():
        thread.start()
        time.sleep(0.3)
        assert ended == []
        released_s = time.monotonic()
    thread.join(DEADLINE_S)
    assert ended[0] >= released_s
    if store.catalog.is_postgres:  # the holder hangs on another host
        monkeypatch.setattr("streamgauge.analytics.storage.catalog.LOCK_WAIT_S", 0.2)
        with other.catalog.exclusive():
            ids = new_ids(1)
            commit(0)
            assert count_of(store, ids) == 1


# -- together with DuckLake's own functions ------------------------------------------------------------------------------


def test_counts_are_correct_with_ducklake_inserts_deletes_and_upkeep_between_commits(store: Store) -> None:
    store.acquire_partition("log", "0")
    cursor = store.cursor()
    upkeep = Upkeep(store, events_s=None, streams_s=None)
    kept: dict[str, int] = {}
    """Events by stream."""
    for number in range(6):
        ids, each = new_ids(3 if number % 2 else LARGE), number + 1
        store.commit(commit_of("log", "0", number + 1, ids, each=each))
        kept |= dict.fromkeys(ids, each)
        (inserted,) = new_ids(1)
        cursor.execute(
            "INSERT INTO streams (stream_id, started_at, outcome) VALUES (?, now(), 'own')", [inserted]
        )
        cursor.execute(
            "INSERT INTO events (stream_id, seq, read_seq, at_ns, kind) VALUES (?, 0, 0, 2000000, 'own')",
            [inserted],
        )
        kept[inserted] = 1
        for deleted in (ids[0], ids[-1]):
            cursor.execute("DELETE FROM events WHERE stream_id = ?", [deleted])
            cursor.execute("DELETE FROM streams WHERE stream_id = ?", [deleted])
            del kept[deleted]
        if number % 2:
            upkeep.flush(least_rows=1)
        upkeep._call("ducklake_merge_adjacent_files")
        if number == 3:
            upkeep._call("ducklake_rewrite_data_files", "delete_threshold => 0.0")
        upkeep._call("ducklake_expire_snapshots", "older_than => now()")
        upkeep._call("ducklake_cleanup_old_files", "cleanup_all => true")
        assert dict(ask(store, "SELECT stream_id, count(*) FROM events GROUP BY 1")) == kept
        assert (count(store), sum(kept.values())) == (len(kept), count(store, "events"))
    upkeep.close()
    for sql, expected in {
        "SELECT count(*) FROM events WHERE kind = 'own'": 6,
        "SELECT count(*) FROM events WHERE at_ns >= 2000000": 6,
        "SELECT max(at_ns) FROM events": 2_000_000,
        "SELECT count(*) FROM streams WHERE outcome = 'own'": 6,
        "SELECT count(*) FROM streams WHERE started_at > TIMESTAMPTZ '2026-09-22'": 6,
        "SELECT count(*) FROM streams WHERE gateway IS NULL": len(kept),
    }.items():
        assert ask(store, sql) == [(expected,)], sql
    again = Store(store.location)
    assert count(again) == len(kept)
    again.close()


def test_row_ids_are_unique_after_commits_flush_and_merge(store: Store) -> None:
    upkeep = Upkeep(store, events_s=None, streams_s=None)
    for number in range(12):
        store.commit(Commit("log", tables={"streams": streams(*new_ids(LARGE if number % 4 == 1 else 2))}))
        if number % 5 == 4:
            upkeep.flush(least_rows=1)
            upkeep._call("ducklake_merge_adjacent_files")
    upkeep.close()
    [(rows, ids)] = ask(store, "SELECT count(*), count(DISTINCT rowid) FROM streams")
    assert rows == ids == 3 * LARGE + 18


def test_table_statistics_remain_unknown(store: Store) -> None:
    """So DuckLake does not prune by them, even if values of commits and of its own INSERTs differ widely."""
    cursor = store.cursor()
    store.commit(Commit("log", tables={"streams": streams(*new_ids(LARGE), end_ns=5, http_status=200)}))
    cursor.execute(
        "INSERT INTO streams (stream_id, started_at, outcome, end_ns) VALUES (uuid(), now(), 'ok', 1000)"
    )
    store.commit(Commit("log", tables={"streams": streams(*new_ids(LARGE), end_ns=10**9, http_status=500)}))
    store.commit(Commit("log", tables={"streams": streams(*new_ids(1), end_ns=-7, http_status=100)}))
    for where, expected in {
        "end_ns = 5": LARGE,
        "end_ns >= 1000000000": LARGE,
        "end_ns < 0": 1,
        "http_status = 500": LARGE,
        "http_status IS NULL": 1,
        "end_ns > 10 AND end_ns < 10000": 1,
    }.items():
        assert ask(store, f"SELECT count(*) FROM streams WHERE {where}") == [(expected,)], where
    assert ask(store, "SELECT min(end_ns), max(end_ns) FROM streams") == [(-7, 10**9)]


def test_files_are_pruned_by_file_statistics(store: Store) -> None:
    early, late = sorted(new_ids(2 * LARGE)[:LARGE]), sorted(new_ids(LARGE))
    early = [f"0{i[1:]}" for i in early]
    late = [f"f{i[1:]}" for i in late]
    for ids in (early, late):
        store.commit(Commit("log", tables={"streams": streams(*ids)}))
    plan = ask(store, f"EXPLAIN ANALYZE SELECT count(*) FROM streams WHERE stream_id = '{early[3]}'::UUID")
    assert "Total Files Read: 1" in plan[0][1]
    assert ask(store, f"SELECT count(*) FROM streams WHERE stream_id = '{late[3]}'::UUID") == [(1,)]


# -- opening -------------------------------------------------------------------------------------------------------------


def test_catalog_with_another_format_is_rejected_in_one_line(
    location: StoreLocation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streamgauge.analytics.storage.create_schema.FORMAT_VERSION", "2.0")
    with pytest.raises(OSError, match=r"has DuckLake format 1\.0, not 2\.0") as refused:
        Store(location)
    assert "\n" not in str(refused.value)


def test_changed_views_are_replaced_when_the_store_is_opened(
    location: StoreLocation, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables, views, comments = statements()
    changed = views + "CREATE OR REPLACE VIEW errors_by_minute AS SELECT 7 AS seven;\n"
    with monkeypatch.context() as later:
        later.setattr(
            "streamgauge.analytics.storage.create_schema.statements", lambda: (tables, changed, comments)
        )
        store = Store(location)
        assert ask(store, "FROM errors_by_minute") == [(7,)]
        store.close()
    store = Store(location)
    assert ask(store, "FROM errors_by_minute") == []
    store.close()


def test_every_view_can_be_read_and_is_documented(store: Store) -> None:
    store.commit(Commit("log", tables={"streams": streams(*new_ids(2))}))
    views = ask(
        store,
        "SELECT view_name, comment FROM duckdb_views() "
        "WHERE database_name = 'lake' AND schema_name = 'main' AND NOT internal",
    )
    assert {"latency_by_minute", "counters", "stalls", "burn_rates"} <= {name for name, _ in views}
    for name, comment in views:
        ask(store, f"FROM {name}")
        assert comment, name
    bare = ask(
        store,
        "SELECT table_name, column_name FROM duckdb_columns() WHERE database_name = 'lake' AND schema_name = 'main' "
        "AND comment IS NULL AND table_name IN (SELECT table_name FROM duckdb_tables() WHERE database_name = 'lake')",
    )
    assert bare == []


@pytest.mark.parametrize("content", [b"not a database" * 1000, b"", b"\x00" * 5000])
def test_damaged_catalog_is_rejected_in_one_line(tmp_path: Path, content: bytes) -> None:
    location = locate("sqlite", tmp_path)
    assert location.catalog is not None
    location.catalog.write_bytes(content)
    if not content:  # to SQLite an empty file is an empty database
        Store(location).close()
        return
    with pytest.raises(OSError, match="catalog") as refused:
        Store(location)
    assert "\n" not in str(refused.value)
    assert location.catalog.read_bytes() == content


def test_a_catalog_damaged_in_the_middle_is_reported_in_one_line(tmp_path: Path) -> None:
    store = new_store(tmp_path)
    store.acquire_partition("log", "0")
    store.commit(commit_of("log", "0", 1, new_ids(LARGE)))
    store.close()
    catalog = tmp_path / "catalog.sqlite"
    content = bytearray(catalog.read_bytes())
    for at in range(4096, len(content), 4096):
        content[at : at + 64] = b"\xa5" * 64
    catalog.write_bytes(content)
    with pytest.raises(OSError, match="catalog") as refused:
        Store(locate("sqlite", tmp_path))
    assert "\n" not in str(refused.value)


def test_unreachable_postgres_is_reported_without_its_password(postgres: Postgres) -> None:
    dsn = f"host=127.0.0.1 port={postgres.port} user=x dbname=none password=geheim"
    location = StoreLocation(dsn=dsn, tables="/nowhere")
    with pytest.raises(OSError, match="cannot") as refused:
        Store(location)
    assert "\n" not in str(refused.value)
    assert "geheim" not in str(refused.value) + repr(location) + location.label


def test_a_moved_data_folder_works(tmp_path: Path) -> None:
    ids = new_ids(LARGE)
    store = new_store(tmp_path / "before")
    store.acquire_partition("log", "0")
    store.commit(commit_of("log", "0", 1, ids))
    store.close()
    (tmp_path / "before").rename(tmp_path / "it's moved")
    store = new_store(tmp_path / "it's moved")
    assert count_of(store, ids) == LARGE
    assert store.data_path == f"{tmp_path}/it's moved/tables/"
    more = new_ids(LARGE)
    store.acquire_partition("log", "0")
    store.commit(commit_of("log", "0", 2, more))
    assert len(files(store, "streams")) == 2
    assert not (tmp_path / "before").exists()
    store.close()
    with duckdb.connect() as client:  # a stock DuckDB needs only the catalog to find the files
        load(client, "ducklake", "sqlite_scanner")
        client.execute(locate("sqlite", tmp_path / "it's moved").attach_statement)
        assert client.execute("SELECT count(*) FROM lake.streams").fetchall() == [(2 * LARGE,)]


def test_two_processes_that_create_a_postgres_store_concurrently_share_it(
    postgres: Postgres, tmp_path: Path
) -> None:
    location = StoreLocation(dsn=postgres.new_database(), tables=str(tmp_path))
    stores: list[Store] = []
    assert in_threads(lambda n: stores.append(Store(location)), 0, 1) == []
    first, second = stores
    assert first.store_id == second.store_id
    ids = new_ids(2)
    for store, one in zip(stores, ids, strict=True):
        store.acquire_partition("log", one)
        store.commit(commit_of("log", one, 1, [one]))
    assert count_of(first, ids) == 2
    for store in stores:
        store.close()


# -- a full disk ---------------------------------------------------------------------------------------------------------

ON_A_FULL_DISK = """
import resource, signal, sys
from pathlib import Path
from streamgauge.analytics.storage.location import locate
from streamgauge.analytics.storage.commit import StoreFailed
from streamgauge.analytics.storage.store import Store
from tests.analytics.storage.rows import commit_of, new_ids

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
store = Store(locate("sqlite", Path(sys.argv[1])))
store.acquire_partition("log", "0")
largest = max(path.stat().st_size for path in Path(sys.argv[1]).glob("catalog.sqlite*"))
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]) + largest, resource.RLIM_INFINITY))
for number in range(1, 200):
    try:
        store.commit(commit_of("log", "0", number, new_ids(int(sys.argv[3])), each=int(sys.argv[4])))
    except StoreFailed as e:
        print("failed", e)
        sys.exit(0)
    print("committed", flush=True)
"""


@pytest.mark.parametrize(
    ("room_bytes", "streams_each", "events_each"),
    [pytest.param(100_000, 20, 3, id="catalog"), pytest.param(0, 200, 3000, id="files")],
)
def test_commit_on_a_full_disk_fails_and_stores_nothing(
    tmp_path: Path, room_bytes: int, streams_each: int, events_each: int
) -> None:
    new_store(tmp_path).close()
    arguments = [str(tmp_path), str(room_bytes), str(streams_each), str(events_each)]
    done = subprocess.run(
        [sys.executable, "-c", ON_A_FULL_DISK, *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )
    assert done.returncode == 0, done.stderr
    *committed, failed = done.stdout.splitlines()
    assert failed.startswith("failed cannot write the store")
    assert set(committed) <= {"committed"}
    store = new_store(tmp_path)
    number, rows = len(committed), len(committed) * streams_each
    position = store.acquire_partition("log", "0")
    assert (position.high if position else 0) == number
    assert (count(store), count(store, "events")) == (rows, rows * events_each)
    assert store.totals().get("records", 0) == rows
    store.commit(commit_of("log", "0", number + 1, new_ids(LARGE), each=2))
    assert count(store) == rows + LARGE
    store.close()


# -- kill -9 -------------------------------------------------------------------------------------------------------------

COMMITS_UNTIL_KILLED = """
import json, os, signal, sys, threading, time
from pathlib import Path
from streamgauge.analytics.storage.location import StoreLocation
from streamgauge.analytics.storage.store import Store
from streamgauge.analytics.storage.upkeep import Upkeep
from tests.analytics.storage.rows import commit_of
from tests.analytics.storage.test_store import LARGE, numbered

location = StoreLocation(**json.loads(sys.argv[1]))
store = Store(StoreLocation(location.catalog and Path(location.catalog), location.dsn, location.tables))
position = store.acquire_partition("log", "0")
at = position.high if position else 0
upkeep = Upkeep(store, events_s=None, streams_s=None)

def maintain():
    while True:
        upkeep.flush(least_rows=1)
        upkeep._call("ducklake_merge_adjacent_files")
        upkeep._call("ducklake_expire_snapshots", "older_than => now()")

if sys.argv[2] == "maintained":
    threading.Thread(target=maintain, daemon=True).start()
print("ready", flush=True)
while True:
    store.commit(commit_of("log", "0", at + 1, numbered(at), each=2))
    at += 1
    print(at, flush=True)
"""


def numbered(number: int) -> list[str]:
    """Streams of one commit: few, or enough for a file."""
    size = LARGE if number % 3 == 1 else 2
    return [f"0198b2d0-0000-7000-{number:04x}-{n:012d}" for n in range(size)]


@pytest.mark.parametrize(
    ("catalog", "upkeep"),
    [
        ("sqlite", "maintained"),
        ("postgres", "maintained"),
        pytest.param("sqlite", "alone", marks=pytest.mark.slow),
        pytest.param("postgres", "alone", marks=pytest.mark.slow),
    ],
)
def test_every_row_is_stored_once_despite_kills(
    make_location: Callable[[str], StoreLocation], catalog: str, upkeep: str
) -> None:
    location = make_location(catalog)
    seen, described = 0, json.dumps(asdict(location), default=str)
    for number in range(3):
        process = subprocess.Popen(
            [sys.executable, "-c", COMMITS_UNTIL_KILLED, described, upkeep],
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        for _ in range(3):
            seen = int(process.stdout.readline() or seen)
        time.sleep(0.007 * number)  # at another time within the next commit
        process.kill()
        rest, _ = process.communicate()
        seen = int(rest.split()[-1]) if rest.split() and rest.endswith("\n") else seen
    store = Store(location)
    position = store.acquire_partition("log", "0")
    assert position is not None
    assert seen <= position.high <= seen + 1  # the last one may have been committed and not printed
    expected = [one for number in range(position.high) for one in numbered(number)]
    assert ask(store, "SELECT count(*), count(DISTINCT stream_id) FROM streams") == [(len(expected),) * 2]
    assert ask(store, "SELECT count(*), count(DISTINCT (stream_id, seq)) FROM events") == [
        (2 * len(expected),) * 2
    ]
    assert count_of(store, expected) == len(expected)
    assert ask(store, "SELECT sum(streams)::BIGINT FROM stream_minutes") == [(len(expected),)]
    assert store.totals()["records"] == len(expected)
    store.close()


def test_concurrent_commits_of_two_processes_to_postgres_lose_nothing(
    make_location: Callable[[str], StoreLocation], postgres: Postgres
) -> None:
    location = make_location("postgres")
    code = """
import sys
from streamgauge.analytics.storage.location import StoreLocation
from streamgauge.analytics.storage.store import Store
from tests.analytics.storage.rows import commit_of, new_ids
from tests.analytics.storage.test_store import LARGE
store = Store(StoreLocation(dsn=sys.argv[1], tables=sys.argv[2]))
store.acquire_partition("log", sys.argv[3])
print("ready", flush=True)
sys.stdin.readline()
for high in range(1, 16):
    store.commit(commit_of("log", sys.argv[3], high, new_ids(LARGE if high % 5 == 0 else 2)))
store.close()
"""
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(location.dsn), str(location.tables), str(number)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT,
        )
        for number in range(2)
    ]  # fmt: skip
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    for process in processes:
        process.communicate(timeout=DEADLINE_S)
        assert process.returncode == 0
    store = Store(location)
    rows = 2 * (3 * LARGE + 12 * 2)
    assert ask(store, "SELECT count(*), count(DISTINCT rowid) FROM streams") == [(rows, rows)]
    assert store.totals()["records"] == rows
    store.close()


# -- assumptions about DuckDB and SQLite ---------------------------------------------------------------


def test_duckdb_and_ducklake_have_the_verified_versions() -> None:
    """`ducklake_format` writes this format, and `is_conflict` parses the messages. Check both when DuckDB changes."""
    assert duckdb.__version__ == "1.5.5"
    assert ducklake_format.FORMAT_VERSION == "1.0"


def test_a_new_catalog_is_private_and_in_wal_mode(tmp_path: Path) -> None:
    path = tmp_path / "data" / "catalog.sqlite"
    create_file(path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.read_bytes()[18:20] == b"\x02\x02"  # WAL, in SQLite's file header
    before = path.stat()
    create_file(path)
    assert path.stat() == before
