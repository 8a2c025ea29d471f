"""Upkeep does not change numbers, deletes old rows, and keeps the files that readers and backups need."""

from __future__ import annotations

import itertools
import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import duckdb
import polars as pl
import pytest

from streamgauge.analytics.assembly.partition import LogPosition
from streamgauge.analytics.storage import upkeep as upkeep_module
from streamgauge.analytics.storage.catalog import is_conflict
from streamgauge.analytics.storage.commit import Commit
from streamgauge.analytics.storage.database import attach, new_database
from streamgauge.analytics.storage.location import StoreLocation
from streamgauge.analytics.storage.retention import ages_s
from streamgauge.analytics.storage.store import INLINED_ROWS, Store
from streamgauge.analytics.storage.upkeep import READERS_S, Upkeep
from streamgauge.ingest.generated_ids import smallest_uuid7
from streamgauge.ingest.records import Alive
from tests.analytics.storage.rows import (
    STARTED_US,
    commit_of,
    count,
    count_of,
    events,
    files,
    new_ids,
    streams,
)
from tests.analytics.stores import ask, new_store

LARGE = INLINED_ROWS + 1
DAY_S = 86_400.0
NOW_S = STARTED_US / 1e6


@pytest.fixture
def upkeep(store: Store) -> Iterator[Upkeep]:
    upkeep = Upkeep(store, events_s=None, streams_s=None)
    yield upkeep
    upkeep.close()


@pytest.fixture
def sqlite_store(tmp_path: Path) -> Iterator[Store]:
    store = new_store(tmp_path)
    yield store
    store.close()


def everything(upkeep: Upkeep) -> None:
    """Run the tasks that rewrite rows and do not wait for readers."""
    for task in ("flush_all", "merge", "compact_rollups", "merge_all"):
        upkeep.tasks[task][1]()
    upkeep._call("ducklake_expire_snapshots", "older_than => now()")
    upkeep._call("ducklake_cleanup_old_files", "cleanup_all => true")


# -- rows stay what they were --------------------------------------------------------------------------------------------


def test_upkeep_changes_no_row_position_kept_record_tap_or_counter(store: Store, upkeep: Upkeep) -> None:
    store.acquire_partition("log", "0")
    (kept,) = new_ids(1)
    batches = [new_ids(3 if number % 2 else LARGE) for number in range(6)]
    for high, ids in enumerate(batches):
        commit = commit_of("log", "0", high, ids, each=2, open_ids=(kept,))
        commit.kept_records = [("0", kept, b"\x00%d" % high)]
        commit.taps = [
            Alive("tap", 0, "inc", 10**18 + high * 10**9, 0, 10**18, False, {"streams_opened": high})
        ]
        store.commit(commit)

    def state() -> list[object]:
        return [
            ask(store, f"SELECT * FROM {table} ORDER BY ALL")
            for table in ("streams", "events", "log_positions", "taps", "counters", "errors_by_minute")
        ] + [store.kept_records("log", "0")]

    before, written = state(), files(store)
    everything(upkeep)
    assert state() == before
    assert count(store) == 3 * LARGE + 9
    assert len(files(store, "streams")) == len(files(store, "events")) == 1
    assert not files(store) & written
    again = Store(store.location)
    assert again.acquire_partition("log", "0") == LogPosition(5, 4, (kept,))
    again.commit(commit_of("log", "0", 6, new_ids(1)))
    assert count(store) == 3 * LARGE + 10
    again.close()


def test_positions_taps_and_counters_are_never_flushed(store: Store, upkeep: Upkeep) -> None:
    for high in range(1, 4):
        store.acquire_partition("log", "0")
        store.commit(commit_of("log", "0", high, new_ids(2)))
        upkeep.merge_all()
    assert ask(store, "SELECT high FROM log_positions") == [(3,)]
    assert store.totals() == {"records": 6}
    for table in ("log_positions", "taps", "counter_parts"):
        assert files(store, table) == set()


