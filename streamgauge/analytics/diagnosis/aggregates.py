"""The SQL of the aggregates that a diagnosis compares. No I/O.

`cells` aggregates the range and the baseline (the period of the same length before it) in wide time buckets. `pairs` aggregates
combinations of further dimensions. `series` and `details` examine the places that both show. Every result has fewer than 20,000 rows, the
limit of a page.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from streamgauge.analytics.diagnosis.diagnosis import FAILURES
from streamgauge.analytics.diagnosis.metrics import (
    AGE,
    ALONE,
    BUCKETS,
    CUBE,
    CUT,
    EARLIER_BUCKETS,
    LEAST_SIZE_BYTES,
    MOST_PAIRS,
    PAIR,
    PAIRED,
    SIZE_NAMES,
    SLOW_CLIENT_S,
    START,
    STRATA,
    STRATUM,
    UNKNOWN,
    UPSTREAM_PROBLEM,
    Metric,
    metrics,
    objective_name,
)
from streamgauge.analytics.reports import blame, quality
from streamgauge.analytics.reports.selection import Selection
from streamgauge.analytics.schema.dimensions import (
    CLIENT,
    ENDED_AT,
    GATEWAY,
    INPUT_TOKENS,
    LABEL,
    MODEL,
    has_labels,
    is_client,
    label,
)
from streamgauge.analytics.schema.finish_reasons import FINISH
from streamgauge.analytics.schema.objectives import Objective
from streamgauge.analytics.schema.outcomes import ERROR_RATE, IS_COUNTED, IS_ERROR, IS_REQUEST, OK
from streamgauge.analytics.schema.sql_quoting import instant, later, literal

SILENT_NS = 20_000_000_000
SILENT_FACTOR = 1.5
"""A stream in flight is silent if nothing arrived for `SILENT_NS`, and for `SILENT_FACTOR` times the longest silence of 99 % of the
complete streams of its model and gateway. It counts as failed before a timeout ends it."""
MAX_DETAILS = 20
MAX_POINTS = 18_000
"""Rows of `series`. All points without codes fit, and usual numbers of codes."""
CODED, CODES = ("http_error", "inband_error"), 100
"""Metrics whose failures have different codes, and into how many groups those are divided at most."""
MANY_AFFECTED = ("x_other_model", "x_violation")
"""Sums that may count all streams of a place: an alias is always answered by another model, and a gateway may always break a rule."""
LEAST_BEFORE = 20
"""Minimum number of streams before an onset for their median to be shown."""


def source(
    chosen: Selection, begin: datetime | None = None, end: datetime | None = None, *, labelled: bool = False
) -> str:
    """SQL of the streams that are compared: finished ones, and those in flight that are silent. `labelled`: with `labels`."""
    begin, end = begin or chosen.before().since, end or chosen.until
    where = f"started_at >= {instant(begin)} AND started_at < {instant(end)} AND ({chosen.filters()})"
    names = "stream_id, started_at, http_status, error_type, error_phase, ttft_ns, itl_ns, last_output_ns, stall_count, burstiness"
    names += ", request_model, response_model, tool_repeats, repeated_tool, session_id, error_message, request_bytes, reasoning_tokens"
    names += ", cache_miss_reason, cache_miss_segment, cache_missed_tokens"
    names += f", lost_bytes, objective, waited_client_ns, end_ns, delivered_ns, violations, {', '.join(quality.COLUMNS)}"
    labels = ", labels" if labelled else ""
    names += labels
    # The last activity of a stream that then became silent is at ttfb_ns or last_output_ns.
    return f"""
        SELECT {names}, {MODEL} AS model, {GATEWAY} AS gateway, {CLIENT} AS client, client_app AS app, tap,
            coalesce(server_instance, '{UNKNOWN}') AS server,
            {ENDED_AT} AS ended_at,
            {later(START, "coalesce(last_output_ns, ttfb_ns, request_sent_ns, 0)")} AS active_at
        FROM (SELECT * REPLACE ({INPUT_TOKENS} AS input_tokens) FROM streams WHERE {where} AND {IS_REQUEST})
        UNION ALL BY NAME (
            WITH quiet AS (
                SELECT * REPLACE ({GATEWAY} AS gateway), {MODEL} AS model, {CLIENT} AS client,
                    {later(START, "coalesce(last_event_ns, 0)")} AS active_at
                FROM open_streams WHERE {where} AND waits_for_client IS NOT TRUE AND {_is_over(SILENT_NS, end)})
            SELECT stream_id, started_at, 'silent' AS outcome,
                http_status, ttft_ns, last_output_ns, output_event_count,
                model, gateway, client, client_app AS app, tap, active_at, active_at AS ended_at{labels}
            FROM quiet LEFT JOIN (
                SELECT {MODEL} AS model, {GATEWAY} AS gateway,
                    quantile_cont(greatest(coalesce(ttft_ns, end_ns), coalesce(icl_max_ns, 0)), 0.99) AS usual_ns
                FROM streams WHERE {where} AND outcome = '{OK}' AND ({MODEL}, {GATEWAY}) IN (SELECT (model, gateway) FROM quiet)
                GROUP BY ALL) USING (model, gateway)
            WHERE {_is_over(f"({SILENT_FACTOR} * coalesce(usual_ns, 0))::BIGINT", end)})"""


def _is_over(ns: str | int, end: datetime) -> str:
    """SQL condition: this time passed between `active_at` and the end of the range."""
    return f"{later('active_at', str(ns))} < least(now(), {instant(end)})"


def bucket(chosen: Selection, at: str = "ended_at") -> str:
    """SQL of the number of a bucket, as in `edges`."""
    length_us = int(chosen.length.total_seconds() * 1e6)
    after = f"(epoch_us({at}) - epoch_us({instant(chosen.since)}))"
    earlier = f"({after} + {length_us}) * {EARLIER_BUCKETS} // {length_us}"
    return f"""CASE WHEN {after} >= 0 THEN {EARLIER_BUCKETS} + least({BUCKETS - 1}, {after} * {BUCKETS} // {length_us})
            ELSE greatest(0, {earlier}) END::INTEGER"""


_SHARED = {
    "is_answer": quality.IS_ANSWER, "is_counted": IS_COUNTED, "is_error": IS_ERROR, "finish": FINISH, "upstream_problem": UPSTREAM_PROBLEM,
}  # fmt: skip
"""Column → SQL that many metrics share. DuckDB evaluates an expression once only if it is a column."""


def _shared(sql: str) -> str:
    """SQL over `_SHARED`."""
    for name, shared in _SHARED.items():
        sql = sql.replace(shared, name)
    return sql


def _values(compared: Iterable[Metric]) -> str:
    """SQL of the value of each metric by stream: `m_*`, a condition or a number, NULL for streams without the metric. Over `_SHARED`.

    Failures are mutually exclusive: `failure` is the index of the metric in `FAILURES`, -1 for other streams that are counted.
    """
    whens = [f"WHEN {m.x} THEN {FAILURES.index(m.name)}" for m in compared if m.name in FAILURES]
    values = (
        {"failure": f"CASE WHEN NOT ({IS_COUNTED}) THEN NULL {' '.join(whens)} ELSE -1 END"} if whens else {}
    )
    for metric in compared:
        if metric.name not in FAILURES:
            x = f"coalesce(({metric.x}), FALSE)" if metric.kind == "share" else metric.x
            values[f"m_{metric.name}"] = f"CASE WHEN {metric.n} THEN {x} END"
        if metric.least_change_of_stream:
            values[f"l_{metric.family}"] = f"CASE WHEN {metric.n} THEN {metric.least_change_of_stream} END"
    return _shared(_columns(values))


def same_n(compared: Collection[Metric], metric: Metric) -> str:
    """The first metric with the same streams. They are counted once."""
    return next(m.name for m in compared if (m.n, m.by_input) == (metric.n, metric.by_input))


def _sums(compared: Collection[Metric], *, adjusted: bool = False) -> dict[str, str]:
    """Column → SQL of the aggregates. `adjusted`: means are the differences from the level of the model, gateway and stratum."""
    sums = {}
    for metric in compared:
        is_failure = metric.name in FAILURES
        m = f"failure = {FAILURES.index(metric.name)}" if is_failure else f"m_{metric.name}"
        if same_n(compared, metric) == metric.name:
            sums[f"n_{metric.name}"] = f"count({'failure' if is_failure else m})"
        if metric.kind == "share":
            sums[f"x_{metric.name}"] = f"count_if({m})"
        elif adjusted:
            sums[f"x_{metric.name}"] = f"sum(d_{metric.name})"
        else:
            sums |= {f"x_{metric.name}": f"sum({m})", f"xx_{metric.name}": f"sum({m} * {m})"}
        if metric.least_change_of_stream:
            sums[f"l_{metric.family}"] = f"sum(l_{metric.family})"
    return sums


def _by_stratum(sums: Mapping[str, str], compared: Iterable[Metric]) -> dict[str, str]:
    """Column → SQL of the sums. The columns of metrics with `by_input` are those of each stratum."""
    divided = [f"{c}_{metric.name}" for metric in compared if metric.by_input for c in ("n", "x", "xx")]
    found = {name: f"({sql})::DOUBLE" for name, sql in sums.items() if name not in divided}
    for name in (name for name in divided if name in sums):
        function, _, value = sums[name].removesuffix(")").partition("(")
        # Five times as fast as a FILTER.
        found |= {
            f"{name}_{k}": f"{function}(CASE WHEN stratum = {k} THEN {value} END)::DOUBLE"
            for k in range(STRATA)
        }
    return found


def _columns(expressions: Mapping[str, str]) -> str:
    return ",\n            ".join(f"{value} AS {name}" for name, value in expressions.items())


def _aggregated(
    keys: Mapping[str, str], sums: Mapping[str, str], of: str, group: str, is_affected: str
) -> str:
    """SQL of sums by keys. Those that count affected streams are aggregated apart: most streams are not affected by anything
    (`MANY_AFFECTED` is an exception)."""
    few = {name: sql for name, sql in sums.items() if "count_if(" in sql and name not in MANY_AFFECTED}
    many = {name: sql for name, sql in sums.items() if name not in few}
    same = " AND ".join(f"many.{key} IS NOT DISTINCT FROM few.{key}" for key in keys)
    return f"""
        SELECT many.*, few.* EXCLUDE ({", ".join(keys)})
        FROM (SELECT {_columns({**keys, **many})} FROM {of} GROUP BY {group}) AS many
        LEFT JOIN (SELECT {_columns({**keys, **few})} FROM {of} WHERE {is_affected} GROUP BY {group}) AS few ON {same}"""


def _tops(most: Mapping[str, int], weight: str, of: str = "chosen") -> str:
    """SQL of the compared values of each dimension."""
    return ",\n        ".join(
        f"top_{d} AS (SELECT {d} FROM {of} WHERE {d} IS NOT NULL GROUP BY ALL ORDER BY sum({weight}) DESC, {d} LIMIT {limit})"
        for d, limit in most.items()
    )


def _named(d: str) -> str:
    """SQL of a value of a dimension if it is compared, else NULL."""
    return f"CASE WHEN {d} IN (FROM top_{d}) THEN {d} END AS {d}"


def cells(chosen: Selection, objectives: Sequence[Objective], labels: Sequence[str] = ()) -> str:
    """SQL of the aggregates that `cell_tables.read` reads. `labels`: names of the compared labels.

    Columns: `part` (cube, alone, pair, age or total), `bucket`, the dimensions of `CUBE` or the `value`, and for each metric `n_*`, `x_*`
    and in the cube `xx_*`. The name ends with the stratum if `Metric.by_input`. `l_*` exists if the least change differs between streams.
    Totals have `objective` and the measured values.
    """
    compared = metrics(objectives).values()
    alone = {name: (name, dimension) for name, dimension in ALONE.items() if name != LABEL}
    alone |= {f"label_{name}": (LABEL, replace(ALONE[LABEL], sql=label(name))) for name in labels}
    values = {name: f"({_shared(d.sql)})::VARCHAR" for name, (_, d) in alone.items()}
    means = [m for m in compared if m.kind == "mean"]
    # The length of prompts defines the stratum, so it has no level within one.
    at = {
        m: f"sum(sum(m_{m.name})) OVER (PARTITION BY model, gateway) / nullif(sum(count(m_{m.name})) OVER (PARTITION BY model, gateway), 0)"
        for m in means
    }
    at |= {m: f"avg(m_{m.name})" for m in means if m.by_input}
    levels = ", ".join(
        f"{level} - sum(sum(m_{m.name})) OVER () / sum(count(m_{m.name})) OVER () AS level_{m.name}"
        for m, level in at.items()
        if not m.of_client
    )
    levels_of_client = ", ".join(
        f"avg(m_{m.name}) - sum(sum(m_{m.name})) OVER () / sum(count(m_{m.name})) OVER () AS level_{m.name}"
        for m in means
        if m.of_client
    )
    tops = _tops({name: d.most for name, (_, d) in alone.items() if d.is_open}, "weight")
    sums = _sums(compared) | {
        "requests": "count(*)",
        "n_input": "count(*) FILTER (input_tokens > 0)",
        "x_input": "sum(ln(if(input_tokens > 0, input_tokens, NULL)))",
    }
    differences = {f"d_{m.name}": f"m_{m.name} - level_{m.name}" for m in means}
    dimensions = ", ".join(_named(name) if d.is_open else name for name, (_, d) in alone.items())
    limits = " ".join(
        f"WHEN '{part}' THEN {d.most}" for part, d in alone.values() if not d.is_open | d.is_ordered
    )
    sets = ", ".join(f"(bucket, {name})" for name in alone)
    # All streams have levels. With inner joins, DuckDB builds its hash table of the streams, not of the levels.
    prefixes = {
        name: f"{part}={name.removeprefix('label_')}=" if part == LABEL else f"{part}="
        for name, (part, _) in alone.items()
    }
    whens = " ".join(
        f"WHEN {name} IS NOT NULL THEN '{prefix}' || {name}" for name, prefix in prefixes.items()
    )
    cuts = ", ".join(str(FAILURES.index(name)) for name in CUT)
    # Shares above an objective change with the mix of requests: their means are compared instead.
    of_values = {"weight": "sum(weight)", **_sums([m for m in compared if not m.is_slow], adjusted=True)}
    of_values = {name: f"({sql})::DOUBLE" for name, sql in of_values.items()}
    cube = {"bucket": "bucket", **{d: _named(d).removesuffix(f" AS {d}") for d in CUBE}}
    of_alone = {"bucket": "bucket", "alone": f"CASE {whens} END"}
    is_affected = " OR ".join(
        [
            "failure >= 0",
            *(
                f"m_{m.name}"
                for m in compared
                if m.kind == "share" and m.name not in FAILURES and f"x_{m.name}" not in MANY_AFFECTED
            ),
        ]
    )
    paired = [name for name, (part, _) in alone.items() if part in PAIRED]
    paired_values = ", ".join(_named(name) if alone[name][1].is_open else name for name in paired)
    pair_sets = ", ".join(f"(bucket, {name}, model)" for name in paired)
    pair_whens = " ".join(f"WHEN {name} IS NOT NULL THEN '{prefixes[name]}' || {name}" for name in paired)
    return f"""
        WITH chosen AS MATERIALIZED (
            SELECT {bucket(chosen)} AS bucket, {", ".join(CUBE)}, tap, {_columns(values)}, outcome, started_at, ttft_ns, itl_ns,
            input_tokens, if(is_error OR {blame.CLIENT_NS} > {SLOW_CLIENT_S}e9, 6, 1) AS weight,
            {STRATUM} AS stratum, hash(model, gateway, stratum) AS level_of, {AGE} AS age,
            {objective_name(objectives)} AS objective, {_values(compared)}
            FROM (SELECT *, {_columns(_SHARED)} FROM ({source(chosen, labelled=bool(labels))}))),
        weights AS (SELECT {", ".join(CUBE)}, sum(weight) AS weight FROM chosen GROUP BY ALL),
        {_tops(CUBE, "weight", "weights")},
        {tops},
        levels AS (
            SELECT level_of, {levels} FROM chosen GROUP BY level_of, model, gateway),
        levels_of_clients AS (SELECT client, {levels_of_client} FROM chosen GROUP BY client),
        adjusted AS NOT MATERIALIZED (
            SELECT * EXCLUDE ({", ".join(alone)}), {dimensions}, {_columns(differences)}
            FROM chosen LEFT JOIN levels USING (level_of) LEFT JOIN levels_of_clients USING (client)),
        values_alone AS ({_aggregated(of_alone, of_values, "adjusted", f"GROUPING SETS ({sets})", is_affected)}),
        pairs AS (
            SELECT bucket, CASE {pair_whens} END || '{PAIR}' || model AS pair,
            count(failure)::DOUBLE AS n_rate_limited, count_if(failure >= 0)::DOUBLE AS x_rate_limited
            FROM (SELECT bucket, model, failure, {paired_values} FROM chosen) GROUP BY GROUPING SETS ({pair_sets})
            HAVING pair IS NOT NULL AND model IN (FROM top_model)),
        top_alone AS (
            SELECT alone FROM values_alone GROUP BY alone QUALIFY row_number() OVER (
                PARTITION BY split_part(alone, '=', 1) ORDER BY sum(weight) DESC, alone)
                <= CASE split_part(alone, '=', 1) {limits} ELSE 'infinity'::DOUBLE END)
        SELECT 'cube' AS part, * FROM ({_aggregated(cube, _by_stratum(sums, compared), "chosen", "ALL", is_affected)})
        UNION ALL BY NAME
        SELECT 'alone' AS part, * EXCLUDE (weight) FROM values_alone WHERE alone IN (FROM top_alone)
        UNION ALL BY NAME
        SELECT 'pair' AS part, * FROM pairs WHERE pair IN (
            SELECT pair FROM pairs GROUP BY pair HAVING sum(x_rate_limited) >= 3
            ORDER BY sum(x_rate_limited) / sum(n_rate_limited) DESC, pair LIMIT {MOST_PAIRS})
        UNION ALL BY NAME
        SELECT 'age' AS part, bucket, age, count(*)::DOUBLE AS x_cut FROM chosen WHERE failure IN ({cuts}) AND age >= 0 GROUP BY ALL
        UNION ALL BY NAME
        SELECT 'total' AS part, objective, count(*) AS requests, {ERROR_RATE} AS error_rate,
            quantile_cont(ttft_ns, 0.95) AS ttft_p95_ns, quantile_cont(itl_ns, 0.95) AS itl_p95_ns
        FROM chosen WHERE started_at >= {instant(chosen.since)} GROUP BY ALL"""


@dataclass(frozen=True, kw_only=True)
class Pairs:
    """Combinations of dimensions in which some metrics may have got worse."""

    metrics: Sequence[Metric]
    dimensions: Mapping[str, int]
    """Dimension → number of its values that could be named. A combination has at least a model and a gateway."""
    values: Sequence[tuple[str, str]]
    """(dimension, value) of the compared values of the other dimensions."""


def pairs(chosen: Selection, objectives: Sequence[Objective], parts: Sequence[Pairs]) -> str:
    """SQL of the aggregates that `cell_tables.read_pairs` reads, as those of the cube in `cells`. `part` is the index of the part."""
    compared = {m.name: m for part in parts for m in part.metrics}
    places = {f"is_{i}": place for i, place in enumerate(dict.fromkeys(v for p in parts for v in p.values))}
    conditions = {name: f"({at_place(dict([place]))})" for name, place in places.items()}
    unions = []
    for number, part in enumerate(parts):
        axes = {d: _named(d) for d in ("model", "gateway")}
        for dimension in part.dimensions.keys() - axes.keys():
            whens = (
                f"WHEN {name} THEN {literal(place[1])}"
                for name, place in places.items()
                if place[0] == dimension and place in part.values
            )
            axes[dimension] = f"CASE {' '.join(whens)} END AS {dimension}"
        sums = _sums(part.metrics) | {"requests": "count(*)"}
        unions.append(f"""
        SELECT {number} AS part, bucket, {", ".join(axes.values())}, {_columns(_by_stratum(sums, part.metrics))}
        FROM chosen GROUP BY ALL""")
    labelled = any(place[0] == LABEL for place in places.values())
    return f"""
        WITH chosen AS MATERIALIZED (
            SELECT {bucket(chosen)} AS bucket, model, gateway, {_columns(conditions)}, is_error, {STRATUM} AS stratum,
            {_values(compared.values())}
            FROM (SELECT *, {_columns(_SHARED)} FROM ({source(chosen, labelled=labelled)}))),
        {_tops({d: CUBE[d] for d in ("model", "gateway")}, "if(is_error, 6, 1)")}
        {" UNION ALL BY NAME ".join(unions)}"""


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A place and a metric to examine between two instants."""

    metric: Metric
    where: Mapping[str, str]
    begin: datetime
    end: datetime
    levels: Mapping[tuple[str, str, int], float] = field(default_factory=dict)
    """(model, gateway, stratum) → mean of the metric in the baseline. For metrics that are means. Without strata, that is 0."""
    by_code: bool = False


def at_place(where: Mapping[str, str]) -> str:
    """SQL condition of the streams of a place, over `source`."""
    return " AND ".join(_is_at(d, value) for d, value in where.items()) or "TRUE"


def _is_at(dimension: str, value: str) -> str:
    """SQL condition of the streams of a value, over `source`."""
    if dimension == "client":
        return is_client(dimension, [value])
    if dimension == LABEL:
        return has_labels([value])
    if dimension == "session":
        return f"session_id = {literal(value)}"
    if dimension == "size":
        return f"request_bytes >= {LEAST_SIZE_BYTES << SIZE_NAMES.index(value)}"
    sql = ALONE[dimension].sql if dimension in ALONE else dimension
    return f"{sql} = {literal(value)}"


def _over_chosen(chosen: Selection, candidates: Sequence[Candidate], parts: Iterable[str]) -> str:
    """SQL of all parts over the streams of the candidates' places since shortly before the first candidate."""
    begin = max(min(c.begin for c in candidates) - chosen.length / 2, chosen.before().since)
    rows = source(chosen, begin, labelled=any(LABEL in c.where for c in candidates))
    places = " OR ".join(dict.fromkeys(f"({at_place(c.where)})" for c in candidates))
    return f"WITH chosen AS MATERIALIZED (SELECT * FROM ({rows}) WHERE {places}) {' UNION ALL BY NAME '.join(parts)}"


def series(chosen: Selection, candidates: Sequence[Candidate], points: int) -> str:
    """SQL of `candidate` (its number), `point` (of `points`), `n`, `x`, `first_at` (of the first affected stream).
    Failures of a candidate `by_code` have rows of their own by `code`, one of `CODES` numbers.

    If the metric is a mean, all streams are affected, and `x` is the sum of the differences from the level of the model, gateway and
    stratum.
    """
    parts = []
    for number, candidate in enumerate(candidates):
        metric = candidate.metric
        width_us = max(1, int((candidate.end - candidate.begin).total_seconds() * 1e6) // points)
        point = f"((epoch_us(moment) - epoch_us({instant(candidate.begin)})) // {width_us})::INTEGER"
        x = f"count(*) FILTER ({metric.x}) AS x, min(moment) FILTER ({metric.x}) AS first_at"
        levels, code = "", "NULL"
        if candidate.by_code:
            code = f"CASE WHEN {metric.x} THEN hash(outcome, http_status, error_type) % {CODES} END"
        if metric.kind == "mean":
            rows = ", ".join(
                f"({literal(m)}, {literal(g)}, {k}, {level!r})"
                for (m, g, k), level in candidate.levels.items()
            )
            levels = f" JOIN (VALUES {rows}) AS levels(model, gateway, stratum, level) USING (model, gateway, stratum)"
            x = f"sum((({metric.x}) - level)::DOUBLE) AS x, min(moment) AS first_at"
        parts.append(
            f"(SELECT {number} AS candidate, code, {point} AS point,"
            f" count(*) AS n, {x}"
            f" FROM (SELECT *, {metric.at} AS moment, {STRATUM if metric.by_input else 0} AS stratum, {code} AS code FROM chosen"
            f" WHERE {at_place(candidate.where)} AND ({metric.n})){levels}"
            f" WHERE moment >= {instant(candidate.begin)} AND moment < {instant(candidate.end)} GROUP BY ALL)"
        )
    return f"{_over_chosen(chosen, candidates, parts)} LIMIT {MAX_POINTS}"


def _quantiles(metric: Metric, candidate: Candidate) -> str:
    """SQL of the quantiles of one metric at the place of a candidate."""
    since, until = instant(candidate.begin), instant(candidate.end)
    now = f"FILTER ({metric.n} AND {metric.at} >= {since} AND {metric.at} < {until})"
    before = f"FILTER ({metric.n} AND {metric.at} < {since})"

    def quantile(share: float, of: str) -> str:
        return f"exp(quantile_cont({metric.x}, {share}) {of}) - {metric.offset}"

    found = {
        f"p50_{metric.name}": quantile(0.5, now),
        f"p95_{metric.name}": quantile(0.95, now),
        f"before_{metric.name}": f"if(count(*) {before} >= {LEAST_BEFORE}, {quantile(0.5, before)}, NULL)",
    }
    return ", ".join(f"{sql} AS {name}" for name, sql in found.items())


def recent(chosen: Selection, candidates: Sequence[Candidate]) -> str:
    """SQL of `candidate`, `n` (its streams) and `value`: the share of affected streams, or the mean."""
    return _over_chosen(
        chosen,
        candidates,
        [
            f"(SELECT {number} AS candidate, count(*) AS n, avg(({c.metric.x})::DOUBLE) AS value"
            f" FROM (SELECT *, {c.metric.at} AS moment FROM chosen WHERE {at_place(c.where)} AND ({c.metric.n}))"
            f" WHERE moment >= {instant(c.begin)} AND moment < {instant(c.end)})"
            for number, c in enumerate(candidates)
        ],
    )


def cache_missed(chosen: Selection, candidate: Candidate) -> str:
    """SQL of the cost of the affected streams' cache misses, one row per currency.

    `share`: share of the input tokens of the candidate's place that the prompt cache missed. `currency`, `money`: their cost per hour, NULL
    without a price.
    """
    at = f"{at_place(candidate.where)} AND started_at >= {instant(candidate.begin)} AND started_at < {instant(candidate.end)}"
    hours = (candidate.end - candidate.begin).total_seconds() / 3600
    return _over_chosen(
        chosen,
        [candidate],
        [
            f"""SELECT any_value(share) AS share, currency, sum(cache_missed) / {hours!r} AS money
        FROM (SELECT stream_id, {candidate.metric.x} AS is_affected, sum(cache_missed_tokens) FILTER ({candidate.metric.x}) OVER ()
            / sum(input_tokens) OVER () AS share FROM chosen WHERE {at} AND {candidate.metric.n})
        LEFT JOIN (SELECT stream_id, currency, cache_missed FROM spend WHERE started_at >= {instant(candidate.begin)}
            AND started_at < {instant(candidate.end)}) USING (stream_id) WHERE is_affected GROUP BY currency ORDER BY money DESC"""
        ],
    )


def details(
    chosen: Selection,
    objectives: Sequence[Objective],
    candidates: Sequence[Candidate],
    averaged: Collection[str],
) -> str:
    """SQL of the affected streams of each candidate by cause.

    `candidate`, `outcome`, `http_status`, `error_type`, `error_phase`, `streams`, `usual` (as many as before the candidate's begin),
    `with_tools` (streams with a tool call), `objective` (the most frequent one), `broken` (the most frequent dialect with its
    violations), `served` (the most frequent response model), `changed` (the most frequent changed segment of the prompt, and the reason),
    `repeats`, `tool` and `session_id` of the
    longest loop, `ages` (classes of `AGE` with their streams), `age_ns` (the median),
    `stream_id` (an example). Each candidate has one more row, in which `streams` is NULL. It has
    `before_tools`, the share of streams with a tool call before the candidate's begin. For the metrics in `averaged`, which are means of
    logarithms, it has `p50_*` and `p95_*`, and `before_*`, the median of the streams before (NULL if fewer than `LEAST_BEFORE`).
    """
    before = chosen.length / 4
    logs = [metric for name, metric in metrics(objectives).items() if name in averaged]
    parts = []
    for number, candidate in enumerate(candidates):
        metric = candidate.metric
        is_share = metric.kind == "share"
        order = "started_at" if is_share or metric.direction < 0 else metric.x
        parts.append(
            f"(SELECT {number} AS candidate, outcome, http_status, error_type, error_phase, count(*) FILTER (is_now) AS streams,"
            f" {(candidate.end - candidate.begin) / before:.4f} * count(*) FILTER (NOT is_now) AS usual,"
            f" count(*) FILTER (is_now AND tool_call_count > 0) AS with_tools,"
            f" mode({objective_name(objectives)}) AS objective, mode(list_prepend(dialect, violations)) FILTER (is_now) AS broken,"
            f" mode(response_model) FILTER (is_now) AS served,"
            f" mode([cache_miss_segment, cache_miss_reason]) FILTER (is_now) AS changed,"
            f" max(tool_repeats) FILTER (is_now) AS repeats, arg_max(repeated_tool, tool_repeats) FILTER (is_now) AS tool,"
            f" map_entries(histogram({AGE}) FILTER (is_now AND end_ns >= 1e9)) AS ages,"
            f" quantile_cont(end_ns, 0.5) FILTER (is_now) AS age_ns,"
            f" arg_max(session_id, tool_repeats) FILTER (is_now) AS session_id,"
            f" arg_max(stream_id::VARCHAR, {order}) FILTER (is_now) AS stream_id"
            f" FROM (SELECT *, {metric.at} AS moment, moment >= {instant(candidate.begin)} AS is_now FROM chosen"
            f" WHERE {at_place(candidate.where)} AND ({metric.n}) {f'AND ({metric.x})' if is_share else ''})"
            f" WHERE moment >= {instant(candidate.begin - before)} AND moment < {instant(candidate.end)}"
            f" GROUP BY ALL HAVING streams > 0 ORDER BY streams DESC LIMIT {MAX_DETAILS})"
        )
        parts.append(
            f"(SELECT {number} AS candidate, {''.join(_quantiles(m, candidate) + ', ' for m in logs)}"
            f"avg((tool_call_count > 0)::INTEGER) FILTER ({metric.at} < {instant(candidate.begin)}) AS before_tools"
            f" FROM chosen WHERE {at_place(candidate.where)})"
        )
    return _over_chosen(chosen, candidates, parts)
