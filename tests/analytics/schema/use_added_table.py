"""Script of test_added_table.py: use the table `added` of a changed copy of the product. Argument: a data folder."""

from __future__ import annotations

import sys
import time
from contextlib import closing
from pathlib import Path

import duckdb

import streamgauge
from streamgauge.analytics.schema.frames import frame
from streamgauge.analytics.schema.tables import TABLES
from streamgauge.analytics.storage.commit import Commit
from streamgauge.analytics.storage.export import export
from streamgauge.analytics.storage.location import locate
from streamgauge.analytics.storage.rebuild import Source, rebuild
from streamgauge.analytics.storage.store import INLINED_ROWS, Store
from streamgauge.analytics.storage.upkeep import MERGED_FILES, Upkeep
from streamgauge.ingest.generated_ids import smallest_uuid7
from tests.analytics.stores import ask

DAY_S = 86_400.0
ROWS = INLINED_ROWS + 1
COUNT = "SELECT count(*) FROM added"


def add_rows(store: Store, days_ago: float) -> None:
    """Append a Parquet file of rows of one stream."""
    stream_id = smallest_uuid7(time.time() - days_ago * DAY_S)
    values = {"stream_id": [stream_id] * ROWS, "number": range(ROWS), "note": ["x"] * ROWS}
    store.commit(Commit("", tables={"added": frame(ADDED, values)}))


def files(data: Path) -> int:
    return len([*data.glob("tables/main/added/*.parquet")])


def use(data: Path) -> None:
    location = locate("sqlite", data)
    with closing(Store(location)) as store:
        with closing(Upkeep(store, events_s=None, streams_s=5 * DAY_S)) as upkeep:
            for number in range(MERGED_FILES):
                add_rows(store, days_ago=number + 0.5)
            upkeep.merge()
            assert files(data) == MERGED_FILES + 1  # the merged one, and its sources, which readers may need
            assert ask(store, COUNT) == [(MERGED_FILES * ROWS,)]
            assert upkeep.retain(time.time()) == (MERGED_FILES - 5) * ROWS
            assert store.totals()["expired_added_rows"] == (MERGED_FILES - 5) * ROWS
        exported = data / "exported.duckdb"
        export(location, exported)
        with duckdb.connect(str(exported)) as connection:
            assert connection.execute(COUNT).fetchall() == [(5 * ROWS,)]
            assert connection.execute(
                "SELECT comment FROM duckdb_tables() WHERE table_name = 'added'"
            ).fetchall() == [("Added by a test.",)]
    assert rebuild(location, use_backup=False).source is Source.FILES
    with closing(Store(location)) as store:
        assert ask(store, COUNT) == [
            (MERGED_FILES * ROWS,)
        ]  # each once, with those that retention deletes again


(ADDED,) = (table for table in TABLES if table.name == "added")
assert Path(str(streamgauge.__file__)).parents[1] == Path(sys.argv[1]).parent, "not the copy"
use(Path(sys.argv[1]))
print("added table works")
