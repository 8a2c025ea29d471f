"""What goes wrong, where and since when; aborts and their waste apart; the streams that show it."""

from __future__ import annotations

from typing import Any

import polars as pl
import streamlit as st

from dashboard import bars, charts, filters, frame, grids, palette, source, units
from dashboard.cards import card
from dashboard.measures import described
from dashboard.panels import choice, colors_of, panel
from dashboard.queries import errors, overview, streams
from dashboard.queries.selection import Selection
from dashboard.time_charts import time_bars, time_lines


def body(chosen: Selection) -> None:
    objectives = source.slos()
    both = overview.summary_now_and_before(
        source.ask, chosen, slo_ttft_s=objectives.ttft_s, slo_itl_s=objectives.itl_s
    )
    now, before = both["now"], both["before"]
    if not now.get("requests"):
        frame.nothing_chosen()
        return
    left = errors.left_behind(source.ask, chosen)
    with st.grid(5, min_column_width=150):
        card(
            "Error rate", units.share(now.get("error_rate")), now=now.get("error_rate"), before=before.get("error_rate"),
            said_before=units.share(before.get("error_rate")), points=True, help_text=described("error_rate"),
        )  # fmt: skip
        card("Errors", units.count(now.get("errors")), help_text=described("error_rate"),
             now=now.get("errors"), before=before.get("errors"))  # fmt: skip
        aborted = (
            f"{units.share(left['abort_share'])} of all; {units.count(left['before_output'])} of them before the first token. "
            f"Left after the end was told, so no abort: {units.count(left['after_terminal'])}."
        )
        card("Client aborts", units.count(left["aborts"]), help_text=described("aborts", more=aborted),
             now=left["aborts"], before=before.get("aborts"))  # fmt: skip
        wasted = (
            f"Known of {units.count(left['told'])} of the {units.count(left['aborts'])} aborts, whose "
            f"{units.count(left['output_tokens'])} tokens were generated for nobody to read to the end. Undelivered in all: "
            f"{units.size(left['undelivered_bytes'])}."
        )
        card("Wasted tokens", units.count(left["wasted_tokens"]), help_text=described("wasted", more=wasted))
        card("Lost by the tap", units.count(left["lost"]), help_text=described("tap_lost"))
    time: dict[str, Any] = {
        "zone": filters.zone(),
        "span": (chosen.since, chosen.until),
        "bucket_s": chosen.bucket_s,
    }
    by = st.session_state.get("by") or "model"
    course = errors.rate_timeline(source.ask, chosen, by)
    colors = colors_of(course)
    over_time = errors.outcomes_timeline(source.ask, chosen)
    with st.grid(2, min_column_width=340):
        panel(
            "Everything but ok, over time",
            over_time,
            lambda f: time_bars(f, "n", series="outcome", colors=palette.OUTCOMES, unit="streams", **time),
            legend=charts.present(palette.OUTCOMES, over_time, "outcome"),
            help_text="Client aborts and streams lost by the tap are no errors; they are shown in grey.",
        )
        panel(
            f"Error rate by {by}",
            course,
            lambda f: time_lines(
                f, "error_rate", series="name", colors=colors, form=units.share, percent=True, **time
            ),
            legend=colors,
            help_text=described("error_rate"),
            value="error_rate",
        )
    splits = {
        s: errors.counts(source.ask, chosen, s, most=8)
        for s in ("model", "gateway", "client", "type", "phase", "HTTP status")
    }
    if any(f.height for f in splits.values()):
        charts.legend(
            charts.present(
                palette.OUTCOMES, pl.concat(f.select("outcome") for f in splits.values()), "outcome"
            )
        )
        with st.grid(3, min_column_width=310):
            rows = max(f["name"].n_unique() for f in splits.values())
            for split, counted in splits.items():
                panel(
                    f"Errors by {split}",
                    counted.with_columns(grids.short_name()),
                    lambda f: bars.stacked(f, colors=palette.OUTCOMES, rows=rows),
                )
    st.subheader("Kinds of errors", anchor=False)
    grids.error_kinds(errors.kinds(source.ask, chosen))
    st.subheader(
        f"Aborts and waste by {by}",
        anchor=False,
        help="Clients that left before the end: no errors of the upstream.",
    )
    grids.aborts(errors.aborts(source.ask, chosen, by), name=by)
    st.subheader("Latest examples", anchor=False)
    latest = streams.table(source.ask, chosen, kind="errors", limit=20)
    if latest.is_empty():
        st.caption("No errors in this selection.")
    else:
        grids.streams(latest, key="examples")


frame.title("Errors")
choice("By", ["model", "gateway", "client"], "model", key="by")
frame.show(body)
