"""Durations of streams: over time, as distributions and by group; stalls.

Roll-ups answer long ranges and pooled gaps (`reports.rollups`). All other queries read the streams (`reports.latency`).
"""

from __future__ import annotations

from functools import partial
from typing import Any, cast

import polars as pl
import streamlit as st

from streamgauge.analytics.reports import latency, overview, rollups
from streamgauge.analytics.reports.metric_help import metric_help
from streamgauge.analytics.reports.selection import Selection
from streamgauge.dashboard import filters, page_frame, verdict
from streamgauge.dashboard.charts import colors
from streamgauge.dashboard.charts.drawing import HEIGHT, choose_series
from streamgauge.dashboard.charts.group_charts import HEATMAP_HEIGHT, dots, ecdf, heatmap, histogram
from streamgauge.dashboard.charts.time_series import time_lines
from streamgauge.dashboard.group_tables import show_quantiles, show_stalls
from streamgauge.dashboard.panels import panel, section
from streamgauge.dashboard.query_runner import prefetch, query, query_catalog

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


def minutes_read(nth: int) -> str:
    return "all minutes" if nth == 1 else f"one of every {nth} minutes, to limit the time of the query"


def body(chosen: Selection) -> None:
    verdict.prefetch_marks(chosen)
    column, q = METRICS[metric], QUANTILES[quantile]
    pooled = column == rollups.POOLED_GAPS
    if pooled and not rollups.can_answer(chosen, group):
        st.info(
            "Pooled gaps are stored only by minute, model and gateway. Remove the client filter, choose another “By”, or "
            "choose “inter-chunk, median of the stream”.",
            icon=":material/filter_alt_off:",
        )
        return
    chosen = overview.widened(query_catalog, chosen, latency.GROUPS[group])
    from_rollups = pooled or rollups.preferred(chosen, group)
    # Both have the same functions, of which those of the roll-ups take `nth`.
    source = cast(Any, rollups if from_rollups else latency)
    bucket_s = rollups.bucket_s(chosen) if from_rollups else chosen.bucket_s
    options = {"nth": rollups.sampling_interval(query, chosen, column)} if from_rollups else {}
    counted = "gaps" if pooled else "streams"
    timeline = prefetch(source.quantile_timeline, query, chosen, column, group, q, **options)
    spread = prefetch(source.distribution, query, chosen, column, group, **options)
    counts = prefetch(source.heatmap, query, chosen, column, **options)
    first_times = prefetch(source.first_times, query, chosen, group, q, **options)
    stalls = prefetch(source.stalls, query, chosen, group)
    quantiles = source.table(query, chosen, column, group, **options)
    if not quantiles["n"].sum():
        page_frame.show_no_matches()
        return
    if from_rollups:
        of_these = " of these" if options["nth"] > 1 else ""
        st.caption(
            f"From roll-ups by minute: {minutes_read(options['nth'])}; quantiles within {rollups.QUANTILE_ERROR}{of_these}."
        )
    show_charts(chosen, column, bucket_s, timeline(), spread(), counts())
    section(f"{metric} by {group}")
    show_quantiles(quantiles, group=group, counted=counted)
    panel(
        f"First byte, chunk, token and answer token, {quantile} by {group}",
        first_times(),
        lambda f: dots(f, colors.by_name(FIRST_TIMES)),
        "The first byte and the first chunk may contain no output (role-only chunks, pings). Tools that measure TTFT "
        "there report less. Visible reasoning is between the first token and the first answer token.",
    )
    section(f"Stalls by {group}", metric_help("stall"))
    show_stalls(stalls(), group=group)


def show_charts(
    chosen: Selection, column: str, bucket_s: int, timeline: pl.DataFrame, spread: pl.DataFrame, counts: pl.DataFrame
) -> None:  # fmt: skip
    """The metric over time and its distributions."""
    help_text = metric_help(HELP[column]) if column in HELP else ""
    pooled = column == rollups.POOLED_GAPS
    counted = "gaps" if pooled else "streams"
    time = verdict.time_range(chosen, bucket_s)
    order = latency.PROMPT_SIZES if group == "prompt size" else ()
    group_colors = colors.of_groups(pl.concat([timeline.select("name"), spread.select("name")]), order=order)
    lines = partial(time_lines, time=time, series="name", series_colors=group_colors, samples="n")
    panel(
        f"{metric}, {quantile} by {group}",
        timeline,
        partial(lines, value="value_ns", highlighted=choose_series(group_colors)),
        help_text or None,
        value="value_ns",
    )

    def show_ecdf(height: int) -> None:
        title = f"{metric}, cumulative distribution"
        panel(title, spread, lambda f: ecdf(f, group_colors, height=height), help_text or None)

    with st.grid(2, min_column_width=340):
        panel(
            f"{metric} over time, all {counted}",
            counts,
            lambda f: heatmap(f, time, counted=counted),
            f"{help_text} Cells count {counted}. {HEATMAP_BINS}",
        )
        if pooled:
            show_ecdf(HEATMAP_HEIGHT)
        else:
            show_gap_heatmap(chosen, bucket_s)
    if not pooled:
        with st.grid(2, min_column_width=340):
            show_ecdf(HEIGHT)
            panel(
                f"{metric}, distribution",
                spread,
                lambda f: histogram(f, group_colors),
                f"{HISTOGRAM_BINS} Each line adds up to 100 %.",
            )


def show_gap_heatmap(chosen: Selection, bucket_s: int) -> None:
    """All gaps between chunks over time. With a client filter, which roll-ups lack, the median gap of each stream."""
    if rollups.can_answer(chosen, "everything"):
        nth = rollups.sampling_interval(query, chosen, rollups.POOLED_GAPS)
        time = verdict.time_range(chosen, rollups.bucket_s(chosen))
        panel(
            "Inter-chunk latency over time, all gaps",
            rollups.heatmap(query, chosen, rollups.POOLED_GAPS, nth=nth),
            lambda f: heatmap(f, time, counted="gaps"),
            f"{metric_help('icl_pooled')} Cells count gaps. {HEATMAP_BINS}",
            note=f"From {minutes_read(nth)}." if nth > 1 else None,
        )
        return
    time = verdict.time_range(chosen, bucket_s)
    panel(
        "Inter-chunk latency over time, median of each stream",
        latency.heatmap(query, chosen, "icl_p50_ns"),
        lambda f: heatmap(f, time),
        f"{metric_help('icl')} Pooled gaps are stored by model and gateway, not by client.",
    )


with filters.row():
    metric = filters.select("Metric", list(METRICS), key="metric", width=290)
    group = filters.select("By", list(latency.GROUPS), key="split", width=150)
    quantile = filters.select("Percentile", list(QUANTILES), key="quantile", width=120, index=3)
page_frame.show(body)
