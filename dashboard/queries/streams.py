"""SQL for lists of finished streams."""

from __future__ import annotations

import polars as pl

from analytics.schema.outcomes import IS_ERROR
from analytics.schema.sql_quoting import literal
from dashboard.queries import Query
from dashboard.queries.selection import CLIENT, GATEWAY, MODEL, Selection

COLUMNS = f"""
    stream_id, started_at, {MODEL} AS model, {GATEWAY} AS gateway, {CLIENT} AS client, outcome, error_type, finish_reason,
    ttft_ns, itl_ns, icl_max_ns, tps_user, end_ns, input_tokens, output_tokens, stall_count
"""
ORDERS: dict[str, str] = {
    "newest": "started_at DESC",
    "highest TTFT": "ttft_ns DESC NULLS LAST",
    "highest ITL": "itl_ns DESC NULLS LAST",
    "longest gap": "icl_max_ns DESC NULLS LAST",
    "longest": "end_ns DESC NULLS LAST",
    "most output": "output_tokens DESC NULLS LAST",
}
"""Name → SQL of a sort order."""

KINDS: dict[str, str] = {
    "all": "TRUE",
    "errors": IS_ERROR,
    "ok": "outcome = 'ok'",
    "aborted": "outcome = 'client_abort'",
    "lost": "outcome = 'tap_lost'",
    "refused": "outcome = 'refused'",
    "stalled": "stall_count > 0",
    "not streamed": "streamed IS FALSE",
}
"""Name → SQL condition of a kind of streams."""


def table(
    query: Query,
    selection: Selection,
    *,
    kind: str = "all",
    order: str = "newest",
    text: str = "",
    limit: int = 25,
) -> pl.DataFrame:
    """The selected streams (`COLUMNS`). `text` matches ids, trace ids, error types and models."""
    return query(f"""
        SELECT {COLUMNS} FROM streams WHERE {selection.where()} AND {KINDS[kind]} AND {_matches(text)}
        ORDER BY {ORDERS[order]}, stream_id LIMIT {limit:d}""")


def matching(query: Query, selection: Selection, condition: str, *, limit: int = 15) -> pl.DataFrame:
    """The newest streams that match an SQL condition (`COLUMNS`)."""
    return query(f"""
        SELECT {COLUMNS} FROM streams WHERE {selection.where()} AND {condition}
        ORDER BY started_at DESC, stream_id LIMIT {limit:d}""")


def count(query: Query, selection: Selection, *, kind: str = "all", text: str = "") -> int:
    """Number of streams of `table` without its limit."""
    found = query(
        f"SELECT count(*) AS n FROM streams WHERE {selection.where()} AND {KINDS[kind]} AND {_matches(text)}"
    )
    return int(found["n"][0])


def _matches(text: str) -> str:
    """SQL condition: an id, the error type or the model contains the text, ignoring case."""
    if not text:
        return "TRUE"
    fields = (
        "CAST(stream_id AS VARCHAR)", "coalesce(trace_id, '')", "coalesce(request_id, '')",
        "coalesce(response_id, '')", "coalesce(error_type, '')", MODEL,
    )  # fmt: skip
    return "(" + " OR ".join(f"contains(lower({f}), lower({literal(text)}))" for f in fields) + ")"
