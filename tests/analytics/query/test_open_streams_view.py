"""The view over the files of streams in flight."""

from __future__ import annotations

import os
from pathlib import Path

import polars as pl
import pytest

from analytics.query.open_streams_view import COLUMNS
from analytics.query.reader import Reader
from analytics.schema.tables import OPEN_STREAMS
from tests.analytics.query.conftest import make_store


def write(tables: Path, owner: str, streams: list[str]) -> None:
    folder = tables / "open_streams"
    folder.mkdir(exist_ok=True)
    rows = {name: [None] * len(streams) for name in OPEN_STREAMS} | {"stream_id": streams}
    pl.DataFrame(rows, schema=OPEN_STREAMS).write_parquet(folder / f"{owner}.part")
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
        write(tables, "one", [])
        assert reader.query("SELECT stream_id FROM open_streams", 10, 5)["stream_id"].to_list() == [second]
        (tables / "open_streams" / "one.live").unlink()
        (tables / "open_streams" / "two.live").unlink()
        assert reader.query("FROM open_streams", 10, 5).height == 0
    finally:
        reader.close()
