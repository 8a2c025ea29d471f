"""The span queue: acknowledged after the commit, stored once, bounded."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from streamgauge.analytics.intake.commit_queue import CommitQueue
from streamgauge.analytics.intake.otlp_messages import Row
from streamgauge.analytics.intake.received_spans import parse_spans, span_queue
from streamgauge.analytics.schema.frames import frame_of_rows
from streamgauge.analytics.schema.tables import SPANS
from streamgauge.analytics.storage.commit import Commit
from streamgauge.analytics.storage.store import Store
from tests.analytics.intake.test_received_spans import NOW, protobuf, span
from tests.analytics.stores import new_store


def rows_of(*ids: int, **more: Any) -> list[Row]:
    return parse_spans(
        protobuf(*(span(spanId=f"{n:016x}", **more) for n in ids)), is_json=False, now_ns=NOW, max_items=100
    ).rows


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    made = new_store(tmp_path)
    yield made
    made.close()


def committed(store: Store, queue: CommitQueue[Row]) -> list[str]:
    """Commit the queued spans and return all stored ids."""
    store.commit(Commit("", tables=dict(queue.rows((), {}))))
    queue.committed()
    return ids(store)


def ids(store: Store) -> list[str]:
    return [
        f"{int(row[0], 16)}"
        for row in store.cursor().execute("SELECT span_id FROM spans ORDER BY 1").fetchall()
    ]


def test_sender_is_acknowledged_after_the_commit(store: Store) -> None:
    queue = span_queue(store.cursor)
    assert not bool(queue.waiting)
    stored = queue.offer(rows_of(1, 2))
    assert stored is not None
    assert bool(queue.waiting)
    store.commit(Commit("", tables=dict(queue.rows((), {}))))
    assert not stored.done()
    queue.committed()
    assert stored.result(0) is True
    assert ids(store) == ["1", "2"]
    assert not bool(queue.waiting)


def test_stored_span_is_not_stored_again(store: Store) -> None:
    queue = span_queue(store.cursor)
    queue.offer(rows_of(1, 2))
    assert committed(store, queue) == ["1", "2"]
    queue.offer(rows_of(2, 3))
    queue.offer(rows_of(3, 4))
    assert committed(store, queue) == ["1", "2", "3", "4"]
    assert queue.health() == {
        "otlp.received": 6, "otlp.stored": 4, "otlp.doubled": 2, "otlp.refused": 0, "otlp.turned_away": 0,
    }  # fmt: skip


def test_stored_span_is_not_replaced_by_a_copy_from_a_collector(store: Store) -> None:
    from_tap = frame_of_rows(SPANS, rows_of(7)).with_columns(pl.lit("span of the tap").alias("name"))
    store.commit(Commit("", tables={"spans": from_tap}))
    queue = span_queue(store.cursor)
    queue.offer(rows_of(7))
    committed(store, queue)
    assert store.cursor().execute("SELECT name FROM spans").fetchall() == [("span of the tap",)]


def test_batch_beyond_the_limit_is_rejected_and_counted(store: Store) -> None:
    queue = span_queue(store.cursor, max_spans=3)
    assert queue.offer(rows_of(1, 2)) is not None
    assert queue.offer(rows_of(3, 4)) is None
    assert committed(store, queue) == ["1", "2"]
    assert queue.offer(rows_of(3, 4)) is not None
    assert committed(store, queue) == ["1", "2", "3", "4"]
    assert queue.health()["otlp.turned_away"] == 2


def test_cancelled_batch_is_not_stored(store: Store) -> None:
    queue = span_queue(store.cursor)
    stored = queue.offer(rows_of(1))
    assert stored is not None
    assert stored.cancel()
    queue.offer(rows_of(2))
    assert committed(store, queue) == ["2"]


def test_close_rejects_waiting_senders(store: Store) -> None:
    queue = span_queue(store.cursor)
    stored = queue.offer(rows_of(1))
    assert stored is not None
    queue.close()
    assert stored.result(0) is False
    assert queue.offer(rows_of(2)) is None
    assert committed(store, queue) == []
