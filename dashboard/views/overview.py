"""Is it healthy, since when not, and which model, gateway or client is it?"""

from __future__ import annotations

from typing import Any, Literal

import polars as pl
import streamlit as st

from dashboard import charts, filters, frame, grids, source, units
from dashboard.measures import described
from dashboard.queries import overview, streams
from dashboard.queries.selection import Selection

Summary = dict[str, float | None]
Worse = Literal["up", "down", "none"]
# A change for the worse is red, and the arrow says the direction.
DELTA_COLORS: dict[Worse, Literal["normal", "inverse", "off"]] = {
    "up": "inverse",
    "down": "normal",
    "none": "off",
}


def cards(now: Summary, before: Summary, line: pl.DataFrame, chosen: Selection, active: int) -> None:
    """The numbers, each with its change against the period before and its course as a small line."""
    objectives = source.slos()
    seconds = chosen.length.total_seconds()
    against = f"vs {units.span(chosen.length)} before"

    def card(
        label: str, value: str, key: str, *, help_text: str, worse: Worse = "up", rate: bool = False
    ) -> None:
        moved = units.change(now.get(key), before.get(key))
        st.metric(
            label,
            value,
            delta=None if moved is None else (0 if abs(moved) < 0.0005 else f"{moved:+.1%}"),
            delta_color=DELTA_COLORS[worse],
            delta_description=against if moved is not None else None,
            help=f"{help_text} Before: {units.count(before.get(key)) if rate else _said(key, before.get(key))}.",
            border=True,
            height="stretch",
            chart_data=line[key].fill_null(0).to_list() if key in line.columns and len(line) > 1 else None,
        )

    good, good_before = now.get("good"), before.get("good")
    goodput = None if good is None else good / seconds
    requests = now.get("requests") or 0
    with st.grid(4, min_column_width=160, key="cards"):
        card(
            "Requests",
            units.count(now.get("requests")),
            "requests",
            help_text=described("requests"),
            worse="none",
        )
        st.metric(
            "Active streams", units.count(active), help=described("active"), border=True, height="stretch",
            delta=None, delta_color="off",
        )  # fmt: skip
        apart = ", ".join(
            f"{units.count(now.get(key))} {word}"
            for key, word in (("errors", "errors"), ("aborts", "client aborts"), ("lost", "lost by the tap"))
        )
        card(
            "Error rate",
            units.share(now.get("error_rate")),
            "error_rate",
            help_text=described("error_rate", more=f"Now: {apart}."),
        )
        st.metric(
            "Goodput",
            units.rate(goodput, "/s"),
            delta=_relative(good, good_before),
            delta_description=against if good_before else None,
            help=described(
                "goodput",
                more=f"SLOs: TTFT ≤ {objectives.ttft_s:g} s, ITL ≤ {objectives.itl_s * 1e3:g} ms. "
                f"Met by {units.share(good / requests if requests and good is not None else None)} of the requests.",
            ),
            border=True,
            height="stretch",
            chart_data=line["good"].to_list() if len(line) > 1 else None,
        )
        for name in ("p50", "p95", "p99"):
            key = f"ttft_{name}_ns"
            card(f"TTFT {name}", units.duration(now.get(key)), key, help_text=described("ttft"))
        card("ITL p50", units.duration(now.get("itl_p50_ns")), "itl_p50_ns", help_text=described("itl"))
        card("ITL p95", units.duration(now.get("itl_p95_ns")), "itl_p95_ns", help_text=described("itl"))
        card(
            "Speed per stream, p50", units.rate(now.get("tps_user_p50")), "tps_user_p50",
            help_text=described("tps_user"), worse="down",
        )  # fmt: skip
        tokens = now.get("output_tokens")
        card(
            "Output, all streams", units.rate(None if tokens is None else tokens / seconds), "output_tokens",
            help_text=described("tps_total"), worse="none", rate=True,
        )  # fmt: skip
        card("Stalls", units.count(now.get("stalls")), "stalls", help_text=described("stall"), rate=True)


def _relative(now: float | None, before: float | None) -> float | str | None:
    moved = units.change(now, before)
    return None if moved is None else (0 if abs(moved) < 0.0005 else f"{moved:+.1%}")


def _said(key: str, value: float | None) -> str:
    if key.endswith("_ns"):
        return units.duration(value)
    if key == "error_rate":
        return units.share(value)
    if key.startswith("tps"):
        return units.rate(value)
    return units.count(value)


def lines(chosen: Selection) -> None:
    """The courses by model, gateway or client."""
    by = st.segmented_control(
        "Lines by",
        ["model", "gateway", "client"],
        default="model",
        required=True,
        key="by",
        bind="query-params",
    )
    data = overview.timeline_by(source.ask, chosen, by)
    names = sorted(set(data["name"]) - {"others"}) + (["others"] if "others" in set(data["name"]) else [])
    zone, span, objectives = filters.zone(), (chosen.since, chosen.until), source.slos()
    shared = {"zone": zone, "span": span, "series": "name", "order": names, "bucket_s": chosen.bucket_s}
    per_second = data.with_columns(pl.col("output_tokens") / chosen.bucket_s)
    with st.grid(2, min_column_width=340, key="lines"):
        _panel("TTFT p50", described("ttft"), data, "ttft_p50_ns", shared, rule=objectives.ttft_s * 1e9)
        _panel("TTFT p95", described("ttft"), data, "ttft_p95_ns", shared, rule=objectives.ttft_s * 1e9)
        _panel("ITL p50", described("itl"), data, "itl_p50_ns", shared, rule=objectives.itl_s * 1e9)
        _panel("ITL p95", described("itl"), data, "itl_p95_ns", shared, rule=objectives.itl_s * 1e9)
        _panel(
            "Output tok/s, all streams",
            described("tps_total"),
            per_second,
            "output_tokens",
            shared,
            unit="tok/s",
        )
        _panel(
            "Error rate", described("error_rate"), data, "error_rate", shared, form=units.share, percent=True
        )


def _panel(
    title: str,
    help_text: str,
    data: pl.DataFrame,
    value: str,
    shared: dict[str, Any],
    rule: float | None = None,
    **more: Any,
) -> None:
    with st.container(border=True):
        st.markdown(f"**{title}**", help=help_text)
        if data[value].drop_nulls().is_empty():
            charts.empty("unknown for these streams")
            return
        if rule is not None and charts.largest(data, value) < rule / 3:
            rule = None  # an objective far above the lines would flatten them
        charts.draw(
            charts.time_lines(data, value, rule=rule, **shared, **more),
            f"{title} over time",
            key=f"line-{title}",
        )


def body(chosen: Selection) -> None:
    objectives = source.slos()
    slo = {"slo_ttft_s": objectives.ttft_s, "slo_itl_s": objectives.itl_s}
    both = overview.summary_now_and_before(source.ask, chosen, **slo)
    active = overview.active_streams(source.ask, chosen)
    line = overview.timeline(source.ask, chosen, **slo)
    cards(both["now"], both["before"], line, chosen, active)
    if not both["now"].get("requests"):
        frame.nothing_chosen()
        return
    lines(chosen)
    st.subheader("What changed", anchor=False)
    grids.changes(overview.moved_most(source.ask, chosen), chosen)
    st.subheader("Latest streams", anchor=False)
    grids.streams(streams.table(source.ask, chosen, limit=15), key="latest")


frame.title("Overview")
frame.show(body)
