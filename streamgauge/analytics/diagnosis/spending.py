"""Who spends far more than usual: a client, program, label or session. SQL and arithmetic, no I/O.

- Amounts are tokens × the prices of the model's text tokens. The view `spend` knows more, but takes far longer.
- The spend per time since an instant is compared with that before it. It has to be `FAR` times as much without its dearest request, and
  `ABOVE_PEAK` times the highest one of a time before. So neither one large request nor bursts that are usual count.
- A payer without usual spend is new, and not compared. A session is named by itself, or as the one with most of its client's spend.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

import numpy as np
import polars as pl

from streamgauge.analytics.diagnosis.aggregates import at_place, bucket, source
from streamgauge.analytics.diagnosis.cell_tables import Array
from streamgauge.analytics.diagnosis.incidents import step
from streamgauge.analytics.diagnosis.metrics import ALL_BUCKETS, EARLIER_BUCKETS, START
from streamgauge.analytics.reports.selection import Selection
from streamgauge.analytics.schema.dimensions import LABEL, label
from streamgauge.analytics.schema.model_names import spellings
from streamgauge.analytics.schema.sql_quoting import instant

FAR, ABOVE_PEAK = 4.0, 2.0
LEAST_SHARE = 0.2
"""Least part of all spend that is above the payer's usual one."""
MOST_OF_IT = 0.7
"""Part of the excess with which a narrower payer explains it."""
LEAST_REQUESTS, LEAST_USUAL = 10, 20
"""Requests since the begin, and before it."""
LEAST_ACTIVE = 4
"""Of the `EARLIER_BUCKETS`, those with spend."""
MOST_PAYERS = 100
SESSION = "session"
_NARROWEST = (SESSION, "client", LABEL, "app")


@dataclass(frozen=True, kw_only=True)
class Excess:
    """A payer whose spend rose far above its own."""

    where: Mapping[str, str]
    begin: datetime
    per_h: float
    usual_per_h: float
    requests: int
    session: tuple[str, float] | None = None
    """The session with most of the excess, and its part."""


def _paid(chosen: Selection, *, labelled: bool) -> str:
    """SQL of the common table expressions up to `paid`: the requests with a price, in the most frequent currency."""
    names = spellings("model")
    return f"""
        WITH chosen AS MATERIALIZED (FROM ({source(chosen, labelled=labelled)}) WHERE input_tokens > 0),
        names AS (
            SELECT model, name, min(place) AS place FROM (
                SELECT model, unnest(found) AS name, generate_subscripts(found, 1) AS place
                FROM (SELECT model, {names} AS found FROM (SELECT DISTINCT model FROM chosen))) GROUP BY ALL),
        priced AS (
            SELECT names.model, arg_min(prices, (place, priority)) AS price FROM names JOIN prices ON name GLOB prices.model
            GROUP BY names.model),
        amounts AS (
            SELECT *, coalesce(least(cached_input_tokens, input_tokens), 0) AS cached, price.currency AS currency,
            ((input_tokens - cached) * price.input + cached * price.cached_input + coalesce(output_tokens, 0) * price.output) / 1e6
                AS amount
            FROM chosen JOIN priced USING (model)),
        paid AS (SELECT *, {bucket(chosen, START)} AS bucket FROM amounts WHERE currency = (SELECT mode(currency) FROM amounts))"""


def amounts(chosen: Selection, labels: Sequence[str]) -> str:
    """SQL of `payer` (DIMENSION=VALUE, NULL: all), `bucket`, `requests`, `amount`, `dearest` (of one request), `currency`."""
    payers = {SESSION: "session_id", "client": "client", "app": "app"}
    payers |= {f"{LABEL}={name}": label(name) for name in labels}
    columns = ", ".join(f"'{name}=' || {sql} AS payer_{k}" for k, (name, sql) in enumerate(payers.items()))
    each = ", ".join(f"(bucket, payer_{k})" for k in range(len(payers)))
    any_payer = ", ".join(f"payer_{k}" for k in range(len(payers)))
    return f"""{_paid(chosen, labelled=bool(labels))},
        sums AS (
            SELECT coalesce({any_payer}) AS payer, bucket, count(*)::DOUBLE AS requests, sum(amount) AS amount, max(amount) AS dearest,
            any_value(currency) AS currency FROM (SELECT *, {columns} FROM paid) GROUP BY GROUPING SETS ({each}))
        FROM sums WHERE payer IN (
            SELECT payer FROM sums WHERE bucket >= {EARLIER_BUCKETS} GROUP BY payer ORDER BY sum(amount) DESC, payer LIMIT {MOST_PAYERS})
        UNION ALL BY NAME
        SELECT NULL AS payer, bucket, count(*)::DOUBLE AS requests, sum(amount) AS amount, max(amount) AS dearest,
            any_value(currency) AS currency FROM paid GROUP BY bucket"""


