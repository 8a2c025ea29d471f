"""Throughput: input and output tokens, tokens per second, concurrency, and what answers are."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import polars as pl
import streamlit as st

from streamgauge.analytics.reports import formatting, overview, throughput
from streamgauge.analytics.reports.metric_help import metric_help, why_unknown
from streamgauge.analytics.reports.selection import Selection, dimension
from streamgauge.dashboard import filters, page_frame, verdict
from streamgauge.dashboard.charts import colors
from streamgauge.dashboard.charts.drawing import choose_series
from streamgauge.dashboard.charts.group_charts import dots
from streamgauge.dashboard.charts.time_series import time_bars, time_lines
from streamgauge.dashboard.panels import panel, section
from streamgauge.dashboard.query_runner import prefetch, query, query_catalog
from streamgauge.dashboard.report_tables import show_report


def body(by: str, answers: str, chosen: Selection) -> None:
    verdict.prefetch_marks(chosen)
    chosen = overview.widened(query_catalog, chosen, dimension(by))
    tokens_of = prefetch(throughput.tokens_timeline, query, chosen)
    concurrency = prefetch(throughput.concurrency, query, chosen)
    ttft = prefetch(throughput.ttft_by_cache_hit, query, chosen)
    began = overview.data_began(query_catalog)
    table = prefetch(throughput.table, query, chosen, by, began=began)
    wasted = prefetch(throughput.wasted, query_catalog, chosen)
    measure = throughput.ANSWERS[answers]
    speed = throughput.speed_timeline(query, chosen, by, share_of=measure.name)
    if speed.is_empty():
        page_frame.show_no_matches()
        return
    time = verdict.time_range(chosen)
    group_colors = colors.of_groups(speed)
    covered_s = chosen.covered_s(began)
    tokens = tokens_of().with_columns(pl.col("tokens") / covered_s)
    output = speed.with_columns(pl.col("output_tokens") / covered_s)
    lines = partial(
        time_lines,
        time=time,
        series="name",
        series_colors=group_colors,
        highlighted=choose_series(group_colors),
        samples="n",
    )
    opens = filters.opens_streams(time, by=by)
    rate_lines = partial(lines, unit="tok/s", to_text=formatting.rate)
    with st.grid(2, min_column_width=340):
        panel(
            f"Tokens per second per stream, p50 by {by}",
            speed,
            partial(rate_lines, value="tps_user", clip_outliers=True),
            metric_help("tps_user"),
            value="tps_user",
            empty=why_unknown("tps_user"),
            on_click=opens,
        )
        panel(
            f"Output of all streams by {by}",
            output,
            partial(rate_lines, value="output_tokens"),
            metric_help("tps_total"),
            value="output_tokens",
            empty=why_unknown("tps_total"),
            on_click=opens,
        )
        panel(
            f"Output tokens per answer, p50 by {by}",
            speed,
            partial(
                lines, value="answer_tokens", unit="tokens", to_text=formatting.count, clip_outliers=True
            ),
            metric_help("answer_tokens"),
            value="answer_tokens",
            empty=why_unknown("answer_tokens"),
            on_click=opens,
        )
        panel(
            f"{answers} by {by}",
            speed,
            partial(lines, value="share", percent=True, to_text=formatting.share),
            metric_help(measure.name),
            value="share",
            empty=why_unknown(measure.name),
            on_click=opens,
        )
        panel(
            "Input and output tokens",
            tokens,
            lambda f: time_bars(f, "tokens", time, series="kind", series_colors=colors.TOKENS, unit="tok/s"),
            f"By the start of the stream. Cached: {metric_help('cached')}",
            legend=colors.present(colors.TOKENS, tokens, "kind"),
            empty="No stream of this selection reports tokens.",
            on_click=filters.opens_streams(time),
        )
        panel(
            "Concurrent streams",
            concurrency(),
            lambda f: time_lines(f, "peak", replace(time, complete_until=chosen.until), unit="streams"),
            metric_help("concurrency", more="Each point shows its maximum."),
            on_click=filters.opens_streams(time),
        )
        panel(
            f"Prompt-cache hit rate by {by}",
            speed,
            partial(lines, value="cache_hit_share", percent=True, to_text=formatting.share),
            metric_help("cached"),
            value="cache_hit_share",
            empty=why_unknown("cached"),
            on_click=opens,
        )
        panel(
            "TTFT by prompt-cache hit rate",
            ttft(),
            lambda f: dots(f, colors.by_name(("p50", "p95"))),
            "Streams grouped by the share of their own prompt that was read from the cache, where it is reported. "
            "Long prompts hit more often and are slower: compare within one model.",
            empty=why_unknown("cached"),
        )
    section(f"By {by}")
    show_report(throughput.TABLE, table(), by=by)
    section("Wasted tokens", metric_help("wasted_tokens"))
    show_report(throughput.WASTED, wasted())


def draw_page() -> None:
    """Input and output tokens, tokens per second, concurrency."""
    with filters.row():
        by = filters.choice("By", filters.groupings(), "model", key="by")
        answers = filters.select("Answers", list(throughput.ANSWERS), key="answers", width=240)
    page_frame.show(partial(body, by, answers))


PAGE = page_frame.Page(draw_page, "Throughput", "speed", diagnosed=True)
