"""The view over the files of streams in flight."""

from __future__ import annotations

import itertools
import os
import threading
import uuid
from collections.abc import Sequence
from pathlib import Path

import polars as pl
import pytest

from streamgauge.analytics.query.open_streams_view import COLUMNS
from streamgauge.analytics.query.reader import Reader
from streamgauge.analytics.schema.frames import polars_types
from streamgauge.analytics.schema.tables import OPEN_STREAMS
from tests.analytics.query.conftest import make_store


def write(
    tables: Path,
    owner: str,
    streams: list[str],
    tap: str | None = None,
    columns: Sequence[str] = tuple(OPEN_STREAMS.types),
) -> None:
    folder = tables / "open_streams"
    folder.mkdir(exist_ok=True)
    rows = {name: [None] * len(streams) for name in OPEN_STREAMS.types}
    rows |= {"stream_id": streams, "tap": [tap] * len(streams)}
    pl.DataFrame(rows, schema=polars_types(OPEN_STREAMS)).select(columns).write_parquet(
        folder / f"{owner}.part"
    )
    os.replace(folder / f"{owner}.part", folder / f"{owner}.live")


@pytest.mark.parametrize("lock_down", [False, True])
def test_view_shows_the_current_files(tmp_path: Path, lock_down: bool) -> None:
    data = tmp_path / "a [b] c"  # characters that patterns use
    data.mkdir()
    location = make_store(data, rows=1)
    assert location.tables is not None
    tables = Path(location.tables)
    reader = Reader(location, lock_down=lock_down)
    try:
        empty = reader.query("FROM open_streams", 10, 5)
        assert (empty.height, empty.columns) == (0, list(COLUMNS))
        first, second = (f"0198b2d0-0000-7000-8000-00000000000{n}" for n in (1, 2))
        write(tables, "one", [first])
        write(tables, "two", [second])
        assert sorted(reader.query("SELECT stream_id FROM Open_Streams", 10, 5)["stream_id"]) == [
            first,
            second,
        ]
        assert reader.query("SELECT typeof(stream_id) FROM open_streams LIMIT 1", 1, 5).item() == "UUID"
        assert "open_streams_rows" not in reader.query("SHOW TABLES", 100, 5)["name"].to_list()
        write(tables, "one", [])
        assert reader.query("SELECT stream_id FROM open_streams", 10, 5)["stream_id"].to_list() == [second]
        write(tables, "two", [first], tap="tap-2", columns=["tap", "stream_id"])  # of another version
        found = reader.query("SELECT stream_id, tap, started_at FROM open_streams", 10, 5)
        assert found.rows() == [(first, "tap-2", None)]
        (tables / "open_streams" / "one.live").unlink()
        (tables / "open_streams" / "two.live").unlink()
        assert reader.query("FROM open_streams", 10, 5).height == 0
    finally:
        reader.close()


def test_query_sees_one_state_of_a_file_that_is_replaced_meanwhile(tmp_path: Path) -> None:
    location = make_store(tmp_path, rows=1)
    assert location.tables is not None
    tables = Path(location.tables)
    reader = Reader(location, lock_down=True)
    stop = threading.Event()

    def replace() -> None:
        for generation in itertools.cycle(range(1, 40)):
            write(
                tables,
                "one",
                [str(uuid.UUID(int=n)) for n in range(generation * 50)],
                f"g{generation}" * generation,
            )
            if stop.is_set():
                return

    thread = threading.Thread(target=replace)
    thread.start()
    try:
        # The streams are read after the other side of the join, much later than the schema of their file.
        late = "(SELECT count(*) AS n FROM range(400000) WHERE hash(range) % 7 = 1)"
        for _ in range(8):
            found = reader.query(
                f"SELECT count(DISTINCT tap) AS taps, count(*) AS n, sum(n) > 0 FROM {late}, open_streams",
                10,
                20,
            )
            assert found["taps"][0] <= 1
            assert found["n"][0] % 50 == 0
    finally:
        stop.set()
        thread.join()
        reader.close()
