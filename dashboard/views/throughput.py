"""Throughput: input and output tokens, tokens per second, concurrency."""

from __future__ import annotations

from functools import partial

import polars as pl
import streamlit as st

from streamgauge.analytics.reports import formatting, overview, throughput
from streamgauge.analytics.reports.metric_help import metric_help
from streamgauge.analytics.reports.selection import DIMENSIONS, Selection
from streamgauge.dashboard import filters, page_frame, verdict
from streamgauge.dashboard.charts import bars, colors
from streamgauge.dashboard.charts.drawing import choose_series
from streamgauge.dashboard.charts.time_series import time_bars, time_lines
from streamgauge.dashboard.panels import panel
from streamgauge.dashboard.query_runner import prefetch, query, query_catalog
from streamgauge.dashboard.tables.groups import show_throughput, show_wasted


def body(chosen: Selection) -> None:
    verdict.prefetch_marks(chosen)
    chosen = overview.widened(query_catalog, chosen, DIMENSIONS[by])
    for queries in (
        throughput.tokens_timeline,
        throughput.concurrency,
        throughput.ttft_by_cache_hit,
    ):
        prefetch(partial(queries, query, chosen))
    began = overview.data_began(query_catalog)
    table = prefetch(partial(throughput.table, query, chosen, by, began=began))
    wasted = prefetch(partial(throughput.wasted, query_catalog, chosen))
    speed = throughput.speed_timeline(query, chosen, by)
    if speed.is_empty():
        page_frame.show_no_matches()
        return
    time = verdict.time_range(chosen)
    group_colors = colors.of_groups(speed)
    covered_s = chosen.covered_s(began)
    tokens = throughput.tokens_timeline(query, chosen).with_columns(pl.col("tokens") / covered_s)
    output = speed.with_columns(pl.col("output_tokens") / covered_s)
    concurrency = throughput.concurrency(query, chosen)
    lines = partial(
        time_lines,
        time=time,
        series="name",
        series_colors=group_colors,
        highlighted=choose_series(group_colors),
        samples="n",
    )
    rate_lines = partial(lines, unit="tok/s", to_text=formatting.rate)
    with st.grid(2, min_column_width=340):
        panel(
            f"Tokens per second per stream, p50 by {by}",
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
        panel(
            f"Prompt-cache hit rate by {by}",
            speed,
            partial(lines, value="cache_hit_share", percent=True, to_text=formatting.share),
            help_text=metric_help("cached"),
            value="cache_hit_share",
        )
        panel(
            "TTFT by prompt-cache hit rate",
            throughput.ttft_by_cache_hit(query, chosen),
            lambda f: bars.dots(f, colors.by_name(("p50", "p95"))),
            help_text="Streams grouped by the share of their own prompt that was read from the cache, where it is reported. "
            "Long prompts hit more often and are slower: compare within one model.",
        )
    st.header(f"By {by}", anchor=False)
    show_throughput(table(), group=by)
    st.header("Wasted tokens", anchor=False, help=metric_help("wasted_tokens"))
    show_wasted(wasted())


by = filters.choice("By", list(filters.FILTERS), "model", key="by")
page_frame.show(body)
