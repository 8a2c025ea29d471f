"""SQL of single streams: the table of them, and everything about one."""

from __future__ import annotations

from uuid import UUID

import polars as pl

from analytics.schema.outcomes import IS_ERROR
from analytics.schema.sql_quoting import literal
from dashboard.queries import Ask
from dashboard.queries.selection import CLIENT, GATEWAY, MODEL, Selection

COLUMNS = f"""
    stream_id, started_at, {MODEL} AS model, {GATEWAY} AS gateway, {CLIENT} AS client, provider, dialect, operation,
    outcome, http_status, error_type, error_phase, finish_reason, streamed,
    ttft_ns, itl_ns, icl_max_ns, tps_user, end_ns, input_tokens, output_tokens, stall_count, event_count, trace_id
"""
ORDERS: dict[str, str] = {
    "newest": "started_at DESC",
    "slowest first token": "ttft_ns DESC NULLS LAST",
    "slowest tokens": "itl_ns DESC NULLS LAST",
    "longest gap": "icl_max_ns DESC NULLS LAST",
    "longest": "end_ns DESC NULLS LAST",
    "most output": "output_tokens DESC NULLS LAST",
}
"""What the table can be sorted by, in the database: name → SQL."""

KINDS: dict[str, str] = {
    "all": "TRUE",
    "errors": IS_ERROR,
    "ok": "outcome = 'ok'",
    "aborted": "outcome = 'client_abort'",
    "lost": "outcome = 'tap_lost'",
    "stalled": "stall_count > 0",
    "not streamed": "streamed IS FALSE",
}
"""Which streams the table can be narrowed to: name → SQL."""


def table(
    ask: Ask,
    selection: Selection,
    *,
    kind: str = "all",
    order: str = "newest",
    text: str = "",
    limit: int = 25,
) -> pl.DataFrame:
    """The streams of the selection, `COLUMNS`, at most `limit`. `text` finds ids, traces, error types and models."""
    return ask(f"""
        SELECT {COLUMNS} FROM streams WHERE {selection.where()} AND {KINDS[kind]} AND {having(text)}
        ORDER BY {ORDERS[order]}, stream_id LIMIT {limit:d}""")


def evidence(ask: Ask, selection: Selection, bad: str, *, limit: int = 15) -> pl.DataFrame:
    """The newest streams of which `bad` (SQL, `overview.bad`) is true, `COLUMNS`."""
    return ask(
        f"SELECT {COLUMNS} FROM streams WHERE {selection.where()} AND {bad} ORDER BY started_at DESC, stream_id LIMIT {limit:d}"
    )


def how_many(ask: Ask, selection: Selection, *, kind: str = "all", text: str = "") -> int:
    """Streams that `table` would show without its limit."""
    found = ask(
        f"SELECT count(*) AS n FROM streams WHERE {selection.where()} AND {KINDS[kind]} AND {having(text)}"
    )
    return int(found["n"][0])


def having(text: str) -> str:
    """SQL that is true of streams with this text in an id, error type or model, whatever its case."""
    if not text:
        return "TRUE"
    fields = (
        "CAST(stream_id AS VARCHAR)", "coalesce(trace_id, '')", "coalesce(request_id, '')",
        "coalesce(response_id, '')", "coalesce(error_type, '')", MODEL,
    )  # fmt: skip
    return "(" + " OR ".join(f"contains(lower({f}), lower({literal(text)}))" for f in fields) + ")"


def one(ask: Ask, stream_id: UUID) -> dict[str, object] | None:
    """The whole row of one finished stream, or None."""
    rows = ask(f"SELECT * FROM streams WHERE stream_id = '{stream_id}'::UUID LIMIT 1").to_dicts()
    return rows[0] if rows else None


def one_open(ask: Ask, stream_id: UUID) -> dict[str, object] | None:
    """The row of one stream that still runs, or None."""
    rows = ask(f"SELECT * FROM open_streams WHERE stream_id = '{stream_id}'::UUID LIMIT 1").to_dicts()
    return rows[0] if rows else None


LONGEST_GAPS = 300
"""Events after one of a stream's longest gaps are always taken, so that no stall is sampled away."""


def events(ask: Ask, stream_id: UUID, *, most: int = 4000) -> tuple[pl.DataFrame, int]:
    """The events of a stream in order, with running sums of chars and tokens, and how many there are.

    Over `most`, every n-th is taken, besides all that are no output or follow one of the longest gaps; the sums are over all.
    Columns: `seq, read_seq, at_ns, kind, event_name, choice, chars, tokens, bytes, finish_reason, gap_ns` (since the
    output event before it in the same choice), `chars_sum, tokens_sum, bytes_sum`.
    """
    frame = ask(f"""
        WITH e AS (
                SELECT seq, read_seq, at_ns, kind, event_name, choice, chars, tokens, bytes, finish_reason,
                    kind IN ('text', 'reasoning', 'refusal', 'tool_call', 'audio') AS is_output
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


def usage_reports(ask: Ask, stream_id: UUID) -> pl.DataFrame:
    """Every usage report of a stream in order, at most 200."""
    return ask(f"SELECT * FROM usage_reports WHERE stream_id = '{stream_id}'::UUID ORDER BY seq LIMIT 200")


def server_stats(ask: Ask, stream_id: UUID) -> pl.DataFrame:
    """What the server said of its own doing, at most 200 numbers."""
    return ask(
        f"SELECT source, name, value, unit, raw FROM server_stats WHERE stream_id = '{stream_id}'::UUID "
        "ORDER BY source, name, seq LIMIT 200"
    )
