"""What goes wrong, where and since when; aborts and their waste apart; the streams that show it."""

from __future__ import annotations

from typing import Any

import streamlit as st

from dashboard import charts, filters, frame, grids, source, units
from dashboard.measures import described
from dashboard.panels import names_of, panel
from dashboard.queries import errors, overview, streams
from dashboard.queries.selection import Selection


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
    against = f"vs {units.span(chosen.length)} before"
    with st.grid(5, min_column_width=150):
        moved = units.change(now.get("error_rate"), before.get("error_rate"))
        st.metric(
            "Error rate", units.share(now.get("error_rate")), border=True, height="stretch", help=described("error_rate"),
            delta=None if moved is None else f"{moved:+.1%}", delta_color="inverse",
            delta_description=against if moved is not None else None,
        )  # fmt: skip
        st.metric(
            "Errors",
            units.count(now.get("errors")),
            border=True,
            height="stretch",
            help=described("error_rate"),
        )
        aborted = (
            f"{units.share(left['abort_share'])} of all; {units.count(left['before_output'])} of them before the first token. "
            f"Left after the end was told, so no abort: {units.count(left['after_terminal'])}."
        )
        st.metric(
            "Client aborts",
            units.count(left["aborts"]),
            border=True,
            height="stretch",
            help=described("aborts", more=aborted),
        )
        st.metric(
            "Wasted after aborts",
            units.size(left["undelivered_bytes"]),
            border=True,
            height="stretch",
            help=described(
                "wasted",
                more=f"Output tokens reported of aborted streams, in all: {units.count(left['output_tokens'])}.",
            ),
        )
        st.metric(
            "Lost by the tap",
            units.count(left["lost"]),
            border=True,
            height="stretch",
            help=described("tap_lost"),
        )
    time: dict[str, Any] = {
        "zone": filters.zone(),
        "span": (chosen.since, chosen.until),
        "bucket_s": chosen.bucket_s,
    }
    by = st.session_state.get("by") or "model"
    course = errors.rate_timeline(source.ask, chosen, by)
    names = names_of(course)
    with st.grid(2, min_column_width=340):
        panel(
            "Everything but ok, over time",
            errors.outcomes_timeline(source.ask, chosen),
            lambda f: charts.time_bars(
                f, "n", series="outcome", colors=charts.OUTCOME_COLORS, unit="streams", **time
            ),
            help_text="Client aborts and streams lost by the tap are no errors; they are shown in grey.",
        )
        panel(
            f"Error rate by {by}",
            course,
            lambda f: charts.time_lines(
                f, "error_rate", series="name", order=names, form=units.share, percent=True, **time
            ),
            help_text=described("error_rate"),
            value="error_rate",
        )
        for split in ("phase", "type", "model", "gateway", "client", "HTTP status"):
            panel(
                f"Errors by {split}",
                errors.counts(source.ask, chosen, split, most=8),
                lambda f: charts.stacked(f, colors=charts.OUTCOME_COLORS),
            )
    st.subheader("Kinds of errors", anchor=False)
    grids.error_kinds(errors.kinds(source.ask, chosen))
    st.subheader("Latest examples", anchor=False)
    latest = streams.table(source.ask, chosen, kind="errors", limit=20)
    if latest.is_empty():
        st.caption("No errors in this selection.")
    else:
        grids.streams(latest, key="examples")


frame.title("Errors")
st.segmented_control(
    "By", ["model", "gateway", "client"], default="model", required=True, key="by", bind="query-params"
)
frame.show(body)
