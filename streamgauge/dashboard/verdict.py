"""Draw a diagnosis: what fails or got slow, where and since when, with links to the pages that show it."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial

import streamlit as st

from streamgauge.analytics.diagnosis import diagnosis
from streamgauge.analytics.diagnosis.diagnose import diagnose
from streamgauge.analytics.diagnosis.diagnosis import Cause, Diagnosis
from streamgauge.analytics.reports import formatting, overview, quality
from streamgauge.analytics.reports.metric_help import metric_help
from streamgauge.analytics.reports.objectives import stored_objectives
from streamgauge.analytics.reports.selection import Selection
from streamgauge.analytics.schema.finish_reasons import LENGTH
from streamgauge.analytics.schema.objectives import Objective
from streamgauge.dashboard import filters, page_settings, zoom
from streamgauge.dashboard.charts.drawing import TimeRange
from streamgauge.dashboard.query_runner import CACHED_S, answer, client_name, prefetch, query, query_catalog

ICONS = {
    "incident": ":material/error:",
    "unclear": ":material/help:",
    "healthy": ":material/check_circle:",
    "no_data": ":material/hourglass_empty:",
}
MAX_FURTHER = 3
MAX_DIAGNOSES = 32
_BEGUN = "diagnosis"
RECENT_S, RECENT_SHARE = 30.0, 1 / 300
"""Maximum age of the diagnosis that a page shows when it opens, and of the onsets in charts: seconds, or a share of the range if that is
longer. A point of a chart is a 60th of the range."""
Link = tuple[str, str, str, Mapping[str, str]]
"""Page, label, icon, and filters that differ from those of the page."""
AFFECTED_STREAMS = {name: {"kind": "errors"} for name in diagnosis.FAILURES} | {
    "tool_failure": {"answer": "failed with a tool call"},
    "tool_arguments": {"answer": "malformed tool call"},
    "violation": {"kind": "breaks strict clients"},
    "refusal": {"answer": "refusal"},
    "empty": {"answer": "empty"},
    "length": {"finish": LENGTH},
    "lost": {"kind": "lost"},
    "stalled": {"kind": "stalled"},
    "slow_client": {"order": "longest"},
    "ttft": {"order": "highest TTFT"},
    "slow_ttft": {"order": "highest TTFT"},
    "itl": {"order": "highest ITL"},
    "slow_itl": {"order": "highest ITL"},
}
"""Metric → the choices of *Streams* that show the streams it counts. A mean counts all of them."""
COMPARED_BY = {"tap": "tap", "server": "server instance"}
"""Dimension of a cause that is no filter of all pages → its name on *Compare*."""


def diagnosis_of(chosen: Selection, *, max_age_s: float = CACHED_S) -> Diagnosis:
    """The diagnosis of the selection, shared by all readers. Raises QueryError."""
    asked = _asked(chosen)
    judged_by, data = stored_objectives(query_catalog), str(page_settings.data_dir())
    labels = tuple(overview.label_names(query_catalog))
    question = (chosen.length, chosen.filters(), judged_by, labels, data)
    latest = _latest()
    if max_age_s > CACHED_S and question in latest:
        made_s, recent = latest[question]
        later_s = abs((chosen.until - recent.until).total_seconds())
        limit_s = min(max_age_s, chosen.length.total_seconds() / 10)
        if time.monotonic() - made_s < max_age_s and later_s < limit_s:
            return recent
    found = _cached(asked, judged_by, labels, data)
    if len(latest) >= MAX_DIAGNOSES:
        latest.clear()
    latest[question] = (time.monotonic(), found)
    return found


def _asked(chosen: Selection) -> Selection:
    """Without what only charts have, so that all pages ask for the same diagnosis."""
    return replace(chosen, least_bucket_s=0.0, began=None)


@st.cache_resource(show_spinner=False)
def _latest() -> dict[Hashable, tuple[float, Diagnosis]]:
    """The latest diagnosis of each length, filters and objectives, and when it was made."""
    return {}


@st.cache_data(ttl=CACHED_S, max_entries=MAX_DIAGNOSES, show_spinner=False)
def _cached(
    chosen: Selection, judged_by: tuple[Objective, ...], labels: tuple[str, ...], data: str
) -> Diagnosis:
    return diagnose(lambda sql: answer(sql, data), chosen, judged_by, labels)


def time_range(chosen: Selection, bucket_s: int | None = None) -> TimeRange:
    """The selection as a time axis, with its complete part, the onsets of the diagnosis and the markers. Raises QueryError."""
    complete_until = overview.complete_until(query, chosen, datetime.now(UTC))
    return filters.time_range(chosen, bucket_s, marks(chosen, recent_diagnosis(chosen)), complete_until)


def begin(chosen: Selection, *, recent: bool) -> None:
    """Queue the diagnosis of a selection before the page calls `begun`."""
    chosen = _asked(chosen)
    st.session_state[_BEGUN] = chosen, prefetch(recent_diagnosis if recent else diagnosis_of, chosen)


def begun(chosen: Selection, *, recent: bool) -> Callable[[], Diagnosis]:
    """Queue the diagnosis unless `begin` has queued it. The returned function waits for it and raises QueryError."""
    if st.session_state.get(_BEGUN, (None,))[0] != _asked(chosen):
        begin(chosen, recent=recent)
    result: Callable[[], Diagnosis] = st.session_state.pop(_BEGUN)[1]
    return result


def prefetch_marks(chosen: Selection) -> None:
    """Queue the queries of `time_range`."""
    begun(chosen, recent=True)
    prefetch(partial(overview.markers, query, chosen))


def recent_diagnosis(chosen: Selection) -> Diagnosis:
    """The latest diagnosis of the selection if it is recent (`RECENT_S`), else a new one. Raises QueryError."""
    return diagnosis_of(chosen, max_age_s=max(RECENT_S, chosen.length.total_seconds() * RECENT_SHARE))


def marks(chosen: Selection, found: Diagnosis) -> list[tuple[datetime, str]]:
    """The onsets of the causes and the markers, for the charts over time."""
    onsets = [
        (cause.onset, f"onset: {diagnosis.place(cause, name_of)}")
        for cause in found.causes
        if cause.onset is not None
    ]
    return onsets + overview.markers(query, chosen)


def show_verdict(found: Diagnosis) -> None:
    """The first cause as the headline, with its links, and up to `MAX_FURTHER` further causes."""
    color = color_of(found)
    with st.container(border=True, gap="small", key=f"verdict-{color}"):
        as_of = f"{found.until.astimezone(filters.time_zone()):%H:%M:%S}"
        st.markdown(
            f":{color}[{ICONS[found.state]}] {_headline(found)} :small[:gray[as of {as_of}]]",
            help=metric_help("diagnosis"),
        )
        if found.causes:
            _show_links(found.causes[0], found.until, "first")
        for number, cause in enumerate(found.causes[1 : MAX_FURTHER + 1], 2):
            st.markdown(f"{number}. {_cause_text(cause, found)}")
            _show_links(cause, found.until, str(number))


def color_of(found: Diagnosis) -> str:
    """The colour of the state: red only if an objective is missed."""
    worse = "red" if any(m.missed for m in found.measured) else "orange"
    return {"incident": worse, "unclear": worse, "healthy": "green", "no_data": "gray"}[found.state]


def _headline(found: Diagnosis) -> str:
    if found.state == "incident":
        return _cause_text(found.causes[0], found)
    return formatting.markdown(diagnosis.headline(found, filters.time_zone(), name_of))


def _cause_text(cause: Cause, found: Diagnosis) -> str:
    """The cause as Markdown, with its place in bold."""
    measured = found.measured if cause is found.causes[0] else ()
    parts = diagnosis.cause_parts(cause, filters.time_zone(), name_of, measured=measured, until=found.until)
    before, place, after = map(formatting.markdown, parts)
    return f"{before}**{place}**{after}"


def name_of(dimension: str, value: str) -> str:
    """The name that pages show: of a client its name from the settings, or its shortened id."""
    if dimension == "client" and (name := client_name(value)):
        return name
    return diagnosis.plain_name(dimension, value)


def _show_links(cause: Cause, until: datetime, key: str) -> None:
    with st.container(horizontal=True, gap="medium", key=f"verdict-links-{key}"):
        for link in _links(cause, until):
            filters.page_link(*link)


def _charts(cause: Cause) -> Link:
    """The page with charts of the metric."""
    if cause.metric in (*diagnosis.FAILURES, "tool_failure", "violation"):
        return "errors", "Errors", ":material/error:", cause.filters
    if cause.metric in ("cost", "spend"):
        return "spend", "Spend", ":material/payments:", cause.filters
    measure = quality.MEASURES.get(cause.metric)
    if cause.metric not in ("cache", "prompt_changed") and measure is None:
        return "latency", "Latency", ":material/timer:", cause.filters
    shown = {"answers": measure.label} if measure is not None and measure.unit == "share" else {}
    return "throughput", "Throughput", ":material/speed:", cause.filters | shown


def _links(cause: Cause, until: datetime) -> Sequence[Link]:
    links: list[Link] = []
    if cause.metric == "lost":
        links.append(("pipeline", "Pipeline", ":material/valve:", {}))
    elif cause.metric != "slow_client":  # no page has charts of it
        links.append(_charts(cause))
    chosen = dict(cause.where) | AFFECTED_STREAMS.get(cause.metric, {})
    if cause.onset is not None:
        chosen[zoom.KEY] = zoom.to_text((cause.onset, cause.ended or until))
    links.append(("streams", "Affected streams", ":material/list:", chosen))
    if cause.example_stream_id is not None:
        links.append(("stream", "Example stream", ":material/water:", {"id": cause.example_stream_id}))
    if cause.onset is not None:
        narrowed = {**cause.filters, "onset": cause.onset.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S")}
        for dimension in COMPARED_BY.keys() & cause.where.keys():
            values = dict.fromkeys(("A-value", "B-value"), cause.where[dimension])
            narrowed |= {"dimension": COMPARED_BY[dimension], **values}
        links.append(("compare", "Compare with before", ":material/compare_arrows:", narrowed))
    return links
