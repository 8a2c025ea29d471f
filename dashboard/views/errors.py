"""Outcomes and errors by group, client aborts with undelivered tokens, and examples."""

from __future__ import annotations

from functools import partial

import polars as pl
import streamlit as st

from streamgauge.analytics.reports import errors, formatting, overview, stream_lists
from streamgauge.analytics.reports.metric_help import metric_help
from streamgauge.analytics.reports.selection import DIMENSIONS, Selection
from streamgauge.analytics.schema.outcomes import IS_ERROR
from streamgauge.dashboard import filters, page_frame, page_settings, verdict
from streamgauge.dashboard.charts import bars, colors
from streamgauge.dashboard.charts.axes import TimeRange, largest
from streamgauge.dashboard.charts.drawing import choose_series, draw, draw_placeholder
from streamgauge.dashboard.charts.time_series import time_bars, time_lines
from streamgauge.dashboard.metric_cards import Summary, card
from streamgauge.dashboard.panels import panel
from streamgauge.dashboard.query_runner import prefetch, query, query_catalog
from streamgauge.dashboard.tables.groups import show_aborts, show_causes
from streamgauge.dashboard.tables.streams import show_streams

CAUSES_PX, RATE_PX, SMALL_PX = 160, 120, 100
PAIR = f"({DIMENSIONS['model']}, {DIMENSIONS['gateway']})"


def body(chosen: Selection) -> None:
    verdict.prefetch_marks(chosen)
    chosen = overview.widened(query_catalog, chosen, "TRUE")
    # A pair has fewer streams, so its points are wider.
    pairs = overview.widened(query_catalog, chosen, PAIR)
    counts = prefetch(partial(overview.counts_now_and_before, query, chosen))
    abort_summary = prefetch(partial(errors.abort_summary, query, chosen))
    causes_timeline = prefetch(partial(errors.causes_timeline, query, chosen))
    rate_timeline = prefetch(partial(errors.rate_timeline, query, chosen))
    worst = prefetch(partial(errors.worst_pairs, query, pairs))
    causes = prefetch(partial(errors.causes, query, chosen))
    matrix = prefetch(partial(errors.matrix, query, chosen))
    aborts = prefetch(partial(errors.aborts, query, chosen, by))
    latest = prefetch(partial(stream_lists.table, query, chosen, IS_ERROR, limit=20))
    periods = counts()
    if not periods["now"].get("requests") and not periods["now"].get("refused"):
        page_frame.show_no_matches()
        return
    show_cards(periods["now"], periods["before"], abort_summary())
    show_timelines(causes_timeline(), rate_timeline(), verdict.time_range(chosen))
    show_worst(worst(), verdict.time_range(pairs))
    st.header("Causes of errors", anchor=False)
    show_causes(causes())
    show_matrix(chosen, matrix())
    st.header(
        f"Client aborts and undelivered tokens by {by}",
        anchor=False,
        help="Clients that disconnected before the terminal event. Not errors of the upstream.",
    )
    show_aborts(aborts(), group=by)
    st.header("Latest errors", anchor=False)
    if latest().is_empty():
        st.caption("No errors in this selection.")
    else:
        show_streams(latest())


def show_cards(now: Summary, before: Summary, aborts: Summary) -> None:
    count, share = formatting.count, formatting.share
    rate, rate_before = now.get("error_rate"), before.get("error_rate")
    abort_help = (
        f"{share(aborts['abort_share'])} of all requests; {count(aborts['before_output'])} before the first token. "
        f"Not included: {count(aborts['after_terminal'])} that disconnected after the terminal event."
    )
    undelivered_help = (
        f"Known for {count(aborts['aborts_with_tokens'])} of {count(aborts['aborts'])} aborts, which generated "
        f"{count(aborts['output_tokens'])} tokens. Undelivered: {formatting.size(aborts['undelivered_bytes'])}."
    )
    with st.grid(3, min_column_width=150):
        card("Error rate", share(rate), now=rate, before=rate_before, before_text=share(rate_before), is_share=True,
             help_text=metric_help("error_rate"))  # fmt: skip
        card("Errors", count(now.get("errors")), now=now.get("errors"), before=before.get("errors"),
             help_text="Streams with an error outcome.")  # fmt: skip
        card("Client aborts", count(aborts["aborts"]), now=aborts["aborts"], before=before.get("aborts"),
             help_text=metric_help("aborts", more=abort_help))  # fmt: skip
        card(
            "Undelivered tokens",
            count(aborts["undelivered_tokens"]),
            help_text=metric_help("undelivered", more=undelivered_help),
        )
        card("Lost by the tap", count(aborts["lost"]), help_text=metric_help("tap_lost"))
        card("Refused by the tap", count(aborts["refused"]), help_text=metric_help("refused"))


