"""SQL for streams in flight."""

from __future__ import annotations

import polars as pl

from streamgauge.dashboard.queries import Query
from streamgauge.dashboard.queries.selection import CLIENT, GATEWAY, MODEL, Selection

IN_FLIGHT = """(
        SELECT open_streams.*, greatest(updated_at, heard_at) AS observed_at
        FROM open_streams
        LEFT JOIN (SELECT tap, max(last_alive_at) AS heard_at FROM taps WHERE NOT stopped GROUP BY tap) USING (tap))"""
"""Streams in flight and the latest time at which their tap observed them: its last heartbeat, because a silent stream has no
records. By the tap's clock, as `started_at`."""


def open_streams(query: Query, selection: Selection, *, most: int = 500) -> pl.DataFrame:
    """Streams in flight, longest silent first, regardless of the time range.

    `stream_id, started_at, updated_at, model, gateway, client, http_status, age_ns, ttft_ns, silent_ns, tps, events_per_s,
    event_count, output_event_count, output_tokens`. `age_ns` and `silent_ns` (since the last event) are as of the tap's last heartbeat.
    `tps` and `events_per_s` are output tokens and output events / time from first to last output.
    """
    return query(f"""
        SELECT stream_id, started_at, updated_at, {MODEL} AS model, {GATEWAY} AS gateway, {CLIENT} AS client,
            http_status, (date_diff('microsecond', started_at, observed_at) * 1000)::BIGINT AS age_ns, ttft_ns,
            greatest(age_ns - last_event_ns, 0) AS silent_ns,
            output_tokens / nullif((last_output_ns - ttft_ns) / 1e9, 0) AS tps,
            output_event_count / nullif((last_output_ns - ttft_ns) / 1e9, 0) AS events_per_s,
            event_count, output_event_count, output_tokens
        FROM {IN_FLIGHT} WHERE {selection.filters()} ORDER BY coalesce(silent_ns, age_ns) DESC, stream_id LIMIT {most:d}""")


def count_by(query: Query, selection: Selection) -> pl.DataFrame:
    """`model, waiting, streaming`: streams in flight before and after their first output."""
    return query(f"""
        SELECT {MODEL} AS model, count(*) FILTER (ttft_ns IS NULL) AS waiting, count(ttft_ns) AS streaming
        FROM open_streams WHERE {selection.filters()} GROUP BY ALL ORDER BY count(*) DESC, model LIMIT 50""")
