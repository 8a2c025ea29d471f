"""How long things take: over time, as distributions, by model, gateway, client and prompt size; what stalls."""

from __future__ import annotations

from typing import Any

import polars as pl
import streamlit as st

from dashboard import filters, page_frame, palette, query_runner
from dashboard.charts import bars, base, distributions
from dashboard.charts.time_series import time_lines
from dashboard.metric_help import described
from dashboard.panels import colors_of, panel
from dashboard.queries import latency, rollups
from dashboard.queries.selection import Selection
from dashboard.tables import generic

QUANTILES = {"p50": 0.5, "p75": 0.75, "p90": 0.9, "p95": 0.95, "p99": 0.99, "p99.9": 0.999}
METRICS = {
    **dict(list(latency.METRICS.items())[:2]),
    "inter-chunk, all gaps": rollups.GAPS,
    **latency.METRICS,
}
HELP = {
    "ttft_ns": "ttft", "itl_ns": "itl", "ttfb_ns": "ttfb", "ttfc_ns": "ttfc", "ttfo_ns": "ttfo", "end_ns": "end",
    "icl_p50_ns": "icl", "icl_p95_ns": "icl", "icl_max_ns": "icl", rollups.GAPS: "icl_pooled",
}  # fmt: skip
FIRSTS = ("first byte", "first chunk", "first token", "first answer token")
BINS = "Bins are a factor of {} wide."


def body(chosen: Selection) -> None:
    state = st.session_state
    metric, group = state.get("metric") or "TTFT", state.get("split") or "model"
    named = state.get("quantile") or "p95"
    column, quantile = METRICS[metric], QUANTILES[named]
    about = described(HELP[column]) if column in HELP else None
    if column == rollups.GAPS and not rollups.usable(chosen, group):
        st.info(
            "All gaps together are kept by minute, model and gateway alone. Take the client filter away, or choose another "
            "“By”; the gaps of single streams (“inter-chunk, median of the stream”) can be split by anything.",
            icon=":material/filter_alt_off:",
        )
        return
    from_rollups = column == rollups.GAPS or rollups.wanted(chosen, group)
    read: Any = rollups if from_rollups else latency
    counted = "gaps" if column == rollups.GAPS else "streams"
    part = {"each": rollups.every(query_runner.ask, chosen, column)} if from_rollups else {}
    overall = read.table(query_runner.ask, chosen, column, group, **part)
    if not overall["n"].sum():
        page_frame.nothing_chosen()
        return
    if from_rollups:
        exact = f"quantiles within {rollups.ERROR}{' of these' if part['each'] > 1 else ''}"
        st.caption(f"From roll-ups by the minute: {taken(part['each'])}, {exact}.")
    time: dict[str, Any] = {
        "zone": filters.zone(),
        "span": (chosen.since, chosen.until),
        "bucket_s": rollups.bucket_s(chosen) if from_rollups else chosen.bucket_s,
    }
    course = read.quantile_timeline(query_runner.ask, chosen, column, group, quantile, **part)
    spread = read.distribution(query_runner.ask, chosen, column, group, **part)
    order = latency.PROMPT_SIZES if group == "prompt size" else ()
    colors = colors_of(pl.concat([course.select("name"), spread.select("name")]), order=order)
    base.legend(colors)
    panel(
        f"{metric}, {named} by {group}",
        course,
        lambda f: time_lines(f, "value_ns", series="name", colors=colors, **time),
        help_text=about,
        value="value_ns",
    )
    with st.grid(2, min_column_width=340):
        panel(
            f"{metric} over time, all {counted}",
            read.heatmap(query_runner.ask, chosen, column, **part),
            lambda f: distributions.heatmap(f, counted=counted, **time),
            help_text=f"{about or ''} Each cell counts {counted}. {BINS.format('1.47')}",
        )
        if column == rollups.GAPS:
            panel(
                f"{metric}, share at or below",
                spread,
                lambda f: distributions.ecdf(f, colors, height=240),
                help_text=about,
            )
        else:
            gaps(chosen, time)
    if column != rollups.GAPS:
        with st.grid(2, min_column_width=340):
            panel(
                f"{metric}, share at or below",
                spread,
                lambda f: distributions.ecdf(f, colors),
                help_text=about,
            )
            panel(
                f"{metric}, distribution",
                spread,
                lambda f: distributions.histogram(f, colors),
                help_text=f"{BINS.format('1.21')} Each line adds up to 100 %.",
            )
    st.subheader(f"{metric} by {group}", anchor=False)
    generic.durations(overall, name=group, counted=counted)
    panel(
        f"From the first byte to the answer, {named} by {group}",
        read.firsts(query_runner.ask, chosen, group, quantile, **part),
        lambda f: bars.dots(f, colors=palette.of_series(FIRSTS)),
        help_text="First byte and first chunk may hold no output (role-only chunks, pings): tools that clock TTFT there "
        "see less. Between first token and first answer token lies visible reasoning.",
    )
    st.subheader(f"Stalls by {group}", anchor=False, help=described("stall"))
    generic.stalls(read.stalls(query_runner.ask, chosen, group), name=group)


def taken(each: int) -> str:
    """Which minutes were read, in words."""
    return "whole minutes" if each == 1 else f"one of every {each} minutes, which are too many to read"


def gaps(chosen: Selection, time: dict[str, Any]) -> None:
    """The gaps between chunks over time: all of them where roll-ups can tell, else the median of each stream."""
    if rollups.usable(chosen, "everything"):
        each = rollups.every(query_runner.ask, chosen, rollups.GAPS)
        panel(
            "Inter-chunk latency over time, all gaps",
            rollups.heatmap(query_runner.ask, chosen, rollups.GAPS, each=each),
            lambda f: distributions.heatmap(
                f, counted="gaps", **{**time, "bucket_s": rollups.bucket_s(chosen)}
            ),
            help_text=f"{described('icl_pooled')} Each cell counts gaps. {BINS.format('1.47')}",
            note=f"Drawn from {taken(each)}." if each > 1 else None,
        )
        return
    panel(
        "Inter-chunk latency over time, median of each stream",
        latency.heatmap(query_runner.ask, chosen, "icl_p50_ns"),
        lambda f: distributions.heatmap(f, **time),
        help_text=f"{described('icl')} Of all gaps together, which are kept by model and gateway, a client's cannot be told.",
    )


page_frame.title("Latency")
with st.container(horizontal=True, vertical_alignment="bottom"):
    st.selectbox("Metric", list(METRICS), key="metric", bind="query-params", width=290)
    st.selectbox("By", list(latency.GROUPS), key="split", bind="query-params", width=150)
    st.selectbox("Percentile", list(QUANTILES), index=3, key="quantile", bind="query-params", width=120)
page_frame.show(body)
