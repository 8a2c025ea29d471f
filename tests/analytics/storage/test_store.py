"""Commits are whole, fenced, and survive the process; files of other versions are met with care."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import duckdb
import polars as pl
import pytest

from analytics.serving.ask import frame
from analytics.storage import schema
from analytics.storage.retention import Retention
from analytics.storage.schema import SCHEMA_VERSION
from analytics.storage.store import (
    Commit,
    Fenced,
    Store,
    StoredPosition,
    StoreFailed,
    Tap,
    add_totals,
)

LOG = "log-1"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "streamgauge.duckdb"


@pytest.fixture
def store(path: Path) -> Iterator[Store]:
    store = Store(path)
    yield store
    store.close()


def streams(*numbers: int, outcome: str | None = "ok") -> pl.DataFrame:
    return pl.DataFrame(
        {
            "stream_id": [f"0198b2d0-0000-7000-8000-{n:012d}" for n in numbers],
            "outcome": [outcome] * len(numbers),
        },
        schema_overrides={"outcome": pl.String},
    ).with_columns(started_at=pl.lit(1_790_000_000_000_000).cast(pl.Datetime("us", "UTC")))


def count(store: Store, table: str = "streams") -> int:
    row = store.cursor().execute(f"SELECT count(*) FROM {table}").fetchone()
    assert row is not None
    return int(row[0])


def test_rows_positions_kept_records_taps_and_counters_come_back(store: Store, path: Path) -> None:
    assert store.claim(LOG, "w0") is None
    tap = Tap("tap-1", 0, "inc", 1_790_000_000_000_000_000, 1_790_000_001_000_000_000, False, {"records": 3})
    ids = streams(1, 2)["stream_id"]
    store.commit(
        Commit(
            LOG,
            positions={"w0": StoredPosition(7, 3, (ids[0],))},
            tables={"streams": streams(1, 2)},
            keep=[("w0", ids[0], b"first"), ("w0", ids[0], b"second")],
            taps=[tap],
            totals={"records": 5},
        )
    )
    store.commit(Commit(LOG, keep=[("w0", ids[0], b"third")], totals={"records": 1}))
    store.close()
    again = Store(path)
    assert again.claim(LOG, "w0") == StoredPosition(7, 3, (ids[0],))
    assert again.kept_records(LOG, "w0") == {ids[0]: [b"first", b"second", b"third"]}
    assert again.taps() == [tap]
    assert again.totals() == {"records": 6}
    assert count(again) == 2
    again.commit(Commit(LOG, forget=[ids[0]]))
    assert again.kept_records(LOG, "w0") == {}
    again.close()


def test_a_commit_that_fails_leaves_nothing_behind(store: Store) -> None:
    store.claim(LOG, "w0")
    store.commit(Commit(LOG, positions={"w0": StoredPosition(1, 1, ())}))
    with pytest.raises(StoreFailed, match="nothing was half-written"):
        store.commit(
            Commit(
                LOG,
                positions={"w0": StoredPosition(9, 9, ())},
                tables={"streams": streams(1), "losses": streams(2)},  # no such columns in losses
                totals={"records": 1},
            )
        )
    assert count(store) == 0
    assert store.totals() == {}
    assert store.claim(LOG, "w0") == StoredPosition(1, 1, ())


def test_a_second_consumer_fences_the_first(store: Store) -> None:
    store.claim(LOG, "w0")
    store.commit(Commit(LOG, positions={"w0": StoredPosition(1, 1, ())}))
    cursor = store.cursor()  # as another process would on a lake
    cursor.execute("UPDATE log_positions SET owner = 'other', version = version + 1")
    with pytest.raises(Fenced):
        store.commit(Commit(LOG, positions={"w0": StoredPosition(2, 2, ())}, tables={"streams": streams(1)}))
    assert count(store) == 0
    assert cursor.execute("SELECT high, owner FROM log_positions").fetchall() == [(1, "other")]
    assert store.claim(LOG, "w0") == StoredPosition(1, 1, ())
    store.commit(Commit(LOG, positions={"w0": StoredPosition(2, 2, ())}, tables={"streams": streams(1)}))
    assert count(store) == 1


def test_two_consumers_that_both_begin_a_partition_do_not_both_commit(store: Store) -> None:
    store.claim(LOG, "w0")
    store.cursor().execute("INSERT INTO log_positions VALUES ('log-1', 'w0', 1, 1, [], 'other', 1, now())")
    with pytest.raises(Fenced):
        store.commit(Commit(LOG, positions={"w0": StoredPosition(2, 2, ())}))


def test_an_unclaimed_partition_cannot_be_committed(store: Store) -> None:
    with pytest.raises(Fenced):
        store.commit(Commit(LOG, positions={"w0": StoredPosition(2, 2, ())}))


def test_open_streams_are_replaced_as_a_whole(store: Store) -> None:
    now = pl.lit(1_790_000_000_000_000).cast(pl.Datetime("us", "UTC"))
    rows = streams(1, 2).drop("outcome").with_columns(updated_at=now)
    store.commit(Commit(LOG, open_streams=rows))
    assert count(store, "open_streams") == 2
    store.commit(Commit(LOG))
    assert count(store, "open_streams") == 2
    store.commit(Commit(LOG, open_streams=rows.head(1)))
    assert count(store, "open_streams") == 1
    store.commit(Commit(LOG, open_streams=rows.head(0)))
    assert count(store, "open_streams") == 0


def test_no_memory_ends_the_readers_and_tries_again(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    ended = []
    store.on_memory = lambda: ended.append(1)
    tried = []
    real = store._commit

    def scarce(commit: Commit, tables: Mapping[str, pl.DataFrame]) -> None:
        tried.append(1)
        if len(tried) < 3:
            store._connection.execute("BEGIN TRANSACTION")
            raise duckdb.OutOfMemoryException("no more")
        real(commit, tables)

    monkeypatch.setattr(store, "_commit", scarce)
    store.commit(Commit(LOG, tables={"streams": streams(1)}))
    assert (len(ended), len(tried), count(store)) == (2, 3, 1)


CHILD = """
import os, signal, sys
from pathlib import Path
from analytics.storage.store import Commit, Store, StoredPosition
from tests.analytics.storage.test_store import streams
store = Store(Path(sys.argv[1]))
store.claim("log-1", "w0")
for n in range(int(sys.argv[2])):
    store.commit(Commit("log-1", positions={"w0": StoredPosition(n + 1, n, ())}, tables={"streams": streams(n)}))
