"""Old rows go, young ones stay, and what went is counted."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pytest

from analytics.storage import retention
from analytics.storage.retention import Retention, ages_s, first_id_at
from analytics.storage.settle import settle
from analytics.storage.store import Commit, Store

DAY_S = 86_400.0
NOW_S = 1_790_000_000.0


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = Store(tmp_path / "streamgauge.duckdb")
    yield store
    store.close()


def fill(store: Store, days: int, per_day: int, events: int) -> None:
    """Streams of the last `days` days, with events, a usage report and a loss each."""
    started_s = [NOW_S - day * DAY_S - n - 1 for day in range(days) for n in range(per_day)]
    ids = [first_id_at(at)[:-4] + f"{i:04d}" for i, at in enumerate(started_s)]
    at = pl.Series("started_at", [int(s * 1e6) for s in started_s]).cast(pl.Datetime("us", "UTC"))
    streams = pl.DataFrame({"stream_id": ids, "outcome": ["ok"] * len(ids)}).with_columns(at)
    rows = pl.DataFrame({"stream_id": [i for i in ids for _ in range(events)]}).with_columns(
        seq=pl.int_range(pl.len(), dtype=pl.Int32) % events,
        read_seq=pl.int_range(pl.len(), dtype=pl.Int32) % events,
        at_ns=pl.int_range(pl.len(), dtype=pl.Int64) * 7919 % 1_000_000_007,
        kind=pl.lit("text"),
    )
    usage = streams.select("stream_id", seq=pl.lit(1, pl.Int32))
    losses = (
        streams.select("stream_id", "started_at")
        .rename({"started_at": "lost_at"})
        .with_columns(cause=pl.lit("missing"))
    )
    store.commit(
        Commit("log", tables={"streams": streams, "events": rows, "usage_reports": usage, "losses": losses})
    )


def counts(store: Store) -> dict[str, int]:
    found = {}
    for table in ("streams", "events", "usage_reports", "losses"):
        row = store.cursor().execute(f"SELECT count(*) FROM {table}").fetchone()
        assert row is not None
        found[table] = row[0]
    return found


def test_events_go_before_their_streams(store: Store) -> None:
    fill(store, days=10, per_day=5, events=4)
    keeper = Retention(store, events_s=3 * DAY_S, streams_s=6 * DAY_S)
    keeper.sweep(NOW_S)
    assert counts(store) == {"streams": 30, "events": 60, "usage_reports": 30, "losses": 30}
    oldest = store.cursor().execute("SELECT epoch(min(started_at)) FROM streams").fetchone()
    assert oldest is not None
    assert oldest[0] >= NOW_S - 6 * DAY_S
    totals = store.totals()
    assert (totals["expired_streams_rows"], totals["expired_events_rows"]) == (20, 140)
    assert keeper.sweep(NOW_S) == 0
    keeper.close()


def test_for_ever_keeps_everything(store: Store) -> None:
    fill(store, days=10, per_day=2, events=2)
    keeper = Retention(store, events_s=None, streams_s=None)
    assert keeper.sweep(NOW_S + 1000 * DAY_S) == 0
    keeper.start()
    keeper.close()
    assert counts(store)["streams"] == 20


def test_events_never_outlive_their_streams(store: Store) -> None:
    fill(store, days=10, per_day=2, events=2)
    keeper = Retention(store, events_s=None, streams_s=2 * DAY_S)
    keeper.sweep(NOW_S)
    assert counts(store) == {"streams": 4, "events": 8, "usage_reports": 4, "losses": 4}
    keeper.close()


def test_it_goes_in_steps_while_the_consumer_commits(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "SLICE_ROWS", 7)
    monkeypatch.setattr(retention, "PAUSE_S", 0.0)
    fill(store, days=4, per_day=5, events=10)
    keeper = Retention(store, events_s=1 * DAY_S, streams_s=None)
    real, steps = keeper._step, []

    def between(table: str, where: str, *values: object) -> int:
        store.commit(Commit("log", totals={"entries": 1}))
        steps.append(table)
        return real(table, where, *values)

    monkeypatch.setattr(keeper, "_step", between)
    keeper.sweep(NOW_S)
    assert counts(store) == {"streams": 20, "events": 50, "usage_reports": 20, "losses": 20}
    assert len(steps) >= 15
    assert store.totals()["entries"] == len(steps)
    keeper.close()


def test_space_is_given_back_or_used_again(store: Store) -> None:
    size = store.path.stat
    fill(store, days=2, per_day=2000, events=100)
    store.cursor().execute("CHECKPOINT")
    full = size().st_size
    keeper = Retention(store, events_s=DAY_S / 1000, streams_s=DAY_S / 1000)
    keeper.sweep(NOW_S + DAY_S)
    for _ in range(4):
        fill(store, days=1, per_day=2000, events=100)
        keeper.sweep(NOW_S + DAY_S)
        store.cursor().execute("CHECKPOINT")
    assert size().st_size <= full * 1.5  # four fills came after the first, each of which is half of `full`
    keeper.close()


def test_rollups_outlive_the_rows_they_count(store: Store) -> None:
    fill(store, days=3, per_day=20, events=4)
    query = "SELECT sum(streams) FROM throughput_by_minute"
    keeper = Retention(store, events_s=DAY_S, streams_s=DAY_S, rollups_s=31 * DAY_S)
    settle(store.cursor(), NOW_S + DAY_S)
    keeper.sweep(NOW_S + 28 * DAY_S)
    assert counts(store)["streams"] == counts(store)["events"] == 0
    assert store.cursor().execute(query).fetchall() == [(60,)]
    for day, left in ((29, 40), (30, 20)):  # the oldest minutes are three days old by now
        keeper.sweep(NOW_S + day * DAY_S)
        assert store.cursor().execute(query).fetchall() == [(left,)]
        assert store.totals()["expired_stream_minutes_rows"] >= day - 28
    keeper.sweep(NOW_S + 31 * DAY_S)
    for table in ("stream_minutes", "histogram_minutes"):
        assert store.cursor().execute(f"SELECT count(*) FROM {table}").fetchall() == [(0,)]
    keeper.close()


def test_rollups_never_go_before_their_streams() -> None:
    assert ages_s(1.0, 20.0, 3.0) == {"events": 1.0, "streams": 20.0, "rollups": 20.0}
    assert ages_s(50.0, 20.0, None) == {"events": 20.0, "streams": 20.0, "rollups": None}
    assert ages_s(1.0, None, 30.0) == {"events": 1.0, "streams": None, "rollups": None}
