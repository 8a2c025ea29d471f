"""How near the rate limits are: what is left of each, who uses it, and when it is used up at the current rate.

A limit is one of `requests`, `tokens` and `quota` (a share) of a model at a gateway, with the same number. Clients share it if what
their responses report agrees; otherwise each has an account of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import polars as pl

from streamgauge.analytics.reports import Query, columns, formatting
from streamgauge.analytics.reports.columns import number, percent, text
from streamgauge.analytics.reports.limit_forecast import RECENT_S, Sample, seconds_left
from streamgauge.analytics.reports.metric_help import metric_help
from streamgauge.analytics.reports.selection import CLIENT, GATEWAY, MODEL, Selection, instant
from streamgauge.analytics.schema.clients import shortened
from streamgauge.analytics.schema.dimensions import NO_KEY
from streamgauge.analytics.schema.sql_quoting import later

READ = timedelta(hours=1)
MAX_SERIES = 200
"""Combinations of gateway, model, client and limit, those with the least left first."""
MAX_ACCOUNTS = 50
"""Accounts of one limit with which a further client is compared."""
_ALIKE = 0.05
"""Difference of what two clients report, as a share of the limit, up to which they share it."""

TABLE = columns.table(
    "Rate limits",
    columns.MODEL,
    columns.GATEWAY,
    columns.CLIENT,
    text("kind", "Limit of", line=True),
    number("limit", "Limit", priority=4),
    percent("left", "Left", digits=0, bar=True, help=metric_help("rate_limit")),
    number("use_per_minute", "Used per minute", priority=3, help="Requests of the last 10 minutes, else tokens in and out."),
    percent("use_share", "Of the use", digits=0, priority=5, help="Share of the client in what all clients of this limit use."),
    columns.instant("reset_at", "Reset", form="%H:%M:%S", priority=3),
    text("forecast_s", "429 in", text=lambda seconds: in_about(seconds), number=True,
         state=lambda row: "bad" if row["forecast_s"] is not None else None, help=metric_help("rate_limit_forecast")),
    empty="No response of the last hour reports a rate limit.",
)  # fmt: skip
SCHEMA: dict[str, Any] = {
    "model": pl.String, "gateway": pl.String, "client": pl.String, "kind": pl.String, "quota": pl.String,
    "limit": pl.Float64, "remaining": pl.Float64, "left": pl.Float64, "reset_at": pl.Datetime("us", "UTC"),
    "use_per_minute": pl.Float64, "use_share": pl.Float64, "forecast_s": pl.Float64, "mostly": pl.String,
}  # fmt: skip
"""`left`: share. `forecast_s`: seconds to the first 429. `mostly`: the client with more than half of the use. Clients are ids, or names
on pages."""


def table(query: Query, now: datetime, selection: Selection | None = None) -> pl.DataFrame:
    """The limits that responses of the last hour report, those with the earliest 429 and the least left first: `SCHEMA`.

    `selection`: only its filters apply.
    """
    until = now.replace(microsecond=0, second=now.second // 10 * 10)  # so that readers share answers
    series = query(_sql(until, "TRUE" if selection is None else selection.filters())).to_dicts()
    limits: dict[tuple[Any, ...], list[list[dict[str, Any]]]] = {}
    for one in series:
        one["samples"] = [
            Sample(*sample)
            for sample in zip(one.pop("ats"), one.pop("amounts"), one.pop("resets"), strict=True)
        ]
        one["points"] = np.array([sample[:2] for sample in one["samples"]])
        accounts = limits.setdefault(
            (one["gateway"], one["model"], one["kind"], one["quota"], one["limit"]), []
        )
        found = next((account for account in accounts[:MAX_ACCOUNTS] if _agree(account[0], one)), None)
        if found is None:
            accounts.append([one])
        else:
            found.append(one)
    rows = [row for accounts in limits.values() for account in accounts for row in _rows(account, now)]
    rows.sort(
        key=lambda row: (
            row["forecast_s"] is None,
            row["forecast_s"] or 0.0,
            row["left"] is None,
            row["left"],
        )
    )
    return pl.DataFrame(rows, SCHEMA, orient="row")


def with_text(rows: pl.DataFrame, names: Mapping[str, str] | None = None) -> pl.DataFrame:
    """The rows with `text`: the warning of the earliest forecast of each model at a gateway, else NULL. `names`: client id → name."""
    seen, texts = set[tuple[str, str]](), list[str | None]()
    for row in rows.to_dicts():
        place = row["gateway"], row["model"]
        is_first = row["forecast_s"] is not None and place not in seen
        texts.append(_warning(row, names or {}) if is_first else None)
        seen |= {place} if is_first else set()
    return rows.with_columns(pl.Series("text", texts, pl.String))


def _warning(row: Mapping[str, Any], names: Mapping[str, str]) -> str:
    """`gpt-x at a: 429 in about 8 minutes at this rate (12 % of the tokens left), mostly by client batch`."""
    what = f"the {row['kind']}" if row["quota"] is None else f"the quota {row['quota']}"
    by = (
        ""
        if row["mostly"] is None
        else f", mostly by client {shortened(names.get(row['mostly'], row['mostly']))}"
    )
    place = f"{row['model']} at {row['gateway']}"
    if row["forecast_s"] <= 0:
        return f"{place}: nothing is left of {what}, so requests fail with 429{by}"
    left = "" if row["left"] is None else f" ({formatting.share(row['left'])} of {what} left)"
    return f"{place}: 429 in {in_about(row['forecast_s'])} at this rate{left}{by}"


def in_about(seconds: float) -> str:
    """A forecast, no more exact than it is: `about 8 minutes`."""
    if seconds < 60:
        return "less than a minute"
    unit, length = ("hour", 3600) if seconds >= 2 * 3600 else ("minute", 60)
    rounded = round(seconds / length)
    return f"about {rounded} {formatting.plural(rounded, unit)}"


def _agree(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two series are of one limit: at the times of one, the other is about as high."""
    first, second = one["points"], other["points"]
    begin, end = max(first[0][0], second[0][0]), min(first[-1][0], second[-1][0])
    within = second[(second[:, 0] >= begin) & (second[:, 0] <= end)]
    if not len(within):
        return False
    apart = np.abs(np.interp(within[:, 0], first[:, 0], first[:, 1]) - within[:, 1])
    return bool(np.median(apart) <= _ALIKE * (one["limit"] or max(first[:, 1].max(), 1.0)))


