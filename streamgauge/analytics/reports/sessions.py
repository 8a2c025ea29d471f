"""Sessions: their list, and the requests and pauses of one session.

The time range selects sessions by their requests. The numbers of a session are those of the view `sessions`, over all its
requests.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

import polars as pl

from streamgauge.analytics.reports import Query, columns
from streamgauge.analytics.reports.columns import TOKENS_IN, TOKENS_OUT, number, seconds, text
from streamgauge.analytics.reports.metric_help import metric_help
from streamgauge.analytics.reports.selection import Selection
from streamgauge.analytics.schema.dimensions import TO_MODEL
from streamgauge.analytics.schema.outcomes import IS_ERROR, REQUESTS
from streamgauge.analytics.schema.sql_quoting import instant, literal

ORDERS: dict[str, str] = {
    "newest": "max(started_at) DESC",
    "most requests": "count(*) DESC",
    "most output": "sum(output_tokens) DESC NULLS LAST",
    "most errors": f"count(*) FILTER ({IS_ERROR}) DESC",
}
"""Name → SQL of a sort order over the requests in the time range."""


IN_SESSION = f"session_id IS NOT NULL AND {TO_MODEL}"
IS_NAMED = "session_id IS DISTINCT FROM response_id"
IS_SESSION = f"count(DISTINCT response_id) > 1 OR bool_or({IS_NAMED})"
"""SQL conditions of streams and of a group: a response that no request continued is no session (`measures.sessions`)."""


TABLE = columns.table(
    "Sessions",
    columns.SESSION,
    text("agent", "Agent", line=True, help="Subagents have a session of their own."),
    text("client_app", "Program", priority=2, min_characters=11),
    columns.instant("last_at", "Last request", form="%m-%d %H:%M:%S"),
    number("turns", "Turns"),
    number("requests", "Requests"),
    number("errors", "Errors"),
    text("loop", "Loop", line=True, priority=2, help=metric_help("session_loop")),
    seconds("model_ns", "Model time", priority=2, help=metric_help("session_model")),
    seconds("tool_ns", "Tool time", priority=2, help=metric_help("session_tool")),
    seconds("subagent_ns", "Subagents", priority=3, help=metric_help("session_subagent")),
    seconds("user_wait_ns", "User wait", priority=2, help=metric_help("session_user")),
    TOKENS_IN,
    TOKENS_OUT,
    text("cost", "Cost", number=True, help=metric_help("cost")),
    text("agent_cost", "Agent's cost", number=True, priority=3, help=metric_help("cost_agent")),
    number("unfinished_output_tokens", "Unfinished", unit="tokens", priority=4, help=metric_help("session_unfinished")),
    text("models", "Models", priority=3, text=", ".join),
    columns.CLIENT,
    stacks=False,)  # fmt: skip
_ROWS = "SELECT *, if(parent_session_id IS NULL, NULL, '↳ subagent') AS agent"


def count(query: Query, selection: Selection) -> dict[str, int]:
    """`sessions`, `in_session` (requests with a session) and `requests` of the selection."""
    return query(f"""
        SELECT count(*) AS sessions, coalesce(sum(n), 0)::BIGINT AS in_session,
            (SELECT {REQUESTS} FROM streams WHERE {selection.where()}) AS requests
        FROM (
            SELECT count(*) AS n FROM streams WHERE {selection.where()} AND {IN_SESSION}
            GROUP BY session_id HAVING {IS_SESSION})""").to_dicts()[0]


def table(query: Query, selection: Selection, *, order: str = "newest", limit: int = 50) -> pl.DataFrame:
    """Rows of the view `sessions`, `agent` and `client`, for the sessions with requests in the selection, in this order.

    The ids are selected first, as literals, so the view computes only these sessions.
    """
    ids = query(f"""
        SELECT session_id FROM streams WHERE {selection.where()} AND {IN_SESSION}
        GROUP BY session_id HAVING {IS_SESSION} ORDER BY {ORDERS[order]}, session_id LIMIT {limit:d}""")[
        "session_id"
    ]
    names = ", ".join(literal(name) for name in ids) or "NULL"
    found = query(f"{_ROWS}, client_id AS client FROM sessions WHERE session_id IN ({names}) LIMIT {limit:d}")
    ranks = pl.DataFrame({"session_id": ids}, schema={"session_id": pl.String}).with_row_index("rank")
    return ranks.join(found, on="session_id").sort("rank").drop("rank")


def one(query: Query, session_id: str) -> dict[str, object] | None:
    """The row of the view `sessions`, or None."""
    rows = query(f"SELECT * FROM sessions WHERE session_id = {literal(session_id)} LIMIT 1").to_dicts()
    return rows[0] if rows else None


def subagents(query: Query, session_id: str, *, most: int = 100) -> pl.DataFrame:
    """The first subagents of a session: rows of the view `sessions` and `agent`, the earliest first."""
    return query(
        f"{_ROWS} FROM sessions WHERE parent_session_id = {literal(session_id)} ORDER BY first_at, session_id LIMIT {most:d}"
    )


REQUESTS_TABLE = columns.table(
    "Requests of the session",
    columns.STREAM,
    columns.outcome(),
    number("request", "Request"),
    number("turn", "Turn", opens="turn", help="Opens the turn."),
    columns.instant("started_at", "Started", priority=2),
    text(
        "pause",
        "Waited for",
        line=True,
        priority=2,
        help="What the session waited for before the request.",
    ),
    seconds("pause_ns", "Pause", priority=2),
    replace(columns.TTFT, priority=2),
    seconds("end_ns", "Duration", digits=2, priority=2),
    text("finish_reason", "Finish", line=True, priority=4),
    number("tool_call_count", "Tool calls", priority=4),
    TOKENS_IN,
    TOKENS_OUT,
    replace(columns.MODEL, priority=3),
    replace(columns.GATEWAY, priority=4),
    stacks=False,
)


def requests(query: Query, session_id: str, *, most: int = 500) -> pl.DataFrame:
    """The first requests of a session in order: rows of the view `session_turns`."""
    return query(
        f"SELECT * FROM session_turns WHERE session_id = {literal(session_id)} ORDER BY request LIMIT {most:d}"
    )


LEAST_MISSED = 0.05
"""Minimum share of a session's input for which the page shows a reason of cache misses."""
_MISSES = {
    "model_changed": "the model changes between requests", "tools_changed": "the tools change between requests",
    "system_changed": "the system text changes between requests", "messages_changed": "earlier messages change between requests",
    "expired": "requests come after the lifetime of the prompt cache", "no_marker": "requests have no mark for the prompt cache",
    "marker_changed": "the marks for the prompt cache change between requests", "too_short": "prompts are too short for the cache",
    "other_provider": "requests alternate between providers", "other_region": "requests alternate between regions",
    "other_instance": "requests alternate between server instances", "unexplained": "the provider does not read the prompt cache",
    "parallel_request": "requests begin before the prompt is cached", "input_changed": "earlier input changes between requests",
}  # fmt: skip


