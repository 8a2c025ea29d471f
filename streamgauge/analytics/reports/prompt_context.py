"""What fills the context of a session: the parts of its prompts by request, and the tools that they carry, with the cost of carrying them.

Sizes are those of the views `context_parts` and `context_tools`.
"""

from __future__ import annotations

from typing import Any

import polars as pl

from streamgauge.analytics.reports import Query, columns, has_rows
from streamgauge.analytics.reports.columns import number, percent, text
from streamgauge.analytics.reports.metric_help import metric_help
from streamgauge.analytics.reports.selection import Selection
from streamgauge.analytics.schema.sql_quoting import literal

TOOL, SERVER = "tool", "MCP server"
GROUPS = {TOOL: "name", SERVER: "coalesce(mcp_server, '(none)')"}
"""Grouping → SQL of its value, over `context_tools`."""

TOOLS = columns.table(
    "Carried by {by}",
    text("name", "{By}"),
    text("mcp_server", "MCP server", priority=3),
    number("tools", "Tools", priority=3),
    number("requests", "Requests", priority=2, help="Requests that carry it."),
    number("tokens_per_request", "Tokens each", help=metric_help("context")),
    percent("share", "Share", bar=True, help="Share of the input tokens of the requests that carry tools."),
    number("calls", "Calls", help="0: carried but never called.", state=lambda row: None if row["calls"] else "bad"),
    number("tokens", "Total tokens", priority=2, help=metric_help("context")),
    text("cost", "Cost", number=True, help=metric_help("context_cost")),
    stacks=False,)  # fmt: skip


def parts(query: Query, session_id: str, *, most: int = 500) -> pl.DataFrame:
    """`request, turn, part, bytes, tokens` of the first requests of a session with a known prompt, numbered from 1."""
    return query(f"""
        SELECT dense_rank() OVER (ORDER BY started_at, stream_id)::INTEGER AS request, turn, part, bytes, tokens, stream_id, started_at
        FROM context_parts WHERE session_id = {literal(session_id)}
        QUALIFY request <= {most:d} ORDER BY request, part""")


def tools(query: Query, session_id: str, by: str = TOOL, *, most: int = 200) -> pl.DataFrame:
    """Tools or MCP servers in the requests of a session, the largest first: `name`, `mcp_server` or the number of `tools`, `requests,
    tokens_per_request, share, calls, tokens, cost`. `cost`: a text, at the mean price of the session's input."""
    chosen = f"session_id = {literal(session_id)}"
    prices = dict[str, float]()
    if has_rows(query, "prices"):
        found = query(f"""
            SELECT currency, sum(input_total) / sum(input_tokens) AS price FROM spend
            WHERE {chosen} AND input_tokens > 0 AND input_total IS NOT NULL GROUP BY currency ORDER BY currency""")
        prices = dict(found.iter_rows())
    costs = " || ' + ' || ".join(
        f"format('{{:.4f}} {name}', sum(tokens) * {price!r})" for name, price in prices.items()
    )
    return query(f"""
        SELECT {GROUPS[by]} AS name, {"any_value(mcp_server) AS mcp_server" if by == TOOL else "count(DISTINCT name) AS tools"},
            max(requests) AS requests, sum(tokens) / max(requests) AS tokens_per_request,
            sum(tokens) / ({_INPUT.format(chosen)}) AS share, sum(calls)::BIGINT AS calls, sum(tokens)::BIGINT AS tokens,
            {costs or "NULL::VARCHAR"} AS cost
        FROM context_tools WHERE {chosen} GROUP BY ALL ORDER BY tokens DESC, name LIMIT {most:d}""")


def carried(query: Query, selection: Selection | str) -> dict[str, Any] | None:
    """`tools` of the sessions of a selection, or of one session, `used` of them, and `unused_share`: that of the others in the input of the
    requests that carry tools. None if none does."""
    chosen = (
        f"session_id = {literal(selection)}"
        if isinstance(selection, str)
        else f"session_id IN (SELECT session_id FROM streams WHERE {selection.where()})"
    )
    row = query(f"""
        SELECT count(*) AS tools, count(*) FILTER (calls > 0) AS used,
            coalesce(sum(tokens) FILTER (calls = 0), 0) / ({_INPUT.format(chosen)}) AS unused_share
        FROM (SELECT name, sum(calls) AS calls, sum(tokens) AS tokens FROM context_tools WHERE {chosen} GROUP BY name)""").to_dicts()[
        0
    ]
    return row if row["tools"] else None


_INPUT = """SELECT sum(tokens) FROM context_parts WHERE {0}
    AND stream_id IN (SELECT stream_id FROM prompt_segments WHERE tool_set IS NOT NULL)"""
"""SQL of the input tokens of the requests that carry tools."""


def carried_text(found: dict[str, Any]) -> str:
    """`7 of 41 tools used; the others are 38 % of each request`."""
    text = f"{found['used']:,} of {found['tools']:,} tools used"
    if found["used"] == found["tools"] or not found["unused_share"]:
        return text
    return f"{text}; the others are {100 * found['unused_share']:.0f} % of each request"
