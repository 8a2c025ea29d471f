"""Outcomes and errors by group, client aborts with wasted tokens, and examples."""

from __future__ import annotations

import polars as pl
import streamlit as st

from dashboard import filters, formatting, page_frame, page_settings
from dashboard.charts import bars, colors
from dashboard.charts.axes import TimeRange
from dashboard.charts.drawing import draw_legend
from dashboard.charts.time_series import time_bars, time_lines
from dashboard.metric_cards import Summary, card
from dashboard.metric_help import metric_help
from dashboard.panels import panel
from dashboard.queries import errors, overview, streams
from dashboard.queries.selection import Selection
from dashboard.query_runner import query
from dashboard.tables.columns import short_client
from dashboard.tables.groups import show_aborts, show_error_kinds
from dashboard.tables.streams import show_streams

GROUPINGS = ("model", "gateway", "client", "type", "phase", "HTTP status")


def body(chosen: Selection) -> None:
    slos = page_settings.slos()
    periods = overview.summary_now_and_before(query, chosen, slo_ttft_s=slos.ttft_s, slo_itl_s=slos.itl_s)
    if not periods["now"].get("requests") and not periods["now"].get("refused"):
        page_frame.show_no_matches()
        return
    show_cards(periods["now"], periods["before"], errors.abort_summary(query, chosen))
    show_timelines(chosen, filters.time_range(chosen))
    show_groups(chosen)
    st.subheader("Kinds of errors", anchor=False)
    show_error_kinds(errors.kinds(query, chosen))
    st.subheader(
        f"Client aborts and wasted tokens by {by}",
        anchor=False,
        help="Clients that left before the terminal event. Not errors of the upstream.",
    )
    show_aborts(errors.aborts(query, chosen, by), group=by)
    st.subheader("Latest errors", anchor=False)
    latest = streams.table(query, chosen, kind="errors", limit=20)
    if latest.is_empty():
        st.caption("No errors in this selection.")
    else:
        show_streams(latest, key="examples")


def show_cards(now: Summary, before: Summary, aborts: Summary) -> None:
    count, share = formatting.count, formatting.share
    rate, rate_before = now.get("error_rate"), before.get("error_rate")
    abort_help = (
        f"{share(aborts['abort_share'])} of all requests; {count(aborts['before_output'])} before the first token. "
        f"Not included: {count(aborts['after_terminal'])} that left after the terminal event."
    )
    wasted_help = (
        f"Known for {count(aborts['aborts_with_tokens'])} of {count(aborts['aborts'])} aborts, which generated "
        f"{count(aborts['output_tokens'])} tokens. Undelivered: {formatting.size(aborts['undelivered_bytes'])}."
    )
    with st.grid(6, min_column_width=150):
        card("Error rate", share(rate), now=rate, before=rate_before, before_text=share(rate_before), is_share=True,
             help_text=metric_help("error_rate"))  # fmt: skip
        card("Errors", count(now.get("errors")), now=now.get("errors"), before=before.get("errors"),
             help_text="Streams with an error outcome.")  # fmt: skip
        card("Client aborts", count(aborts["aborts"]), now=aborts["aborts"], before=before.get("aborts"),
             help_text=metric_help("aborts", more=abort_help))  # fmt: skip
        card(
            "Wasted tokens", count(aborts["wasted_tokens"]), help_text=metric_help("wasted", more=wasted_help)
        )
        card("Lost by the tap", count(aborts["lost"]), help_text=metric_help("tap_lost"))
        card("Refused by the tap", count(aborts["refused"]), help_text=metric_help("refused"))


def show_timelines(chosen: Selection, time: TimeRange) -> None:
    outcomes = errors.outcomes_timeline(query, chosen)
    rates = errors.rate_timeline(query, chosen, by)
    group_colors = colors.of_groups(rates)
    with st.grid(2, min_column_width=340):
        panel(
            "Outcomes except ok",
            outcomes,
            lambda f: time_bars(
                f, "n", time, series="outcome", series_colors=colors.OUTCOMES, unit="streams"
            ),
            legend=colors.present(colors.OUTCOMES, outcomes, "outcome"),
            help_text="Client aborts, streams lost and requests refused by the tap (grey) are not errors.",
        )
        panel(
            f"Error rate by {by}",
            rates,
            lambda f: time_lines(
                f,
                "error_rate",
                time,
                series="name",
                series_colors=group_colors,
                to_text=formatting.share,
                percent=True,
            ),
            legend=group_colors,
            help_text=metric_help("error_rate"),
            value="error_rate",
        )


def show_groups(chosen: Selection) -> None:
    counts = {grouping: errors.counts(query, chosen, grouping, most=8) for grouping in GROUPINGS}
    outcomes = pl.concat(f.select("outcome") for f in counts.values())
    if outcomes.is_empty():
        return
    draw_legend(colors.present(colors.OUTCOMES, outcomes, "outcome"))
    rows = max(f["name"].n_unique() for f in counts.values())
    with st.grid(3, min_column_width=310):
        for grouping, frame in counts.items():
            panel(
                f"Errors by {grouping}",
                frame.with_columns(short_client()),
                lambda f: bars.stacked_bars(f, colors.OUTCOMES, rows=rows),
            )


page_frame.title("Errors")
by = filters.choice("By", list(filters.FILTERS), "model", key="by")
page_frame.show(body)
