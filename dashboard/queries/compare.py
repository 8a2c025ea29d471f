"""SQL for comparing two selections: samples and summaries."""

from __future__ import annotations

import polars as pl

from analytics.schema.outcomes import IS_COUNTED, IS_ERROR, IS_REQUEST
from dashboard.queries import Query
from dashboard.queries.overview import SUMMARY, SUMMARY_COLUMNS
from dashboard.queries.selection import Selection

SAMPLE_STREAMS = 4000
"""Maximum streams of a sample. Streams are sampled by a hash of their id, so the same streams give the same sample."""


def sample(query: Query, selection: Selection) -> pl.DataFrame:
    """Columns `ttft_ns, itl_ns, tps_user, end_ns, is_counted, is_error` of at most SAMPLE_STREAMS requests."""
    return query(f"""
        SELECT ttft_ns, itl_ns, tps_user, end_ns, {IS_COUNTED} AS is_counted,
            {IS_ERROR} AS is_error
        FROM streams WHERE {selection.where()} AND {IS_REQUEST} ORDER BY hash(stream_id) LIMIT {SAMPLE_STREAMS:d}""")


def summary(query: Query, selection: Selection) -> dict[str, float | None]:
    """The columns of `overview.SUMMARY` over all streams of the selection."""
    found: dict[str, float | None] = query(
        f"SELECT {SUMMARY_COLUMNS} FROM (SELECT {SUMMARY} FROM streams WHERE {selection.where()})"
    ).to_dicts()[0]
    return found