def series(chosen: Selection, where: Mapping[str, str], points: int) -> str:
    """SQL of `point`, `amount`, `first_at` (of the first request) and `stream_id` (of the dearest) of a payer in the range."""
    width_us = int(chosen.length.total_seconds() * 1e6) // points
    return f"""{_paid(chosen, labelled=LABEL in where)}
        SELECT (epoch_us({START}) - epoch_us({instant(chosen.since)})) // {width_us} AS point, sum(amount) AS amount,
            min({START}) AS first_at, arg_max(stream_id::VARCHAR, amount) AS stream_id
        FROM paid WHERE {START} >= {instant(chosen.since)} AND {at_place(where)} GROUP BY ALL"""


def find(frame: pl.DataFrame, edges: Sequence[datetime]) -> Excess | None:
    """The payer that explains the largest excess, of the result of `amounts`."""
    payers = frame["payer"].drop_nulls().unique().sort().to_list()
    if not payers:
        return None
    rows = frame.with_columns(
        pl.col("payer").replace_strict(payers, range(len(payers)), default=len(payers), return_dtype=pl.Int64)
    )
    at = tuple(rows.select("payer", "bucket").to_numpy().T)
    requests, amount, dearest = (np.zeros((len(payers) + 1, ALL_BUCKETS)) for _ in range(3))
    for table, name in ((requests, "requests"), (amount, "amount"), (dearest, "dearest")):
        table[at] = rows[name].to_numpy()
    seconds = np.diff([edge.timestamp() for edge in edges])
    is_far, excess = _far_above(requests, amount, dearest, seconds)
    is_far[-1] = False
    if not is_far.any():
        return None
    largest = np.where(is_far, excess, 0).max()
    begins = np.where(is_far, excess, 0).argmax(1)
    found = [
        i for i in range(len(payers)) if is_far[i, begins[i]] and excess[i, begins[i]] >= MOST_OF_IT * largest
    ]
    i = min(found, key=lambda i: _NARROWEST.index(payers[i].partition("=")[0]))
    b = int(begins[i])
    dimension, _, value = payers[i].partition("=")
    sessions = [k for k, payer in enumerate(payers) if payer.startswith(f"{SESSION}=")]
    session = max(sessions, key=lambda k: excess[k, b], default=None)
    part = excess[session, b] / excess[i, b] if session is not None and dimension != SESSION else 0.0
    name = payers[session].partition("=")[2] if session is not None else ""
    return Excess(
        where={dimension: value}, begin=edges[b], requests=int(requests[i, b:].sum()),
        per_h=3600 * amount[i, b:].sum() / seconds[b:].sum(), usual_per_h=3600 * amount[i, :b].sum() / seconds[:b].sum(),
        session=(name, float(min(part, 1.0))) if part >= MOST_OF_IT else None,
    )  # fmt: skip


def _far_above(requests: Array, amount: Array, dearest: Array, seconds: Array) -> tuple[np.ndarray, Array]:
    """Of each payer and first bucket: whether it spends far more from there on, and the amount above its usual."""
    wide = ALL_BUCKETS // EARLIER_BUCKETS - 1
    is_far, excess = np.zeros(amount.shape, bool), np.zeros(amount.shape)
    rates = amount[:, :EARLIER_BUCKETS] / seconds[:EARLIER_BUCKETS]
    for b in range(EARLIER_BUCKETS + 1, ALL_BUCKETS):
        now_s = seconds[b:].sum()
        now, usual = amount[:, b:].sum(1), amount[:, :b].sum(1) / seconds[:b].sum()
        windows = [
            amount[:, j : j + wide].sum(1) / seconds[j : j + wide].sum()
            for j in range(EARLIER_BUCKETS, b - wide + 1)
        ]
        peak = np.max([*rates.T, *windows], axis=0)
        excess[:, b] = now - usual * now_s
        is_far[:, b] = (
            (now - dearest[:, b:].max(1) >= FAR * usual * now_s)
            & (now >= ABOVE_PEAK * peak * now_s)
            & (excess[:, b] >= LEAST_SHARE * now[-1])
            & (requests[:, b:].sum(1) >= LEAST_REQUESTS)
            & (requests[:, :b].sum(1) >= LEAST_USUAL)
            & ((amount[:, :EARLIER_BUCKETS] > 0).sum(1) >= LEAST_ACTIVE)
        )
    return is_far, excess


def onset(
    frame: pl.DataFrame, found: Excess, chosen: Selection, points: int
) -> tuple[datetime, datetime, datetime]:
    """The onset and the interval of its confidence, of the result of `series`."""
    width = chosen.length / points
    x = np.zeros(points)
    rows = frame.filter(pl.col("point").is_between(0, points - 1))
    x[rows["point"].to_numpy()] = rows["amount"].to_numpy()
    usual, now = (per_h / 3600 * width.total_seconds() for per_h in (found.usual_per_h, found.per_h))
    before = x[: max(2, int((found.begin - chosen.since) / width))]
    at = step(np.ones(points), x, usual, now, max(float(before.var()), 1e-12))
    first = dict(rows.select("point", "first_at").iter_rows())
    return (
        first.get(at.point, chosen.since + width * at.point),
        chosen.since + width * at.earliest,
        chosen.since + width * (at.latest + 1),
    )
