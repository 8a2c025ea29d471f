"""Is it healthy, since when not, and which model, gateway or client is it?"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import polars as pl
import streamlit as st

from dashboard import filters, formatting, health, page_frame, panels, query_runner
from dashboard.charts import base
from dashboard.charts.time_series import time_lines
from dashboard.metric_cards import Summary, Worse, card
from dashboard.metric_help import described
from dashboard.queries import overview, streams
from dashboard.queries.selection import Selection
from dashboard.tables import generic

COURSES = {
    "requests": "requests",
    "error_rate": "error_rate",
    "ttft_p95_ns": "ttft_ns",
    "itl_p95_ns": "itl_ns",
}
"""Cards with their course as a small line, and its column in `overview.timeline`: each is a chart of its own to the browser, so
that not all have one."""
PERCENTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
SIGNS: dict[health.State, tuple[str, str]] = {
    "met": ("green", ":material/check_circle:"),
    "broken": ("red", ":material/error:"),
    "unknown": ("gray", ":material/help:"),
}


def banner(now: Summary, slos: health.Slos) -> None:
    """The first thing to see: healthy or not, and what that was judged by."""
    found = health.checks(now, slos)
    color, icon = SIGNS[health.verdict(found)]
    badges = " ".join(f":{SIGNS[c.state][0]}-badge[{SIGNS[c.state][1]} {c}]" for c in found)
    with st.container(border=True, horizontal=True, vertical_alignment="center", gap="medium"):
        st.markdown(
            f"#### :{color}[{icon} {health.headline(found)}]",
            width="content",
            help="Judged over the time range and filters: error rate, and the 95th percentiles of TTFT and ITL, against the "
            "objectives of the configuration (`--slo-error-rate`, `--slo-ttft`, `--slo-itl`).",
        )
        st.markdown(badges, width="content")


def numbers(
    now: Summary, before: Summary, line: pl.DataFrame, chosen: Selection, active: int, active_before: int
) -> None:
    """The numbers, each with its change against the period before and its course as a small line."""
    slos = query_runner.slos()
    seconds = chosen.length.total_seconds()
    # Counts of a point of time that is only partly in the range would look like a fall.
    rates = line.with_columns(
        (pl.col(c) / chosen.covered_s()).alias(c) for c in ("requests", "good", "output_tokens")
    )

    def one(
        label: str,
        key: str,
        form: Callable[[float | None], str],
        help_text: str,
        *,
        worse: Worse = "up",
        per_s: bool = False,
        points: bool = False,
    ) -> None:
        a, b = now.get(key), before.get(key)
        if per_s:
            a, b = (None if v is None else v / seconds for v in (a, b))
        card(
            label, form(a), now=a, before=b, said_before=form(b), worse=worse, help_text=help_text, points=points,
            course=rates[COURSES[key]].to_list() if key in COURSES else (),
        )  # fmt: skip

    requests, good = now.get("requests") or 0, now.get("good")
    apart = ", ".join(
        f"{formatting.count(now.get(key))} {word}"
        for key, word in (("errors", "errors"), ("aborts", "client aborts"), ("lost", "lost by the tap"))
    )
    objectives = (
        f"Objectives: TTFT ≤ {slos.ttft_s:g} s, ITL ≤ {slos.itl_s * 1e3:g} ms. "
        f"Met by {formatting.share(good / requests if requests and good is not None else None)} of the requests."
    )
    ago = f"the {formatting.span(chosen.length)} before"
    st.caption(
        f"Changes are against {ago}." if before.get("requests") else f"No streams in {ago} to compare with."
    )
    with st.grid(4, min_column_width=150, key="courses"):
        one("Requests", "requests", formatting.count, described("requests"), worse="none")
        one(
            "Error rate",
            "error_rate",
            formatting.share,
            described("error_rate", more=f"Now: {apart}."),
            points=True,
        )
        one("TTFT p95", "ttft_p95_ns", formatting.duration, described("ttft"))
        one("ITL p95", "itl_p95_ns", formatting.duration, described("itl"))
    with st.grid(8, min_column_width=98, key="cards"):
        card("Active", formatting.count(active), now=active, before=active_before, said_before=formatting.count(active_before),
             worse="none", help_text=described("active"))  # fmt: skip
        one("Goodput", "good", lambda v: formatting.rate(v, "/s"), described("goodput", more=objectives),
            worse="down", per_s=True)  # fmt: skip
        one("TTFT p50", "ttft_p50_ns", formatting.duration, described("ttft"))
        one("TTFT p99", "ttft_p99_ns", formatting.duration, described("ttft"))
        one("ITL p50", "itl_p50_ns", formatting.duration, described("itl"))
        one("tok/s p50", "tps_user_p50", plain_rate, described("tps_user"), worse="down")
        one("tok/s, all", "output_tokens", plain_rate, described("tps_total"), worse="none", per_s=True)
        one("Stalls", "stalls", formatting.count, described("stall"))


def plain_rate(value: float | None) -> str:
    """A rate whose unit the label says: there is no room for both."""
    return formatting.rate(value, "").strip()


def blame(chosen: Selection, slos: health.Slos) -> None:
    """Who it is: more than their share of bad streams, and what moved."""
    with st.grid(2, min_column_width=420, key="blame"):
        with st.container():
            st.subheader(
                "Where it hurts",
                anchor=False,
                help="Models, gateways and clients with more bad streams than their share of the traffic explains. Bad: an "
                "error, or a TTFT or ITL above its objective. The link narrows every page to that one.",
            )
            hurts = overview.where_it_hurts(
                query_runner.ask, chosen, slo_ttft_s=slos.ttft_s, slo_itl_s=slos.itl_s
            )
            generic.hurting(hurts)
        with st.container():
            st.subheader(
                "What changed",
                anchor=False,
                help=f"Models and gateways whose TTFT or error rate moved most against the {formatting.span(chosen.length)} before, "
                "of those with at least 5 requests in both.",
            )
            generic.changes(overview.moved_most(query_runner.ask, chosen), chosen)


def lines_chosen() -> tuple[str, float]:
    """By what the lines were drawn last, and at which quantile: known before the page comes to them."""
    seen = st.session_state
    return seen.get("by") or "model", PERCENTILES[seen.get("at") or "p95"]


def lines(chosen: Selection) -> None:
    """The courses by model, gateway or client, at one percentile."""
    with st.container(horizontal=True, vertical_alignment="center"):
        by = panels.choice("Lines by", ["model", "gateway", "client"], "model", key="by", labelled=False)
        named = panels.choice("Percentile", list(PERCENTILES), "p95", key="at", labelled=False)
    data = overview.timeline_by(query_runner.ask, chosen, by, quantile=PERCENTILES[named]).with_columns(
        (pl.col("output_tokens") / chosen.covered_s()).alias("output_per_s")
    )
    slos = query_runner.slos()
    colors = panels.colors_of(data)
    shared: dict[str, Any] = {
        "zone": filters.zone(), "span": (chosen.since, chosen.until), "bucket_s": chosen.bucket_s,
        "series": "name", "colors": colors,
    }  # fmt: skip
    base.legend(colors)
    with st.grid(2, min_column_width=310, key="lines"):
        for title, value, measure, limit, more in (
            (f"TTFT {named}", "ttft_ns", "ttft", slos.ttft_s * 1e9, {}),
            (
                "Error rate",
                "error_rate",
                "error_rate",
                slos.error_rate,
                {"form": formatting.share, "percent": True},
            ),
            (f"ITL {named}", "itl_ns", "itl", slos.itl_s * 1e9, {}),
            (
                "Output, all streams",
                "output_per_s",
                "tps_total",
                None,
                {"unit": "tok/s", "form": formatting.rate},
            ),
        ):
            # An objective far above the lines would flatten them.
            rule = limit if limit is not None and base.largest(data, value) >= limit / 3 else None

            def drawn(
                f: pl.DataFrame, value: str = value, rule: float | None = rule, more: Any = more
            ) -> Any:
                return time_lines(f, value, rule=rule, **shared, **more)

            about = described(measure, more="The dashed line is the objective." if rule else "")
            panels.panel(title, data, drawn, help_text=about, value=value)


def body(chosen: Selection) -> None:
    slos = query_runner.slos()
    limits = {"slo_ttft_s": slos.ttft_s, "slo_itl_s": slos.itl_s}
    by, quantile = lines_chosen()
    # What stands further down is asked while the first numbers are.
    query_runner.ahead(
        lambda: overview.timeline(query_runner.ask, chosen, **limits),
        lambda: overview.where_it_hurts(
            query_runner.ask, chosen, slo_ttft_s=slos.ttft_s, slo_itl_s=slos.itl_s
        ),
        lambda: overview.moved_most(query_runner.ask, chosen),
        lambda: overview.timeline_by(query_runner.ask, chosen, by, quantile=quantile),
        lambda: streams.evidence(query_runner.ask, chosen, overview.bad(**limits)),
    )
    both = overview.summary_now_and_before(query_runner.ask, chosen, **limits)
    active = overview.active_streams(query_runner.ask, chosen)
    active_before = overview.active_then(query_runner.ask, chosen, datetime.now(UTC) - chosen.length)
    line = overview.timeline(query_runner.ask, chosen, **limits)
    banner(both["now"], slos)
    numbers(both["now"], both["before"], line, chosen, active, active_before)
    if not both["now"].get("requests"):
        page_frame.nothing_chosen()
        return
    blame(chosen, slos)
    lines(chosen)
    bad = streams.evidence(query_runner.ask, chosen, overview.bad(**limits))
    if bad.is_empty():
        st.subheader("Latest streams", anchor=False, help="None of the range failed or missed an objective.")
        generic.streams(streams.table(query_runner.ask, chosen, limit=15), key="latest")
        return
    st.subheader(
        "Latest bad streams", anchor=False, help="Those that failed or missed an objective, newest first."
    )
    generic.streams(bad, key="latest")


page_frame.title("Overview")
page_frame.show(body)
