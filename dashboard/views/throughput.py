"""How much flows: tokens in and out, speed of a stream, how many at once."""

from __future__ import annotations

from typing import Any

import polars as pl
import streamlit as st

from dashboard import filters, formatting, page_frame, palette, query_runner
from dashboard.charts import base
from dashboard.charts.time_series import time_bars, time_lines
from dashboard.metric_help import described
from dashboard.panels import choice, colors_of, panel
from dashboard.queries import throughput
from dashboard.queries.selection import Selection
from dashboard.tables import generic


def body(chosen: Selection) -> None:
    by = st.session_state.get("by") or "model"
    speed = throughput.speed_timeline(query_runner.ask, chosen, by)
    if speed.is_empty():
        page_frame.nothing_chosen()
        return
    time: dict[str, Any] = {
        "zone": filters.zone(),
        "span": (chosen.since, chosen.until),
        "bucket_s": chosen.bucket_s,
    }
    colors = colors_of(speed)
    tokens = throughput.tokens_timeline(query_runner.ask, chosen).with_columns(
        pl.col("tokens") / chosen.covered_s()
    )
    per_second = speed.with_columns(pl.col("output_tokens") / chosen.covered_s())
    open_at_once = throughput.concurrency(query_runner.ask, chosen)
    base.legend(colors)
    with st.grid(2, min_column_width=340):
        panel(
            f"Speed of one stream, p50 by {by}",
            speed,
            lambda f: time_lines(
                f,
                "tps_user",
                series="name",
                colors=colors,
                unit="tok/s",
                form=formatting.rate,
                robust=True,
                **time,
            ),
            help_text=described("tps_user"),
            value="tps_user",
        )
        panel(
            f"Output of all streams by {by}",
            per_second,
            lambda f: time_lines(
                f, "output_tokens", series="name", colors=colors, unit="tok/s", form=formatting.rate, **time
            ),
            help_text=described("tps_total"),
            value="output_tokens",
        )
        panel(
            "Tokens in and out",
            tokens,
            lambda f: time_bars(f, "tokens", series="kind", colors=palette.TOKENS, unit="tok/s", **time),
            help_text=f"By the start of the stream. {described('cached')}",
            legend=base.present(palette.TOKENS, tokens, "kind"),
        )
        panel(
            "Streams at once",
            open_at_once,
            lambda f: time_lines(f, "peak", unit="streams", **time),
            help_text=described("concurrency", more="Shown is the most in each step of time."),
        )
    st.subheader(f"By {by}", anchor=False)
    generic.throughput(throughput.table(query_runner.ask, chosen, by), name=by)


page_frame.title("Throughput")
choice("By", ["model", "gateway", "client"], "model", key="by")
page_frame.show(body)
