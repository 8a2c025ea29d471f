"""Reuse of prompts by gateway and server instance: available, delivered, lost by reason, and the saving of prefix-aware routing. Tokens are
those of the view `prompt_reuse`."""

from __future__ import annotations

import polars as pl

from streamgauge.analytics.reports import Query, columns
from streamgauge.analytics.reports.columns import GATEWAY, REQUESTS, number, percent, text
from streamgauge.analytics.reports.metric_help import metric_help
from streamgauge.analytics.reports.selection import GATEWAY as GATEWAY_SQL
from streamgauge.analytics.reports.selection import Selection
from streamgauge.analytics.schema.sql_quoting import literal

_LOST = {
    "expired": "read longer ago than the lifetime of the cache",
    "short": "fewer tokens than the minimum that the provider caches",
    "instance": "another server instance had read them: prefix-aware routing would save these",
    "changed": "after a part of the prompt that changed",
    "other": "no cache mark, evicted early, or unexplained",
}
TABLE = columns.table(
    "Reuse of prompts",
    GATEWAY,
    text("server_instance", "Instance"),
    REQUESTS,
    percent("available", "Available", help=metric_help("reuse_available")),
    percent("delivered", "Delivered", help=metric_help("cached")),
    *(percent(name, f"Lost: {name}", help=f"{what[0].upper()}{what[1:]}.", priority=2) for name, what in _LOST.items()),
    number("router_saves", "Routing saves, {currency}", digits=4, help="Tokens lost to another instance × the saving per cached token."),
    empty="No request of this selection has a known prompt and reports input tokens.",)  # fmt: skip


def table(query: Query, selection: Selection, currency: str, *, most: int = 50) -> pl.DataFrame:
    """`gateway, server_instance, requests, available, delivered, expired, short, instance, changed, other, router_saves` by gateway and
    server instance, those with the most tokens first. Shares are of the input tokens of requests that report cached tokens; `available` is
    of all. `router_saves`: at the mean saving of a token that was read from the cache in the currency."""
    shares = ", ".join(
        f"sum(lost_{name}_tokens) / sum(tokens) FILTER (lost_{name}_tokens IS NOT NULL) AS {name}"
        for name in _LOST
    )
    return query(f"""
        WITH reuse AS (
            SELECT {GATEWAY_SQL} AS gateway, coalesce(server_instance, '(unknown)') AS server_instance, model, tokens, available_tokens,
                delivered_tokens, COLUMNS('lost_.*')
            FROM streams JOIN (
                SELECT stream_id, started_at, model, input_tokens AS tokens, available_tokens, delivered_tokens, COLUMNS('lost_.*')
                FROM prompt_reuse WHERE {selection.within()}) USING (stream_id, started_at)
            WHERE {selection.where()}
        ), savings AS (
            SELECT model, sum(cache_saved) / sum(cached_input_tokens) AS saving FROM spend
            WHERE {selection.where()} AND currency = {literal(currency)} AND cached_input_tokens > 0 GROUP BY model
        )
        SELECT gateway, server_instance, count(*) AS requests, sum(available_tokens) / sum(tokens) AS available,
            sum(delivered_tokens) / sum(tokens) FILTER (delivered_tokens IS NOT NULL) AS delivered, {shares},
            sum(lost_instance_tokens * saving) AS router_saves
        FROM reuse LEFT JOIN savings USING (model) GROUP BY ALL ORDER BY sum(tokens) DESC, 1, 2 LIMIT {most:d}""")
