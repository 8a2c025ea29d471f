"""Diagnose a time range. The only module here that runs queries, by a function that the caller passes.

1. One query aggregates the range and the period before it. `search` finds the places that got worse, `combine` makes incidents of them.
2. If there are any, one query returns series for the onset, and one the details and an example. For each cause by
   changed prompts, one more query returns their cost. If there are prices, one or two queries compare what payers spend with what is
   usual (`spending`).
3. If an objective is missed without such a place, the whole range is compared between places.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, Literal

import numpy as np
import polars as pl

from streamgauge.analytics.diagnosis import aggregates, cell_tables, incidents, spending
from streamgauge.analytics.diagnosis.aggregates import Candidate
from streamgauge.analytics.diagnosis.cell_tables import ALONE_AXIS, Array, CellTable
from streamgauge.analytics.diagnosis.comparison import LEAST_STREAMS, variance_of
from streamgauge.analytics.diagnosis.diagnosis import (
    FAILURES,
    GEOMETRIC_MEAN,
    Cause,
    Diagnosis,
    Effect,
    Measured,
    Unit,
)
from streamgauge.analytics.diagnosis.incidents import Incident, combine
from streamgauge.analytics.diagnosis.metrics import (
    ALL_BUCKETS,
    EARLIER_BUCKETS,
    Metric,
    all_failures,
    edges,
    metrics,
)
from streamgauge.analytics.diagnosis.search import MAX_CAUSES, Found, promising, search
from streamgauge.analytics.reports import Query, has_rows
from streamgauge.analytics.reports.selection import Selection
from streamgauge.analytics.schema.objectives import DEFAULT, Objective
from streamgauge.analytics.schema.strict_clients import CLIENTS, clients_of

POINTS = 360
"""Points of a series around an onset."""
LONGER_TTFT = 1.1
"""Least ratio of TTFT that is an effect of a lost cache."""
LEAST_CUT, MOST_CUT = 5, 0.5
"""Minimum number of failed streams, and minimum share of them that end at one age, for the evidence to name the age."""
ONLY_WITH_TOOLS, MORE_TOOLS = 0.9, 1.25
"""Share of the failed streams that had a tool call, and its least ratio to the share before, from which on it is evidence."""


def diagnose(
    query: Query,
    chosen: Selection,
    objectives: Sequence[Objective] = (DEFAULT,),
    labels: Sequence[str] = (),
) -> Diagnosis:
    """The diagnosis of a range. Runs one query if it is healthy, else three. Raises what `query` raises.

    Streams are judged by the objective whose name they are stored with, and by the last one if that is unknown. `labels`: names of
    those whose values may be named.
    """
    compared = metrics(objectives)
    frame = query(aggregates.cells(chosen, objectives, labels))
    tables = cell_tables.read(frame, compared.values())
    streams, measured = _measured(frame, objectives)
    answer = Diagnosis(
        state="healthy", since=chosen.since, until=chosen.until, measured=measured, streams=streams
    )
    if not tables["cube"].columns["requests"].sum():
        return replace(answer, state="no_data")
    parts, best = promising(tables, compared)
    pairs = {}
    if parts:
        found = cell_tables.read_pairs(query(aggregates.pairs(chosen, objectives, parts)), parts)
        pairs = {m.name: table for part, table in zip(parts, found, strict=True) for m in part.metrics}
        compared |= {m.name: m for part in parts for m in part.metrics}
    combined = combine(search(tables, compared, pairs, best), edges(chosen))
    causes = _causes(query, chosen, tables, combined) if combined else []
    missed = list(dict.fromkeys(m.name for m in measured if m.missed))
    causes_and_metrics = [(cause, i.main.metric) for cause, i in zip(causes, combined, strict=True)]
    causes_and_metrics += _other_causes(tables["cube"], compared, missed, causes)
    causes = _with_details(query, chosen, objectives, causes_and_metrics) if causes_and_metrics else []
    causes = _with_spending(query, chosen, labels, causes)
    if causes:
        return replace(answer, state="incident", causes=tuple(causes))
    if missed:
        return replace(answer, state="unclear", notes=(_why_unclear(tables["cube"], streams),))
    return answer


def _measured(frame: pl.DataFrame, objectives: Sequence[Objective]) -> tuple[int, tuple[Measured, ...]]:
    by_name = {objective.name: objective for objective in objectives}
    totals = frame.filter(pl.col("part") == "total").sort("requests", descending=True).to_dicts()
    found = []
    for total in totals:
        objective = by_name[total["objective"]]
        limits: tuple[tuple[Literal["error_rate", "ttft", "itl"], str, float | None, Unit], ...] = (
            ("error_rate", "error_rate", objective.error_rate, "share"),
            ("ttft", "ttft_p95_ns", objective.ttft_ns, "ns"),
            ("itl", "itl_p95_ns", objective.itl_ns, "ns"),
        )
        found += [
            Measured(name=name, objective=objective.name, value=total[column], limit=limit, unit=unit)
            for name, column, limit, unit in limits
            if limit is not None
        ]
    return int(sum(total["requests"] for total in totals)), tuple(found)


def _why_unclear(table: CellTable, streams: int) -> str:
    failed = sum(float(table.columns[f"x_{name}"][..., EARLIER_BUCKETS:].sum()) for name in FAILURES)
    if streams < 2 * LEAST_STREAMS:
        return f"Only {streams} requests: too few for a cause."
    return f"{failed:.0f} of {streams} requests failed. No model, gateway or client explains it, and nothing changed clearly."


# The causes of the changes that the aggregates show


def _causes(
    query: Query, chosen: Selection, tables: Mapping[str, CellTable], incidents: Sequence[Incident]
) -> list[Cause]:
    begins = edges(chosen)
    wide = [_candidate(chosen, i.main, begins, is_wide=True) for i in incidents]
    narrow = [_candidate(chosen, i.main, begins, is_wide=False) for i in incidents]
    changes = [begins[i.main.begin] for i in incidents]
    points = _series(
        query(aggregates.series(chosen, [*wide, *narrow], POINTS)), [*wide, *narrow], 2 * changes
    )
    series = list(zip([*wide, *narrow], points, strict=True))
    causes = []
    for k, incident in enumerate(incidents):
        of_cube = tables["cube"] if incident.main.metric.family != "loss" else incident.main.table
        variance = variance_of(of_cube, incident.main.metric)
        cause = _cause(chosen, tables, incident, variance)
        seen = series[k], series[k + len(incidents)]
        causes.append(_with_onset(cause, incident.main, variance, *seen, chosen))
    return causes


def _candidate(chosen: Selection, found: Found, begins: Sequence[datetime], *, is_wide: bool) -> Candidate:
    begin = begins[max(found.begin - incidents.BUCKETS_BEFORE, 0)]
    end = begins[min(found.begin + incidents.BUCKETS_AFTER, found.end)]
    if is_wide:
        begin, end = (
            min(chosen.since - chosen.length / 2, begin),
            begins[found.end] if found.end < ALL_BUCKETS else chosen.until,
        )
    known = incidents.levels(found) if found.metric.kind == "mean" else {}
    by_code = not is_wide and found.metric.name in aggregates.CODED
    return Candidate(
        metric=found.metric, where=found.where, begin=begin, end=end, levels=known, by_code=by_code
    )


Points = tuple[Array, Array, dict[int, datetime]]


def _series(
    frame: pl.DataFrame, candidates: Sequence[Candidate], changes: Sequence[datetime]
) -> list[Points]:
    """(n, x, first affected instant by point) of each candidate. Of errors with codes, those with the code whose number rose most
    are affected: a usual failure of another code shortly before the onset does not move it."""
    found: list[Points] = []
    for number, (candidate, change) in enumerate(zip(candidates, changes, strict=True)):
        rows = frame.filter(pl.col("candidate") == number).with_columns(
            pl.col("point").clip(upper_bound=POINTS - 1)
        )
        n = np.zeros(POINTS)
        np.add.at(n, rows["point"].to_numpy(), rows["n"].to_numpy())
        rows = rows.filter((pl.col("x") != 0) | pl.col("code").is_null())
        share = (change - candidate.begin) / (candidate.end - candidate.begin)
        rise = (
            pl.when(pl.col("point") >= int(share * POINTS))
            .then("x")
            .otherwise(-pl.col("x") * (1 - share) / max(share, 1e-3))
        )
        codes = rows.drop_nulls("code").group_by("code").agg(rise.sum().alias("rise")).sort("rise", "code")
        if len(codes):
            rows = rows.filter(pl.col("code") == codes["code"][-1])
        x = np.zeros(POINTS)
        np.add.at(x, rows["point"].to_numpy(), rows["x"].fill_null(0).to_numpy())
        first = rows.drop_nulls("first_at").group_by("point").agg(pl.col("first_at").min())
        found.append((n, x, dict(first.iter_rows())))
    return found


def _cause(chosen: Selection, tables: Mapping[str, CellTable], incident: Incident, variance: float) -> Cause:
    found, begins, cube = incident.main, edges(chosen), tables["cube"]
    dimension, good = incidents.unaffected(tables[ALONE_AXIS], found, variance)
    surges: list[tuple[str, float]] = []
    facts: list[str] = []
    effects = list(map(_effect, incident.effects))
    place = incidents.cube_place(cube, found)
    if place is not None:
        seconds = np.array([(b - a).total_seconds() for a, b in itertools.pairwise(begins)], dtype=np.float64)
        surges = incidents.surges(cube, found, place, seconds)
        if found.metric.family in ("ttft", "itl") and (
            lengths := incidents.means(cube, found, place, "input")
        ):
            longer = lengths[0] / lengths[1]
            facts += [incidents.longer_prompts(longer)] if longer >= incidents.LONGER_PROMPTS else []
        if found.metric.family == "cache" and (ttft := incidents.means(cube, found, place, "ttft")):
            # The metric compares streams of the same uncached length, which a lost cache makes longer.
            effects = [e for e in effects if e.metric != "ttft"]
            if ttft[0] >= LONGER_TTFT * ttft[1]:
                effects.append(
                    Effect(metric="ttft", value=ttft[0], before=ttft[1], unit="ns", statistic=GEOMETRIC_MEAN)
                )
    return Cause(
        kind="step", where=found.where, main=_effect(found), effects=tuple(effects),
        evidence=tuple(facts), surges=tuple(surges),
        onset=begins[found.begin], ended=begins[found.end] if found.end < ALL_BUCKETS else None, streams=found.streams,
        affected=found.affected, unaffected=good, unaffected_dimension=dimension, score=found.score,
    )  # fmt: skip


def _effect(found: Found) -> Effect:
    metric = found.metric
    value, before = (
        max(math.exp(v) - metric.offset, 0.0) if metric.is_log else v for v in (found.value, found.expected)
    )
    statistic = GEOMETRIC_MEAN if metric.is_log else ""
    return Effect(metric=metric.name, value=value, before=before, unit=metric.unit, statistic=statistic)


def _with_onset(
    cause: Cause, found: Found, variance: float, wide: tuple[Candidate, Points], narrow: tuple[Candidate, Points], chosen: Selection
) -> Cause:  # fmt: skip
    is_mean = found.metric.kind == "mean"
    sign = found.metric.direction
    candidate, (n, x, _) = wide
    spread = variance if is_mean else max(found.value * (1 - found.value), 1e-3)
    point_s = (candidate.end - candidate.begin).total_seconds() / POINTS
    drift = incidents.ramp(n, sign * x, spread, is_log=found.metric.is_log, point_s=point_s)
    if drift is not None:
        at = [_instant(candidate, p) for p in (drift.point, drift.earliest, drift.latest)]
        return replace(
            cause, kind="drift", main=_after(cause.main, sign * drift.rise), onset=at[0], onset_earliest=at[1], onset_latest=at[2],
        )  # fmt: skip
    candidate, (n, x, first) = narrow
    if not n.sum():
        return cause
    expected, value = (0.0, found.value - found.expected) if is_mean else (found.expected, found.value)
    if candidate.by_code:  # one code is rarer than all
        change = int(
            (edges(chosen)[found.begin] - candidate.begin) / (candidate.end - candidate.begin) * POINTS
        )
        expected = min(expected, float(x[:change].sum() / max(n[:change].sum(), 1)))
        value = max(float(x[change:].sum() / max(n[change:].sum(), 1)), expected + 1e-3)
    step = incidents.step(n, x, expected, value, variance if is_mean else None, incidents.usual_share(found))
    if not n[: step.point].any() and candidate.begin <= chosen.before().since:
        return replace(cause, onset=None)
    earliest, latest = (_instant(candidate, p) for p in (step.earliest, step.latest + 1))
    return replace(
        cause, onset=first.get(step.point) or _instant(candidate, step.point), onset_earliest=earliest, onset_latest=latest
    )  # fmt: skip


def _after(effect: Effect, rise: float) -> Effect:
    """The value at the end of a drift."""
    before = effect.before or 0.0
    value = before * (1 + rise) if effect.unit != "share" else min(max(before + rise, 0.0), 1.0)
    return replace(effect, value=value)


def _instant(candidate: Candidate, point: int) -> datetime:
    return candidate.begin + (candidate.end - candidate.begin) * point / POINTS


# Causes by comparison of places


def _other_causes(
    table: CellTable, compared: Mapping[str, Metric], missed: Sequence[str], known: Sequence[Cause]
) -> list[tuple[Cause, Metric]]:
    """Causes of missed objectives that no known cause can explain."""
    families = {compared[c.metric].family for c in known}
    causes: list[tuple[Cause, Metric]] = []
    for name in missed:
        family = "failure" if name == "error_rate" else name
        if family in families or (name != "error_rate" and families & {"burst", "cache", "stall", "prompts"}):
            continue
        if name == "error_rate":
            metric = all_failures(compared)
            cause = incidents.constant(table, metric, [f"x_{f}" for f in FAILURES])
        else:
            metric = compared[f"slow_{name}"]
            cause = incidents.traffic_mix(table, metric) or incidents.constant(
                table, metric, [f"x_{metric.name}"]
            )
        if cause is not None:
            causes.append((cause, metric))
    return causes


# Spend


def _with_spending(
    query: Query, chosen: Selection, labels: Sequence[str], causes: list[Cause]
) -> list[Cause]:
    """The causes, and that of a payer who spends far more than usual. If a cause has its place, the spend is an effect of it."""
    if not has_rows(query, "prices"):
        return causes
    frame = query(spending.amounts(chosen, labels))
    excess = spending.find(frame, edges(chosen))
    if excess is None:
        return causes
    effect = Effect(
        metric="spend", value=excess.per_h, before=excess.usual_per_h, unit=f"{frame['currency'][0]}/h"
    )
    same = next((c for c in causes if c.where == excess.where and c.ended is None), None)
    if same is not None:
        with_effect = replace(same, effects=(effect, *same.effects))
        return [with_effect if c is same else c for c in causes]
    points = query(spending.series(chosen, excess.where, POINTS))
    onset, earliest, latest = spending.onset(points, excess, chosen, POINTS)
    examples = points.filter(pl.col("first_at") >= onset).sort("amount")["stream_id"].to_list()
    evidence = [f"session {name} has {100 * part:.0f} %" for name, part in filter(None, [excess.session])]
    cause = Cause(
        kind="step", where=excess.where, main=effect, evidence=tuple(evidence), onset=onset, onset_earliest=earliest,
        onset_latest=latest, streams=excess.requests, example_stream_id=examples[-1] if examples else None,
    )  # fmt: skip
    return [*causes[: MAX_CAUSES - 1], cause]


# Evidence and examples


def _with_details(
    query: Query, chosen: Selection, objectives: Sequence[Objective], causes: Sequence[tuple[Cause, Metric]]
) -> list[Cause]:
    candidates = [
        Candidate(metric=metric, where=c.where, begin=c.onset or chosen.since, end=c.ended or chosen.until)
        for c, metric in causes
    ]
    averaged = {e.metric for c, _ in causes for e in (c.main, *c.effects) if e.statistic == GEOMETRIC_MEAN}
    frame = query(aggregates.details(chosen, objectives, candidates, averaged))
    found = []
    for number, (cause, metric) in enumerate(causes):
        of_candidate = frame.filter(pl.col("candidate") == number)
        (quantiles,) = of_candidate.filter(pl.col("streams").is_null()).to_dicts()
        # A drift has its last value, other traffic that of all streams.
        if cause.kind in ("step", "constant"):
            effects = tuple(_with_quantiles(effect, quantiles) for effect in cause.effects)
            cause = replace(cause, main=_with_quantiles(cause.main, quantiles), effects=effects)
        rows = of_candidate.drop_nulls("streams").sort(_MORE_THAN_USUAL, descending=True).to_dicts()
        if not rows:
            found.append(cause)
            continue
        first = rows[0]
        evidence = []
        if metric.family in ("failure", "tool_failure") and first["outcome"] != "ok":
            evidence += [_ending(first), *_one_age(rows)]
            if _has_tools(first["with_tools"], first["streams"], quantiles["before_tools"]):
                evidence.append("only with a tool call")
        if metric.family == "violation":
            evidence.append(_broken_clients(*first["broken"]))
        if metric.family == "other_model":
            evidence.append(f"by {first['served']}")
        if metric.family == "prompt_changed":
            segment, reason = first["changed"]
            evidence.append(f"{segment} ({reason})" if segment else reason)
            evidence += _missed(query(aggregates.cache_missed(chosen, candidates[number])).to_dicts())
        if metric.family == "loop":
            evidence.append(_loop(first))
        found.append(
            replace(
                cause, evidence=(*evidence, *cause.evidence), objective=first["objective"], example_stream_id=first["stream_id"]
            )
        )  # fmt: skip
    return found


def _one_age(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The age at which most failed streams end, such as "12 of 16 end at 20 s"."""
    ages, streams = Counter[int](), sum(row["streams"] for row in rows)
    for row in rows:
        ages.update({entry["key"]: entry["value"] for entry in row["ages"] or ()})
    if not ages or streams < LEAST_CUT:
        return []
    age, count = ages.most_common(1)[0]
    if count < MOST_CUT * streams:
        return []
    nearest = min(
        (r["age_ns"] for r in rows if r["age_ns"]), key=lambda ns: abs(10 * math.log(ns / 1e9) - age)
    )
    return [f"{count} of {streams} end at {nearest / 1e9:.0f} s"]


