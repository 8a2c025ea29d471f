"""How much flows: tokens in and out, speed of a stream, how many at once."""

from __future__ import annotations

from typing import Any

import polars as pl
import streamlit as st

from dashboard import charts, filters, frame, grids, source, units
from dashboard.measures import described
from dashboard.panels import names_of, panel
from dashboard.queries import throughput
from dashboard.queries.selection import Selection

TOKEN_COLORS = {
    "output, answer": "#3b8fd0",
    "output, reasoning": "#9a7fe0",
    "input, fresh": "#1faa83",
    "input, cached": "#8fd6bd",
}


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
    names = names_of(speed)
    tokens = throughput.tokens_timeline(source.ask, chosen).with_columns(pl.col("tokens") / chosen.bucket_s)
    per_second = speed.with_columns(pl.col("output_tokens") / chosen.bucket_s)
    open_at_once = throughput.concurrency(source.ask, chosen)
    with st.grid(2, min_column_width=340):
        panel(
            f"Speed of one stream, p50 by {by}",
            speed,
            lambda f: charts.time_lines(
                f, "tps_user", series="name", order=names, unit="tok/s", form=units.rate, **time
            ),
            help_text=described("tps_user"),
            value="tps_user",
        )
        panel(
            f"Output of all streams by {by}",
            per_second,
            lambda f: charts.time_lines(
                f, "output_tokens", series="name", order=names, unit="tok/s", form=units.rate, **time
            ),
            help_text=described("tps_total"),
            value="output_tokens",
        )
        panel(
            "Tokens in and out",
            tokens,
            lambda f: charts.time_bars(f, "tokens", series="kind", colors=TOKEN_COLORS, unit="tok/s", **time),
            help_text=f"By the start of the stream. {described('cached')}",
        )
        panel(
            "Streams at once",
            open_at_once,
            lambda f: charts.time_lines(f, "peak", unit="streams", zone=time["zone"], span=time["span"]),
            help_text=described("concurrency", more="Shown is the most in each step of time."),
        )
    st.subheader(f"By {by}", anchor=False)
    grids.throughput(throughput.table(source.ask, chosen, by), name=by)


frame.title("Throughput")
st.segmented_control(
    "By", ["model", "gateway", "client"], default="model", required=True, key="by", bind="query-params"
)
frame.show(body)
