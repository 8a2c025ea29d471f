"""The SQL of a diagnosis. Every result has a bounded number of rows, below the 20,000 of a page.

`cells` aggregates the whole period in wide buckets. `series` and `details` look closer at the places that are suspected.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from streamgauge.analytics.diagnosis.metrics import Metric, metrics, objective_name
from streamgauge.analytics.diagnosis.scope import BUCKETS, EARLIER_BUCKETS, Scope
from streamgauge.analytics.schema.dimensions import CLIENT, GATEWAY, MODEL, is_client
from streamgauge.analytics.schema.objectives import Objective
from streamgauge.analytics.schema.outcomes import ERROR_RATE, IS_ERROR, IS_REQUEST, OK
from streamgauge.analytics.schema.sql_quoting import instant, literal

MOST = {"model": 8, "gateway": 5, "client": 6, "tap": 6, "server": 12}
"""Dimension → values that are looked at, those with the most streams and failures. The others are one value, NULL."""
CUBE = ("model", "gateway", "client")
SINGLE = ("tap", "server")
"""Dimensions that are looked at alone. Means of them are adjusted for the models and gateways of the streams."""
SILENT_S = 20.0
SILENT_FACTOR = 1.5
"""A stream in flight counts as failed, before a timeout ends it, if nothing arrived for `SILENT_S`, and for `SILENT_FACTOR` times the
longest silence of 99 % of the complete streams of its model and gateway."""
MAX_DETAILS = 20


def source(scope: Scope, begin: datetime | None = None, end: datetime | None = None) -> str:
    """SQL of the streams that are compared: finished ones, and those in flight that are silent."""
    begin, end = begin or scope.begin, end or scope.until
    where = f"started_at >= {instant(begin)} AND started_at < {instant(end)} AND ({scope.filters})"
    names = "stream_id, started_at, outcome, http_status, error_type, error_phase, ttft_ns, itl_ns, last_output_ns, stall_count"
    names += ", burstiness, input_tokens, cached_input_tokens, lost_bytes, output_event_count, objective"
    # ttfb_ns and last_output_ns: the last time a stream that then fell silent was active
    return f"""
        SELECT {names}, {MODEL} AS model, {GATEWAY} AS gateway, {CLIENT} AS client, tap, server_instance AS server,
            started_at + to_microseconds(coalesce(end_ns, 0) // 1000) AS ended_at,
            started_at + to_microseconds(coalesce(last_output_ns, ttfb_ns, request_sent_ns, 0) // 1000) AS active_at
        FROM streams WHERE {where} AND {IS_REQUEST}
        UNION ALL BY NAME
        SELECT stream_id, started_at, 'silent' AS outcome, http_status, ttft_ns, last_output_ns, output_event_count,
            model, gateway, client, tap, active_at, active_at AS ended_at
        FROM (
            SELECT * REPLACE ({GATEWAY} AS gateway), {MODEL} AS model, {CLIENT} AS client,
                started_at + to_microseconds(coalesce(last_event_ns, 0) // 1000) AS active_at
            FROM open_streams WHERE {where})
        LEFT JOIN (
            SELECT {MODEL} AS model, {GATEWAY} AS gateway,
                quantile_cont(greatest(coalesce(ttft_ns, end_ns), coalesce(icl_max_ns, 0)), 0.99) AS usual_ns
            FROM streams WHERE {where} AND outcome = '{OK}' GROUP BY ALL) USING (model, gateway)
        WHERE active_at + to_microseconds(greatest({SILENT_S:.0f}e6, {SILENT_FACTOR} * coalesce(usual_ns, 0) / 1000)::BIGINT)
            < least(now(), {instant(end)})"""


def _bucket(scope: Scope) -> str:
    """SQL of the number of a bucket, as in `Scope.edges`."""
    length_us = int(scope.length.total_seconds() * 1e6)
    after = f"epoch_us(ended_at) - epoch_us({instant(scope.since)})"
    return f"""CASE WHEN ended_at >= {instant(scope.since)}
            THEN {EARLIER_BUCKETS} + least({BUCKETS - 1}, ({after}) * {BUCKETS} // {length_us})
            ELSE greatest(0, {EARLIER_BUCKETS} + floor(({after}) * {EARLIER_BUCKETS} / {length_us})) END::INTEGER"""


def _values(compared: Iterable[Metric]) -> str:
    """SQL of the value of each metric by stream: `m_*`, a condition or a number, NULL for streams without the metric."""
    values = {}
    for metric in compared:
        x = f"coalesce(({metric.x}), FALSE)" if metric.kind == "share" else metric.x
        values[f"m_{metric.name}"] = f"CASE WHEN {metric.n} THEN {x} END"
        if metric.least_change_of_stream:
            values[f"l_{metric.family}"] = f"CASE WHEN {metric.n} THEN {metric.least_change_of_stream} END"
    return ",\n            ".join(f"{value} AS {name}" for name, value in values.items())


def _sums(compared: Iterable[Metric], *, adjusted: bool = False) -> str:
    """SQL of the aggregates of the metrics. `adjusted`: means are the differences from the level of the model and gateway."""
    sums = {}
    for metric in compared:
        m = f"m_{metric.name}"
        sums[f"n_{metric.name}"] = f"count({m})"
        if metric.kind == "share":
            sums[f"x_{metric.name}"] = f"count(*) FILTER ({m})"
        else:
            x = f"({m} - level_{metric.name})" if adjusted else m
            sums |= {f"x_{metric.name}": f"sum({x})", f"xx_{metric.name}": f"sum({x} * {x})"}
        if metric.least_change_of_stream:
            sums[f"l_{metric.family}"] = f"sum(l_{metric.family})"
    return ",\n            ".join(f"{value} AS {name}" for name, value in sums.items())


def cells(scope: Scope, objectives: Sequence[Objective]) -> str:
    """SQL of the aggregates that `cube.read` takes.

    `part` (cube, total or one of `SINGLE`), `bucket`, `model`, `gateway`, `client`, `tap`, `server`, and for each metric `n_*`, `x_*`
    and `xx_*`; `l_failure` if the least change differs between streams. Totals have `objective` and the measured values.
    """
    compared = metrics(objectives).values()
    levels = ", ".join(
        f"avg(m_{m.name}) - (SELECT avg(m_{m.name}) FROM chosen) AS level_{m.name}"
        for m in compared
        if m.kind == "mean"
    )
    tops = ",\n        ".join(
        f"top_{d} AS (SELECT {d} AS value FROM chosen WHERE {d} IS NOT NULL GROUP BY ALL"
        f" ORDER BY count(*) + 5 * count(*) FILTER ({IS_ERROR}) DESC, value LIMIT {most})"
        for d, most in MOST.items()
    )

    def named(d: str) -> str:
        return f"CASE WHEN {d} IN (FROM top_{d}) THEN {d} END AS {d}"

    singles = "".join(
        f"""
        UNION ALL BY NAME
        SELECT '{d}' AS part, bucket, {d}, {_sums(compared, adjusted=True)}
        FROM chosen JOIN levels USING (model, gateway) WHERE {d} IN (FROM top_{d}) GROUP BY ALL"""
        for d in SINGLE
    )
    return f"""
        WITH chosen AS MATERIALIZED (
            SELECT {_bucket(scope)} AS bucket, model, gateway, client, tap, server, outcome, started_at, ttft_ns, itl_ns, input_tokens,
            {objective_name(objectives)} AS objective, {_values(compared)}
            FROM ({source(scope)}) WHERE ended_at >= {instant(scope.begin)}),
        {tops},
        levels AS (SELECT model, gateway, {levels} FROM chosen GROUP BY ALL)
        SELECT 'cube' AS part, bucket, {", ".join(map(named, CUBE))}, {_sums(compared)},
            count(*) AS requests, count(*) FILTER (input_tokens > 0) AS n_input,
            sum(ln(if(input_tokens > 0, input_tokens, NULL))) AS x_input
        FROM chosen GROUP BY ALL{singles}
        UNION ALL BY NAME
        SELECT 'total' AS part, objective, count(*) AS requests, {ERROR_RATE} AS error_rate,
            quantile_cont(ttft_ns, 0.95) AS ttft_p95_ns, quantile_cont(itl_ns, 0.95) AS itl_p95_ns
        FROM chosen WHERE started_at >= {instant(scope.since)} GROUP BY ALL"""


@dataclass(frozen=True, kw_only=True)
class Suspect:
    """A place and a metric to look at closely, between two instants."""

    metric: Metric
    where: Mapping[str, str]
    begin: datetime
    end: datetime
    levels: Mapping[tuple[str, str], float] = field(default_factory=dict)
    """(model, gateway) → mean of the metric in the baseline. For metrics that are means."""


def _where(where: Mapping[str, str]) -> str:
    parts = [is_client(d, [v]) if d == "client" else f"{d} = {literal(v)}" for d, v in where.items()]
    return " AND ".join(parts) or "TRUE"


def _union(parts: Iterable[str]) -> str:
    return "\n        UNION ALL BY NAME ".join(parts)


def _over_chosen(scope: Scope, suspects: Sequence[Suspect], parts: Iterable[str]) -> str:
    """SQL of all parts over the streams since shortly before the first suspect."""
    begin = max(min(s.begin for s in suspects) - scope.length / 4, scope.begin)
    return f"WITH chosen AS MATERIALIZED ({source(scope, begin)})\n        {_union(parts)}"


def series(scope: Scope, suspects: Sequence[Suspect], points: int) -> str:
    """SQL of `suspect` (its number), `point` (of `points`), `n`, `x`, `first_at` (of the first affected stream).

    If the metric is a mean, `x` is the sum of the differences from the level of the model and gateway.
    """
    parts = []
    for number, suspect in enumerate(suspects):
        metric = suspect.metric
        width_us = max(1, int((suspect.end - suspect.begin).total_seconds() * 1e6) // points)
        x = f"count(*) FILTER ({metric.x}) AS x, min(moment) FILTER ({metric.x}) AS first_at"
        levels = ""
        if metric.kind == "mean":
            rows = ", ".join(
                f"({literal(m)}, {literal(g)}, {level!r})" for (m, g), level in suspect.levels.items()
            )
            levels = f" JOIN (VALUES {rows}) AS levels(model, gateway, level) USING (model, gateway)"
            x = f"sum(({metric.x}) - level) AS x"
        parts.append(
            f"(SELECT {number} AS suspect, ((epoch_us(moment) - epoch_us({instant(suspect.begin)})) // {width_us})::INTEGER AS point,"
            f" count(*) AS n, {x}"
            f" FROM (SELECT *, {metric.at} AS moment FROM chosen WHERE {_where(suspect.where)} AND ({metric.n})){levels}"
            f" WHERE moment >= {instant(suspect.begin)} AND moment < {instant(suspect.end)} GROUP BY ALL)"
        )
    return _over_chosen(scope, suspects, parts)


def details(scope: Scope, objectives: Sequence[Objective], suspects: Sequence[Suspect]) -> str:
    """SQL of the affected streams of each suspect by cause.

    `suspect`, `outcome`, `http_status`, `error_type`, `error_phase`, `streams`, `objective` (the most frequent one),
    `stream_id` (an example).
    """
    parts = []
    for number, suspect in enumerate(suspects):
        metric = suspect.metric
        is_share = metric.kind == "share"
        order = "started_at" if is_share or metric.direction < 0 else metric.x
        parts.append(
            f"(SELECT {number} AS suspect, outcome, http_status, error_type, error_phase, count(*) AS streams,"
            f" mode({objective_name(objectives)}) AS objective, arg_max(stream_id::VARCHAR, {order}) AS stream_id"
            f" FROM (SELECT *, {metric.at} AS moment FROM chosen WHERE {_where(suspect.where)} AND ({metric.n})"
            f" {f'AND ({metric.x})' if is_share else ''})"
            f" WHERE moment >= {instant(suspect.begin)} AND moment < {instant(suspect.end)}"
            f" GROUP BY ALL ORDER BY streams DESC LIMIT {MAX_DETAILS})"
        )
    return _over_chosen(scope, suspects, parts)
