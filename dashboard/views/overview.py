"""Health, summary, contributors to bad streams, changes, trends and the latest bad streams."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from typing import Any

import polars as pl
import streamlit as st

from dashboard import filters, formatting, health, page_frame, page_settings
from dashboard.charts import colors
from dashboard.charts.axes import largest
from dashboard.charts.drawing import draw_legend
from dashboard.charts.time_series import time_lines
from dashboard.metric_cards import Summary, Worse, card
from dashboard.metric_help import metric_help
from dashboard.panels import panel
from dashboard.queries import overview, streams
from dashboard.queries.selection import Selection
from dashboard.query_runner import prefetch, query
from dashboard.tables.overview import show_changes, show_contributors
from dashboard.tables.streams import show_streams

TRENDS = {
    "requests": "requests",
    "error_rate": "error_rate",
    "ttft_p95_ns": "ttft_ns",
    "itl_p95_ns": "itl_ns",
}
"""Cards with a trend → its column in `overview.timeline`. Each trend costs the browser a chart, so only these have one."""
PERCENTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
BADGES: dict[health.State, tuple[str, str]] = {
    "met": ("green", ":material/check_circle:"),
    "missed": ("red", ":material/error:"),
    "unknown": ("gray", ":material/help:"),
}


def timeline_query(chosen: Selection, by: str, percentile: str) -> Callable[[], pl.DataFrame]:
    return partial(overview.timeline_by, query, chosen, by, quantile=PERCENTILES[percentile])


def body(chosen: Selection) -> None:
    slos = page_settings.slos()
    limits: Any = {"slo_ttft_s": slos.ttft_s, "slo_itl_s": slos.itl_s}
    # Queries that are drawn later run while the first numbers are queried.
    timeline = prefetch(partial(overview.timeline, query, chosen, **limits))
    contributors = prefetch(partial(overview.top_contributors, query, chosen, **limits))
    changes = prefetch(partial(overview.largest_changes, query, chosen))
    state = st.session_state  # the widgets of the timelines are drawn later
    prefetch(timeline_query(chosen, state.get("by") or "model", state.get("at") or "p95"))
    bad_streams = prefetch(partial(streams.matching, query, chosen, overview.is_bad(**limits)))

    periods = overview.summary_now_and_before(query, chosen, **limits)
    now, before = periods["now"], periods["before"]
    show_health(now, slos)
    show_cards(chosen, now, before, timeline())
    if not now.get("requests") and not now.get("refused"):
        page_frame.show_no_matches()
        return
    with st.grid(2, min_column_width=420, key="groups"):
        with st.container():
            st.subheader(
                "Top contributors",
                anchor=False,
                help="Models, gateways and clients with more bad streams than their share of the requests. A stream is bad if "
                "it has an error or a TTFT or ITL above its objective. The link filters all pages.",
            )
            show_contributors(contributors())
        with st.container():
            st.subheader(
                "Largest changes",
                anchor=False,
                help="Models and gateways with the largest change of TTFT or error rate from the "
                f"previous {formatting.span(chosen.length)}, with at least 5 requests in both periods.",
            )
            show_changes(changes(), chosen)
    show_timelines(chosen, slos)
    bad = bad_streams()
    if bad.is_empty():
        st.subheader("Latest streams", anchor=False, help="No stream failed or missed an objective.")
        show_streams(streams.table(query, chosen, limit=15), key="latest")
    else:
        st.subheader(
            "Latest bad streams",
            anchor=False,
            help="Streams that failed or missed an objective, newest first.",
        )
        show_streams(bad, key="latest")


def show_health(now: Summary, slos: health.Slos) -> None:
    found = health.checks(now, slos)
    color, icon = BADGES[health.overall(found)]
    badges = " ".join(f":{BADGES[c.state][0]}-badge[{BADGES[c.state][1]} {c}]" for c in found)
    with st.container(border=True, horizontal=True, vertical_alignment="center", gap="medium"):
        st.markdown(
            f"#### :{color}[{icon} {health.headline(found)}]",
            width="content",
            help="Error rate and 95th percentiles of TTFT and ITL over the selection, compared with the objectives "
            "`--slo-error-rate`, `--slo-ttft` and `--slo-itl`.",
        )
        st.markdown(badges, width="content")


def show_cards(chosen: Selection, now: Summary, before: Summary, timeline: pl.DataFrame) -> None:
    """The summary with its change from the previous period."""
    slos = page_settings.slos()
    seconds = chosen.length.total_seconds()
    # Trends of counts are rates, because the first and last point are only partly inside the range.
    trends = timeline.with_columns(
        (pl.col(c) / chosen.covered_s()).alias(c) for c in ("requests", "good", "output_tokens")
    )

    def show(
        label: str,
        key: str,
        to_text: Callable[[float | None], str],
        help_text: str,
        *,
        worse: Worse = "up",
        per_s: bool = False,
        is_share: bool = False,
    ) -> None:
        a, b = now.get(key), before.get(key)
        if per_s:
            a, b = (None if v is None else v / seconds for v in (a, b))
        card(
            label, to_text(a), now=a, before=b, before_text=to_text(b), worse=worse, help_text=help_text, is_share=is_share,
            trend=trends[TRENDS[key]].to_list() if key in TRENDS else (),
        )  # fmt: skip

    requests, good = now.get("requests") or 0, now.get("good")
    errors_help = ", ".join(
        f"{formatting.count(now.get(key))} {label}"
        for key, label in (
            ("errors", "errors"),
            ("aborts", "client aborts"),
            ("lost", "lost by the tap"),
            ("refused", "refused by the tap"),
        )
    )
    goodput_help = (
        f"Objectives: TTFT ≤ {slos.ttft_s:g} s, ITL ≤ {slos.itl_s * 1e3:g} ms, "
        f"met by {formatting.share(good / requests if requests and good is not None else None)} of the requests."
    )
    previous = f"the previous {formatting.span(chosen.length)}"
    st.caption(f"Compared with {previous}." if before.get("requests") else f"No streams in {previous}.")
    with st.grid(4, min_column_width=150, key="trends"):
        show("Requests", "requests", formatting.count, metric_help("requests"), worse="none")
        show(
            "Error rate",
            "error_rate",
            formatting.share,
            metric_help("error_rate", more=f"Now: {errors_help}."),
            is_share=True,
        )
        show("TTFT p95", "ttft_p95_ns", formatting.duration, metric_help("ttft"))
        show("ITL p95", "itl_p95_ns", formatting.duration, metric_help("itl"))
    active = overview.active_streams(query, chosen)
    active_before = overview.active_at(query, chosen, datetime.now(UTC) - chosen.length)
    with st.grid(8, min_column_width=98, key="cards"):
        card("Active", formatting.count(active), now=active, before=active_before,
             before_text=formatting.count(active_before), worse="none", help_text=metric_help("active"))  # fmt: skip
        show("Goodput", "good", lambda v: formatting.rate(v, "/s"), metric_help("goodput", more=goodput_help),
             worse="down", per_s=True)  # fmt: skip
        show("TTFT p50", "ttft_p50_ns", formatting.duration, metric_help("ttft"))
        show("TTFT p99", "ttft_p99_ns", formatting.duration, metric_help("ttft"))
        show("ITL p50", "itl_p50_ns", formatting.duration, metric_help("itl"))
        show("tok/s p50", "tps_user_p50", rate_without_unit, metric_help("tps_user"), worse="down")
        show(
            "tok/s, all",
            "output_tokens",
            rate_without_unit,
            metric_help("tps_total"),
            worse="none",
            per_s=True,
        )
        show("Stalls", "stalls", formatting.count, metric_help("stall"))


def rate_without_unit(value: float | None) -> str:
    """A rate for a narrow card, whose label has the unit."""
    return formatting.rate(value, "").strip()


def show_timelines(chosen: Selection, slos: health.Slos) -> None:
    """Trends by model, gateway or client."""
    with st.container(horizontal=True, vertical_alignment="center"):
        by = filters.choice("Group by", list(filters.FILTERS), "model", key="by", show_label=False)
        percentile = filters.choice("Percentile", list(PERCENTILES), "p95", key="at", show_label=False)
    data = timeline_query(chosen, by, percentile)().with_columns(
        (pl.col("output_tokens") / chosen.covered_s()).alias("output_per_s")
    )
    group_colors = colors.of_groups(data)
    lines = partial(time_lines, time=filters.time_range(chosen), series="name", series_colors=group_colors)
    shares: dict[str, Any] = {"to_text": formatting.share, "percent": True}
    rates: dict[str, Any] = {"unit": "tok/s", "to_text": formatting.rate}
    draw_legend(group_colors)
    with st.grid(2, min_column_width=310, key="lines"):
        for title, value, metric, limit, options in (
            (f"TTFT {percentile}", "ttft_ns", "ttft", slos.ttft_s * 1e9, {}),
            ("Error rate", "error_rate", "error_rate", slos.error_rate, shares),
            (f"ITL {percentile}", "itl_ns", "itl", slos.itl_s * 1e9, {}),
            ("Output of all streams", "output_per_s", "tps_total", None, rates),
        ):
            # An objective far above the lines would flatten them.
            objective = limit if limit is not None and largest(data, value) >= limit / 3 else None
            panel(
                title,
                data,
                partial(lines, value=value, objective=objective, **options),
                help_text=metric_help(metric, more="The dashed line is the objective." if objective else ""),
                value=value,
            )


page_frame.title("Overview")
page_frame.show(body)
