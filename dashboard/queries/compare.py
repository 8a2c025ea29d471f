"""SQL of two selections side by side: samples to resample, and counts."""

from __future__ import annotations

import polars as pl

from analytics.schema.outcomes import IS_COUNTED, IS_ERROR
from dashboard.queries import Ask
from dashboard.queries.overview import SPREAD, SUMMARY
from dashboard.queries.selection import Selection

SAMPLE = 4000
"""Streams of each side at most; the sample is the same whenever it is taken of the same streams (by hash of their id)."""


def sample(ask: Ask, selection: Selection) -> pl.DataFrame:
    """Columns `ttft_ns, itl_ns, tps_user, end_ns, output_tokens, judged, is_error` of at most SAMPLE streams."""
    return ask(f"""
        SELECT ttft_ns, itl_ns, tps_user, end_ns, output_tokens, {IS_COUNTED} AS judged,
            {IS_ERROR} AS is_error
        FROM streams WHERE {selection.where()} ORDER BY hash(stream_id) LIMIT {SAMPLE:d}""")


def summary(ask: Ask, selection: Selection) -> dict[str, float | None]:
    """The numbers of `overview.SUMMARY`, over all streams of the selection."""
    found: dict[str, float | None] = ask(
        f"SELECT {SPREAD} FROM (SELECT {SUMMARY} FROM streams WHERE {selection.where()})"
    ).to_dicts()[0]
    return found
