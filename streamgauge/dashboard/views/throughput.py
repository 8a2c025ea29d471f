"""Throughput: input and output tokens, tokens per second, concurrency, and what answers are."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

import polars as pl
import streamlit as st

from streamgauge.analytics.reports import formatting, overview, rate_limits, throughput
from streamgauge.analytics.reports.metric_help import metric_help
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
    table = prefetch(throughput.table, query, chosen, by)
    limits = prefetch(rate_limits.table, query_catalog, datetime.now(UTC), chosen)
    wasted = prefetch(throughput.wasted, query_catalog, chosen)
    measure = throughput.ANSWERS[answers]
    speed = throughput.speed_timeline(query, chosen, by, share_of=measure.name)
    if speed.is_empty():
        page_frame.show_no_matches()
        return
    time = verdict.time_range(chosen)
    group_colors = colors.of_groups(speed)
    covered_s = chosen.covered_s()
    tokens = tokens_of().with_columns(pl.col("tokens") / covered_s)
    speed = speed.with_columns(output_per_s=pl.col("output_tokens") / covered_s)
    highlighted = choose_series(group_colors)

    def of_groups(title: str, value: str, metric: str, **options: Any) -> None:
        """Lines of a column of `speed`."""
        lines = partial(
            time_lines, value=value, time=time, series="name", series_colors=group_colors, highlighted=highlighted, samples="n", **options
        )  # fmt: skip
        panel(title, speed, lines, metric=metric, value=value, on_click=filters.opens_streams(time, by=by))

    rate: dict[str, Any] = {"unit": "tok/s", "to_text": formatting.rate}
    count: dict[str, Any] = {"unit": "tokens", "to_text": formatting.count}
    share: dict[str, Any] = {"percent": True, "to_text": formatting.share}
    with st.grid(2, min_column_width=340):
        of_groups(
            f"Tokens per second per stream, p50 by {by}", "tps_user", "tps_user", clip_outliers=True, **rate
        )
        of_groups(f"Output of all streams by {by}", "output_per_s", "tps_total", **rate)
        of_groups(
            f"Output tokens per answer, p50 by {by}",
            "answer_tokens",
            "answer_tokens",
            clip_outliers=True,
            **count,
        )
        of_groups(f"{answers} by {by}", "share", measure.name, **share)
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
        of_groups(f"Prompt-cache hit rate by {by}", "cache_hit_share", "cached", **share)
        panel(
            "TTFT by prompt-cache hit rate",
            ttft(),
            lambda f: dots(f, colors.by_name(("p50", "p95"))),
            "Streams grouped by the share of their own prompt that was read from the cache, where it is reported. "
            "Long prompts hit more often and are slower: compare within one model.",
            metric="cached",
        )
    section(f"By {by}")
    show_report(throughput.TABLE, table(), by=by)
    section("Rate limits", metric_help("rate_limit"))
    show_report(rate_limits.TABLE, limits())
    section("Wasted tokens", metric_help("wasted_tokens"))
    show_report(throughput.WASTED, wasted())


def draw_page() -> None:
    """Input and output tokens, tokens per second, concurrency."""
    with filters.row():
        by = filters.choice("By", filters.groupings(), "model", key="by")
        # Without a default, which Streamlit would leave out of the address: a link names its measure.
        first, *_ = throughput.ANSWERS
        answers = st.selectbox(
            "Answers", list(throughput.ANSWERS), index=None, placeholder=first, key="answers", bind="query-params", width=240
        )  # fmt: skip
    page_frame.show(partial(body, by, answers or first))


PAGE = page_frame.Page(draw_page, "Throughput", "speed", diagnosed=True)