def show_timelines(causes: pl.DataFrame, rates: pl.DataFrame, time: TimeRange) -> None:
    """Errors by cause, and below them the error rate, on the same time axis."""
    objective = page_settings.slos().error_rate
    with st.container(border=True):
        st.markdown(
            "**Errors by cause**",
            help="Streams with an error outcome, by the HTTP status or the outcome. A click on a cause isolates it.",
        )
        legend = colors.present(colors.ERROR_CAUSES, causes, "cause")
        isolated = choose_series(legend) if legend else ()
        if isolated:
            causes = causes.filter(pl.col("cause").is_in(isolated))
        if causes.is_empty():
            draw_placeholder()
        else:
            bars_of = time_bars(
                causes, "n", time, series="cause", series_colors=legend, unit=None, height=CAUSES_PX
            )
            draw(bars_of, "Errors by cause", key="chart-causes")
        st.markdown(
            "**Error rate**", help=metric_help("error_rate", more="The dashed line is the objective.")
        )
        lines = time_lines(
            rates, "error_rate", time, to_text=formatting.share, percent=True,
            objective=objective, samples="n", height=RATE_PX,
        )  # fmt: skip
        draw(lines, "Error rate", key="chart-rate")


def show_worst(found: pl.DataFrame, time: TimeRange) -> None:
    """One small chart for each of the worst pairs of model and gateway, all with the same axes."""
    if found.is_empty():
        return
    st.header(
        "Worst combinations",
        anchor=False,
        help="Error rates of the pairs of model and gateway with most errors above the average rate. The title filters by the pair.",
    )
    top = max(largest(found, "error_rate"), 2 * page_settings.slos().error_rate)
    with st.grid(3, min_column_width=250, key="worst"):
        for pair in found.partition_by("model", "gateway", maintain_order=True):
            model, gateway = str(pair["model"][0]), str(pair["gateway"][0])
            title = f"{model} @ {gateway}"
            errors_of, n = int(pair["total_errors"][0]), int(pair["total_n"][0])
            with st.container(border=True, gap="small"):
                st.button(
                    f"**{formatting.markdown(title)}**", key=f"worst-{title}", type="tertiary",
                    on_click=filters.choose, args=({"model": model, "gateway": gateway},),
                )  # fmt: skip
                lines = time_lines(
                    pair, "error_rate", time, to_text=formatting.share, percent=True, samples="n", top=top,
                    objective=page_settings.slos().error_rate, height=SMALL_PX,
                )  # fmt: skip
                draw(lines, f"Error rate of {title}", key=f"chart-worst-{title}")
                st.caption(f"{formatting.count(errors_of)} of {formatting.count(n)} requests failed")


def show_matrix(chosen: Selection, found: pl.DataFrame) -> None:
    panel(
        "Error rate by model and gateway",
        found,
        bars.error_matrix,
        help_text=f"{metric_help('error_rate')} A click on a cell filters by its model and gateway.",
        # Other filters begin with another selection, so the same cell can be clicked again.
        key=f"matrix-{chosen.models}-{chosen.gateways}",
        on_click=filters.choose,
    )


by = filters.choice("By", list(filters.FILTERS), "model", key="by")
page_frame.show(body)
