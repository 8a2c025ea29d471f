"""Durations of streams: over time, as distributions and by group; stalls.

Roll-ups answer long ranges and pooled gaps, and the streams all other questions (`reports.latency`).
"""

from __future__ import annotations

from functools import partial

import polars as pl
import streamlit as st

from streamgauge.analytics.reports import latency, overview
from streamgauge.analytics.reports.metric_help import metric_help
from streamgauge.analytics.reports.selection import Selection, dimension
from streamgauge.analytics.schema.prompt_sizes import PROMPT_SIZES
from streamgauge.dashboard import filters, page_frame, verdict
from streamgauge.dashboard.charts import colors
from streamgauge.dashboard.charts.drawing import HEIGHT, choose_series
from streamgauge.dashboard.charts.group_charts import HEATMAP_HEIGHT, dots, ecdf, heatmap, histogram
from streamgauge.dashboard.charts.time_series import time_lines
from streamgauge.dashboard.panels import panel, section
from streamgauge.dashboard.query_runner import prefetch, query, query_catalog
from streamgauge.dashboard.report_tables import show_report

QUANTILES = {"p50": 0.5, "p75": 0.75, "p90": 0.9, "p95": 0.95, "p99": 0.99, "p99.9": 0.999}
METRICS = {
    **dict(list(latency.METRICS.items())[:2]),
    "inter-chunk, all gaps": latency.POOLED_GAPS,
    **latency.METRICS,
}
HELP = {
    "ttft_ns": "ttft", "itl_ns": "itl", "ttfb_ns": "ttfb", "ttfc_ns": "ttfc", "ttfo_ns": "ttfo", "end_ns": "end",
    "icl_p50_ns": "icl", "icl_p95_ns": "icl", "icl_max_ns": "icl", latency.POOLED_GAPS: "icl_pooled",
}  # fmt: skip
HEATMAP_BINS = "Bins are a factor of 1.47 wide."
HISTOGRAM_BINS = "Bins are a factor of 1.21 wide."


def minutes_read(nth: int) -> str:
    return "all minutes" if nth == 1 else f"one of every {nth} minutes, to limit the time of the query"


def body(metric: str, group: str, quantile: str, chosen: Selection) -> None:
    verdict.prefetch_marks(chosen)
    column, q = METRICS[metric], QUANTILES[quantile]
    chosen = overview.widened(query_catalog, chosen, dimension(group, latency.GROUPS))
    source = latency.source_of(query, chosen, column, group)
    if source is None:
        st.info(
            "Pooled gaps are stored only by minute, model and gateway. Remove the client filter, choose another “By”, or "
            "choose “inter-chunk, median of the stream”.",
            icon=":material/filter_alt_off:",
        )
        return
    counted = "gaps" if column == latency.POOLED_GAPS else "streams"
    timeline = prefetch(latency.quantile_timeline, query, source, column, q)
    spread = prefetch(latency.distribution, query, source, column)
    counts = prefetch(latency.heatmap, query, source, column)
    first_times = prefetch(latency.first_times, query, source, q)
    stalls = prefetch(latency.stalls, query, source)
    quantiles = latency.table(query, source, column)
    if not quantiles["n"].sum():
        page_frame.show_no_matches()
        return
    if source.nth is not None:
        of_these = " of these" if source.nth > 1 else ""
        st.caption(
            f"From roll-ups by minute: {minutes_read(source.nth)}; quantiles within {latency.QUANTILE_ERROR}{of_these}."
        )
    show_charts(source, metric, quantile, timeline(), spread(), counts())
    section(f"{metric} by {group}")
    show_report(latency.QUANTILES, quantiles, by=group, counted=counted.capitalize())
    panel(
        f"First byte, chunk, token and answer token, {quantile} by {group}",
        first_times(),
        lambda f: dots(f, colors.by_name(tuple(latency.FIRST_TIMES.values()))),
        "The first byte and the first chunk may contain no output (role-only chunks, pings). Tools that measure TTFT "
        "there report less. Visible reasoning is between the first token and the first answer token.",
        on_click=filters.opens_streams(by=group),
    )
    section(f"Stalls by {group}", metric_help("stall"))
    show_report(latency.STALLS, stalls(), by=group)