def test_flush_writes_only_tables_with_enough_rows(store: Store, upkeep: Upkeep) -> None:
    store.commit(Commit("log", tables={"streams": streams(*new_ids(9)), "events": events(new_ids(1), 10)}))
    upkeep.flush(least_rows=10)
    assert (len(files(store, "streams")), len(files(store, "events"))) == (0, 1)
    upkeep.flush(least_rows=1)
    assert len(files(store, "streams")) == 1
    assert (count(store), count(store, "events")) == (9, 10)


def test_merge_requires_enough_small_files(
    store: Store, upkeep: Upkeep, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upkeep_module, "MERGED_FILES", 3)
    for _ in range(2):
        store.commit(Commit("log", tables={"streams": streams(*new_ids(LARGE))}))
    upkeep.merge()
    assert len(files(store, "streams")) == 2
    store.commit(Commit("log", tables={"streams": streams(*new_ids(LARGE))}))
    upkeep.merge()
    assert len(files(store, "streams")) == 4  # three that readers may still need, and the merged one
    assert count(store) == 3 * LARGE


def test_commits_continue_during_upkeep(store: Store, upkeep: Upkeep) -> None:
    store.acquire_partition("log", "0")
    stop, failed = threading.Event(), []
    tasks: list[Callable[[], object]] = [
        lambda: upkeep.flush(least_rows=1),
        lambda: upkeep._call("ducklake_merge_adjacent_files"),
        upkeep.compact_rollups,
        lambda: upkeep._call("ducklake_expire_snapshots", "older_than => now()"),
    ]

    def maintain() -> None:
        for task in itertools.cycle(tasks):
            if stop.is_set():
                return
            try:
                task()
            except duckdb.Error as e:
                if not is_conflict(e):  # conflicts are retried in the next round
                    failed.append(e)

    thread = threading.Thread(target=maintain)
    thread.start()
    try:
        for high in range(1, 21):
            store.commit(commit_of("log", "0", high, new_ids(LARGE if high % 7 == 0 else 3), each=2))
    finally:
        stop.set()
        thread.join()
    assert failed == []
    rows = 2 * LARGE + 18 * 3
    assert (count(store), count(store, "events"), store.totals()["records"]) == (rows, 2 * rows, rows)
    assert ask(store, "SELECT sum(streams)::BIGINT FROM stream_minutes") == [(rows,)]


@pytest.mark.parametrize("seed", [0, 1, pytest.param(2, marks=pytest.mark.slow)])
def test_order_of_tasks_does_not_change_rollups(
    seed: int, make_location: Callable[[str], StoreLocation]
) -> None:
    """Includes flushes of partly deleted inlined rows, written by DuckLake and by commits."""
    rng = random.Random(seed)
    store = Store(make_location("sqlite" if seed else "postgres"))
    upkeep, rows = Upkeep(store, events_s=None, streams_s=None), 0
    tasks: list[Callable[[], object]] = [
        lambda: upkeep.flush(least_rows=1),
        lambda: upkeep._call("ducklake_merge_adjacent_files"),
        upkeep.compact_rollups,
        lambda: upkeep._call("ducklake_expire_snapshots", "older_than => now()"),
        lambda: upkeep._call("ducklake_cleanup_old_files", "cleanup_all => true"),
    ]
    for _ in range(25):
        for _ in range(rng.randrange(3)):
            size = rng.choice((1, 3, LARGE))
            given = streams(*new_ids(size), ttft_ns=rng.randrange(10**9), gateway=rng.choice(("a", None)))
            store.commit(Commit("log", tables={"streams": given}))
            rows += size
        rng.choice(tasks)()
        assert ask(store, "SELECT coalesce(sum(streams), 0)::BIGINT FROM stream_minutes") == [(rows,)]
        first_tokens = "SELECT coalesce(sum(n), 0)::BIGINT FROM histogram_minutes WHERE metric = 'ttft_ns'"
        assert ask(store, first_tokens) == [(rows,)]
    upkeep.close()
    store.close()


