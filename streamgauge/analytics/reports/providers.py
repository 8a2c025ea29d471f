"""Where a model is fastest and cheapest: the same model at each provider and gateway, by speed, errors and cost.

Names that stand for one model, such as `openai/gpt-5` and `gpt-5`, are one model, as for prices.
"""

from __future__ import annotations

import polars as pl

from streamgauge.analytics.reports import Query, columns
from streamgauge.analytics.reports.columns import ms, number, percent, seconds, text
from streamgauge.analytics.reports.metric_help import metric_help
from streamgauge.analytics.reports.overview import SUMMARY, SUMMARY_COLUMNS
from streamgauge.analytics.reports.selection import GATEWAY, MIN_SAMPLES, MODEL, Selection
from streamgauge.analytics.reports.spend import cost_text
from streamgauge.analytics.schema.dimensions import TO_MODEL
from streamgauge.analytics.schema.model_names import spellings
from streamgauge.analytics.schema.outcomes import IS_REQUEST

CLOSE = 1.05
"""Values up to this factor above the least one are equally good."""
FASTEST, CHEAPEST = "fastest", "cheapest"


TABLE = columns.table(
    "Providers by model",
    text("model", "Model"),
    text("provider", "Provider"),
    text("gateway", "Gateway"),
    text("best", "Best", state=lambda row: "good" if row["best"] else None),
    number("requests", "Requests"),
    percent("error_rate", "Errors", digits=2),
    ms("ttft_p50_ns", "TTFT p50"),
    ms("ttft_p95_ns", "TTFT p95"),
    ms("itl_p50_ns", "ITL p50", digits=1),
    number("tps_user_p50", "Output", unit="tok/s", digits=1),
    seconds("answer_ns", "Typical answer", digits=2, help=metric_help("typical_answer")),
    text("typical_cost_text", "1,000 typical requests", number=True, help=metric_help("typical_cost")),
    number("per_1000_output", "Per 1,000 tokens out", digits=4),
)


def table(query: Query, selection: Selection, *, most: int = 60) -> pl.DataFrame:
    """The columns of `TABLE` and `SUMMARY_COLUMNS`, `typical_cost` (of one request) and `currency`, by model,
    provider and gateway.

    Models at several places come first, then the busiest. `best` is NULL, `fastest`, `cheapest`, or both: up to `CLOSE` times the
    least value of the places of the model that have `MIN_SAMPLES` requests, unless all of them are. Compared costs are those of the same
    tokens, in the currency of most requests of the model.
    """
    frame = query(f"""
        WITH chosen AS (
                SELECT *, {MODEL} AS name, coalesce(provider, '(unknown)') AS seller, {GATEWAY} AS place FROM streams
                WHERE {selection.where()} AND {IS_REQUEST} AND {TO_MODEL}),
            names AS (SELECT name, {spellings("name")}[-1] AS model FROM (SELECT DISTINCT name FROM chosen)),
            speed AS (
                SELECT model, seller AS provider, place AS gateway, {SUMMARY} FROM chosen JOIN names USING (name) GROUP BY ALL),
            typical AS (
                SELECT model, greatest(median(output_tokens), 2) AS tokens, avg(input_tokens) AS mean_in, avg(output_tokens) AS mean_out
                FROM chosen JOIN names USING (name) WHERE outcome = 'ok' GROUP BY ALL),
            cost AS (
                SELECT names.model, coalesce(provider, '(unknown)') AS provider, {GATEWAY} AS gateway, currency, sum(total) AS cost,
                    count(*) AS priced, 1000 * sum(total) / nullif(sum(output_tokens), 0) AS per_1000_output,
                    sum(input_total) / nullif(sum(input_tokens), 0) AS per_input,
                    sum(output_total) / nullif(sum(output_tokens), 0) AS per_output
                FROM spend JOIN names ON names.name = {MODEL}
                WHERE {selection.where()} AND currency IS NOT NULL GROUP BY ALL),
            compared AS (
                SELECT model, arg_max(currency, priced) AS currency
                FROM (SELECT model, currency, sum(priced) AS priced FROM cost GROUP BY ALL ORDER BY currency) GROUP BY ALL)
        SELECT *, ttft_p50_ns + (tokens - 1) * itl_p50_ns AS answer_ns, per_input * mean_in + per_output * mean_out AS typical_cost,
            nullif(concat_ws(', ', {_best(FASTEST, "answer_ns")}, {_best(CHEAPEST, "typical_cost")}), '') AS best
        FROM (SELECT {SUMMARY_COLUMNS} FROM speed) LEFT JOIN typical USING (model)
            LEFT JOIN (FROM cost SEMI JOIN compared USING (model, currency)) USING (model, provider, gateway)
        WINDOW places AS (PARTITION BY model)
        ORDER BY least(count(*) OVER places, 2) DESC, sum(requests) OVER places DESC, model, requests DESC, provider, gateway
        LIMIT {most:d}""")
    costs = [
        row["typical_cost"] and cost_text(1000 * row["typical_cost"], row["currency"])
        for row in frame.to_dicts()
    ]
    return frame.with_columns(pl.Series("typical_cost_text", costs, pl.String))


def _best(name: str, column: str) -> str:
    """SQL of the name, if the column has one of the least values of the places of a model. Of equally good places, none is named."""
    counts = f"requests >= {MIN_SAMPLES} AND {column} IS NOT NULL"
    least, most = (
        f"{CLOSE} * min({column}) FILTER ({counts}) OVER places",
        f"max({column}) FILTER ({counts}) OVER places",
    )
    return f"CASE WHEN {counts} AND {column} <= {least} AND {most} > {least} THEN '{name}' END"
