"""The file of streams in flight is replaced atomically, and readers see it as a view."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest

from streamgauge.analytics.schema.frames import frame
from streamgauge.analytics.schema.tables import OPEN_STREAMS
from streamgauge.analytics.storage.commit import Commit
from streamgauge.analytics.storage.location import StoreLocation
from streamgauge.analytics.storage.store import Store
from tests.analytics.storage.rows import STARTED_US, new_ids, streams
from tests.analytics.stores import ask_as_reader

QUERY = "SELECT stream_id, event_count, updated_at FROM open_streams ORDER BY 1"


def rows_of(*ids: str, event_count: int = 3) -> pl.DataFrame:
    values: dict[str, list[object]] = {name: [None] * len(ids) for name in OPEN_STREAMS.types}
    values |= {
        "stream_id": [*ids], "started_at": [STARTED_US] * len(ids), "updated_at": [STARTED_US] * len(ids),
        "event_count": [event_count] * len(ids),
    }  # fmt: skip
    return frame(OPEN_STREAMS, values)


def shown(location: StoreLocation) -> list[tuple[str, int]]:
    return [(stream_id, events) for stream_id, events, _ in ask_as_reader(location, QUERY)]


def live_files(store: Store) -> list[Path]:
    return sorted(Path(store.data_path).glob("open_streams/*"))


def test_each_write_replaces_the_rows_that_readers_see(store: Store, location: StoreLocation) -> None:
    ids = sorted(new_ids(2))
    assert shown(location) == []
    store.write_open_streams(rows_of(*ids))
    assert shown(location) == [(ids[0], 3), (ids[1], 3)]
    store.write_open_streams(rows_of(ids[0], event_count=4))
    assert shown(location) == [(ids[0], 4)]
    store.write_open_streams(rows_of())
    assert shown(location) == []
    [path] = live_files(store)
    assert path.suffix == ".live"
    assert path.parent.stat().st_mode & 0o777 == 0o700


def test_a_stopped_process_has_no_streams_in_flight(location: StoreLocation) -> None:
    store = Store(location)
    store.write_open_streams(rows_of(*new_ids(2)))
    store.close()
    assert shown(location) == []


def test_process_without_open_streams_leaves_no_file(location: StoreLocation) -> None:
    store = Store(location)
    store.close()
    assert live_files(store) == []


def test_commits_do_not_change_streams_in_flight(store: Store, location: StoreLocation) -> None:
    (one,) = new_ids(1)
    store.write_open_streams(rows_of(one))
    store.commit(Commit("log", tables={"streams": streams(one)}))
    assert shown(location) == [(one, 3)]


def test_failed_write_raises_oserror_and_keeps_the_previous_file(
    store: Store, location: StoreLocation
) -> None:
    (one,) = new_ids(1)
    store.write_open_streams(rows_of(one))
    [path] = live_files(store)
    path.with_suffix(".new").mkdir()  # blocks the temporary file
    with pytest.raises(OSError, match=r"directory"):
        store.write_open_streams(rows_of(one, event_count=9))
    path.with_suffix(".new").rmdir()
    assert shown(location) == [(one, 3)]


def test_each_process_has_a_separate_file(
    make_location: Callable[[str], StoreLocation],
) -> None:
    location, ids = make_location("postgres"), sorted(new_ids(2))
    first, second = (Store(location, instance=name) for name in ("first", "second"))
    for store, one in zip((first, second), ids, strict=True):
        store.write_open_streams(rows_of(one))
    assert [path.name for path in live_files(first)] == ["first.live", "second.live"]
    assert shown(location) == [(one, 3) for one in ids]
    first.close()
    assert shown(location) == [(ids[1], 3)]
    second.close()
