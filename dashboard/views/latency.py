"""Durations of streams: over time, as distributions and by group; stalls.

Roll-ups answer long ranges and pooled gaps (`reports.rollups`). All other queries read the streams (`reports.latency`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import polars as pl
import streamlit as st

from streamgauge.analytics.reports import latency, overview, rollups
from streamgauge.analytics.reports.metric_help import metric_help
from streamgauge.analytics.reports.selection import Selection
from streamgauge.dashboard import page_frame, verdict
from streamgauge.dashboard.charts import bars, colors, distributions
from streamgauge.dashboard.charts.drawing import HEIGHT, choose_series
from streamgauge.dashboard.charts.time_series import time_lines
from streamgauge.dashboard.panels import panel
from streamgauge.dashboard.query_runner import prefetch, query, query_catalog
from streamgauge.dashboard.tables.groups import show_quantiles, show_stalls

QUANTILES = {"p50": 0.5, "p75": 0.75, "p90": 0.9, "p95": 0.95, "p99": 0.99, "p99.9": 0.999}
METRICS = {
    **dict(list(latency.METRICS.items())[:2]),
    "inter-chunk, all gaps": rollups.POOLED_GAPS,
    **latency.METRICS,
}
HELP = {
    "ttft_ns": "ttft", "itl_ns": "itl", "ttfb_ns": "ttfb", "ttfc_ns": "ttfc", "ttfo_ns": "ttfo", "end_ns": "end",
    "icl_p50_ns": "icl", "icl_p95_ns": "icl", "icl_max_ns": "icl", rollups.POOLED_GAPS: "icl_pooled",
}  # fmt: skip
FIRST_TIMES = ("first byte", "first chunk", "first token", "first answer token")
HEATMAP_BINS = "Bins are a factor of 1.47 wide."
HISTOGRAM_BINS = "Bins are a factor of 1.21 wide."


@dataclass(frozen=True)
class Source:
    """The query module (`reports.rollups` or `reports.latency`) and the options of all its queries."""

    queries: Any
    bucket_s: int
    options: dict[str, int]


def source_of(chosen: Selection, column: str, group: str) -> Source:
    if column == rollups.POOLED_GAPS or rollups.preferred(chosen, group):
        nth = rollups.sampling_interval(query, chosen, column)
        return Source(rollups, rollups.bucket_s(chosen), {"nth": nth})
    return Source(latency, chosen.bucket_s, {})


def minutes_read(nth: int) -> str:
    return "all minutes" if nth == 1 else f"one of every {nth} minutes, to limit the time of the query"


def body(chosen: Selection) -> None:
    verdict.prefetch_marks(chosen)
    column = METRICS[metric]
    pooled = column == rollups.POOLED_GAPS
    if pooled and not rollups.can_answer(chosen, group):
        st.info(
            "Pooled gaps are stored only by minute, model and gateway. Remove the client filter, choose another “By”, or "
            "choose “inter-chunk, median of the stream”.",
            icon=":material/filter_alt_off:",
        )
        return
    chosen = overview.widened(query_catalog, chosen, latency.GROUPS[group])
    source = source_of(chosen, column, group)
    counted = "gaps" if pooled else "streams"
    of = (query, chosen, column, group)
    for queries in (
        partial(source.queries.quantile_timeline, *of, QUANTILES[quantile], **source.options),
        partial(source.queries.distribution, *of, **source.options),
        partial(source.queries.heatmap, query, chosen, column, **source.options),
        partial(source.queries.first_times, query, chosen, group, QUANTILES[quantile], **source.options),
        partial(source.queries.stalls, query, chosen, group),
    ):
        prefetch(queries)
    quantiles = source.queries.table(query, chosen, column, group, **source.options)
    if not quantiles["n"].sum():
        page_frame.show_no_matches()
        return
    if source.queries is rollups:
        nth = source.options["nth"]
        of_these = " of these" if nth > 1 else ""
        st.caption(
            f"From roll-ups by minute: {minutes_read(nth)}; quantiles within {rollups.QUANTILE_ERROR}{of_these}."
        )
    show_charts(chosen, source, column, counted)
    st.header(f"{metric} by {group}", anchor=False)
    show_quantiles(quantiles, group=group, counted=counted)
    panel(
        f"First byte, chunk, token and answer token, {quantile} by {group}",
        source.queries.first_times(query, chosen, group, QUANTILES[quantile], **source.options),
        lambda f: bars.dots(f, colors.by_name(FIRST_TIMES)),
        help_text="The first byte and the first chunk may contain no output (role-only chunks, pings). Tools that measure TTFT "
        "there report less. Visible reasoning is between the first token and the first answer token.",
    )
    st.header(f"Stalls by {group}", anchor=False, help=metric_help("stall"))
    show_stalls(source.queries.stalls(query, chosen, group), group=group)


def show_charts(chosen: Selection, source: Source, column: str, counted: str) -> None:
    """The metric over time and its distributions."""
    time = verdict.time_range(chosen, source.bucket_s)
    help_text = metric_help(HELP[column]) if column in HELP else ""
    timeline = source.queries.quantile_timeline(
        query, chosen, column, group, QUANTILES[quantile], **source.options
    )
    spread = source.queries.distribution(query, chosen, column, group, **source.options)
    order = latency.PROMPT_SIZES if group == "prompt size" else ()
    group_colors = colors.of_groups(pl.concat([timeline.select("name"), spread.select("name")]), order=order)

    def show_ecdf(height: int) -> None:
        panel(
            f"{metric}, cumulative distribution",
            spread,
            lambda f: distributions.ecdf(f, group_colors, height=height),
            help_text=help_text or None,
        )

    highlighted = choose_series(group_colors)
    panel(
        f"{metric}, {quantile} by {group}",
        timeline,
        lambda f: time_lines(
            f,
            "value_ns",
            time,
            series="name",
            series_colors=group_colors,
            highlighted=highlighted,
            samples="n",
        ),
        help_text=help_text or None,
        value="value_ns",
    )
    with st.grid(2, min_column_width=340):
        panel(
            f"{metric} over time, all {counted}",
            source.queries.heatmap(query, chosen, column, **source.options),
            lambda f: distributions.heatmap(f, time, counted=counted),
            help_text=f"{help_text} Cells count {counted}. {HEATMAP_BINS}",
        )
        if column == rollups.POOLED_GAPS:
            show_ecdf(distributions.HEATMAP_HEIGHT)
            return
        show_gap_heatmap(chosen, source.bucket_s)
    with st.grid(2, min_column_width=340):
        show_ecdf(HEIGHT)
        panel(
            f"{metric}, distribution",
            spread,
            lambda f: distributions.histogram(f, group_colors),
            help_text=f"{HISTOGRAM_BINS} Each line adds up to 100 %.",
        )


def show_gap_heatmap(chosen: Selection, bucket_s: int) -> None:
    """All gaps between chunks over time. With a client filter, which roll-ups lack, the median gap of each stream."""
    if rollups.can_answer(chosen, "everything"):
        nth = rollups.sampling_interval(query, chosen, rollups.POOLED_GAPS)
        time = verdict.time_range(chosen, rollups.bucket_s(chosen))
        panel(
            "Inter-chunk latency over time, all gaps",
            rollups.heatmap(query, chosen, rollups.POOLED_GAPS, nth=nth),
            lambda f: distributions.heatmap(f, time, counted="gaps"),
            help_text=f"{metric_help('icl_pooled')} Cells count gaps. {HEATMAP_BINS}",
            note=f"From {minutes_read(nth)}." if nth > 1 else None,
        )
        return
    time = verdict.time_range(chosen, bucket_s)
    panel(
        "Inter-chunk latency over time, median of each stream",
        latency.heatmap(query, chosen, "icl_p50_ns"),
        lambda f: distributions.heatmap(f, time),
        help_text=f"{metric_help('icl')} Pooled gaps are stored by model and gateway, not by client.",
    )


with st.container(horizontal=True, vertical_alignment="bottom"):
    metric = st.selectbox("Metric", list(METRICS), key="metric", bind="query-params", width=290)
    group = st.selectbox("By", list(latency.GROUPS), key="split", bind="query-params", width=150)
    quantile = st.selectbox(
        "Percentile", list(QUANTILES), index=3, key="quantile", bind="query-params", width=120
    )
page_frame.show(body)
