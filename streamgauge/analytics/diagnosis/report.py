"""The diagnosis, the traffic by model and gateway and the top offenders, as `top` and MCP show them, and their JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from functools import partial
from typing import Any

import polars as pl

from streamgauge.analytics.diagnosis.diagnose import diagnose
from streamgauge.analytics.diagnosis.diagnosis import FAILURES, TITLES, Cause, Diagnosis, cause_text, headline
from streamgauge.analytics.diagnosis.metrics import affected
from streamgauge.analytics.reports import Query, columns, formatting, has_rows, rate_limits
from streamgauge.analytics.reports.alerts import of_budgets
from streamgauge.analytics.reports.columns import text
from streamgauge.analytics.reports.objectives import stored_objectives
from streamgauge.analytics.reports.overview import IS_BAD, label_names, top_contributors
from streamgauge.analytics.reports.run_summary import cost
from streamgauge.analytics.reports.selection import (
    CLIENT_NAMES,
    GATEWAY,
    MODEL,
    Selection,
    instant,
    with_client_names,
)
from streamgauge.analytics.reports.stream_lists import IN_FLIGHT
from streamgauge.analytics.schema.clients import shortened
from streamgauge.analytics.schema.objectives import Objective, Objectives
from streamgauge.analytics.schema.outcomes import ERROR_RATE, IS_REQUEST

MAX_GROUPS = 200
MAX_OFFENDERS = 8
MISSED = "Missed objective"


@dataclass(frozen=True, kw_only=True)
class Report:
    """One report. Durations are in ns, rates per second; None is unknown."""

    selection: Selection
    diagnosis: Diagnosis
    objectives: Objectives
    names: Mapping[str, str]
    """Client id → name."""
    groups: list[dict[str, Any]]
    """By model and gateway, busiest first: the columns of `_groups`."""
    offenders: list[dict[str, Any]]
    """By `offenders`: the columns of `streamgauge.analytics.reports.overview.top_contributors`."""
    offenders_by: str
    """What their bad streams have in common."""
    note: str | None = None
    """Why newer rows are missing."""
    cost: Sequence[dict[str, Any]] = ()
    """By currency: the columns of `streamgauge.analytics.reports.run_summary.cost`. Empty without prices."""
    budgets: Sequence[str] = ()
    """The messages of the alerts about budgets that fire, regardless of the range."""
    rate_limits: Sequence[dict[str, Any]] = ()
    """The columns of `streamgauge.analytics.reports.rate_limits`, and for those with a forecast `text`. Now, regardless of the range."""

    @property
    def in_flight(self) -> int:
        return sum(group["in_flight"] for group in self.groups)

    def objective(self, group: Mapping[str, Any]) -> Objective:
        """The objective of a row of `groups`: the first that does not depend on the client."""
        found = self.objectives.of(group["model"], group["gateway"], None)
        assert found is not None, "the last objective matches all streams"
        return found

    def name(self, dimension: str, value: str) -> str:
        """A dimension value as it is shown."""
        return shortened(self.names.get(value, value)) if dimension == "client" else value

    def headline(self, zone: tzinfo) -> str:
        return headline(self.diagnosis, zone, self.name)

    def cause(self, cause: Cause, zone: tzinfo) -> str:
        return cause_text(cause, zone, self.name, until=self.diagnosis.until)


def read_report(query: Query, selection: Selection, note: str | None = None) -> Report:
    """`note`: why newer rows are missing. Raises QueryError."""
    judged_by = stored_objectives(query)
    labels = label_names(query)
    found = diagnose(query, selection, judged_by, labels)
    names: dict[str, str] = dict(query(CLIENT_NAMES).iter_rows())
    limits = rate_limits.table(query, datetime.now(UTC), selection)
    return Report(
        selection=selection,
        # With client ids: its queries select the values that earlier ones returned.
        diagnosis=found,
        objectives=Objectives(judged_by),
        names=names,
        groups=_groups(query, selection).to_dicts(),
        offenders=with_client_names(offenders(query, selection, judged_by, found, labels), names).to_dicts(),
        offenders_by=offenders_by(found, judged_by),
        note=note,
        cost=cost(query, selection).to_dicts() if has_rows(query, "prices") else (),
        budgets=of_budgets(query),
        rate_limits=with_client_names(rate_limits.with_text(limits, names), names).to_dicts(),
    )


def offenders(
    query: Query,
    selection: Selection,
    judged_by: Sequence[Objective],
    found: Diagnosis,
    labels: Sequence[str] = (),
) -> pl.DataFrame:
    """What has more than its share of the streams that the first cause affects, or else of those that missed their objective."""
    bad = affected(found.causes[0].metric if found.causes else None, judged_by)
    return top_contributors(query, selection, bad or IS_BAD, labels=labels, most=MAX_OFFENDERS)


def offenders_by(found: Diagnosis, judged_by: Sequence[Objective]) -> str:
    """What the streams of `offenders` have in common."""
    metric = found.causes[0].metric if found.causes else None
    if metric is None or affected(metric, judged_by) is None:
        return MISSED
    title = TITLES[metric]
    return (
        f"{title} above the objective"
        if title in ("TTFT", "ITL")
        else "Failed"
        if metric in FAILURES
        else title
    )


OFFENDERS = columns.table(
    "Top offenders",
    text("place", "Top offenders", priority=0),
    text("bad_share", "{by}", text=formatting.share, number=True),
    text("of_all_bad", "of all of them", text=formatting.share, number=True, priority=3),
    text("of_all", "of all requests", text=formatting.share, number=True, priority=4),
    text("error_rate", "Errors", text=formatting.share, number=True, priority=2),
)
GROUPS = columns.table(
    "Streams by model and gateway",
    text("model", "Model", priority=0),
    text("gateway", "Gateway"),
    text("in_flight", "In flight", number=True, priority=5),
    # With one decimal: heartbeats limit the precision.
    text("silent_ns", "Silence", text=lambda ns: f"{ns / 1e9:.1f} s", number=True, priority=6),
    text("requests_per_s", "Req/s", text=partial(formatting.rate, unit=""), number=True, priority=4),
    text("error_rate", "Errors", text=formatting.share, number=True, priority=2),
    text("ttft_p50_ns", "TTFT p50", text=formatting.duration, number=True, priority=9),
    text("ttft_p95_ns", "TTFT p95", text=formatting.duration, number=True, priority=3),
    text("itl_p50_ns", "ITL p50", text=formatting.duration, number=True, priority=8),
    text("tokens_per_s", "tok/s", text=partial(formatting.rate, unit=""), number=True, priority=7),
)


def _groups(query: Query, selection: Selection) -> pl.DataFrame:
    """`model, gateway, in_flight, waiting` (without output), `silent_ns` (the longest time without output), `requests` (finished),
    `requests_per_s` (started), `error_rate, ttft_p50_ns, ttft_p95_ns, itl_p50_ns, tokens_per_s`.

    Rates are per second of the range since the first data.
    """
    since = instant(selection.since)
    return query(f"""
        WITH finished AS (
                SELECT {MODEL} AS model, {GATEWAY} AS gateway, count(*) AS requests, {ERROR_RATE} AS error_rate,
                    quantile_cont(ttft_ns, [0.5, 0.95]) AS ttft, quantile_cont(itl_ns, 0.5) AS itl_p50_ns,
                    sum(output_tokens)::BIGINT AS tokens
                FROM streams WHERE {selection.where()} AND {IS_REQUEST} GROUP BY ALL),
            in_flight AS (
                SELECT {MODEL} AS model, {GATEWAY} AS gateway, count(*) AS in_flight,
                    count(*) FILTER (ttft_ns IS NULL) AS waiting, count(*) FILTER (started_at >= {since}) AS started,
                    max(greatest(date_diff('microsecond', started_at, observed_at) * 1000 - coalesce(last_output_ns, 0), 0))::BIGINT
                        AS silent_ns
                FROM {IN_FLIGHT} WHERE {selection.filters()} GROUP BY ALL),
            range AS (
                SELECT greatest(date_diff('millisecond', greatest({since}, (SELECT min(minute) FROM stream_minutes)),
                    {instant(selection.until)}) / 1000, 1) AS seconds)
        SELECT model, gateway, coalesce(in_flight, 0) AS in_flight, coalesce(waiting, 0) AS waiting, silent_ns,
            coalesce(requests, 0) AS requests, (coalesce(requests, 0) + coalesce(started, 0)) / seconds AS requests_per_s,
            error_rate, ttft[1] AS ttft_p50_ns, ttft[2] AS ttft_p95_ns, itl_p50_ns, tokens / seconds AS tokens_per_s
        FROM finished FULL JOIN in_flight USING (model, gateway), range
        ORDER BY requests_per_s DESC, model, gateway LIMIT {MAX_GROUPS}""")


# -- JSON --------------------------------------------------------------------------------------------------------------


def as_json(report: Report, zone: tzinfo = UTC) -> dict[str, Any]:
    """The report for scripts. Durations are in seconds, times in UTC. docs/how-to/watch-in-terminal.md lists the keys."""
    diagnosis = report.diagnosis
    return {
        "since": _time(report.selection.since),
        "until": _time(report.selection.until),
        "note": report.note,
        "state": diagnosis.state,
        "headline": report.headline(zone),
        "causes": [_cause(report, cause, zone) for cause in diagnosis.causes],
        "notes": list(diagnosis.notes),
        "objectives": [
            {
                "name": m.name,
                "objective": m.objective,
                "missed": m.missed,
                **_in_seconds({"value": m.value, "limit": m.limit}, m.unit),
            }
            for m in diagnosis.measured
        ],
        "in_flight": report.in_flight,
        "cost": list(report.cost),
        "budgets": list(report.budgets),
        "rate_limits": [row | {"reset_at": _time(row["reset_at"])} for row in report.rate_limits],
        "groups": [_without_ns(group) for group in report.groups],
        "offenders_by": report.offenders_by,
        "offenders": [_without_ns(offender) for offender in report.offenders],
    }


def _cause(report: Report, cause: Cause, zone: tzinfo) -> dict[str, Any]:
    return {
        "text": report.cause(cause, zone),
        "kind": cause.kind,
        "metric": cause.metric,
        "where": {
            d: report.names.get(value, value) if d == "client" else value for d, value in cause.where.items()
        },
        **_in_seconds({"value": cause.main.value, "before": cause.main.before}, cause.main.unit),
        "evidence": list(cause.evidence),
        **{
            name: _time(getattr(cause, name)) for name in ("onset", "onset_earliest", "onset_latest", "ended")
        },
        **{name: getattr(cause, name) for name in ("objective", "streams", "affected")},
        "unaffected": list(cause.unaffected),
        "example_stream_id": cause.example_stream_id,
    }


def _time(at: datetime | None) -> str | None:
    return None if at is None else at.astimezone(UTC).isoformat().replace("+00:00", "Z")


def _in_seconds(values: Mapping[str, float | None], unit: str) -> dict[str, Any]:
    """Values in ns as seconds, and the unit."""
    if unit != "ns":
        return {**values, "unit": unit}
    return {name: None if value is None else value / 1e9 for name, value in values.items()} | {"unit": "s"}


def _without_ns(row: Mapping[str, Any]) -> dict[str, Any]:
    """Columns `…_ns` as `…_s`."""
    return {
        f"{name.removesuffix('_ns')}_s" if name.endswith("_ns") else name: value / 1e9
        if name.endswith("_ns") and value is not None
        else value
        for name, value in row.items()
    }
