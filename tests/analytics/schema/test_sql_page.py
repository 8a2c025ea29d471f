"""docs/how-to/query.md: every query on it is allowed, runs, and returns rows of streams that are there."""

import re
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest

from analytics.query.statement_filter import StatementFilter
from tests.analytics.measures.test_rollup import events, store, streams
from tests.analytics.stores import plain_tables

PAGE = (Path(__file__).parents[3] / "docs" / "how-to" / "query.md").read_text()
BLOCKS = dict(re.findall(r"```sql\n-- name: (\w+)\n(.*?)```", PAGE, re.DOTALL))
MS = 1_000_000


@pytest.fixture(scope="module")
def con() -> Iterator[duckdb.DuckDBPyConnection]:
    row = {
        "ttft_ns": 100 * MS, "icl_p50_ns": 50.0 * MS, "stall_count": 1, "stalled_ns": 600 * MS, "request_model": "m",
        "cached_input_tokens": 5, "input_tokens": 10, "output_tokens": 7,
    }  # fmt: skip
    rows = streams([row, {**row, "outcome": "truncated", "error_phase": "mid_stream"}])
    of = events([(0, "text", 0, 100 * MS), (0, "text", 0, 150 * MS), (0, "text", 0, 750 * MS)])
    with plain_tables() as con:
        store(con, rows, of)
        yield con


def test_there_are_queries() -> None:
    assert len(BLOCKS) == PAGE.count("```sql") >= 10


@pytest.mark.parametrize("name", BLOCKS)
def test_each_query_is_allowed_and_returns_rows(name: str, con: duckdb.DuckDBPyConnection) -> None:
    row = con.execute("SELECT current_database()").fetchone()
    assert row is not None
    StatementFilter(con.cursor(), catalog=row[0]).check(BLOCKS[name])
    found = con.execute(BLOCKS[name]).pl()
    if name not in ("slowest", "timeline", "latency_last_hour"):  # of the last hours, or the newest stream
        assert found.height, name