def test_compacting_rollups_does_not_change_views(store: Store, upkeep: Upkeep) -> None:
    for batch in range(3):
        given = streams(*new_ids(5), ttft_ns=10**6 * (batch + 1), gateway="gw", output_tokens=7)
        store.commit(Commit("log", tables={"streams": given}))
    views = ("errors_by_minute", "throughput_by_minute")
    latency = "SELECT streams, ttft_p50_ns, ttft_p99_ns FROM latency_by_minute"
    before = [ask(store, f"FROM {view}") for view in views]
    [quantiles] = ask(store, latency)
    assert count(store, "stream_minutes") == 3
    upkeep.compact_rollups()
    assert ask(store, "SELECT settled, streams FROM stream_minutes") == [(True, 15)]
    assert ask(store, "SELECT DISTINCT settled FROM histogram_minutes") == [(True,)]
    assert [ask(store, f"FROM {view}") for view in views] == before
    assert ask(store, latency) == [pytest.approx(quantiles, rel=1e-6)]
    store.commit(Commit("log", tables={"streams": streams(*new_ids(1), gateway="gw", output_tokens=7)}))
    assert ask(store, "SELECT streams FROM errors_by_minute") == [(16,)]
    upkeep.compact_rollups()
    assert ask(store, "SELECT streams FROM stream_minutes") == [(16,)]


# -- retention -----------------------------------------------------------------------------------------------------------


def fill(store: Store, days: int, per_day: int, each: int) -> None:
    """Streams of the last `days` days, with events, a usage report and a loss each."""
    started_s = [NOW_S - day * DAY_S - n - 1 for day in range(days) for n in range(per_day)]
    ids = [smallest_uuid7(at)[:-4] + f"{i:04d}" for i, at in enumerate(started_s)]
    at = pl.Series("started_at", [int(s * 1e6) for s in started_s]).cast(pl.Datetime("us", "UTC"))
    rows = pl.DataFrame({"stream_id": ids, "outcome": ["ok"] * len(ids)}).with_columns(at)
    usage = rows.select("stream_id", seq=pl.lit(1, pl.Int32))
    losses = rows.select("stream_id", lost_at="started_at").with_columns(cause=pl.lit("missing"))
    tables = {"streams": rows, "events": events(ids, each), "usage_reports": usage, "losses": losses}
    store.commit(Commit("log", tables=tables))


def counts(store: Store) -> dict[str, int]:
    return {table: count(store, table) for table in ("streams", "events", "usage_reports", "losses")}


def retaining(store: Store, **ages: float | None) -> Upkeep:
    return Upkeep(store, **{"events_s": None, "streams_s": None, **ages})


@pytest.mark.parametrize("per_day", [5, 60])
def test_events_are_deleted_before_their_streams_and_both_are_counted(store: Store, per_day: int) -> None:
    fill(store, days=10, per_day=per_day, each=4)
    upkeep = retaining(store, events_s=3 * DAY_S, streams_s=6 * DAY_S)
    assert upkeep.retain(NOW_S) == 7 * per_day * 4 + 3 * 4 * per_day
    assert counts(store) == {
        "streams": 6 * per_day, "events": 3 * 4 * per_day, "usage_reports": 6 * per_day, "losses": 6 * per_day,
    }  # fmt: skip
    [(oldest,)] = ask(store, "SELECT epoch(min(started_at)) FROM streams")
    assert oldest >= NOW_S - 6 * DAY_S
    totals = store.totals()
    assert (totals["expired_streams_rows"], totals["expired_events_rows"]) == (4 * per_day, 7 * 4 * per_day)
    assert totals["expired_losses_rows"] == totals["expired_usage_reports_rows"] == 4 * per_day
    assert upkeep.retain(NOW_S) == 0
    upkeep.retain(NOW_S + DAY_S)
    assert store.totals()["expired_streams_rows"] == 5 * per_day
    names = ask(store, "SELECT count(*), count(DISTINCT name) FROM internal.counter_parts")
    assert names[0][0] == names[0][1]
    upkeep.close()


def test_without_ages_everything_is_kept(store: Store) -> None:
    fill(store, days=10, per_day=2, each=2)
    upkeep = retaining(store)
    assert upkeep.retain(NOW_S + 1000 * DAY_S) == 0
    assert counts(store)["streams"] == 20
    upkeep.close()


def test_events_never_outlive_their_streams(store: Store) -> None:
    fill(store, days=10, per_day=2, each=2)
    upkeep = retaining(store, streams_s=2 * DAY_S)
    upkeep.retain(NOW_S)
    assert counts(store) == {"streams": 4, "events": 8, "usage_reports": 4, "losses": 4}
    upkeep.close()


