"""Lists of finished streams and of streams in flight, and their counts."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

import polars as pl

from streamgauge.analytics.reports import Query, columns, formatting, latency, number_of, quality
from streamgauge.analytics.reports.columns import ms, number, seconds, text
from streamgauge.analytics.reports.selection import (
    CLIENT,
    DIMENSIONS,
    GATEWAY,
    MODEL,
    Selection,
    contains_text,
)
from streamgauge.analytics.schema.dimensions import is_one_of
from streamgauge.analytics.schema.finish_reasons import FINISH
from streamgauge.analytics.schema.outcomes import IS_BAD, IS_ERROR, IS_REQUEST
from streamgauge.analytics.schema.prompt_sizes import PROMPT_SIZE
from streamgauge.analytics.schema.sql_quoting import literal

COLUMNS = f"""
    stream_id, started_at, {MODEL} AS model, {GATEWAY} AS gateway, {CLIENT} AS client, http_status, outcome, error_type, finish_reason,
    coalesce(error_type, finish_reason) AS reason, ttft_ns, itl_ns, icl_max_ns, tps_user, end_ns, input_tokens, output_tokens,
    stall_count, request_id
"""
ORDERS: dict[str, str] = {
    "newest": "started_at",
    "highest TTFT": "ttft_ns",
    "highest ITL": "itl_ns",
    "longest gap": "icl_max_ns",
    "longest": "end_ns",
    "most output": "output_tokens",
}
"""Name of a sort order → its column, descending."""

KINDS: dict[str, str] = {
    "all": "TRUE",
    "errors": f"{IS_ERROR} AND {IS_REQUEST}",
    "ok": "outcome = 'ok'",
    "aborted": "outcome = 'client_abort'",
    "lost": "outcome = 'tap_lost'",
    "refused": "outcome = 'refused'",
    "stalled": "stall_count > 0",
    "not streamed": "streamed IS FALSE",
    "breaks strict clients": "len(violations) > 0",
    "unsuccessful": IS_BAD,
}
"""Name → SQL condition of a kind of streams."""


FACETS: dict[str, str] = {
    "outcome": "outcome",
    "cause": "error_type",
    "status": "http_status::VARCHAR",
    **DIMENSIONS,
    "finish": FINISH,
    "answer": f"""CASE
        WHEN {quality.is_affected("tool_failure")} THEN 'failed with a tool call'
        WHEN {quality.is_affected("tool_arguments")} THEN 'malformed tool call'
        WHEN {quality.is_affected("refusal")} THEN 'refusal'
        WHEN {quality.is_affected("empty")} THEN 'empty'
        WHEN {quality.is_affected("tool_calls")} THEN 'tool call'
        WHEN {quality.IS_ANSWER} THEN 'text' END""",
    "dialect": "dialect",
}
"""Filter → SQL of its value. Streams with NULL have no value."""
FILTERS = FACETS | {"prompt": PROMPT_SIZE, "tap": "tap", "server": "server_instance"}
"""Filter → SQL of its value. Streams outside FACETS have too many values or too few readers for a list of them."""
OWN_FILTERS = (*(name for name in FILTERS if name not in DIMENSIONS), "duration")
"""Filters of the lists of streams that other pages do not have."""
FILTER_LABELS = {
    "status": "HTTP status",
    "finish": "Finish reason",
    "prompt": "Prompt size",
    "server": "Server instance",
}
"""Labels of filters that differ from their names."""
DURATIONS = {column: name for name, column in latency.METRICS.items()}
_DURATION = re.compile(rf"({'|'.join(DURATIONS)}):(\d+(?:\.\d+)?)-(\d+(?:\.\d+)?)")
TOP_VALUES = 5
SEARCHED = (
    "CAST(stream_id AS VARCHAR)", "coalesce(trace_id, '')", "coalesce(request_id, '')", "coalesce(response_id, '')",
    "coalesce(error_type, '')", MODEL,
)  # fmt: skip
"""SQL of the texts that a search looks in."""


def condition(
    *, kind: str = "all", text: str = "", filters: Mapping[str, Sequence[str]] | None = None
) -> str:
    """SQL condition: a kind, a text in ids, trace ids, error types or models, and values of `FILTERS` or `duration`.

    A value of `duration` is a column of `DURATIONS` with its least value and the one above its largest in ns:
    `ttft_ns:100000000-150000000`. Other texts are ignored.
    """
    parts = [KINDS[kind]]
    if text:
        parts.append(contains_text(text, *SEARCHED))
    for name, values in (filters or {}).items():
        if name == "duration":
            spans = [match.groups() for match in map(_DURATION.fullmatch, values) if match]
            parts += [f"{column} >= {low} AND {column} < {high}" for column, low, high in spans]
        elif values:
            parts.append(is_one_of(FILTERS[name], values))
    return " AND ".join(parts)


def duration_text(value: str) -> str:
    """The text of a value of the filter `duration` for readers."""
    match = _DURATION.fullmatch(value)
    if match is None:
        return value
    low, high = (formatting.duration(float(bound)) for bound in match.groups()[1:])
    return f"{DURATIONS[match[1]]} {low} – {high}"


TABLE = columns.table(
    "Streams",
    columns.STREAM,
    columns.outcome(),
    replace(columns.HTTP, priority=4),
    text("reason", "Cause", priority=2, help="The error type, or the finish reason.",
         state=lambda row: columns.outcome_state(row["outcome"])),
    columns.instant("started_at", "Started", form=""),
    replace(columns.MODEL, priority=1, wraps_on_phone=True),
    columns.GATEWAY,
    replace(columns.TTFT, priority=1),
    ms("itl_ns", "ITL", digits=1, priority=4),
    ms("icl_max_ns", "Longest gap", priority=5),
    number("stall_count", "Stalls", priority=6),
    number("tps_user", "Tokens/s", digits=1, priority=5),
    seconds("end_ns", "Duration", digits=2, priority=3),
    replace(columns.TOKENS_IN, priority=6),
    replace(columns.TOKENS_OUT, priority=5),
    columns.CLIENT,
    stacks=False,
    zone_of="Started",
    order=ORDERS["newest"],)  # fmt: skip


def table(
    query: Query, selection: Selection, where: str = "TRUE", *, order: str = "newest", limit: int = 25, offset: int = 0
) -> pl.DataFrame:  # fmt: skip
    """The selected streams (`COLUMNS`) that match a condition, without the first `offset`."""
    return query(f"""
        SELECT {COLUMNS} FROM streams WHERE {selection.where()} AND {where}
        ORDER BY {ORDERS[order]} DESC NULLS LAST, stream_id LIMIT {limit:d} OFFSET {offset:d}""")


def facets(query: Query, selection: Selection, where: str = "TRUE") -> pl.DataFrame:
    """`facet, name, n`: the most frequent values of each of `FACETS` among the selected streams."""
    facet = " ".join(f"WHEN grouping({name}) = 0 THEN {literal(name)}" for name in FACETS)
    return query(f"""
        SELECT CASE {facet} END AS facet, coalesce({", ".join(FACETS)}) AS name, count(*) AS n
        FROM (
            SELECT {", ".join(f"{sql} AS {name}" for name, sql in FACETS.items())}
            FROM streams WHERE {selection.where()} AND {where})
        GROUP BY GROUPING SETS ({", ".join(f"({name})" for name in FACETS)})
        HAVING coalesce({", ".join(FACETS)}) IS NOT NULL
        QUALIFY row_number() OVER (PARTITION BY facet ORDER BY n DESC, name) <= {TOP_VALUES}
        ORDER BY facet, n DESC, name""")


def count(query: Query, selection: Selection, where: str = "TRUE") -> int:
    """Number of streams of `table` without its limit."""
    return number_of(query, "count(*)", f"streams WHERE {selection.where()} AND {where}")


# Streams in flight

IN_FLIGHT = """(
        SELECT open_streams.*, greatest(updated_at, heard_at) AS observed_at
        FROM open_streams
        LEFT JOIN (SELECT tap, max(last_alive_at) AS heard_at FROM taps WHERE NOT stopped GROUP BY tap) USING (tap))"""
"""Streams in flight and the latest time at which their tap observed them: its last heartbeat, because a silent stream has no
records. By the tap's clock, as `started_at`."""