def _rows(account: Sequence[Mapping[str, Any]], now: datetime) -> Iterable[dict[str, Any]]:
    """The rows of the clients that share a limit."""
    samples = sorted((sample for one in account for sample in one["samples"]), key=lambda sample: sample.at_s)
    limit, last = account[0]["limit"], samples[-1]
    highest = limit or max(sample.remaining for sample in samples)
    used = sum(one["use_per_minute"] for one in account)
    most = max(account, key=lambda one: one["use_per_minute"])
    is_most = used > 0 and most["use_per_minute"] > used / 2 and most["client"] != NO_KEY
    forecast_s = seconds_left(samples, highest, now.timestamp())
    reset_at = None if last.reset_at_s is None else datetime.fromtimestamp(last.reset_at_s, UTC)
    for one in account:
        yield {
            name: one[name]
            for name in ("model", "gateway", "client", "kind", "quota", "limit", "use_per_minute")
        } | {
            "remaining": last.remaining,
            "left": None if not limit else max(last.remaining / limit, 0.0),
            "reset_at": reset_at,
            "use_share": one["use_per_minute"] / used if used else None,
            "forecast_s": forecast_s,
            "mostly": most["client"] if is_most else None,
        }


def _sql(now: datetime, filters: str) -> str:
    """One row per gateway, model, client and limit: the last value of each 5 s, of 30 s before the last 10 minutes."""
    response_at = later("started_at", "coalesce(headers_ns, 0)")
    recent = instant(now - timedelta(seconds=RECENT_S))
    kinds = ", ".join(
        f"{{kind: '{kind}', quota: {name}, \"limit\": {limit}, remaining: {remaining}, reset_ns: {kind}_reset_ns}}"
        for kind, name, limit, remaining in (
            ("requests", "NULL", "requests_limit::DOUBLE", "requests_remaining::DOUBLE"),
            ("tokens", "NULL", "tokens_limit::DOUBLE", "tokens_remaining::DOUBLE"),
            ("quota", "quota", "1::DOUBLE", "1 - quota_used"),
        )
    )
    return f"""
        WITH chosen AS (
                SELECT {GATEWAY} AS gateway, {MODEL} AS model, {CLIENT} AS client, * EXCLUDE (gateway) FROM streams
                WHERE started_at >= {instant(now - READ)} AND started_at < {instant(now)} AND {filters}),
            used AS (
                SELECT gateway, model, client, count(*) AS requests,
                    sum(coalesce(input_tokens, 0) + coalesce(output_tokens, 0)) AS tokens,
                    greatest(epoch({instant(now)} - min(started_at)), 60) / 60 AS minutes
                FROM chosen WHERE started_at >= {recent} GROUP BY ALL),
            seen AS (
                SELECT gateway, model, client, {response_at} AS seen_at, unnest([{kinds}]) AS found, started_at FROM chosen
                WHERE coalesce(requests_remaining, tokens_remaining, quota_used) IS NOT NULL),
            thinned AS (
                SELECT gateway, model, client, found.kind AS kind, found.quota AS quota, found."limit" AS "limit",
                    arg_max({{seen_s: epoch_us(seen_at) / 1e6, amount: found.remaining,
                        reset_s: epoch_us(started_at) / 1e6 + found.reset_ns / 1e9}}, seen_at) AS newest
                FROM seen WHERE found.remaining IS NOT NULL
                GROUP BY gateway, model, client, found.kind, found.quota, found."limit",
                    time_bucket(if(seen_at >= {recent}, INTERVAL 5 SECOND, INTERVAL 30 SECOND), seen_at))
        SELECT gateway, model, client, kind, quota, "limit", list(newest.seen_s ORDER BY newest.seen_s) AS ats,
            list(newest.amount ORDER BY newest.seen_s) AS amounts, list(newest.reset_s ORDER BY newest.seen_s) AS resets,
            coalesce(any_value(CASE kind WHEN 'requests' THEN requests ELSE tokens END / minutes), 0)::DOUBLE AS use_per_minute
        FROM thinned LEFT JOIN used USING (gateway, model, client) GROUP BY ALL
        ORDER BY arg_max(newest.amount / coalesce("limit", 1e12), newest.seen_s), gateway, model, client, kind LIMIT {MAX_SERIES}"""