def test_rollups_outlive_the_rows_they_count(store: Store) -> None:
    fill(store, days=3, per_day=20, each=4)
    query = "SELECT coalesce(sum(streams), 0)::BIGINT FROM throughput_by_minute"
    upkeep = retaining(store, events_s=DAY_S, streams_s=DAY_S, rollups_s=31 * DAY_S)
    upkeep.compact_rollups()
    upkeep.retain(NOW_S + 28 * DAY_S)
    assert counts(store)["streams"] == counts(store)["events"] == 0
    assert ask(store, query) == [(60,)]
    for day, remaining in ((29, 40), (30, 20), (31, 0)):  # the oldest minutes are three days old by now
        upkeep.retain(NOW_S + day * DAY_S)
        assert ask(store, query) == [(remaining,)]
    assert store.totals()["expired_stream_minutes_rows"] >= 3
    assert (count(store, "stream_minutes"), count(store, "histogram_minutes")) == (0, 0)
    upkeep.close()


def test_rollups_never_expire_before_their_streams() -> None:
    assert ages_s(1.0, 20.0, 3.0) == {"events": 1.0, "streams": 20.0, "rollups": 20.0}
    assert ages_s(50.0, 20.0, None) == {"events": 20.0, "streams": 20.0, "rollups": None}
    assert ages_s(1.0, None, 30.0) == {"events": 1.0, "streams": None, "rollups": None}


class Killed:
    """A connection that ends before the deleted rows are counted."""

    def __init__(self, real: duckdb.DuckDBPyConnection) -> None:
        self._real = real

    def execute(self, sql: str, *values: object) -> duckdb.DuckDBPyConnection:
        if "counter_parts" in sql:
            raise RuntimeError("killed")
        return self._real.execute(sql, *values)


