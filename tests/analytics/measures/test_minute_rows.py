"""Roll-ups count every stream once, and their quantiles are within 1 % for any commit boundaries."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import duckdb
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamgauge.analytics.measures.minute_rows import METRICS, rollups
from streamgauge.analytics.schema.dimensions import NO_REQUESTS
from streamgauge.analytics.schema.frames import frame
from streamgauge.analytics.schema.histogram_buckets import ZERO_BUCKET
from streamgauge.analytics.schema.tables import EVENTS, STREAMS
from streamgauge.analytics.storage.rollup_compaction import (
    MOST_LABEL_VALUES,
    MOST_NAMES,
    OTHER,
    compact_rollups,
)
from tests.analytics.measures.buckets import RELATIVE_ERROR, bucket_value
from tests.analytics.stores import plain_tables

MINUTE_US = 1_790_000_040_000_000
MS = 1_000_000
Q = (0.5, 0.95, 0.99)


def sid(number: int) -> str:
    return f"0198b2d0-0000-7000-8000-{number:012d}"


def streams(rows: Sequence[dict[str, Any]]) -> pl.DataFrame:
    rows = [
        {"stream_id": sid(n), "started_at": MINUTE_US + n, "outcome": "ok", "gateway": "gw", **row}
        for n, row in enumerate(rows)
    ]
    return frame(STREAMS, {name: [row.get(name) for row in rows] for name in STREAMS.types})


def events(rows: Sequence[tuple[int, str, int | None, int]]) -> pl.DataFrame:
    """Rows of `events` from (stream, kind, choice, at_ns)."""
    values: dict[str, list[Any]] = {name: [None] * len(rows) for name in EVENTS.types}
    values["stream_id"] = [sid(n) for n, *_ in rows]
    values["seq"] = values["read_seq"] = list(range(len(rows)))
    values["kind"], values["choice"], values["at_ns"] = ([row[i] for row in rows] for i in (1, 2, 3))
    return frame(EVENTS, values)


@pytest.fixture
def con() -> Iterator[duckdb.DuckDBPyConnection]:
    with plain_tables() as con:
        yield con


def store(con: duckdb.DuckDBPyConnection, rows: pl.DataFrame, of: pl.DataFrame | None = None) -> None:
    """Insert rows and their roll-ups, as the store does."""
    tables = {"streams": rows} if of is None else {"streams": rows, "events": of}
    for table, added in {**tables, **rollups(tables)}.items():
        con.register("appended", added)
        con.execute(f"INSERT INTO {table} BY NAME FROM appended")
        con.unregister("appended")


def compact_all(con: duckdb.DuckDBPyConnection) -> int:
    return compact_rollups(con, MINUTE_US / 1e6 + 3600)


def ask(con: duckdb.DuckDBPyConnection, sql: str) -> list[tuple[Any, ...]]:
    return con.execute(sql).fetchall()


@given(st.floats(1e-6, 1e18))
def test_bucket_value_is_within_the_documented_error(value: float) -> None:
    made = rollups({"streams": streams([{"tps_user": value}])})["histogram_minutes"]
    [bucket] = made.filter(pl.col("metric") == "tps_user")["buckets"][0]
    assert abs(bucket_value(bucket) - value) <= value * (RELATIVE_ERROR + 1e-9)
    assert RELATIVE_ERROR < 0.01


@pytest.fixture(scope="module")
def emptied() -> Iterator[duckdb.DuckDBPyConnection]:
    """One database for all examples. Each example empties it first."""
    with plain_tables() as con:
        yield con


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.one_of(st.integers(0, 10**4), st.integers(10**6, 10**11)), min_size=1, max_size=80),
    st.lists(st.integers(0, 80), max_size=4),
)
def test_quantiles_are_within_one_percent_for_any_commit_boundaries(
    emptied: duckdb.DuckDBPyConnection, values: list[int], cuts: list[int]
) -> None:
    rows = streams([{"ttft_ns": value, "itl_ns": value / 7} for value in values])
    edges = sorted({0, *(min(c, len(values)) for c in cuts), len(values)})
    for table in ("streams", "stream_minutes", "histogram_minutes"):
        emptied.execute(f"DELETE FROM {table}")
    for start, end in pairwise(edges):
        store(emptied, rows.slice(start, end - start))
    exact = "quantile_cont(ttft_ns, [0.5, 0.95, 0.99]), quantile_cont(itl_ns, [0.5, 0.95, 0.99])"
    expected = ask(emptied, f"SELECT {exact} FROM streams")
    query = "[ttft_p50_ns, ttft_p95_ns, ttft_p99_ns], [itl_p50_ns, itl_p95_ns, itl_p99_ns]"
    query = f"SELECT {query} FROM latency_by_minute"
    unsettled = ask(emptied, query)
    assert compact_all(emptied) == 1
    settled = ask(emptied, query)
    for i in range(2):
        assert unsettled[0][i] == pytest.approx(expected[0][i], rel=0.01)
        assert settled[0][i] == pytest.approx(unsettled[0][i], rel=1e-6)


def test_every_metric_has_a_histogram_and_a_column(con: duckdb.DuckDBPyConnection) -> None:
    store(con, streams([dict.fromkeys(METRICS, 5)]))
    found = ask(con, "SELECT metric, n, total, buckets, counts FROM histogram_minutes ORDER BY metric")
    bucket = math.floor(math.log10(5) * 120)
    assert found == [(name, 1, 5.0, [bucket], [1]) for name in sorted(METRICS)]


def test_gaps_are_pooled_per_choice_and_lost_streams_have_none(
    con: duckdb.DuckDBPyConnection,
) -> None:
    rows = [
        (0, "start", None, 0), (0, "text", 0, 10 * MS), (0, "text", 1, 15 * MS), (0, "ping", None, 20 * MS),
        (0, "text", 0, 40 * MS), (0, "reasoning", 0, 40 * MS), (0, "text", 1, 65 * MS),
        (1, "text", 0, 1 * MS), (1, "text", 0, 1000 * MS),  # not measured: records are missing
        (2, "text", None, 7 * MS), (2, "text", None, 9 * MS),
    ]  # fmt: skip
    measured = {"icl_p50_ns": 30.0 * MS}
    store(con, streams([measured, {"outcome": "tap_lost"}, measured]), events(rows))
    [(n, total, buckets, counts)] = ask(
        con, "SELECT n, total, buckets, counts FROM histogram_minutes WHERE metric = 'icl_ns'"
    )
    assert (n, total) == (4, 82.0 * MS)
    assert (buckets[0], counts[0]) == (ZERO_BUCKET, 1)
    assert [bucket_value(b) / MS for b in buckets[1:]] == pytest.approx([2, 30, 50], rel=0.01)


def test_unreported_sums_are_null_and_others_add_up(con: duckdb.DuckDBPyConnection) -> None:
    reported = {
        "output_tokens": 10,
        "input_tokens": 100,
        "cached_input_tokens": 50,
        "stall_count": 2,
        "stalled_ns": 7,
        "waited_upstream_ns": 4,
        "waited_client_ns": 0,
    }
    store(con, streams([reported, {"input_tokens": 1}, reported]))
    store(con, streams([{"input_tokens": 5}]))
    columns = (
        "streams, streams_with_output_tokens, input_tokens, cached_input_tokens, input_tokens_with_cache_known, "
        "output_tokens, reasoning_tokens, stalled_streams, stalls, stalled_ns, waited_upstream_ns, waited_client_ns, tap_delay_ns"
    )
    assert len(ask(con, f"SELECT {columns} FROM stream_minutes")) == 2
    assert compact_all(con) == 1
    assert ask(con, f"SELECT {columns}, settled FROM stream_minutes") == [
        (4, 2, 206, 100, 200, 20, None, 2, 4, 14, 8, 0, None, True)
    ]
    assert compact_all(con) == 0


def test_absurd_numbers_do_not_overflow_sums(con: duckdb.DuckDBPyConnection) -> None:
    store(con, streams([{"output_tokens": 2**62 - 1, "end_ns": 2**62}] * 3))
    assert compact_all(con) == 1
    [(tokens,)] = ask(con, "SELECT output_tokens FROM throughput_by_minute")
    assert tokens == 3 * 2**47


def test_late_stream_is_visible_at_once_and_compacted_later(con: duckdb.DuckDBPyConnection) -> None:
    store(con, streams([{"ttft_ns": 100}]))
    assert compact_all(con) == 1
    store(con, streams([{"ttft_ns": 100}, {"ttft_ns": 900}]))
    query = "SELECT streams, ttft_p50_ns, ttft_p99_ns FROM latency_by_minute"
    [seen] = ask(con, query)
    assert seen == (3, pytest.approx(100, rel=0.01), pytest.approx(884, rel=0.01))
    assert compact_all(con) == 1
    assert ask(con, query) == [pytest.approx(seen, rel=1e-6)]
    assert ask(con, "SELECT count(*) FROM stream_minutes") == [(1,)]


def test_current_minute_is_not_compacted(con: duckdb.DuckDBPyConnection) -> None:
    store(con, streams([{"ttft_ns": 100}]))
    assert compact_rollups(con, MINUTE_US / 1e6 + 179) == 0
    assert compact_rollups(con, MINUTE_US / 1e6 + 181) == 1


def test_minute_keeps_its_busiest_names_and_merges_the_rest(con: duckdb.DuckDBPyConnection) -> None:
    busy = [{"request_model": f"m{n:03d}", "ttft_ns": 5} for n in range(MOST_NAMES)] * 2
    store(con, streams(busy))
    store(
        con, streams([{"request_model": f"odd{n}", "ttft_ns": 9, "error_type": f"e{n}"} for n in range(150)])
    )
    views = ("errors_by_minute", "throughput_by_minute", "latency_by_minute")
    bounded = [(MOST_NAMES + 1, 350)]
    for view in views:  # already before the minute is compacted, and when rows are added to it later
        assert ask(con, f"SELECT count(DISTINCT model), sum(streams) FROM {view}") == bounded
    before = [ask(con, f"SELECT * EXCLUDE (minute) FROM {view} ORDER BY ALL") for view in views[:2]]
    for _ in range(2):
        assert compact_all(con) == 1
        assert [
            ask(con, f"SELECT * EXCLUDE (minute) FROM {view} ORDER BY ALL") for view in views[:2]
        ] == before
        models = "SELECT count(*), count(*) FILTER (model = ?), sum(n) FROM histogram_minutes WHERE metric = 'ttft_ns'"
        assert con.execute(models, [OTHER]).fetchall() == [(MOST_NAMES + 1, 1, 350)]
        assert ask(
            con, "SELECT count(DISTINCT model), count(DISTINCT error_type), sum(streams) FROM stream_minutes"
        ) == [(MOST_NAMES + 1, MOST_NAMES + 1, 350)]
        [(n,)] = ask(con, f"SELECT streams FROM latency_by_minute WHERE model = '{OTHER}'")
        assert n == 150
        con.execute("UPDATE histogram_minutes SET settled = false")


def test_stalls_have_rows(con: duckdb.DuckDBPyConnection) -> None:
    rows = [
        (0, "text", 0, 100 * MS), (0, "text", 1, 150 * MS), (0, "ping", 0, 300 * MS), (0, "text", 0, 700 * MS),
        (0, "text", 1, 500 * MS),
        (1, "text", 0, 0), (1, "text", 0, 900 * MS),  # below five times its median
    ]  # fmt: skip
    row = {"stall_count": 1, "request_model": "m", "server_instance": "w"}
    store(con, streams([{**row, "icl_p50_ns": 50.0 * MS}, {**row, "icl_p50_ns": 200.0 * MS}]), events(rows))
    assert ask(
        con,
        "SELECT stream_id::VARCHAR, model, server_instance, seq, choice, at_ns, gap_ns FROM stalls",
    ) == [(sid(0), "m", "w", 3, 0, 100 * MS, 600 * MS)]


@pytest.mark.parametrize("operation", NO_REQUESTS)
def test_what_is_no_request_has_no_rollups(operation: str) -> None:
    found = rollups(
        {"streams": streams([{"operation": operation, "outcome": "http_error"}, {"operation": None}])}
    )
    assert found["stream_minutes"]["streams"].sum() == found["client_minutes"]["streams"].sum() == 1
    assert found["stream_minutes"]["outcome"].to_list() == ["ok"]


def test_commit_without_streams_has_no_rollups() -> None:
    assert rollups({}) == {}
    assert rollups({"streams": streams([])}) == {}


def test_client_minutes_count_each_stream_once_and_keep_the_busiest_clients(
    con: duckdb.DuckDBPyConnection,
) -> None:
    rows: list[dict[str, Any]] = []
    for number in range(MOST_NAMES + 5):
        client = {"client_id": f"c{number:03}", "request_model": "m", "objective": "o", "output_tokens": 7}
        rows += [
            {**client, "meets_objective": True},
            {**client, "meets_objective": True},
            {**client, "meets_objective": None},
            {**client, "outcome": "http_error", "meets_objective": False},
            {**client, "outcome": "client_abort", "meets_objective": False},
        ][: 5 if number < MOST_NAMES else 4]
    for start in range(0, len(rows), 100):
        store(con, streams(rows[start : start + 100]))
    sums = "sum(streams), sum(counted), sum(errors), sum(meeting_objective), sum(output_tokens)"
    counts = (len(rows), 4 * (MOST_NAMES + 5), MOST_NAMES + 5, 2 * (MOST_NAMES + 5), 7 * len(rows))
    for _ in range(2):
        assert ask(con, f"SELECT {sums} FROM client_minutes") == [counts]
        assert ask(con, "SELECT sum(meeting_objective) FROM stream_minutes") == [(counts[3],)]
        compact_all(con)
    assert ask(con, "SELECT count(*), bool_and(settled) FROM client_minutes") == [(MOST_NAMES + 1, True)]
    assert ask(con, f"SELECT streams, objective FROM client_minutes WHERE client_id = '{OTHER}'") == [
        (20, "o")
    ]


def test_label_minutes_keep_the_most_frequent_values_and_add_late_rows_up(
    con: duckdb.DuckDBPyConnection,
) -> None:
    def row(value: str, **more: Any) -> dict[str, Any]:
        return {
            "labels": {"user": value, "team": "o'b,{=}"},
            "request_model": "m",
            "output_tokens": 7,
            **more,
        }

    values = [f"u{n:03}" for n in range(MOST_LABEL_VALUES + 50)]
    rows = [row(value) for value in values[:MOST_LABEL_VALUES]] + [
        row(value, outcome="http_error") for value in values
    ]
    rows += [{"request_model": "m"}, {"labels": {"team": "o'b,{=}"}}]
    for start in range(0, len(rows), 100):
        store(con, streams(rows[start : start + 100]))
    whole = "SELECT label, sum(streams), sum(counted), sum(errors), sum(output_tokens) FROM label_minutes GROUP BY ALL ORDER BY label"
    expected = [("team", 451, 451, 250, 450 * 7), ("user", 450, 450, 250, 450 * 7)]
    assert ask(con, whole) == expected
    compact_all(con)
    assert ask(con, whole) == expected
    other = f"SELECT count(*), count(DISTINCT value), sum(streams) FILTER (value = '{OTHER}') FROM label_minutes WHERE label = 'user'"
    assert ask(con, other) == [(MOST_LABEL_VALUES + 1, MOST_LABEL_VALUES + 1, 50)]
    store(con, streams([row(values[0]), row(values[-1]), row("late")]))
    compact_all(con)
    assert ask(con, other) == [(MOST_LABEL_VALUES + 1, MOST_LABEL_VALUES + 1, 52)]
    assert ask(con, "SELECT streams FROM label_minutes WHERE value = 'u000'") == [(3,)]
    assert ask(con, "SELECT DISTINCT value, model, settled FROM label_minutes WHERE label = 'team' ORDER BY ALL") == [
        ("o'b,{=}", "m", True), ("o'b,{=}", None, True)
    ]  # fmt: skip


def test_streams_without_labels_have_no_label_minutes() -> None:
    assert "label_minutes" not in rollups({"streams": streams([{"request_model": "m"}])})


def test_counts_of_answers_are_those_of_the_measures(con: duckdb.DuckDBPyConnection) -> None:
    answer = {
        "operation": "chat",
        "dialect": "openai_chat",
        "streamed": True,
        "ttfo_ns": 5,
        "output_event_count": 3,
        "finish_reason": "stop",
    }
    called = {**answer, "finish_reason": "tool_calls", "tool_call_count": 1, "malformed_tool_call_count": 0}
    rows = [
        {**answer, "output_tokens": 30},
        {**answer, "finish_reason": "MAX_TOKENS", "output_tokens": 10},
        {**answer, "refusal_chars": 9},
        {**answer, "finish_reason": "SAFETY"},
        {**answer, "ttfo_ns": None, "output_event_count": 0},
        called,
        {**called, "malformed_tool_call_count": 2},
        {**called, "tool_failure_count": 1},
        {**called, "outcome": "inband_error"},
        {**called, "outcome": "client_abort"},
        {**answer, "operation": "embeddings"},
        {"outcome": "http_error", "output_tokens": 500},
    ]  # fmt: skip
    store(con, streams(rows))
    assert ask(
        con,
        "SELECT complete_answers, cut_share, refusal_share, empty_share, tool_call_share, malformed_tool_share, tool_failure_share, "
        "output_tokens_per_answer FROM answers_by_minute",
    ) == [(8, 1 / 8, 2 / 8, 1 / 8, 3 / 8, 1 / 3, 2 / 4, 20.0)]
