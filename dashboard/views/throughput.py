"""How much flows: tokens in and out, speed of a stream, how many at once."""

from __future__ import annotations

from typing import Any

import polars as pl
import streamlit as st

from dashboard import charts, filters, frame, grids, palette, source, units
from dashboard.measures import described
from dashboard.panels import choice, colors_of, panel
from dashboard.queries import throughput
from dashboard.queries.selection import Selection
from dashboard.time_charts import time_bars, time_lines


def body(chosen: Selection) -> None:
    by = st.session_state.get("by") or "model"
    speed = throughput.speed_timeline(source.ask, chosen, by)
    if speed.is_empty():
        frame.nothing_chosen()
        return
    time: dict[str, Any] = {
        "zone": filters.zone(),
        "span": (chosen.since, chosen.until),
        "bucket_s": chosen.bucket_s,
    }
    colors = colors_of(speed)
    tokens = throughput.tokens_timeline(source.ask, chosen).with_columns(
        pl.col("tokens") / chosen.covered_s()
    )
    per_second = speed.with_columns(pl.col("output_tokens") / chosen.covered_s())
    open_at_once = throughput.concurrency(source.ask, chosen)
    charts.legend(colors)
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
                form=units.rate,
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
                f, "output_tokens", series="name", colors=colors, unit="tok/s", form=units.rate, **time
            ),
            help_text=described("tps_total"),
            value="output_tokens",
        )
        panel(
            "Tokens in and out",
            tokens,
            lambda f: time_bars(f, "tokens", series="kind", colors=palette.TOKENS, unit="tok/s", **time),
            help_text=f"By the start of the stream. {described('cached')}",
            legend=charts.present(palette.TOKENS, tokens, "kind"),
        )
        panel(
            "Streams at once",
            open_at_once,
            lambda f: time_lines(f, "peak", unit="streams", **time),
            help_text=described("concurrency", more="Shown is the most in each step of time."),
        )
    st.subheader(f"By {by}", anchor=False)
    grids.throughput(throughput.table(source.ask, chosen, by), name=by)


frame.title("Throughput")
choice("By", ["model", "gateway", "client"], "model", key="by")
frame.show(body)