print("committed", flush=True)
if sys.argv[3] == "hold":
    sys.stdin.read()
os.kill(os.getpid(), signal.SIGKILL)
"""


def child(path: Path, commits: int, then: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(path), str(commits), then],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).resolve().parents[3],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[3])},
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "committed\n"
    return process


def test_what_was_committed_survives_kill_9(path: Path) -> None:
    child(path, 5, "die").wait()
    store = Store(path)
    assert count(store) == 5
    assert store.claim(LOG, "w0") == StoredPosition(5, 4, ())
    store.close()


def test_a_file_that_another_process_has_open_is_refused_in_one_line(path: Path) -> None:
    process = child(path, 1, "hold")
    try:
        with pytest.raises(OSError, match="open in another process") as refused:
            Store(path)
        assert "\n" not in str(refused.value)
    finally:
        process.kill()
        process.communicate()


def test_a_damaged_file_is_refused_in_one_line(path: Path) -> None:
    path.write_bytes(b"not a database" * 1000)
    with pytest.raises(OSError, match="cannot open") as refused:
        Store(path)
    assert "\n" not in str(refused.value)


def test_a_file_of_an_older_version_gets_the_new_columns_and_keeps_its_rows(path: Path) -> None:
    Store(path).close()
    with duckdb.connect(str(path)) as older:
        older.execute("ALTER TABLE streams DROP COLUMN request_bytes")
        older.execute("ALTER TABLE streams DROP COLUMN output_text")
        older.execute(
            "INSERT INTO streams BY NAME SELECT uuid() AS stream_id, now() AS started_at, 'ok' AS outcome"
        )
    store = Store(path)
    columns = store.cursor().execute("SELECT request_bytes, output_text, outcome FROM streams").fetchall()
    assert columns == [(None, None, "ok")]
    done = store.cursor().execute("SELECT what FROM internal.migrations ORDER BY done_at").fetchall()
    assert "streams.request_bytes" in done[-1][0]
    store.close()


OLDER = """
DROP TABLE stream_minutes; DROP TABLE histogram_minutes; DROP TABLE stalls;
CREATE VIEW stalls AS SELECT 1 AS one;
CREATE TABLE plain_events AS FROM events; DROP VIEW events; DROP TABLE internal.packed_events;
ALTER TABLE plain_events RENAME TO events;
UPDATE internal.migrations SET version = 1;
"""


def test_a_file_from_before_the_rollups_gets_those_of_its_rows(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schema, "BACKFILL_STREAMS", 3)
    rows = streams(*range(8)).with_columns(
        ttft_ns=pl.int_range(1, 9) * 100, icl_p50_ns=1e6, stall_count=1, request_model=pl.lit("m")
    )
    events = pl.DataFrame(
        [(sid, n, n, at, "text", 0) for sid in rows["stream_id"] for n, at in enumerate((0, 10**6, 10**9))],
        schema={
            "stream_id": pl.String, "seq": pl.Int32, "read_seq": pl.Int32, "at_ns": pl.Int64, "kind": pl.String,
            "choice": pl.Int16,
        },
        orient="row",
    )  # fmt: skip
    written = Store(path)
    written.commit(Commit(LOG, tables={"streams": rows, "events": events}))
    wanted = state(written)
    written.close()
    with duckdb.connect(str(path)) as older:
        older.execute(OLDER)
    again = Store(path)
    assert state(again) == wanted
    assert (count(again), count(again, "events"), count(again, "stalls")) == (8, 24, 8)
    notes = again.cursor().execute("SELECT what FROM internal.migrations WHERE version = ?", [SCHEMA_VERSION])
    assert notes.fetchall() == [("events packed",), ("roll-ups made of 8 streams",)]
    again.close()
    again = Store(path)
    assert state(again) == wanted
    again.close()


def state(store: Store) -> list[object]:
    """What the roll-ups say, whatever their rows."""
    query = store.cursor().execute
    return [
        query("SELECT count(*), sum(gap_ns) FROM stalls").fetchall(),
        query("SELECT sum(streams), sum(stalls), max(icl_max_ns) FROM stream_minutes").fetchall(),
        query("SELECT metric, bucket, sum(n) FROM histogram_buckets GROUP BY ALL ORDER BY ALL").fetchall(),
    ]


def test_a_file_of_a_newer_version_is_refused_in_one_line(path: Path) -> None:
    store = Store(path)
    store.cursor().execute("UPDATE internal.migrations SET version = ?", [SCHEMA_VERSION + 1])
    store.close()
    with pytest.raises(OSError, match="newer Streamgauge"):
        Store(path)


def test_every_view_can_be_read_and_is_documented(store: Store) -> None:
    store.commit(Commit(LOG, tables={"streams": streams(1, 2)}))
    views = (
        store.cursor()
        .execute("SELECT view_name, comment FROM duckdb_views() WHERE schema_name = 'main' AND NOT internal")
        .fetchall()
    )
    assert {name for name, _ in views} >= {
        "latency_by_minute",
        "errors_by_minute",
        "throughput_by_minute",
        "slow_streams",
        "histogram_buckets",
        "gateway_comparison",
    }
    for name, comment in views:
        assert frame(store.cursor().execute(f"FROM {name}")).width
        assert comment, name


def test_checkpoints_succeed_beside_an_idle_store(store: Store) -> None:
    """A result that is not read to its end would hold a snapshot, and no checkpoint could follow later commits."""
    with contextlib.closing(store.cursor()) as cursor:
        for _ in range(3):
            cursor.execute("BEGIN TRANSACTION")
            add_totals(cursor, {"expired_events_rows": 1})
            cursor.execute("COMMIT")
            cursor.execute("CHECKPOINT").fetchall()
    keeper = Retention(store, events_s=1.0, streams_s=1.0)
    with contextlib.closing(store.cursor()) as cursor:
        for _ in range(2):
            keeper.sweep(0.0)
            cursor.execute("BEGIN TRANSACTION")
            add_totals(cursor, {"read_records": 1})
            cursor.execute("COMMIT")
            cursor.execute("CHECKPOINT").fetchall()
    keeper.close()