def _has_tools(with_tools: int, streams: int, usual: float | None) -> bool:
    """Whether nearly all streams have a tool call, clearly more than usual. Else all streams of the place may have one."""
    expected, share = streams * (usual or 0.0), usual or 0.0
    least = max(MORE_TOOLS * expected, expected + 3 * math.sqrt(expected * (1 - share)))
    return usual is not None and with_tools >= max(ONLY_WITH_TOOLS * streams, least)


def _broken_clients(dialect: str, *codes: str) -> str:
    """The clients that violations break, such as "breaks Codex (missing_usage)"."""
    names = dict.fromkeys(CLIENTS[client] for code in codes for client in clients_of(code, dialect))
    return f"breaks {', '.join(names)} ({', '.join(codes)})"


def _missed(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """What the cache missed, such as "41 % of the input" and "12 USD/h"."""
    share = next((row["share"] for row in rows), None)
    money = [f"{row['money']:.2g} {row['currency']}/h" for row in rows if row["money"]]
    return ([f"{100 * share:.0f} % of the input"] if share else []) + money


def _loop(row: Mapping[str, Any]) -> str:
    """The longest loop, such as "read_file called 12 times in session 5f3a…"."""
    session = f" in session {row['session_id']}" if row["session_id"] else ""
    return f"{row['tool'] or 'a tool'} called {row['repeats']} times{session}"


_MORE_THAN_USUAL = pl.col("streams") * pl.max_horizontal(
    ((pl.col("streams") + 1) / (pl.col("usual") + 1)).log(), 0.1
)


def _with_quantiles(effect: Effect, row: Mapping[str, Any]) -> Effect:
    """The effect with the median at the place instead of the geometric mean, if it shows the change and is of enough streams."""
    if effect.statistic != GEOMETRIC_MEAN:
        return effect
    value, before, p95 = (row[f"{c}_{effect.metric}"] for c in ("p50", "before", "p95"))
    is_larger = effect.before is not None and effect.value > effect.before
    if value is None or before is None or (value > before) != is_larger:
        return effect
    return replace(effect, value=value, before=before, statistic="p50", p95=p95)


def _ending(row: Mapping[str, object]) -> str:
    """How streams ended, such as "HTTP 429 (rate_limit_exceeded)" or "truncated mid_stream"."""
    outcome, status, kind, phase = (row[c] for c in ("outcome", "http_status", "error_type", "error_phase"))
    if outcome == "http_error":
        return f"HTTP {status}" + (f" ({kind})" if kind and kind not in (str(status), outcome) else "")
    if outcome == "silent":
        return "in flight without data"
    words = [str(outcome)] + ([str(kind)] if kind and kind not in (outcome, f"stream_{outcome}") else [])
    return " ".join(words) + (f" ({str(phase).replace('_', ' ')})" if phase else "")
