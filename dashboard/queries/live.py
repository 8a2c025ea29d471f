"""SQL of the streams in flight now."""

from __future__ import annotations

import polars as pl

from dashboard.queries import Ask
from dashboard.queries.selection import CLIENT, GATEWAY, MODEL, Selection


def open_streams(ask: Ask, selection: Selection, *, most: int = 500) -> pl.DataFrame:
    """Streams in flight, the longest silent first; the time range does not matter.

    Columns `stream_id, started_at, updated_at, model, gateway, client, dialect, http_status, age_ns, ttft_ns, silent_ns,
    tps, events_per_s, event_count, output_event_count, output_tokens, response_bytes`. `age_ns` and `silent_ns` (since the
    last event) are as of the row's `updated_at`; `tps` and `events_per_s` are output tokens and output events / time from
    the first to the last output.
    """
    return ask(f"""
        SELECT stream_id, started_at, updated_at, {MODEL} AS model, {GATEWAY} AS gateway, {CLIENT} AS client,
            dialect, http_status, (date_diff('microsecond', started_at, updated_at) * 1000)::BIGINT AS age_ns, ttft_ns,
            greatest(age_ns - last_event_ns, 0) AS silent_ns,
            output_tokens / nullif((last_output_ns - ttft_ns) / 1e9, 0) AS tps,
            output_event_count / nullif((last_output_ns - ttft_ns) / 1e9, 0) AS events_per_s,
            event_count, output_event_count, output_tokens, response_bytes
        FROM open_streams WHERE {selection.filters()} ORDER BY coalesce(silent_ns, age_ns) DESC, stream_id LIMIT {most:d}""")


def count_by(ask: Ask, selection: Selection) -> pl.DataFrame:
    """Columns `model, waiting, streaming`: streams in flight before and after their first output."""
    return ask(f"""
        SELECT {MODEL} AS model, count(*) FILTER (ttft_ns IS NULL) AS waiting, count(ttft_ns) AS streaming
        FROM open_streams WHERE {selection.filters()} GROUP BY ALL ORDER BY count(*) DESC, model LIMIT 50""")
