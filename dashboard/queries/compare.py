"""SQL for comparing two selections: durations of `ok` streams, and counts of failures."""

from __future__ import annotations

import polars as pl

from streamgauge.analytics.schema.outcomes import IS_COUNTED, IS_ERROR, IS_REQUEST, OK, REQUESTS
from streamgauge.dashboard.queries import Query
from streamgauge.dashboard.queries.selection import FURTHER_DIMENSIONS, Selection

SAMPLE_STREAMS = 4000
"""Maximum streams of a sample. Streams are sampled by a hash of their id, so the same streams give the same sample."""
CAUSE = """CASE WHEN outcome = 'http_error' THEN 'HTTP ' || coalesce(http_status::VARCHAR, '?') ELSE outcome END
    || CASE WHEN error_type IS NULL OR error_type IN (outcome, http_status::VARCHAR) THEN '' ELSE ' · ' || left(error_type, 60) END"""
"""SQL of the cause of a failure: HTTP status or outcome, and the error type if it says more."""


def ok_sample(query: Query, selection: Selection) -> pl.DataFrame:
    """`ttft_ns, itl_ns, tps_user, end_ns` of at most SAMPLE_STREAMS streams that ended `ok`.

    A failed stream is shorter than a complete one, so mixing both would hide slower answers behind more failures.
    """
    return query(f"""
        SELECT ttft_ns, itl_ns, tps_user, end_ns FROM streams WHERE {selection.where()} AND outcome = '{OK}'
        ORDER BY hash(stream_id) LIMIT {SAMPLE_STREAMS:d}""")


def counts(query: Query, selection: Selection) -> dict[str, int]:
    """Numbers of streams: `requests, ok, counted` (of the error rate), `errors, aborts, stall_known, stalled`.

    `stall_known` and `stalled` are `ok` streams with a known number of stalls, and with at least one.
    """
    return query(f"""
        SELECT {REQUESTS} AS requests, count(*) FILTER (outcome = '{OK}') AS ok,
            count(*) FILTER ({IS_COUNTED}) AS counted, count(*) FILTER ({IS_ERROR}) AS errors,
            count(*) FILTER (outcome = 'client_abort') AS aborts,
            count(stall_count) FILTER (outcome = '{OK}') AS stall_known,
            count(*) FILTER (outcome = '{OK}' AND stall_count > 0) AS stalled
        FROM streams WHERE {selection.where()}""").to_dicts()[0]


def causes(query: Query, selection: Selection, *, most: int = 20) -> dict[str, int]:
    """Cause of failure → number of streams, most frequent first."""
    frame = query(f"""
        SELECT {CAUSE} AS cause, count(*) AS n FROM streams WHERE {selection.where()} AND {IS_ERROR}
        GROUP BY ALL ORDER BY n DESC, cause LIMIT {most:d}""")
    return dict(frame.select("cause", "n").iter_rows())


def values(query: Query, selection: Selection, dimension: str, *, most: int = 200) -> list[str]:
    """The values of a further dimension, most frequent first."""
    frame = query(f"""
        SELECT {FURTHER_DIMENSIONS[dimension]} AS name FROM streams WHERE {selection.where()} AND {IS_REQUEST}
        GROUP BY ALL ORDER BY count(*) DESC, name LIMIT {most:d}""")
    found: list[str] = frame["name"].to_list()
    return found
