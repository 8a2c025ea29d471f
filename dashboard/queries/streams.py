"""SQL for lists of finished streams."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import polars as pl

from streamgauge.analytics.schema.dimensions import is_one_of
from streamgauge.analytics.schema.outcomes import IS_ERROR
from streamgauge.analytics.schema.sql_quoting import literal
from streamgauge.dashboard.queries import Query
from streamgauge.dashboard.queries.selection import CLIENT, DIMENSIONS, GATEWAY, MODEL, Selection

COLUMNS = f"""
    stream_id, started_at, {MODEL} AS model, {GATEWAY} AS gateway, {CLIENT} AS client, http_status, outcome, error_type, finish_reason,
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

FACETS: dict[str, str] = {
    "outcome": "outcome",
    "cause": "error_type",
    "status": "http_status::VARCHAR",
    **DIMENSIONS,
    "dialect": "dialect",
}
"""Filter → SQL of its value. Streams with NULL have no value."""
TOP_VALUES = 5


def condition(
    *, kind: str = "all", text: str = "", filters: Mapping[str, Sequence[str]] | None = None
) -> str:
    """SQL condition: a kind, a text in ids, trace ids, error types or models, and values of `FACETS`."""
    parts = [KINDS[kind], _matches(text)]
    parts += [is_one_of(FACETS[name], values) for name, values in (filters or {}).items() if values]
    return " AND ".join(parts)


def table(
    query: Query, selection: Selection, where: str = "TRUE", *, order: str = "newest", limit: int = 25
) -> pl.DataFrame:
    """The selected streams (`COLUMNS`) that match a condition."""
    return query(f"""
        SELECT {COLUMNS} FROM streams WHERE {selection.where()} AND {where}
        ORDER BY {ORDERS[order]}, stream_id LIMIT {limit:d}""")


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
    found = query(f"SELECT count(*) AS n FROM streams WHERE {selection.where()} AND {where}")
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