@dataclass(frozen=True)
class CacheMisses:
    """The reason for most of the missed tokens of a session."""

    since: datetime
    what: str
    """Part of a sentence, such as `the order of tools changes between requests`."""
    share: float
    """Share of the input since then."""
    cost_per_hour: float | None
    currency: str | None


def cache_misses(query: Query, session_id: str, first_at: datetime, last_at: datetime) -> CacheMisses | None:
    """The main reason in a session with requests in this time. None below `LEAST_MISSED`, or if it has one request."""
    rows = query(f"""
        WITH requests AS (
            SELECT *, CASE WHEN cache_miss_reason = 'tools_changed' AND cache_miss_segment = 'order of tools' THEN cache_miss_segment
                ELSE cache_miss_reason END AS reason
            FROM spend WHERE started_at BETWEEN {instant(first_at)} AND {instant(last_at)} AND session_id = {literal(session_id)}),
        reasons AS (
            SELECT reason, min(started_at) AS since, max(started_at) AS until, count(*) AS n, any_value(currency) AS currency,
                sum(cache_missed_tokens)::BIGINT AS missed, sum(cache_missed) AS cost
            FROM requests WHERE cache_missed_tokens > 0 GROUP BY reason)
        SELECT *, (SELECT sum(input_tokens)::BIGINT FROM requests WHERE started_at >= since) AS input
        FROM reasons WHERE n > 1 ORDER BY missed DESC, reason LIMIT 1""").to_dicts()
    if not rows or not (row := rows[0])["input"] or row["missed"] < LEAST_MISSED * row["input"]:
        return None
    what = (
        "the order of tools changes between requests"
        if row["reason"] == "order of tools"
        else _MISSES.get(row["reason"])
    )
    what = what or f"{row['reason'].replace('_', ' ').removesuffix(' changed')} changes between requests"
    hours = max((row["until"] - row["since"]).total_seconds(), 60) / 3600
    per_hour = None if row["cost"] is None else row["cost"] / hours
    return CacheMisses(row["since"], what, min(1.0, row["missed"] / row["input"]), per_hour, row["currency"])


# The requests and pauses of one session as bars, one row per turn. Pure.

MODEL, TOOL, SUBAGENT, USER = "model", "tool", "subagent", "user"
PARTS = {MODEL: "model_ns", TOOL: "tool_ns", SUBAGENT: "subagent_ns", USER: "user_wait_ns"}
"""Part of a session → its column of the view `sessions`."""


@dataclass(frozen=True)
class Bar:
    """A request or a pause. Times are ns from the start of the session."""

    turn: int
    kind: str
    start_ns: int
    end_ns: int
    request: Mapping[str, Any]
    """The request, or the one after the pause."""


def turns_of(requests: Sequence[Mapping[str, Any]]) -> list[int]:
    """The turns of rows of `session_turns`, in order.

    A request without a known turn is in that of the request before it, or in the next one after a user's pause.
    """
    found: list[int] = []
    for row in requests:
        waited = row["pause"] == USER and bool(found)
        found.append(row["turn"] or (found[-1] if found else 1) + waited)
    return found


def bars(requests: Sequence[Mapping[str, Any]], *, with_user_waits: bool) -> list[Bar]:
    """The bars of rows of `session_turns`, in order. Without user waits, the time stands still while the user is waited for."""
    found: list[Bar] = []
    left_out_ns = 0
    for row, turn in zip(requests, turns_of(requests), strict=True):
        waited = row["pause"] == USER
        pause_ns = row["pause_ns"] or 0
        start_ns = _ns(row["started_at"] - requests[0]["started_at"])
        if waited and not with_user_waits:
            left_out_ns += pause_ns
        elif pause_ns:
            # Only the length of the part with subagents is known, and a bar has one kind.
            kind = USER if waited else SUBAGENT if 2 * (row["subagent_ns"] or 0) > pause_ns else TOOL
            found.append(Bar(turn, kind, start_ns - pause_ns - left_out_ns, start_ns - left_out_ns, row))
        start_ns -= left_out_ns
        found.append(Bar(turn, MODEL, start_ns, start_ns + (row["end_ns"] or 0), row))
    return found


def _ns(length: timedelta) -> int:
    return (length.days * 86_400 + length.seconds) * 10**9 + length.microseconds * 1000