def show_charts(
    source: latency.Source,
    metric: str,
    quantile: str,
    timeline: pl.DataFrame,
    spread: pl.DataFrame,
    counts: pl.DataFrame,
) -> None:
    """The metric over time and its distributions."""
    column, group = METRICS[metric], source.group
    help_text = metric_help(HELP[column]) if column in HELP else ""
    pooled = column == latency.POOLED_GAPS
    counted = "gaps" if pooled else "streams"
    time = verdict.time_range(source.selection, source.bucket_s)
    order = PROMPT_SIZES if group == "prompt size" else ()
    group_colors = colors.of_groups(pl.concat([timeline.select("name"), spread.select("name")]), order=order)
    lines = partial(time_lines, time=time, series="name", series_colors=group_colors, samples="n")
    panel(
        f"{metric}, {quantile} by {group}",
        timeline,
        partial(lines, value="value_ns", highlighted=choose_series(group_colors)),
        help_text or None,
        value="value_ns",
        on_click=filters.opens_streams(time, by=group),
    )

    opens_bin = filters.opens_streams(by=group, column=column)

    def show_ecdf(height: int) -> None:
        chart = partial(ecdf, group_colors=group_colors, height=height)
        panel(f"{metric}, cumulative distribution", spread, chart, help_text or None, on_click=opens_bin)

    with st.grid(2, min_column_width=340):
        panel(
            f"{metric} over time, all {counted}",
            counts,
            lambda f: heatmap(f, time, counted=counted),
            f"{help_text} Cells count {counted}. {HEATMAP_BINS}",
            on_click=filters.opens_streams(time, column=column),
        )
        if pooled:
            show_ecdf(HEATMAP_HEIGHT)
        else:
            show_gap_heatmap(source)
    if not pooled:
        with st.grid(2, min_column_width=340):
            show_ecdf(HEIGHT)
            panel(
                f"{metric}, distribution",
                spread,
                lambda f: histogram(f, group_colors),
                f"{HISTOGRAM_BINS} Each line adds up to 100 %.",
                on_click=opens_bin,
            )


def show_gap_heatmap(source: latency.Source) -> None:
    """All gaps between chunks over time. With a client filter, which roll-ups lack, the median gap of each stream."""
    gaps = latency.source_of(query, source.selection, latency.POOLED_GAPS, "everything")
    column, of, counted, note = "icl_p50_ns", "median of each stream", "streams", None
    help_text = f"{metric_help('icl')} Pooled gaps are stored by model and gateway, not by client."
    if gaps is not None and gaps.nth is not None:
        source, column, of, counted = gaps, latency.POOLED_GAPS, "all gaps", "gaps"
        help_text = f"{metric_help('icl_pooled')} Cells count gaps. {HEATMAP_BINS}"
        note = f"From {minutes_read(gaps.nth)}." if gaps.nth > 1 else None
    time = verdict.time_range(source.selection, source.bucket_s)
    panel(
        f"Inter-chunk latency over time, {of}",
        latency.heatmap(query, source, column),
        lambda f: heatmap(f, time, counted=counted),
        help_text,
        note=note,
        metric="icl",
        on_click=filters.opens_streams(time, column=column),
    )


def draw_page() -> None:
    """TTFT, inter-token latency and other durations: over time, distributions, by group; stalls."""
    with filters.row():
        metric = filters.select("Metric", list(METRICS), key="metric", width=290)
        group = filters.select("By", [*latency.GROUPS, *filters.label_names()], key="split", width=150)
        quantile = filters.select("Percentile", list(QUANTILES), key="quantile", width=120, index=3)
    page_frame.show(partial(body, metric, group, quantile))


PAGE = page_frame.Page(draw_page, "Latency", "timer", diagnosed=True)
