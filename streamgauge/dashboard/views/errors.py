"""Outcomes and errors by group, streams that strict clients reject, client aborts with undelivered tokens, and examples."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from functools import partial
from html import escape
from typing import Any

import polars as pl
import streamlit as st

from streamgauge.analytics.diagnosis.diagnosis import FAILURES
from streamgauge.analytics.reports import errors, formatting, overview, stream_lists
from streamgauge.analytics.reports.metric_help import metric_help
from streamgauge.analytics.reports.objectives import stored_objectives
from streamgauge.analytics.reports.selection import DIMENSIONS, Selection
from streamgauge.analytics.schema.objectives import Objectives
from streamgauge.analytics.schema.outcomes import IS_ERROR
from streamgauge.dashboard import filters, page_frame, verdict
from streamgauge.dashboard.charts import colors, drawing
from streamgauge.dashboard.charts.group_charts import error_matrix
from streamgauge.dashboard.charts.time_series import time_bars, time_lines
from streamgauge.dashboard.panels import Summary, box, card, number, panel, section
from streamgauge.dashboard.query_runner import prefetch, query, query_catalog
from streamgauge.dashboard.report_tables import show_report

CAUSES_PX, RATE_PX, SMALL_PX = 160, 120, 100
PAIR = f"({DIMENSIONS['model']}, {DIMENSIONS['gateway']})"


def body(by: str, chosen: Selection) -> None:
    verdict.prefetch_marks(chosen)
    chosen = overview.widened(query_catalog, chosen, "TRUE")
    counts = prefetch(overview.counts_now_and_before, query, chosen)
    causes_timeline = prefetch(errors.causes_timeline, query, chosen)
    rate_timeline = prefetch(errors.rate_timeline, query, chosen)
    # A pair has fewer streams, so its points are wider.
    pairs = overview.widened(query_catalog, chosen, PAIR)
    worst = prefetch(errors.worst_pairs, query, pairs)
    judged = overview.judged(query, chosen, datetime.now(UTC))
    matrix = prefetch(errors.matrix, query, judged)
    rates = prefetch(overview.counts_now_and_before, query, judged)
    abort_summary = prefetch(errors.abort_summary, query, chosen)
    aborts = prefetch(errors.aborts, query, chosen, by)
    violations = prefetch(errors.violations, query, chosen)
    latest = prefetch(stream_lists.table, query, chosen, IS_ERROR, limit=20)
    periods = counts()
    if not periods["now"].get("requests") and not periods["now"].get("refused"):
        page_frame.show_no_matches()
        return
    found = verdict.recent_diagnosis(chosen)
    onset = next((cause.onset for cause in found.causes if cause.metric in FAILURES), None)
    causes = errors.causes(query, chosen, onset)
    cards = st.container()
    # The browser draws the charts while the cards above them are queried.
    show_timelines(causes_timeline(), rate_timeline(), verdict.time_range(chosen), found.limit("error_rate"))
    show_worst(worst(), verdict.time_range(pairs))
    with cards:
        show_cards(periods["now"], periods["before"], rates(), abort_summary())
    section("Causes of errors")
    show_report(errors.CAUSES, causes)
    panel(
        "Error rate by model and gateway",
        matrix(),
        error_matrix,
        f"{metric_help('error_rate')} A click on a cell opens its errors.",
        on_click=open_cell,
    )
    section("Streams that strict clients reject", metric_help("violation"))
    show_report(errors.VIOLATIONS, violations())
    section(
        f"Client aborts and undelivered tokens by {by}",
        "Clients that disconnected before the terminal event. Not errors of the upstream.",
    )
    show_report(errors.ABORTS, aborts(), by=by)
    section("Latest errors")
    show_report(stream_lists.TABLE, latest(), empty="No errors in this selection.")


def open_cell(cell: Mapping[str, Any]) -> None:
    """Open the errors of a model at a gateway."""
    filters.opens_streams(by="model", series="model", gateway=cell["gateway"], kind="errors")(cell)


def open_cause(time: drawing.TimeRange, bar: Mapping[str, Any]) -> None:
    """Open the errors of one cause at a point of time."""
    outcome, _, status = bar["cause"].partition("HTTP ")
    limits = {"outcome": outcome or "http_error"} if bar["cause"] != colors.OTHERS else {}
    if status.isdigit():
        limits["status"] = status
    filters.opens_streams(time, kind="errors", **limits)(bar)


def show_cards(now: Summary, before: Summary, rates: Mapping[str, Summary], aborts: Summary) -> None:
    count, share = formatting.count, formatting.share
    abort_help = (
        f"{share(aborts['abort_share'])} of all requests; {count(aborts['before_output'])} before the first token. "
        f"Not included: {count(aborts['after_terminal'])} that disconnected after the terminal event."
    )
    undelivered_help = (
        f"Known for {count(aborts['aborts_with_tokens'])} of {count(aborts['aborts'])} aborts, which generated "
        f"{count(aborts['output_tokens'])} tokens. Undelivered: {formatting.size(aborts['undelivered_bytes'])}."
    )
    with st.grid(3, min_column_width=150):
        rate, rate_before = (rates[period].get("error_rate") for period in ("now", "before"))
        card("Error rate", rate, rate_before, share, metric_help("error_rate"))
        card("Errors", now.get("errors"), before.get("errors"), count, "Streams with an error outcome.")
        help_text = metric_help("aborts", more=abort_help)
        card("Client aborts", aborts["aborts"], before.get("aborts"), count, help_text)
        help_text = metric_help("undelivered", more=undelivered_help)
        number("Undelivered tokens", count(aborts["undelivered_tokens"]), help_text)
        number("Lost by the tap", count(aborts["lost"]), metric_help("tap_lost"))
        number("Refused by the tap", count(aborts["refused"]), metric_help("refused"))


def rate_lines(found: pl.DataFrame, time: drawing.TimeRange, **options: Any) -> drawing.Drawing:
    """The error rate over time."""
    return time_lines(
        found, "error_rate", time, to_text=formatting.share, percent=True, samples="n", **options
    )


def show_timelines(
    causes: pl.DataFrame, rates: pl.DataFrame, time: drawing.TimeRange, objective: float | None
) -> None:
    """Errors by cause, and below them the error rate, on the same time axis."""
    with box(
        "Errors by cause",
        "Streams with an error outcome, by the HTTP status or the outcome. A click on a cause isolates it.",
    ):
        legend = colors.present(colors.ERROR_CAUSES, causes, "cause")
        isolated = drawing.choose_series(legend) if legend else ()
        if isolated:
            causes = causes.filter(pl.col("cause").is_in(isolated))
        if causes.is_empty():
            drawing.draw_placeholder("No stream of this selection has an error.")
        else:
            bars = time_bars(
                causes, "n", time, series="cause", series_colors=legend, unit=None, height=CAUSES_PX
            )
            drawing.draw(bars, "Errors by cause", key="chart-causes", on_click=partial(open_cause, time))
        line = "The dashed line is the objective." if objective is not None else ""
        st.markdown("**Error rate**", help=metric_help("error_rate", more=line))
        opens = filters.opens_streams(time, kind="errors")
        lines = rate_lines(rates, time, height=RATE_PX, objective=objective)
        drawing.draw(lines, "Error rate", key="chart-rate", on_click=opens)


def show_worst(found: pl.DataFrame, time: drawing.TimeRange) -> None:
    """One small chart for each of the worst pairs of model and gateway, all with the same axes."""
    if found.is_empty():
        return
    section(
        "Worst combinations",
        "Error rates of the pairs of model and gateway with most errors above the average rate. The title filters by the pair.",
    )
    objectives = Objectives(stored_objectives(query_catalog))
    pairs = found.partition_by("model", "gateway", maintain_order=True)
    judged_by = [objectives.of(pair["model"][0], pair["gateway"][0], None) for pair in pairs]
    limits = [objective and objective.error_rate for objective in judged_by]
    top = max(drawing.largest(time.complete(found), "error_rate"), *(2 * (limit or 0.0) for limit in limits))
    with st.grid(3, min_column_width=250, key="worst"):
        for pair, objective in zip(pairs, limits, strict=True):
            model, gateway = str(pair["model"][0]), str(pair["gateway"][0])
            title = f"{model} @ {gateway}"
            errors_of, n = int(pair["total_errors"][0]), int(pair["total_n"][0])
            with st.container(border=True):
                pair_of = filters.address_with({"model": (model,), "gateway": (gateway,)})
                st.html(
                    f'<a class="sg-title" href="{escape(pair_of)}" target="_self"><b>{escape(title)}</b></a>'
                )
                lines = rate_lines(pair, time, top=top, height=SMALL_PX, objective=objective)
                opens = filters.opens_streams(time, kind="errors", model=model, gateway=gateway)
                drawing.draw(lines, f"Error rate of {title}", key=f"chart-worst-{title}", on_click=opens)
                st.caption(f"{formatting.count(errors_of)} of {formatting.count(n)} requests failed")


def draw_page() -> None:
    """Causes of errors, error rates by model and gateway, outcomes over time, client aborts and undelivered tokens."""
    by = filters.choice("By", filters.groupings(), "model", key="by")
    page_frame.show(partial(body, by))


PAGE = page_frame.Page(draw_page, "Errors", "error", diagnosed=True)
