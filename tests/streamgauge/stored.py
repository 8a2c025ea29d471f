"""Fill a store through analytics, for tests of commands that read or restore it."""

from __future__ import annotations

from pathlib import Path

from streamgauge.analytics.storage.upkeep import Upkeep
from streamgauge.ingest.record_log.embedded_writer import EmbeddedWriter
from tests.analytics.log_entries import entries
from tests.analytics.stores import analysed
from tests.tables import tables


def write_streams(data: Path, numbers: range) -> None:
    """Append complete streams to the record log of a data folder."""
    with EmbeddedWriter(data / "log", "w0", cap_bytes=2**30) as writer:
        writer.append([*entries(numbers)])


def analyse(data: Path, *, back_up: bool = False, flush: bool = False) -> None:
    """Run analytics on the record log until its end. `flush` writes inlined rows to Parquet files."""
    store = analysed(data)
    upkeep = Upkeep(store, events_s=None, streams_s=None, rollups_s=None)
    if flush:
        upkeep.flush(least_rows=1)
    if back_up:
        upkeep.back_up()
    upkeep.close()
    store.close()


def outcomes(data: Path) -> dict[str, int]:
    """Streams that are `ok` and `lost`, and lost streams `without_row` in `losses`."""
    found = tables(data).query(
        "SELECT count(*) FILTER (outcome = 'ok') AS ok, count(*) FILTER (outcome = 'tap_lost') AS lost,"
        " count(*) FILTER (outcome = 'tap_lost' AND stream_id NOT IN (SELECT stream_id FROM losses)) AS without_row"
        " FROM streams"
    )
    (row,) = found.to_dicts()
    return row
