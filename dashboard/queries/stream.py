"""SQL for one stream: its row, events, usage reports and server-reported statistics."""

from __future__ import annotations

from uuid import UUID

import polars as pl

from streamgauge.dashboard.queries import Query


def finished(query: Query, stream_id: UUID) -> dict[str, object] | None:
    """The row of a finished stream, or None."""
    rows = query(f"SELECT * FROM streams WHERE stream_id = '{stream_id}'::UUID LIMIT 1").to_dicts()
    return rows[0] if rows else None


def in_flight(query: Query, stream_id: UUID) -> dict[str, object] | None:
    """The row of a stream in flight, or None."""
    rows = query(f"SELECT * FROM open_streams WHERE stream_id = '{stream_id}'::UUID LIMIT 1").to_dicts()
    return rows[0] if rows else None


LONGEST_GAPS = 300
"""Sampling keeps the events after this many of the longest gaps, so it drops no stall."""


def events(query: Query, stream_id: UUID, *, most: int = 4000) -> tuple[pl.DataFrame, int]:
    """(events of a stream in order, their total number).

    Above `most` events: every n-th output event, those after the longest gaps, and all events of other kinds. Columns:
    `seq, read_seq, at_ns, kind, event_name, choice, chars, tokens, bytes, finish_reason, gap_ns` (since the previous output
    event of the same choice), `chars_sum, tokens_sum, bytes_sum` (running sums over all events).
    """
    frame = query(f"""
        WITH e AS (
                SELECT seq, read_seq, at_ns, kind, event_name, choice, chars, tokens, bytes, finish_reason,
                    kind IN ('text', 'reasoning', 'refusal', 'tool_call', 'audio', 'image') AS is_output
                FROM events WHERE stream_id = '{stream_id}'::UUID),
            s AS (
                SELECT *, count(*) OVER () AS total,
                    CASE WHEN is_output
                        THEN at_ns - lag(at_ns) OVER (PARTITION BY is_output, choice ORDER BY seq) END AS gap_ns,
                    sum(coalesce(chars, 0)) OVER (ORDER BY seq)::BIGINT AS chars_sum,
                    sum(coalesce(tokens, 0)) OVER (ORDER BY seq)::BIGINT AS tokens_sum,
                    sum(coalesce(bytes, 0)) OVER (ORDER BY seq)::BIGINT AS bytes_sum
                FROM e),
            ranked AS (SELECT *, row_number() OVER (ORDER BY gap_ns DESC NULLS LAST, seq) AS gap_rank FROM s)
        SELECT * EXCLUDE (gap_rank, is_output) FROM ranked
        WHERE seq % ceil(total / {most:d})::BIGINT = 0 OR NOT is_output OR gap_rank <= {LONGEST_GAPS}
        ORDER BY seq LIMIT {most * 2:d}""")
    return frame.drop("total"), int(frame["total"][0]) if frame.height else 0


def stalls(query: Query, stream_id: UUID, *, most: int = 500) -> pl.DataFrame:
    """The longest stalls of a stream in order: `seq, choice, at_ns` (of the output event before it), `gap_ns, cause`."""
    return query(f"""
        SELECT * FROM (
            SELECT seq, choice, at_ns, gap_ns, cause FROM stalls WHERE stream_id = '{stream_id}'::UUID
            ORDER BY gap_ns DESC, seq LIMIT {most:d})
        ORDER BY seq""")


def usage_reports(query: Query, stream_id: UUID) -> pl.DataFrame:
    """The usage reports of a stream in order, at most 200."""
    return query(f"SELECT * FROM usage_reports WHERE stream_id = '{stream_id}'::UUID ORDER BY seq LIMIT 200")


def server_stats(query: Query, stream_id: UUID) -> pl.DataFrame:
    """Server-reported statistics of a stream, at most 200."""
    return query(
        f"SELECT source, name, value, unit, raw FROM server_stats WHERE stream_id = '{stream_id}'::UUID "
        "ORDER BY source, name, seq LIMIT 200"
    )
