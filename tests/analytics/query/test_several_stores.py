"""Queries over several stores: the same answers as over one store with all their streams."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from polars.testing import assert_frame_equal

from streamgauge.analytics.assembly.assembler import Assembler
from streamgauge.analytics.consumer import Consumer
from streamgauge.analytics.measures.measure import measure
from streamgauge.analytics.measures.open_streams import open_stream_frame
from streamgauge.analytics.query.query_errors import StoreUnavailable
from streamgauge.analytics.query.reader import Reader
from streamgauge.analytics.schema.clients import Client
from streamgauge.analytics.schema.tables import CLIENTS, PRICES
from streamgauge.analytics.storage.location import SQLITE, locate
from streamgauge.analytics.storage.replaced_tables import replace_rows
from streamgauge.analytics.storage.rollup_compaction import compact_rollups
from streamgauge.analytics.storage.store import Store
from streamgauge.ingest.records import pack
from tests.analytics.log_entries import MS, MemoryLog, stream, stream_id
from tests.analytics.schema.prices import price

PER_STORE = ("log_positions", "taps", "counter_parts")
"""Tables whose rows describe one store."""


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two halves of the streams, and all of them."""
    root = tmp_path_factory.mktemp("stores")
    for name, numbers in (("a", range(6)), ("b", range(6, 12)), ("all", range(12))):
        store = Store(locate(SQLITE, root / name))
        payloads = [pack(stream(n, gap_ns=(n + 1) * MS), compress=False) for n in numbers]
        consumer = Consumer(MemoryLog({"w0": payloads}), store, Assembler(), measure)
        consumer.start()
        while consumer.step(0):
            pass
        consumer.finish()
        replace_rows(store, CLIENTS, [Client("a1" * 16, "billing")])
        replace_rows(store, PRICES, [price("*", 1, 1)])
        with store.cursor() as cursor:
            compact_rollups(cursor, time.time())  # settled minutes
        store.close()
    return [root / "a", root / "b", root / "all"]


@pytest.fixture(scope="module")
def readers(folders: list[Path]) -> Iterator[tuple[Reader, Reader]]:
    a, b, whole = (locate(SQLITE, folder) for folder in folders)
    both, one = Reader(a, others=[b], lock_down=False), Reader(whole, lock_down=False)
    yield both, one
    both.close()
    one.close()


def test_tables_and_views_equal_those_of_one_store(readers: tuple[Reader, Reader]) -> None:
    both, one = readers
    names = one.query(
        "SELECT table_name FROM duckdb_tables() WHERE schema_name = 'main' AND database_name = 'lake' UNION "
        "SELECT view_name FROM duckdb_views() WHERE schema_name = 'main' AND database_name = 'lake'",
        100,
        30,
    )["table_name"]
    compared = sorted(set(names) - {*PER_STORE, "counters"})
    assert {"streams", "events", "latency_by_minute", "histogram_buckets"} <= set(compared)
    for name in compared:
        if name in (
            "stream_minutes",
            "histogram_minutes",
            "client_minutes",
        ):  # rows to be added up, by the views
            continue
        if name in (
            "prompt_segments",
            "prompt_reuse",
        ):  # analytics compares a prompt with those that it has seen
            continue
        columns = "* EXCLUDE (n), sum(n) AS n" if name == "histogram_buckets" else "*"
        group = "GROUP BY ALL" if name == "histogram_buckets" else ""
        sql = f"SELECT {columns} FROM {name} {group} ORDER BY ALL"
        found, expected = both.query(sql, 10_000, 60), one.query(sql, 10_000, 60)
        if "partition" in expected.columns:
            found, expected = found.drop("partition"), expected.drop("partition")
        assert_frame_equal(found, expected, check_row_order=True, rel_tol=1e-5)
    assert both.query("FROM latency_by_minute", 100, 60).height > 0


def test_open_streams_of_all_stores(readers: tuple[Reader, Reader], folders: list[Path]) -> None:
    with contextlib.ExitStack() as open_stores:
        for number, folder in enumerate(folders[:2], 20):
            store = Store(locate(SQLITE, folder))
            open_stores.callback(store.close)
            assembler = Assembler()
            assembler.feed("w0", 0, stream(number)[:3])
            store.write_open_streams(open_stream_frame(assembler.open_streams()))
        found = readers[0].query("SELECT stream_id::VARCHAR AS id FROM open_streams ORDER BY 1", 100, 60)
    assert found["id"].to_list() == [stream_id(20), stream_id(21)]


def test_each_store_has_a_name(readers: tuple[Reader, Reader]) -> None:
    counts = "SELECT (SELECT count(*) FROM lake.streams) AS a, (SELECT count(*) FROM lake_2.streams) AS b, count(*) AS n FROM streams"
    assert readers[0].query(counts, 1, 30).row(0) == (6, 6, 12)


def test_missing_store_is_named(folders: list[Path], tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable, match=f"{tmp_path}.* has no tables yet"):
        Reader(locate(SQLITE, folders[0]), others=[locate(SQLITE, tmp_path)], lock_down=False)