def test_deleted_rows_are_counted_in_the_same_transaction(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise streams would be missing without explanation after a crash."""
    fill(store, days=4, per_day=5, each=2)
    before, upkeep = counts(store), retaining(store, streams_s=2 * DAY_S)
    with monkeypatch.context() as ended:
        ended.setattr(upkeep._retention, "cursor", Killed(upkeep._retention.cursor))
        with pytest.raises(RuntimeError, match="killed"):
            upkeep.retain(NOW_S)
    assert counts(store) == before
    assert upkeep.retain(NOW_S) > 0
    assert store.totals()["expired_streams_rows"] == 10
    upkeep.close()


def test_counters_are_correct_before_their_rows_are_summed(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(store, days=4, per_day=5, each=2)
    upkeep = retaining(store, streams_s=2 * DAY_S)
    rows = "SELECT count(*) FROM internal.counter_parts WHERE name = 'expired_streams_rows'"
    with monkeypatch.context() as ended:
        ended.setattr(upkeep._retention, "_sum_counters", lambda: None)
        upkeep.retain(NOW_S)
        upkeep.retain(NOW_S + DAY_S)
    store.commit(Commit("log", totals={"expired_streams_rows": 1, "entries": 1}))
    assert (store.totals()["expired_streams_rows"], ask(store, rows)) == (16, [(2,)])
    upkeep._retention._sum_counters()
    assert (store.totals()["expired_streams_rows"], ask(store, rows)) == (16, [(1,)])
    upkeep.close()


def test_commits_continue_while_old_rows_are_deleted(store: Store) -> None:
    fill(store, days=6, per_day=30, each=10)
    store.acquire_partition("log", "0")
    upkeep, ended = retaining(store, events_s=1 * DAY_S, streams_s=3 * DAY_S), threading.Event()
    failed: list[BaseException] = []

    def delete() -> None:
        try:
            upkeep.retain(NOW_S)
        except BaseException as e:
            failed.append(e)
        finally:
            ended.set()

    thread = threading.Thread(target=delete)
    thread.start()
    new: list[str] = []
    while not ended.is_set() or len(new) < 5:
        new += new_ids(1)
        fresh = [f"ffffffff{i[8:]}" for i in new[-1:]]
        store.commit(commit_of("log", "0", len(new), fresh, each=1))
    thread.join()
    upkeep.close()
    assert failed == []
    assert counts(store) == {
        "streams": 90 + len(new), "events": 300 + len(new), "usage_reports": 90, "losses": 90,
    }  # fmt: skip
    assert store.totals()["records"] == len(new)
    assert store.totals()["expired_streams_rows"] == 90


# -- files that readers and backups need ---------------------------------------------------------------------------------


def merged(store: Store, upkeep: Upkeep) -> tuple[list[str], set[str]]:
    """Ids in two files that were merged into one, and those two files."""
    ids = new_ids(2 * LARGE)
    for half in (ids[:LARGE], ids[LARGE:]):
        store.commit(Commit("log", tables={"streams": streams(*half)}))
    before = files(store, "streams")
    upkeep._call("ducklake_merge_adjacent_files")
    assert len(files(store, "streams")) == 3
    return ids, before


def test_merged_files_are_kept_for_the_longest_query(
    store: Store, upkeep: Upkeep, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids, before = merged(store, upkeep)
    upkeep.expire()
    assert before < files(store, "streams")
    assert ask(store, "SELECT count(*) > 2 FROM ducklake_snapshots('lake')") == [(True,)]
    monkeypatch.setattr(upkeep_module, "READERS_S", -1)
    upkeep.expire()
    assert ask(store, "SELECT count(*) FROM ducklake_snapshots('lake')") == [(1,)]
    assert not files(store, "streams") & before
    assert count_of(store, ids) == 2 * LARGE
    assert READERS_S > 300


def test_a_backup_is_readable_after_merge_and_expiry(sqlite_store: Store) -> None:
    upkeep = Upkeep(sqlite_store, events_s=None, streams_s=None)
    for _ in range(2):
        sqlite_store.commit(Commit("log", tables={"streams": streams(*new_ids(LARGE))}))
    upkeep.back_up()
    upkeep._call("ducklake_merge_adjacent_files")
    upkeep.expire()
    sqlite_store.commit(Commit("log", tables={"streams": streams(*new_ids(1))}))
    location = sqlite_store.location
    assert location.backup.stat().st_mode & 0o777 == 0o600
    assert not location.backup.with_suffix(".new").exists()
    with new_database() as connection:
        attach(connection, location, read_only=True, uri=f"ducklake:sqlite:{location.backup}")
        [found] = connection.execute("SELECT count(*), count(DISTINCT stream_id) FROM streams").fetchall()
    assert found == (2 * LARGE, 2 * LARGE)
    upkeep.back_up()  # replaces it
    with new_database() as connection:
        attach(connection, location, read_only=True, uri=f"ducklake:sqlite:{location.backup}")
        assert connection.execute("SELECT count(*) FROM streams").fetchall() == [(2 * LARGE + 1,)]
    assert count(sqlite_store) == 2 * LARGE + 1
    upkeep.close()


def test_failed_backup_does_not_stop_other_tasks(
    sqlite_store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    sqlite_store.location.backup.mkdir()
    upkeep = Upkeep(sqlite_store, events_s=None, streams_s=None)
    upkeep.elected.tasks = {"back_up": (0, upkeep.back_up)}
    upkeep.elected.round()
    assert upkeep.elected.round() == []
    assert "upkeep: back_up failed, other work continues" in caplog.text
    upkeep.close()


def test_only_old_orphaned_files_are_deleted(store: Store, upkeep: Upkeep) -> None:
    store.commit(Commit("log", tables={"streams": streams(*new_ids(LARGE))}))
    (named,) = files(store, "streams")
    folder = Path(named).parent
    store.write_open_streams(streams(*new_ids(1)).select("stream_id", "started_at"))
    (live,) = Path(store.data_path).glob("open_streams/*.live")
    for name in ("old", "young"):
        (folder / f"{name}.parquet").write_bytes(Path(named).read_bytes())
    before_s = time.time() - 2 * upkeep_module.ORPHANS_S
    for path in (folder / "old.parquet", Path(named), live):
        os.utime(path, (before_s, before_s))
    upkeep.orphans()
    assert {Path(path).name for path in files(store, "streams")} == {Path(named).name, "young.parquet"}
    assert live.exists()
    assert count(store) == LARGE
