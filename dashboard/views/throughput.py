"""Throughput: input and output tokens, tokens per second, concurrency."""

from __future__ import annotations

from functools import partial

import polars as pl
import streamlit as st

from dashboard import filters, formatting, page_frame
from dashboard.charts import colors
from dashboard.charts.drawing import draw_legend
from dashboard.charts.time_series import time_bars, time_lines
from dashboard.metric_help import metric_help
from dashboard.panels import panel
from dashboard.queries import throughput
from dashboard.queries.selection import Selection
from dashboard.query_runner import query
from dashboard.tables.groups import show_throughput


def body(chosen: Selection) -> None:
    speed = throughput.speed_timeline(query, chosen, by)
    if speed.is_empty():
        page_frame.show_no_matches()
        return
    time = filters.time_range(chosen)
    group_colors = colors.of_groups(speed)
    tokens = throughput.tokens_timeline(query, chosen).with_columns(pl.col("tokens") / chosen.covered_s())
    output = speed.with_columns(pl.col("output_tokens") / chosen.covered_s())
    concurrency = throughput.concurrency(query, chosen)
    rate_lines = partial(
        time_lines,
        time=time,
        series="name",
        series_colors=group_colors,
        unit="tok/s",
        to_text=formatting.rate,
    )
    draw_legend(group_colors)
    with st.grid(2, min_column_width=340):
        panel(
            f"Speed per stream, p50 by {by}",
            speed,
            partial(rate_lines, value="tps_user", clip_outliers=True),
            help_text=metric_help("tps_user"),
            value="tps_user",
        )
        panel(
            f"Output of all streams by {by}",
            output,
            partial(rate_lines, value="output_tokens"),
            help_text=metric_help("tps_total"),
            value="output_tokens",
        )
        panel(
            "Input and output tokens",
            tokens,
            lambda f: time_bars(f, "tokens", time, series="kind", series_colors=colors.TOKENS, unit="tok/s"),
            help_text=f"By the start of the stream. Cached: {metric_help('cached')}",
            legend=colors.present(colors.TOKENS, tokens, "kind"),
        )
        panel(
            "Concurrent streams",
            concurrency,
            lambda f: time_lines(f, "peak", time, unit="streams"),
            help_text=metric_help("concurrency", more="Each point shows its maximum."),
        )
    st.subheader(f"By {by}", anchor=False)
    show_throughput(throughput.table(query, chosen, by), group=by)


page_frame.title("Throughput")
by = filters.choice("By", list(filters.FILTERS), "model", key="by")
page_frame.show(body)
