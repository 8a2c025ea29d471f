"""The sections of a report. Each reads its reports for the part of the template with its name. None: the selection has nothing of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, tzinfo
from functools import partial
from typing import Any

import polars as pl

from streamgauge.analytics.diagnosis.diagnosis import Cause
from streamgauge.analytics.diagnosis.metrics import affected
from streamgauge.analytics.diagnosis.report import Report, read_report
from streamgauge.analytics.html_report.figures import line, table
from streamgauge.analytics.reports import (
    Query,
    alerts,
    columns,
    errors,
    formatting,
    has_rows,
    latency,
    objectives,
    overview,
    pipeline,
    providers,
    run_summary,
    sessions,
    spend,
    stream_lists,
    turn_timeline,
)
from streamgauge.analytics.reports.columns import GROUP, REQUESTS, ms, number
from streamgauge.analytics.reports.selection import CLIENT_NAMES, Selection, dimension, with_client_names

Section = Mapping[str, Any] | None
Bar = tuple[str, float, float, str]
"""Class, start and end as shares of the time axis, and the text of a tooltip."""
MOST_EXAMPLES, MOST_CURRENCIES, MOST_LABELS = 5, 3, 6
MOST_SESSIONS, MOST_DETAILED = 25, 3
"""Rows of the table, and agents' sessions that are shown turn by turn without being asked for: as many as a run has."""
MOST_TURNS, MOST_TURNS_READ, MOST_WATERFALLS = 80, 15, 2
MOST_LANES, MOST_ACTIVITIES, MOST_REQUESTS = 20, 12, 500


@dataclass(frozen=True, kw_only=True)
class Scope:
    """What the sections of a report read."""

    query: Query
    """With names instead of client ids."""
    selection: Selection
    """Without the time before the first stored data."""
    zone: tzinfo
    report: Report
    points: Selection
    """The selection with the points of a line over time."""
    judged: Selection
    """Its part whose streams are complete."""
    session_ids: Sequence[str]
    """Sessions to show turn by turn."""

    def table(
        self, report: columns.ReportTable, found: pl.DataFrame | Sequence[columns.Row], **options: Any
    ) -> Any:
        return table(report, found, self.zone, **options)

    @property
    def is_filtered(self) -> bool:
        return self.selection.filters() != "TRUE"


def read_scope(
    query: Query, selection: Selection, zone: tzinfo, now: datetime, session_ids: Sequence[str]
) -> Scope:
    """Raises QueryError."""
    names: dict[str, str] = dict(query(CLIENT_NAMES).iter_rows())
    began = selection.began
    if began is not None and selection.since < began < selection.until:
        selection = replace(selection, since=began.replace(microsecond=0))
    points = overview.widened(query, selection, dimension("model"))
    return Scope(
        query=lambda sql: with_client_names(query(sql), names), selection=selection, zone=zone, report=read_report(query, selection),
        points=points, judged=overview.judged(query, points, now), session_ids=session_ids,
    )  # fmt: skip


def verdict(scope: Scope) -> Section:
    counts = overview.counts_now_and_before(scope.query, scope.selection)
    return {"counts": counts, **overview.summary_now_and_before(scope.query, scope.judged)}


def incidents(scope: Scope) -> Section:
    fired = pl.concat([alerts.firing(scope.query), alerts.history(scope.query, scope.selection)])
    # An alert names a gateway and a model at most: with other filters, it may be about other streams.
    chosen = {name: values for name, values in scope.selection.chosen.items() if values}
    about = [pl.col(name).is_in(values) for name, values in chosen.items() if name in ("gateway", "model")]
    is_known = pl.lit(len(about) == len(chosen))
    fired = fired.filter(pl.col("began_at") < scope.selection.until, is_known, *about)
    return {
        "causes": [(cause, _examples(scope, cause)) for cause in scope.report.diagnosis.causes],
        "alerts": scope.table(alerts.TABLE, fired, drop=("stream_id", "not_sent")),
        # Messages of errors may quote a prompt.
        "errors": scope.table(errors.CAUSES, errors.causes(scope.query, scope.selection), drop=("message", "stream_id")),
    }  # fmt: skip


def _examples(scope: Scope, cause: Cause) -> list[dict[str, Any]]:
    """Streams that the cause affects: those above an objective, slowest first, or the newest."""
    order = {"ttft": "highest TTFT", "itl": "highest ITL"}.get(cause.metric.removeprefix("slow_"), "newest")
    further = {"tap": "tap", "server": "server instance"}
    place = replace(
        scope.selection.filtered(scope.selection.chosen | {name: (value,) for name, value in cause.filters.items()}),
        since=max(scope.selection.since, cause.onset or scope.selection.since), until=cause.ended or scope.selection.until,
        further=(*scope.selection.further, *((further[name], (value,)) for name, value in cause.where.items() if name in further)),
    )  # fmt: skip
    where = affected(cause.metric, scope.report.objectives.rows) or "TRUE"
    return stream_lists.table(scope.query, place, where, order=order, limit=MOST_EXAMPLES).to_dicts()


def show_objectives(scope: Scope) -> Section:
    return {"burning": objectives.burning(scope.query, scope.selection).to_dicts()}


