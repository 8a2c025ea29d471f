"""Names that the SQL page completes: all public tables and views with their columns, and functions."""

from __future__ import annotations

from pathlib import Path

from streamgauge.analytics.query.statement_filter import allowed_functions
from streamgauge.analytics.reports import table_columns
from tests.tables import tables


def test_tables_are_the_public_ones_with_comments(streams_data: Path) -> None:
    store = tables(streams_data)
    found = table_columns.tables(store.query)
    names = [table["name"] for table in found]
    assert names == sorted(store.query("SHOW TABLES")["name"])
    assert {table["kind"] for table in found if table["name"] in ("streams", "events")} == {"table"}
    for table in found:
        assert table["columns"], table["name"]
        assert len({name for name, _, _ in table["columns"]}) == len(table["columns"]), table["name"]
    in_flight = found[names.index("open_streams")]
    assert (in_flight["kind"], in_flight["comment"]) == (
        "view",
        "Streams in flight, at most half a second old. Columns of streams have their values so far.",
    )
    assert ("tap", "VARCHAR", "Name of the tap.") in in_flight["columns"]


def test_functions_have_parameters(streams_data: Path) -> None:
    found = dict(table_columns.functions(tables(streams_data).query))
    assert found["quantile_cont"] == "x, pos"
    assert {"count", "time_bucket", "strftime", "arg_max"} <= found.keys()
    assert len(found.keys() & allowed_functions()) > 500
