"""docs/how-to/query.md and find-who-is-slow.md: every query is allowed, runs, and returns rows of streams that are there."""

import re
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest

from streamgauge.analytics.query.statement_filter import StatementFilter
from tests.analytics.measures.test_minute_rows import events, store, streams
from tests.analytics.stores import plain_tables

HOW_TO = Path(__file__).parents[3] / "docs" / "how-to"
PAGE = "".join((HOW_TO / page).read_text() for page in ("query.md", "find-who-is-slow.md"))
BLOCKS = dict(re.findall(r"```sql\n-- name: (\w+)\n(.*?)```", PAGE, re.DOTALL))
MS = 1_000_000
HOPS = f"""
    INSERT INTO hops BY NAME SELECT first(stream_id) AS outer_stream_id, last(stream_id) AS inner_stream_id,
        min(started_at) AS outer_started_at, 'litellm' AS inner_gateway, first(gateway) AS outer_gateway, 'm' AS model,
        'trace' AS matched_by, unnest([1, 2]) AS attempt, 'ok' AS inner_outcome, {5 * MS} AS lost_ns,
        {3 * MS} AS gateway_before_ns, {9 * MS} AS added_ttft_ns
    FROM streams;
    INSERT INTO hop_changes SELECT outer_stream_id, inner_stream_id, outer_started_at, 'output_tokens', '8', '7' FROM hops;
"""

SERVER_STATS = """
    INSERT INTO server_stats SELECT stream_id, 1, 'nvext.timing', unnest(['queue_ms', 'ttft_ms']), 2e6, 'ns', '2' FROM streams
"""


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
        con.execute(HOPS)
        con.execute(SERVER_STATS)
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