def trends(scope: Scope) -> Section:
    """All requests, then the TTFT of the busiest models: the series that have points. Only complete buckets have points."""
    chosen, found = scope.points, scope.report.diagnosis
    length_s = chosen.length.total_seconds()
    complete = overview.timeline_by(scope.query, chosen, "model").filter(pl.col("at") < scope.judged.until)
    complete = complete.with_columns(
        x=((pl.col("at") - pl.lit(chosen.since)).dt.total_seconds() / length_s).clip(0, 1),
        rate=pl.col("requests") / chosen.covered_s(),
    )

    def draw(
        title: str, name: str, column: str, to_text: Callable[[float], str], limit: float | None = None
    ) -> Any:
        points = complete.filter(pl.col("name") == name).drop_nulls(column).select("x", column).rows()
        return line(title, points, to_text, chosen.bucket_s / length_s, limit)

    total = [
        draw("Requests per second", "total", "rate", partial(formatting.rate, unit="/s")),
        draw("Error rate", "total", "error_rate", formatting.share, found.limit("error_rate")),
        draw("TTFT p95", "total", "ttft_ns", formatting.duration, found.limit("ttft")),
        draw("ITL p95", "total", "itl_ns", formatting.duration, found.limit("itl")),
    ]
    busiest = complete.group_by("name").agg(n=pl.sum("requests")).sort("n", "name", descending=[True, False])
    models = [draw(name, name, "ttft_ns", formatting.duration) for name in busiest["name"] if name != "total"]
    onsets = [(c.onset - chosen.since) / chosen.length for c in found.causes if c.onset is not None]
    total, models = ([one for one in lines if one["pieces"]] for lines in (total, models))
    return {"total": total, "models": models, "onsets": onsets} if total else None


PERCENTILES = columns.table(
    "Latency by {by}", GROUP, REQUESTS, columns.ERROR_RATE,
    *(ms(f"{metric}_{q}_ns", f"{metric.upper()} {q}", digits=1) for metric in ("ttft", "itl") for q in ("p50", "p95", "p99")),
    number("tps_user_p50", "Output p50", unit="tok/s", digits=1), number("output_tokens", "Tokens out"), number("stalls", "Stalls"),
)  # fmt: skip


def percentiles(scope: Scope) -> Section:
    found, nth = dict[str, Any](), None
    for by in ("model", "gateway"):
        _, *groups = run_summary.by_group(scope.query, scope.selection, by).to_dicts() or [{}]
        rows = {row["name"]: row for row in groups}
        for metric in ("ttft", "itl"):  # from roll-ups if the page reads these
            source = latency.source_of(scope.query, scope.selection, f"{metric}_ns", by)
            assert source is not None, "streams have both metrics"
            nth = source.nth or nth
            for q in latency.table(scope.query, source, f"{metric}_ns").to_dicts():
                quantiles = {f"{metric}_{name}": q[name] for name in ("p50_ns", "p95_ns", "p99_ns")}
                rows.get(q["name"], {}).update(quantiles)
        found[by] = scope.table(PERCENTILES, [*rows.values()], by=by, By=by.capitalize())
    return {"tables": found, "nth": nth}


def by_provider(scope: Scope) -> Section:
    found = providers.table(scope.query, scope.selection)
    return {"table": scope.table(providers.TABLE, found, most=60)} if found.height else None


def show_spend(scope: Scope) -> Section:
    priced = dict(spend.coverage(scope.query, scope.selection).iter_rows())
    missing = priced.pop(None, 0)
    found: dict[str, tuple[str, dict[str, Any]]] = {}
    for currency in [*priced][:MOST_CURRENCIES]:
        for by in ("model", "gateway", *overview.label_names(scope.query)[:MOST_LABELS]):
            total, *groups = spend.table(scope.query, scope.selection, by, currency).to_dicts()
            named = spend.without_range(pl.DataFrame(groups, infer_schema_length=None))
            tables = found.setdefault(currency, (spend.with_range(total | {"currency": currency}), {}))[1]
            tables[by] = scope.table(spend.TABLE, named, by=by, By=by.capitalize(), currency=currency)
    has_budgets = has_rows(scope.query, "budgets") and not scope.is_filtered
    budgets = scope.table(spend.BUDGETS, spend.budgets(scope.query)) if has_budgets else None
    return {"costs": found, "missing": missing, "budgets": budgets} if found or missing else None


def show_sessions(scope: Scope) -> Section:
    if scope.session_ids:
        return {"table": None, "more": 0, "sessions": [_session(scope, one) for one in scope.session_ids]}
    found = sessions.table(scope.query, scope.selection, order="most requests", limit=MOST_SESSIONS)
    agents = found.filter(pl.col("parent_session_id").is_null())["session_id"].to_list()
    more = sessions.count(scope.query, scope.selection)["sessions"] - found.height
    detailed = [_session(scope, one) for one in (agents if len(agents) <= MOST_DETAILED else ())]
    return {"table": _listed(scope, found), "more": more, "sessions": detailed} if found.height else None


