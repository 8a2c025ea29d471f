"""Estimated cost, the prompt cache and budgets, in one currency: amounts of different currencies are never added up.

Costs are those of the view `spend`. `query` of the page may return an answer that is a minute old.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from uuid import UUID

import polars as pl

from streamgauge.analytics.reports import Query, columns, formatting, has_rows
from streamgauge.analytics.reports.columns import (
    GROUP,
    REQUESTS,
    SESSION,
    Row,
    State,
    number,
    percent,
    text,
)
from streamgauge.analytics.reports.metric_help import metric_help
from streamgauge.analytics.reports.selection import DIMENSIONS, Selection, dimension, instant
from streamgauge.analytics.schema.clients import shortened
from streamgauge.analytics.schema.dimensions import is_one_of
from streamgauge.analytics.schema.outcomes import REFUSED
from streamgauge.analytics.schema.prices import FREE_FAILURES
from streamgauge.analytics.schema.sql_quoting import literal

BY_SESSION = "session"
GROUPS = {**DIMENSIONS, BY_SESSION: "coalesce(session_id, '(no session)')"}
"""Grouping → SQL of its value, over `spend`. Labels are groupings, too."""


OTHERS = "others"
MOST_SERIES = 8
MAX_HOP = timedelta(hours=1)
"""Longest time from a request to those that a gateway makes for it."""

_MEASURES = """
    sum(total) AS cost, sum(low) AS low, sum(high) AS high, count(*) AS requests, count(*) FILTER (outcome = 'ok') AS ok,
    sum(output_tokens)::BIGINT AS output_tokens, 1000 * sum(total) / nullif(sum(output_tokens), 0) AS per_1000_output,
    sum(total) / nullif(count(*) FILTER (outcome = 'ok'), 0) AS per_ok,
    coalesce(sum(wasted), 0) / nullif(sum(total), 0) AS wasted_share,
    coalesce(sum(total) FILTER (source = 'estimate'), 0) / nullif(sum(total), 0) AS estimated_share,
    count(reported_difference) AS reporting, sum(reported_cost) FILTER (reported_difference IS NOT NULL) AS reported,
    sum(reported_difference) AS reported_difference"""
_CACHE = """
    sum(cached_input_tokens) / nullif(sum(input_tokens) FILTER (cached_input_tokens IS NOT NULL), 0) AS hit_share,
    sum(cached_input_tokens)::BIGINT AS read_tokens, sum(cache_write_tokens)::BIGINT AS written_tokens,
    sum(cache_write_tokens - cache_write_1h_tokens)::BIGINT AS written_5m_tokens,
    sum(cache_write_1h_tokens)::BIGINT AS written_1h_tokens, sum(cache_saved) AS saved,
    sum(cache_premium) FILTER (cache_write_tokens > 0) AS premium,
    if(premium IS NULL, NULL, coalesce(sum(cache_premium) FILTER (NOT read_again), 0)) AS wasted,
    sum(cache_saved) - sum(cache_premium) AS net"""


def _spent(selection: Selection, currency: str) -> str:
    """SQL of the requests of the selection with a cost in the currency, and the part of it that is wasted."""
    return f"""(
        SELECT spend.*, waste.cost AS wasted
        FROM (FROM spend WHERE {selection.where()} AND currency = {literal(currency)}) AS spend
        LEFT JOIN (SELECT stream_id, cost FROM wasted_tokens WHERE {selection.within()}) AS waste USING (stream_id))"""


def coverage(query: Query, selection: Selection) -> pl.DataFrame:
    """`currency, requests`, the most frequent first. NULL: requests without a price. Empty without requests to a model."""
    return query(f"""
        SELECT currency, count(*) AS requests FROM spend WHERE {selection.in_minutes().where()} AND source IS NOT NULL
        GROUP BY currency ORDER BY currency IS NULL, requests DESC, currency""")


_COSTS = [
    number("cost", "Cost, {currency}", digits=4),
    *(number(name, name.capitalize(), digits=4, priority=4, help=metric_help("cost_estimate")) for name in ("low", "high")),
    number("per_1000_output", "Per 1,000 tokens out", digits=4, priority=2),
    number("per_ok", "Per successful request", digits=4, priority=2),
    percent("wasted_share", "Wasted", help=metric_help("wasted_tokens"), priority=1),
    percent("estimated_share", "Estimated", digits=0, priority=3, help=metric_help("cost_estimate")),
    number("reported", "Reported, USD", digits=4, priority=2, help=metric_help("cost_reported")),
    number("reported_difference", "Difference, USD", digits=4, sign=True, priority=2, help=metric_help("cost_reported")),
]  # fmt: skip
TABLE = columns.table("Spend by {by}", GROUP, replace(REQUESTS, opens={}), *_COSTS)
DEAREST = columns.table(
    "Dearest sessions",
    SESSION,
    text("client", "Client", text=shortened),
    REQUESTS,
    *_COSTS,
    empty="No session in this selection has a cost.",
)


def table(query: Query, selection: Selection, by: str, currency: str, *, most: int = 50) -> pl.DataFrame:
    """`name, cost, low, high, requests, ok, output_tokens, per_1000_output, per_ok, wasted_share, estimated_share,
    reporting, reported, reported_difference` by group, the dearest first, after a row for all with the name NULL. For sessions also
    `session_id` and `client`.

    `reported` is what providers report for `reporting` requests with a price in USD, `reported_difference` how much it is above their cost.
    """
    more = ", any_value(session_id) AS session_id, any_value(client_id) AS client" if by == BY_SESSION else ""
    return query(f"""
        SELECT * EXCLUDE (is_total) FROM (
            SELECT {dimension(by, GROUPS)} AS name, grouping({dimension(by, GROUPS)}) AS is_total, {_MEASURES}{more}
            FROM {_spent(selection.in_minutes(), currency)} GROUP BY GROUPING SETS ((), ({dimension(by, GROUPS)})))
        WHERE requests > 0 ORDER BY is_total DESC, cost DESC, name LIMIT {most + 1:d}""")


def without_range(costs: pl.DataFrame) -> pl.DataFrame:
    """Rows of `table`, without `low` and `high` if all are equal."""
    return costs if (costs["high"] > costs["low"]).any() else costs.drop("low", "high")


def timeline(query: Query, selection: Selection, by: str, currency: str) -> pl.DataFrame:
    """`at, name, cost` by point of the time series and group. Groups beyond the dearest are `others`."""
    selection = selection.in_minutes()
    return query(f"""
        WITH points AS (
            SELECT {selection.bucket()} AS "at", {dimension(by, GROUPS)} AS name, sum(total) AS cost
            FROM spend WHERE {selection.where()} AND currency = {literal(currency)} GROUP BY ALL),
        dearest AS (SELECT name FROM points GROUP BY name ORDER BY sum(cost) DESC, name LIMIT {MOST_SERIES})
        SELECT "at", if(name IN (FROM dearest), name, '{OTHERS}') AS name, sum(cost) AS cost FROM points GROUP BY ALL ORDER BY "at", 2""")


CACHE = columns.table(
    "Prompt cache by {by}",
    GROUP,
    percent("hit_share", "Hits", help=metric_help("cached")),
    number("read_tokens", "Tokens read"),
    number("written_tokens", "Tokens written", help="Where the vendor reports them."),
    number("written_5m_tokens", "For 5 min", priority=3, help="Where the vendor reports the lifetime."),
    number("written_1h_tokens", "For 1 h", priority=3, help="Where the vendor reports the lifetime."),
    number("saved", "Saved, {currency}", digits=4, help="By reads: against the price of other input."),
    number("premium", "Paid for writes", digits=4, help="Above the price of other input.", priority=2),
    number("wasted", "Wasted", digits=4, help="The part of it for writes that no later request read in time."),
    number("net", "Net", digits=4, help="Saved - paid for writes."),
    empty="No request of this selection reports cached tokens.",)  # fmt: skip


def cache(query: Query, selection: Selection, by: str, currency: str, *, most: int = 50) -> pl.DataFrame:
    """`name, hit_share, read_tokens, written_tokens, written_5m_tokens, written_1h_tokens, saved, premium, wasted, net` by group,
    those with the most cached tokens first. Empty without a report of cached tokens."""
    return query(f"""
        SELECT {dimension(by, GROUPS)} AS name, {_CACHE}
        FROM (FROM spend WHERE {selection.in_minutes().where()} AND currency = {literal(currency)}) AS spend
        LEFT JOIN (SELECT stream_id, read_again FROM cache_writes) USING (stream_id)
        WHERE coalesce(cached_input_tokens, cache_write_tokens) IS NOT NULL
        GROUP BY ALL ORDER BY coalesce(read_tokens, 0) + coalesce(written_tokens, 0) DESC, name LIMIT {most:d}""")


def cost_text(cost: float | None, currency: str | None) -> str:
    """`12.30 USD`, with more digits below 1."""
    if cost is None or currency is None:
        return "unknown"
    digits = 2 if cost >= 1 or cost == 0 else 4 if cost >= 0.01 else 6
    return f"{cost:,.{digits}f} {currency}"


def of_stream(query: Query, stream_id: UUID, started_at: datetime) -> str | None:
    """The cost of a stream, or of the requests that a gateway made for it, as text. None without a price."""
    return _costs(query, "''", _of_stream(stream_id, started_at)).get("")


def why_no_cost(row: Row) -> str:
    """Why a row of `streams` has no cost."""
    failed = row["outcome"] in (*FREE_FAILURES, REFUSED)
    used = any(row[name] is not None for name in ("ttft_ns", "input_tokens", "output_tokens"))
    return "not billed" if failed and not used else "no price"


def _of_stream(stream_id: UUID, started_at: datetime) -> str:
    return f"{_began(started_at, started_at)} AND '{stream_id}' IN (stream_id::VARCHAR, client_stream_id::VARCHAR)"


def _began(since: datetime, until: datetime) -> str:
    """SQL condition: a request began in this time, or a gateway made it for one that did."""
    return f"started_at BETWEEN {instant(since)} AND {instant(until + MAX_HOP)}"


def reported_of_stream(query: Query, stream_id: UUID, started_at: datetime) -> str | None:
    """As `of_stream`, the cost that the provider reports."""
    row = query(f"""
        SELECT sum(reported_cost) AS reported, sum(reported_difference) AS reported_difference FROM spend
        WHERE {_of_stream(stream_id, started_at)} AND reported_cost IS NOT NULL""").to_dicts()[0]
    return with_difference(row) if row["reported"] is not None else None


def of_session(query: Query, session_id: str, first_at: datetime, last_at: datetime) -> str | None:
    """The cost of a session with requests in this time, as text. None without a price."""
    return _costs(query, "''", f"{_began(first_at, last_at)} AND session_id = {literal(session_id)}").get("")


def said_by_agents(query: Query, session_ids: Sequence[str]) -> dict[str, str]:
    """Session id → its cost as the agent estimates it, as text. Only Claude Code says one."""
    rows = query(f"""
        SELECT session_id, sum(cost) AS cost FROM turn_events
        WHERE cost IS NOT NULL AND {is_one_of("session_id", session_ids)} GROUP BY ALL""").rows()
    return {session_id: cost_text(cost, "USD") for session_id, cost in rows}


def of_sessions(query: Query, sessions: pl.DataFrame) -> pl.DataFrame:
    """`session_id, cost, agent_cost` as text, of rows of the view `sessions`. Empty without prices and without costs of agents."""
    found, shown = dict[str, str](), sessions.to_dicts()
    if shown and has_rows(query, "prices"):
        since, until = min(row["first_at"] for row in shown), max(row["last_at"] for row in shown)
        chosen = is_one_of("session_id", [*sessions["session_id"]])
        found = _costs(query, "session_id", f"{_began(since, until)} AND {chosen}")
    said = (
        said_by_agents(query, [*sessions["session_id"]]) if shown and has_rows(query, "agent_events") else {}
    )
    rows = [(each, found.get(each), said.get(each)) for each in dict.fromkeys([*found, *said])]
    return pl.DataFrame(rows, dict.fromkeys(("session_id", "cost", "agent_cost"), pl.String), orient="row")


def _exceeded(reason: str) -> Callable[[Row], State | None]:
    return lambda row: "bad" if row["severity"] and reason in row["reasons"] else None


BUDGETS = columns.table(
    "Budgets",
    text("budget", "Budget"),
    text("period", "Period", line=True, priority=2),
    columns.instant("ends_at", "Until", form="%m-%d %H:%M", priority=2),
    number("amount", "Amount", digits=2),
    text("spent_text", "Spent", number=True, state=_exceeded("spent"), help=metric_help("cost")),
    percent("share", "Share", digits=0, bar=True),
    text("forecast_text", "Forecast", number=True, state=_exceeded("forecast"), help=metric_help("budget_forecast")),
    number("burn_1h", "Burn rate, 1 h", digits=1, state=_exceeded("burn"), help=metric_help("budget_burn")),
    percent("estimated_share", "Estimated", digits=0, priority=3, help=metric_help("cost_estimate")),
    number("not_counted", "Not counted", priority=4, help="Its requests of the period without a price in its currency."),
    zone_of="Until",)  # fmt: skip


def budgets(query: Query) -> pl.DataFrame:
    """Rows of the view `budget_spend` in the order of the settings, with `budget` (its name), the texts `spent_text` and
    `forecast_text`, and `share` (spent / amount). Reads the streams of a month, also without budgets."""
    # Pages replace client ids in columns that are called `name` or `client`.
    found = query(
        "SELECT name AS budget, * EXCLUDE (name, client), spent / amount AS share FROM budget_spend"
    )
    texts = {
        f"{name}_text": [
            with_range(row | {"cost": row[name], "low": row[f"{name}_low"], "high": row[f"{name}_high"]})
            if row[name] is not None
            else None
            for row in found.to_dicts()
        ]
        for name in ("spent", "forecast")
    }
    return found.with_columns(pl.Series(name, texts[name], pl.String) for name in texts)


def _costs(query: Query, by: str, condition: str) -> dict[str, str]:
    """Value of `by` → the cost of requests that meet the condition, as text."""
    found = dict[str, str]()
    for row in query(f"""
        SELECT {by} AS name, currency, sum(total) AS cost, sum(low) AS low, sum(high) AS high FROM spend
        WHERE {condition} AND total IS NOT NULL
        GROUP BY ALL ORDER BY name, currency""").to_dicts():
        before = f"{found[row['name']]} + " if row["name"] in found else ""
        found[row["name"]] = before + with_range(row)
    return found


def with_range(row: dict[str, object]) -> str:
    """The text of `cost, low, high, currency`: `12.30 USD (11.00 – 14.00)`; the range only if it is one."""
    cost, low, high = (float(str(row[name])) for name in ("cost", "low", "high"))
    text = cost_text(cost, str(row["currency"]))
    if high - low <= 0.005 * cost:
        return text
    ends = [cost_text(end, "") for end in (low, high)]
    return f"{text} ({' – '.join(end.strip() for end in ends)})"


def with_difference(row: dict[str, object]) -> str:
    """The text of `reported, reported_difference`: `12.30 USD (2.10 % more than estimated)`."""
    reported = float(str(row["reported"]))
    text, difference = cost_text(reported, "USD"), row["reported_difference"]
    if difference is None or not (cost := reported - float(str(difference))):
        return text
    share = reported / cost - 1
    return f"{text} ({formatting.share(abs(share))} {'less' if share < 0 else 'more'} than estimated)"
