"""How long things take: over time, as distributions, by model, gateway, client and prompt size; what stalls."""

from __future__ import annotations

from typing import Any

import polars as pl
import streamlit as st

from dashboard import bars, charts, distributions, filters, frame, grids, palette, source
from dashboard.measures import described
from dashboard.panels import colors_of, panel
from dashboard.queries import latency
from dashboard.queries.selection import Selection
from dashboard.time_charts import time_lines

QUANTILES = {"p50": 0.5, "p75": 0.75, "p90": 0.9, "p95": 0.95, "p99": 0.99, "p99.9": 0.999}
HELP = {
    "ttft_ns": "ttft", "itl_ns": "itl", "ttfb_ns": "ttfb", "ttfc_ns": "ttfc", "ttfo_ns": "ttfo", "end_ns": "end",
    "icl_p50_ns": "icl", "icl_p95_ns": "icl", "icl_max_ns": "icl",
}  # fmt: skip
FIRSTS = ("first byte", "first chunk", "first token", "first answer token")


def body(chosen: Selection) -> None:
    state = st.session_state
    metric, group = state.get("metric") or "TTFT", state.get("split") or "model"
    named = state.get("quantile") or "p95"
    column, quantile = latency.METRICS[metric], QUANTILES[named]
    about = described(HELP[column]) if column in HELP else None
    overall = latency.table(source.ask, chosen, column, group)
    if not overall["n"].sum():
        frame.nothing_chosen()
        return
    time: dict[str, Any] = {
        "zone": filters.zone(),
        "span": (chosen.since, chosen.until),
        "bucket_s": chosen.bucket_s,
    }
    course = latency.quantile_timeline(source.ask, chosen, column, group, quantile)
    spread = latency.distribution(source.ask, chosen, column, group)
    order = latency.PROMPT_SIZES if group == "prompt size" else ()
    colors = colors_of(pl.concat([course.select("name"), spread.select("name")]), order=order)
    charts.legend(colors)
    panel(
        f"{metric}, {named} by {group}",
        course,
        lambda f: time_lines(f, "value_ns", series="name", colors=colors, **time),
        help_text=about,
        value="value_ns",
    )
    panel(
        f"{metric}, all streams over time",
        latency.heatmap(source.ask, chosen, column),
        lambda f: distributions.heatmap(f, **time),
        help_text=about,
        note="Each cell counts streams; bins are a factor of 1.47 wide.",
    )
    with st.grid(2, min_column_width=340):
        panel(
            f"{metric}, share at or below", spread, lambda f: distributions.ecdf(f, colors), help_text=about
        )
        panel(
            f"{metric}, distribution",
            spread,
            lambda f: distributions.histogram(f, colors),
            help_text="Bins are a factor of 1.21 wide, each line adds up to 100 %.",
        )
    st.subheader(f"{metric} by {group}", anchor=False)
    grids.durations(overall, key="quantiles", name=group)
    panel(
        f"From the first byte to the answer, {named} by {group}",
        latency.firsts(source.ask, chosen, group, quantile),
        lambda f: bars.dots(f, series="first", value="value_ns", colors=palette.of_series(FIRSTS)),
        help_text="First byte and first chunk may hold no output (role-only chunks, pings): tools that clock TTFT there "
        "see less. Between first token and first answer token lies visible reasoning.",
    )
    st.subheader(f"Stalls by {group}", anchor=False, help=described("stall"))
    grids.stalls(latency.stalls(source.ask, chosen, group), name=group)


frame.title("Latency")
with st.container(horizontal=True, vertical_alignment="bottom"):
    st.selectbox("Metric", list(latency.METRICS), key="metric", bind="query-params", width=290)
    st.selectbox("By", list(latency.GROUPS), key="split", bind="query-params", width=150)
    st.selectbox("Percentile", list(QUANTILES), index=3, key="quantile", bind="query-params", width=120)
frame.show(body)