OPEN_STREAMS = columns.table(
    "Streams in flight",
    columns.STREAM,
    text("state", "State", line=True, priority=0),
    columns.MODEL,
    columns.GATEWAY,
    seconds("age_ns", "Open for"),
    seconds("silent_ns", "Since last event"),
    columns.TTFT,
    number("tps", "Tokens/s", digits=1, priority=4, help="Output tokens / time from first to last output."),
    replace(columns.TOKENS_OUT, priority=4, help="Output tokens reported so far."),
    number("event_count", "Events", priority=5),
    number("output_event_count", "Output events", priority=5, help="Events with output. A chunk is not a token."),
    number("events_per_s", "Output events/s", digits=1, priority=5),
    replace(columns.HTTP, priority=6),
    columns.CLIENT,
    stacks=False,)  # fmt: skip


def open_streams(query: Query, selection: Selection, *, most: int = 500) -> pl.DataFrame:
    """Streams in flight, longest silent first, regardless of the time range.

    `stream_id, started_at, updated_at, model, gateway, client, http_status, age_ns, ttft_ns, silent_ns, tps, events_per_s,
    event_count, output_event_count, output_tokens, waits_for_client, state` (as text). `age_ns` and
    `silent_ns` (since the last event) are as of the
    tap's last heartbeat.
    `tps` and `events_per_s` are output tokens and output events / time from first to last output.
    """
    return query(f"""
        SELECT stream_id, started_at, updated_at, {MODEL} AS model, {GATEWAY} AS gateway, {CLIENT} AS client,
            http_status, (date_diff('microsecond', started_at, observed_at) * 1000)::BIGINT AS age_ns, ttft_ns,
            greatest(age_ns - last_event_ns, 0) AS silent_ns,
            output_tokens / nullif((last_output_ns - ttft_ns) / 1e9, 0) AS tps,
            output_event_count / nullif((last_output_ns - ttft_ns) / 1e9, 0) AS events_per_s,
            event_count, output_event_count, output_tokens, waits_for_client,
            CASE WHEN waits_for_client THEN if(ttft_ns IS NULL, 'waits for client', 'client is not reading')
                ELSE if(ttft_ns IS NULL, 'waiting', 'streaming') END AS state
        FROM {IN_FLIGHT} WHERE {selection.filters()} ORDER BY coalesce(silent_ns, age_ns) DESC, stream_id LIMIT {most:d}""")


def count_open(query: Query, selection: Selection) -> tuple[int, int]:
    """Streams in flight before and after their first output."""
    found = query(f"SELECT count(*) AS n, count(ttft_ns) AS m FROM open_streams WHERE {selection.filters()}")
    total, streaming = found.row(0)
    return total - streaming, streaming