def _listed(scope: Scope, found: pl.DataFrame) -> Any:
    costs = spend.of_sessions(scope.query, found)
    rows = found.join(costs, on="session_id", how="left", maintain_order="left")
    return scope.table(sessions.TABLE, rows, drop=("client", "unfinished_output_tokens"))


def _session(scope: Scope, session_id: str) -> Mapping[str, Any]:
    row: Any = sessions.one(scope.query, session_id)
    by_turn: dict[int, list[sessions.Bar]] = {}
    requests = sessions.requests(scope.query, session_id, most=MOST_REQUESTS).to_dicts()
    for bar in sessions.bars(requests, with_user_waits=False):
        by_turn.setdefault(bar.turn, []).append(bar)
    end_ns = max((bar.end_ns for own in by_turn.values() for bar in own), default=0) or 1
    lengths = {n: max(b.end_ns for b in own) - min(b.start_ns for b in own) for n, own in by_turn.items()}
    longest = sorted(lengths, key=lambda number: -lengths[number])[:MOST_TURNS_READ]
    turns = [
        found
        for number in longest
        if (found := turn_timeline.one(scope.query, session_id, number)) is not None
    ]
    below = sessions.subagents(scope.query, session_id, most=MOST_SESSIONS)
    return {
        "row": row, "cost": spend.of_session(scope.query, session_id, row["first_at"], row["last_at"]), "length_ns": end_ns,
        "parts": {part: row[name] or 0 for part, name in sessions.PARTS.items()}, "turns_read": len(turns), "turns": len(by_turn),
        "rows": [(f"turn {n}", [_bar(b, end_ns) for b in own], lengths[n]) for n, own in [*by_turn.items()][:MOST_TURNS]],
        "tools": _tools(turns), "subagents": _listed(scope, below) if below.height else None,
        "waterfalls": [_waterfall(scope, found) for found in turns[:MOST_WATERFALLS]],
    }  # fmt: skip


def _bar(bar: sessions.Bar, end_ns: int) -> Bar:
    is_request = bar.kind == sessions.MODEL
    is_failed = is_request and columns.outcome_state(bar.request["outcome"]) == "bad"
    what = f"{bar.request['model']}, {bar.request['outcome']}" if is_request else bar.kind
    tooltip = f"{what}: {formatting.duration(bar.end_ns - bar.start_ns)}"
    return "failed" if is_failed else bar.kind, bar.start_ns / end_ns, bar.end_ns / end_ns, tooltip


def _tools(turns: Sequence[turn_timeline.Turn]) -> list[dict[str, Any]]:
    """`name, calls, failed, length_ns, critical_ns` by tool."""
    names = ("name", "part", "outcome", "length_ns", "critical_ns")
    found = [turn_timeline.activities(one, most=MOST_REQUESTS).select(names) for one in turns]
    tools = pl.concat(found, how="vertical_relaxed").filter(pl.col("part") == sessions.TOOL).group_by("name")
    failed = pl.col("outcome").cast(pl.String).fill_null("ok") != "ok"
    rows = tools.agg(pl.sum("length_ns", "critical_ns"), calls=pl.len(), failed=failed.sum())
    return rows.sort("length_ns", "name", descending=[True, False]).head(MOST_LANES).to_dicts()


def _waterfall(scope: Scope, found: turn_timeline.Turn) -> Mapping[str, Any]:
    length_ns = found.length_ns or 1

    def bars(segments: Iterable[turn_timeline.Segment]) -> list[Bar]:
        return [
            (s.part, (s.start_ns - found.start_ns) / length_ns, (s.end_ns - found.start_ns) / length_ns,
             f"{s.activity.name if s.activity else s.part}: {formatting.duration(s.end_ns - s.start_ns)}")
            for s in segments
        ]  # fmt: skip

    busy = {
        lane.name: sum(a.end_ns - a.start_ns for a in lane.activities) for lane in turn_timeline.lanes(found)
    }
    lanes = [
        (lane.name, bars(lane.segments()), busy[lane.name])
        for lane in turn_timeline.lanes(found)[:MOST_LANES]
    ]
    rows = [(turn_timeline.CRITICAL, bars(found.path), found.length_ns), *lanes]
    longest = scope.table(
        turn_timeline.ACTIVITIES, turn_timeline.activities(found, most=MOST_ACTIVITIES), drop=("stream_id",)
    )
    return {
        "number": found.number, "answer": turn_timeline.answer(found), "rows": rows, "length_ns": length_ns, "activities": longest,
    }  # fmt: skip


def losses(scope: Scope) -> Section:
    found = pipeline.losses_by_cause(scope.query, scope.selection).to_dicts()
    return {"counts": overview.counts_now_and_before(scope.query, scope.selection)["now"], "losses": found}


SECTIONS: Mapping[str, Callable[[Scope], Section]] = {
    "verdict": verdict, "incidents": incidents, "objectives": show_objectives, "trends": trends, "latency": percentiles,
    "providers": by_provider, "spend": show_spend, "sessions": show_sessions, "losses": losses, "definitions": lambda _: {},
}  # fmt: skip
"""The sections in their order, by the name by which readers leave one out."""
