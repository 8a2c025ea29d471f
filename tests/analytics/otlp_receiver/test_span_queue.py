"""Received spans and the writer: told of once they are stored, stored once, bounded, and turned away rather than lost."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from analytics.otlp_receiver.span_queue import SpanQueue
from analytics.otlp_receiver.span_rows import Row, as_frame, parse_spans
from analytics.storage.commit import Commit
from analytics.storage.store import Store
from tests.analytics.otlp_receiver.test_span_rows import NOW, protobuf, span
from tests.analytics.stores import new_store


def rows_of(*ids: int, **more: Any) -> list[Row]:
    return parse_spans(
        protobuf(*(span(spanId=f"{n:016x}", **more) for n in ids)), is_json=False, now_ns=NOW, max_spans=100
    ).rows


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    made = new_store(tmp_path)
    yield made
    made.close()


def committed(store: Store, queue: SpanQueue) -> list[str]:
    """A commit of what waits; the ids in the table after it."""
    store.commit(Commit("", tables=dict(queue.rows((), {}))))
    queue.committed()
    return ids(store)


def ids(store: Store) -> list[str]:
    return [
        f"{int(row[0], 16)}"
        for row in store.cursor().execute("SELECT span_id FROM spans ORDER BY 1").fetchall()
    ]


def test_a_sender_is_told_after_the_commit(store: Store) -> None:
    queue = SpanQueue(store.cursor)
    assert not bool(queue.waiting)
    batch = queue.offer(rows_of(1, 2))
    assert batch is not None
    assert bool(queue.waiting)
    store.commit(Commit("", tables=dict(queue.rows((), {}))))
    assert not batch.stored.done()
    queue.committed()
    assert batch.stored.result(0) is True
    assert ids(store) == ["1", "2"]
    assert not bool(queue.waiting)


def test_a_span_that_is_there_is_not_written_again(store: Store) -> None:
    queue = SpanQueue(store.cursor)
    queue.offer(rows_of(1, 2))
    assert committed(store, queue) == ["1", "2"]
    queue.offer(rows_of(2, 3))
    queue.offer(rows_of(3, 4))
    assert committed(store, queue) == ["1", "2", "3", "4"]
    assert queue.health() == {
        "otlp.received": 6, "otlp.stored": 4, "otlp.doubled": 2, "otlp.refused": 0, "otlp.turned_away": 0,
    }  # fmt: skip


def test_our_own_span_wins_over_what_comes_back_by_way_of_a_collector(store: Store) -> None:
    own = as_frame(rows_of(7)).with_columns(pl.lit("chat m, told by the tap").alias("name"))
    store.commit(Commit("", tables={"spans": own}))
    queue = SpanQueue(store.cursor)
    queue.offer(rows_of(7))
    committed(store, queue)
    assert store.cursor().execute("SELECT name FROM spans").fetchall() == [("chat m, told by the tap",)]


def test_what_does_not_fit_is_turned_away_and_counted(store: Store) -> None:
    queue = SpanQueue(store.cursor, max_spans=3)
    assert queue.offer(rows_of(1, 2)) is not None
    assert queue.offer(rows_of(3, 4)) is None
    assert committed(store, queue) == ["1", "2"]
    assert queue.offer(rows_of(3, 4)) is not None
    assert committed(store, queue) == ["1", "2", "3", "4"]
    assert queue.health()["otlp.turned_away"] == 2


def test_what_a_sender_gave_up_is_not_stored(store: Store) -> None:
    queue = SpanQueue(store.cursor)
    batch = queue.offer(rows_of(1))
    assert batch is not None
    assert batch.stored.cancel()
    queue.offer(rows_of(2))
    assert committed(store, queue) == ["2"]


def test_closing_tells_those_who_wait_to_come_again(store: Store) -> None:
    queue = SpanQueue(store.cursor)
    batch = queue.offer(rows_of(1))
    assert batch is not None
    queue.close()
    assert batch.stored.result(0) is False
    assert queue.offer(rows_of(2)) is None
    assert committed(store, queue) == []
