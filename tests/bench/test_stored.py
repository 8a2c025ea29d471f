"""Generated stores of the benches: roll-ups, upkeep, size."""

from __future__ import annotations

from pathlib import Path

from bench import _stored
from bench.analytics import mixture
from bench.dashboard import generated_store as day
from bench.dashboard.generated_store import row_counts
from streamgauge.analytics.query.reader import Reader
from streamgauge.analytics.storage.location import locate
from streamgauge.analytics.storage.store import Store

STREAMS = 40


def fill(folder: Path) -> None:
    day.fill(folder, streams=STREAMS, hours=1.0, events=10)


def test_filled_day_has_rows_and_rollups(tmp_path: Path) -> None:
    fill(tmp_path)
    found = row_counts(tmp_path)
    assert (found["streams"], found["events"]) == (STREAMS, 10 * STREAMS)
    reader = Reader(locate("sqlite", tmp_path), lock_down=False)
    try:
        assert reader.query("SELECT sum(streams)::BIGINT FROM stream_minutes", 1, 20).item() == STREAMS
    finally:
        reader.close()


def test_maintained_store_has_all_rows_and_only_the_newest_files(tmp_path: Path) -> None:
    fill(tmp_path)
    store = Store(locate("sqlite", tmp_path))
    try:
        _stored.maintain(store)
        named = sum(_stored.bytes_by_table(store).values())
    finally:
        store.close()
    assert row_counts(tmp_path)["streams"] == STREAMS
    assert sum(path.stat().st_size for path in (tmp_path / "tables").rglob("*.parquet")) == named
    assert (
        0 < _stored.catalog_bytes(locate("sqlite", tmp_path)) <= (tmp_path / "catalog.sqlite").stat().st_size
    )


def test_chat_streams_are_stored_with_all_their_events(tmp_path: Path) -> None:
    stored = mixture.chat(tmp_path, 1_000)
    assert (stored.events, stored.streams) == (1_000, 10)
    assert 0 < stored.event_table_bytes < stored.file_bytes
