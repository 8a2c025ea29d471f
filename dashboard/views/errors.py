"""What goes wrong, where and since when; aborts and their waste apart; the streams that show it."""

from __future__ import annotations

from typing import Any

import polars as pl
import streamlit as st

from dashboard import filters, formatting, page_frame, palette, query_runner
from dashboard.charts import bars, base
from dashboard.charts.time_series import time_bars, time_lines
from dashboard.metric_cards import card
from dashboard.metric_help import described
from dashboard.panels import choice, colors_of, panel
from dashboard.queries import errors, overview, streams
from dashboard.queries.selection import Selection
from dashboard.tables import generic


def body(chosen: Selection) -> None:
    objectives = query_runner.slos()
    both = overview.summary_now_and_before(
        query_runner.ask, chosen, slo_ttft_s=objectives.ttft_s, slo_itl_s=objectives.itl_s
    )
    now, before = both["now"], both["before"]
    if not now.get("requests"):
        page_frame.nothing_chosen()
        return
    left = errors.left_behind(query_runner.ask, chosen)
    with st.grid(5, min_column_width=150):
        card(
            "Error rate", formatting.share(now.get("error_rate")), now=now.get("error_rate"), before=before.get("error_rate"),
            said_before=formatting.share(before.get("error_rate")), points=True, help_text=described("error_rate"),
        )  # fmt: skip
        card("Errors", formatting.count(now.get("errors")), help_text=described("error_rate"),
             now=now.get("errors"), before=before.get("errors"))  # fmt: skip
        aborted = (
            f"{formatting.share(left['abort_share'])} of all; {formatting.count(left['before_output'])} of them before the first token. "
            f"Left after the end was told, so no abort: {formatting.count(left['after_terminal'])}."
        )
        card("Client aborts", formatting.count(left["aborts"]), help_text=described("aborts", more=aborted),
             now=left["aborts"], before=before.get("aborts"))  # fmt: skip
        wasted = (
            f"Known of {formatting.count(left['told'])} of the {formatting.count(left['aborts'])} aborts, whose "
            f"{formatting.count(left['output_tokens'])} tokens were generated for nobody to read to the end. Undelivered in all: "
            f"{formatting.size(left['undelivered_bytes'])}."
        )
        card(
            "Wasted tokens",
            formatting.count(left["wasted_tokens"]),
            help_text=described("wasted", more=wasted),
        )
        card("Lost by the tap", formatting.count(left["lost"]), help_text=described("tap_lost"))
    time: dict[str, Any] = {
        "zone": filters.zone(),
        "span": (chosen.since, chosen.until),
        "bucket_s": chosen.bucket_s,
    }
    by = st.session_state.get("by") or "model"
    course = errors.rate_timeline(query_runner.ask, chosen, by)
    colors = colors_of(course)
    over_time = errors.outcomes_timeline(query_runner.ask, chosen)
    with st.grid(2, min_column_width=340):
        panel(
            "Everything but ok, over time",
            over_time,
            lambda f: time_bars(f, "n", series="outcome", colors=palette.OUTCOMES, unit="streams", **time),
            legend=base.present(palette.OUTCOMES, over_time, "outcome"),
            help_text="Client aborts and streams lost by the tap are no errors; they are shown in grey.",
        )
        panel(
            f"Error rate by {by}",
            course,
            lambda f: time_lines(
                f, "error_rate", series="name", colors=colors, form=formatting.share, percent=True, **time
            ),
            legend=colors,
            help_text=described("error_rate"),
            value="error_rate",
        )
    splits = {
        s: errors.counts(query_runner.ask, chosen, s, most=8)
        for s in ("model", "gateway", "client", "type", "phase", "HTTP status")
    }
    if any(f.height for f in splits.values()):
        base.legend(
            base.present(palette.OUTCOMES, pl.concat(f.select("outcome") for f in splits.values()), "outcome")
        )
        with st.grid(3, min_column_width=310):
            rows = max(f["name"].n_unique() for f in splits.values())
            for split, counted in splits.items():
                panel(
                    f"Errors by {split}",
                    counted.with_columns(generic.short_name()),
                    lambda f: bars.stacked(f, colors=palette.OUTCOMES, rows=rows),
                )
    st.subheader("Kinds of errors", anchor=False)
    generic.error_kinds(errors.kinds(query_runner.ask, chosen))
    st.subheader(
        f"Aborts and waste by {by}",
        anchor=False,
        help="Clients that left before the end: no errors of the upstream.",
    )
    generic.aborts(errors.aborts(query_runner.ask, chosen, by), name=by)
    st.subheader("Latest examples", anchor=False)
    latest = streams.table(query_runner.ask, chosen, kind="errors", limit=20)
    if latest.is_empty():
        st.caption("No errors in this selection.")
    else:
        generic.streams(latest, key="examples")


page_frame.title("Errors")
choice("By", ["model", "gateway", "client"], "model", key="by")
page_frame.show(body)
