"""The diagnosis, objectives, top offenders, changes, trends, counts and the latest unsuccessful streams."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from typing import Any

import polars as pl
import streamlit as st

from streamgauge.analytics.diagnosis.diagnosis import Diagnosis
from streamgauge.analytics.reports import blame, formatting, hops, objectives, overview, stream_lists
from streamgauge.analytics.reports.metric_help import metric_help
from streamgauge.analytics.reports.selection import DIMENSIONS, Selection
from streamgauge.dashboard import filters, health, page_frame, page_settings, verdict
from streamgauge.dashboard.charts import colors
from streamgauge.dashboard.charts.axes import largest
from streamgauge.dashboard.charts.drawing import choose_series
from streamgauge.dashboard.charts.sparkline import draw_sparkline
from streamgauge.dashboard.charts.split_bar import draw_split
from streamgauge.dashboard.charts.time_series import time_lines
from streamgauge.dashboard.metric_cards import Summary, card, p95_outside_noise, rate_outside_noise, tile
from streamgauge.dashboard.panels import panel
from streamgauge.dashboard.query_runner import prefetch, query, query_catalog
from streamgauge.dashboard.tables.overview import show_changes, show_contributors
from streamgauge.dashboard.tables.streams import show_streams

OBJECTIVE_PERCENTILE = "p95"
PERCENTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
MAX_GATEWAYS = 3
BLAME_OF_MANY = "Each part is a median over streams, the gateway's over those with a hop. Streams behind a gateway are not counted."
NOISE_HELP = (
    "The change is from {previous}. It is grey unless it is larger than 1.96 standard errors, which happens by chance in "
    "5 % of cases."
)


def widened(chosen: Selection, by: str) -> Selection:
    return overview.widened(query_catalog, chosen, DIMENSIONS[by])


def timeline_query(chosen: Selection, by: str, percentile: str) -> Callable[[], pl.DataFrame]:
    return lambda: overview.timeline_by(query, widened(chosen, by), by, quantile=PERCENTILES[percentile])


def body(chosen: Selection) -> None:
    slos = page_settings.slos()
    # Queries that are drawn later run while the first numbers are queried.
    diagnose = verdict.recent_diagnosis if page_frame.opens() else verdict.diagnosis_of
    state = st.session_state  # the widgets of the timelines are drawn later
    by, percentile = state.get("by") or "model", state.get("at") or OBJECTIVE_PERCENTILE
    diagnosis = prefetch(partial(diagnose, chosen))
    summary = prefetch(partial(overview.summary_now_and_before, query, chosen))
    trends = prefetch(timeline_query(chosen, by, OBJECTIVE_PERCENTILE))
    contributors = prefetch(partial(overview.top_contributors, query, chosen))
    burning = prefetch(partial(objectives.burning, query_catalog, chosen))
    changes = prefetch(partial(overview.largest_changes, query, chosen))
    parts = prefetch(partial(blame.quantiles, query, chosen))
    gateways = prefetch(partial(hops.by_gateway, query, chosen, most=MAX_GATEWAYS))
    prefetch(partial(overview.markers, query, chosen))
    if percentile != OBJECTIVE_PERCENTILE:
        prefetch(timeline_query(chosen, by, percentile))
    in_flight = prefetch(partial(overview.in_flight_now_and_before, query, chosen, datetime.now(UTC)))
    bad_streams = prefetch(partial(stream_lists.table, query, chosen, overview.IS_BAD, limit=15))

    found = diagnosis()
    verdict.show_verdict(found)
    periods = summary()
    now, before = periods["now"], periods["before"]
    onset = found.causes[0].onset if found.causes else None
    total = trends().filter(pl.col("name") == colors.TOTAL)
    show_objectives(widened(chosen, by), slos, now, before, total, onset)
    if not now.get("requests") and not now.get("refused"):
        show_counts(chosen, now, before, in_flight())
        page_frame.show_no_matches()
        return
    with st.grid(2, min_column_width=420, key="groups"):
        with st.container():
            st.header(
                "Top offenders",
                anchor=False,
                help="Models, gateways and clients with more unsuccessful streams than their share of the requests. A stream is "
                "unsuccessful if it has an error or a TTFT or ITL above its objective. The link filters all pages.",
            )
            show_contributors(contributors())
        with st.container():
            st.header(
                "Largest changes",
                anchor=False,
                help="Models and gateways with the largest change of TTFT or error rate from the "
                f"previous {formatting.span(chosen.length)}, with at least 5 requests in both periods.",
            )
            show_changes(changes(), chosen)
    show_burning(burning())
    show_timelines(chosen, slos, found)
    show_blame(parts(), gateways())
    show_counts(chosen, now, before, in_flight())
    bad = bad_streams()
    if bad.is_empty():
        st.header("Latest streams", anchor=False, help="No stream failed or missed an objective.")
        show_streams(stream_lists.table(query, chosen, limit=15))
    else:
        st.header(
            "Latest unsuccessful streams",
            anchor=False,
            help="Streams that failed or missed an objective, newest first.",
        )
        show_streams(bad)


def show_burning(burning: pl.DataFrame) -> None:
    """One line per objective that burns too fast."""
    if burning.is_empty():
        return
    with st.container(border=True, gap="small"):
        for row in burning.to_dicts():
            color, rate = ("red" if row["severity"] == "page" else "orange"), formatting.factor
            source = " · ".join(formatting.markdown(row[name]) for name in ("gateway", "model") if row[name])
            others = f" and {row['sources'] - 1} more" if row["sources"] > 1 else ""
            st.markdown(
                f":{color}-badge[:material/local_fire_department: {row['severity']}] **{formatting.markdown(row['objective'])}**, "
                f"{row['indicator'].replace('_', ' ')}: burn rate {rate(row['burn_1h'])} (1 h), {rate(row['burn_6h'])} (6 h), "
                f"{rate(row['burn_3d'])} (3 d) at {source or 'all streams'}{others} · "
                f"{formatting.share(row['spent'])} of the error budget spent",
                help=metric_help("burn_rate"),
            )


def show_blame(parts: Summary, gateways: pl.DataFrame) -> None:
    """Delay by part: the median stream split between upstream, gateway, tap and client, and what each gateway adds."""
    adding = gateways.drop_nulls("added_ttft_p50_ns").to_dicts()
    if not parts["streams"] and not adding:
        return
    with st.container(border=True, gap="small"):
        with st.container(horizontal=True, vertical_alignment="center", horizontal_alignment="distribute"):
            st.markdown("**Delay by part**", help=metric_help("blame", more=BLAME_OF_MANY), width="content")
            for row in adding:
                st.page_link(
                    "views/hops.py",
                    label=f"+{formatting.duration(row['added_ttft_p50_ns'])} TTFT by gateway {formatting.markdown(row['gateway'])}",
                    icon=":material/conversion_path:",
                    query_params=filters.shared_parameters(),
                    width="content",
                )
        p50, p95 = (
            {cause: v for cause in blame.CAUSES if (v := parts[f"{cause}_{q}_ns"]) is not None}
            for q in ("p50", "p95")
        )
        if p50:
            draw_split(p50, colors.CAUSES, "Medians")
            slowest = ", ".join(f"{cause} {formatting.duration(value)}" for cause, value in p95.items())
            st.caption(f"Medians of {formatting.count(parts['streams'])} streams. p95: {slowest}.")


def show_objectives(
    chosen: Selection, slos: health.Slos, now: Summary, before: Summary, timeline: pl.DataFrame, onset: datetime | None
) -> None:  # fmt: skip
    """One tile per objective: its state as colour, its trend with the objective drawn in; then goodput."""
    length_s = chosen.length.total_seconds()
    x = (pl.col("at") - pl.lit(chosen.since)).dt.total_seconds() / length_s
    at = None if onset is None else (onset - chosen.since).total_seconds() / length_s
    at = at if at is not None and 0 <= at <= 1 else None
    timeline = timeline.with_columns(x.clip(0, 1).alias("x"))
    requests, good, good_before = now.get("requests") or 0, now.get("good"), before.get("good")
    errors_help = ", ".join(
        f"{formatting.count(now.get(key))} {label}"
        for key, label in (
            ("errors", "errors"),
            ("aborts", "client aborts"),
            ("lost", "lost by the tap"),
            ("refused", "refused by the tap"),
        )
    )
    previous = f"the previous {formatting.span(chosen.length)}"
    help_texts = {
        "error_rate": metric_help("error_rate", more=f"Now: {errors_help}."),
        "ttft_p95_ns": metric_help("ttft"),
        "itl_p95_ns": metric_help("itl"),
    }
    noisy = {
        "error_rate": rate_outside_noise(now, before, "errors", "counted"),
        "ttft_p95_ns": p95_outside_noise(now, before, "ttft"),
        "itl_p95_ns": p95_outside_noise(now, before, "itl"),
    }
    columns = {"error_rate": "error_rate", "ttft_p95_ns": "ttft_ns", "itl_p95_ns": "itl_ns"}
    with st.grid(4, min_column_width=170, key="objectives"):
        for (key, help_text), check in zip(help_texts.items(), health.checks(now, slos), strict=True):
            a, b = now.get(key), before.get(key)
            with tile(key, check.state):
                card(
                    check.name, check.to_text(a), now=a, before=b, before_text=check.to_text(b), is_share=key == "error_rate",
                    outside_noise=noisy[key], help_text=f"{help_text} {NOISE_HELP.format(previous=previous)}", border=False,
                )  # fmt: skip
                known = timeline.drop_nulls(columns[key]).select("x", columns[key]).rows()
                draw_sparkline(known, f"{check.name} over time", objective=check.limit, onset=at)
                st.caption(f"objective ≤ {check.to_text(check.limit)}")
        began = overview.data_began(query_catalog)
        per_s = None if good is None else good / chosen.seconds_with_data(began)
        per_s_before = None if good_before is None else good_before / chosen.before().seconds_with_data(began)
        share = good / requests if requests and good is not None else None
        with tile("goodput", "none"):
            card(
                "Goodput", formatting.rate(per_s, "/s"), now=per_s, before=per_s_before, worse="down",
                before_text=formatting.rate(per_s_before, "/s"), outside_noise=rate_outside_noise(now, before, "good", "requests"),
                help_text=metric_help("goodput"), border=False,
            )  # fmt: skip
            rates = timeline.select("x", pl.col("good") / chosen.covered_s(began)).rows()
            draw_sparkline(rates, "Goodput over time", onset=at)
            st.caption(f"met by {formatting.share(share)} of the requests")


def show_counts(chosen: Selection, now: Summary, before: Summary, in_flight: tuple[int, int]) -> None:
    """Counts and further quantiles. Their changes are grey, because they have no objective."""
    began = overview.data_began(query_catalog)
    seconds = {True: chosen.seconds_with_data(began), False: chosen.before().seconds_with_data(began)}

    def show(
        label: str,
        key: str,
        to_text: Callable[[float | None], str],
        help_text: str,
        *,
        per_s: bool = False,
    ) -> None:
        a, b = (
            None if (v := period.get(key)) is None else v / seconds[is_now] if per_s else v
            for period, is_now in ((now, True), (before, False))
        )
        card(label, to_text(a), now=a, before=b, before_text=to_text(b), help_text=help_text)

    active, active_before = in_flight
    with st.grid(8, min_column_width=98, key="cards"):
        show("Requests", "requests", formatting.count, metric_help("requests"))
        card("In flight", formatting.count(active), now=active, before=active_before,
             before_text=formatting.count(active_before), help_text=metric_help("active"))  # fmt: skip
        show("TTFT p50", "ttft_p50_ns", formatting.duration, metric_help("ttft"))
        show("TTFT p99", "ttft_p99_ns", formatting.duration, metric_help("ttft"))
        show("ITL p50", "itl_p50_ns", formatting.duration, metric_help("itl"))
        show("tok/s p50", "tps_user_p50", rate_without_unit, metric_help("tps_user"))
        show("tok/s, all", "output_tokens", rate_without_unit, metric_help("tps_total"), per_s=True)
        show("Stalls", "stalls", formatting.count, metric_help("stall"))


def rate_without_unit(value: float | None) -> str:
    """A rate for a narrow card, whose label has the unit."""
    return formatting.rate(value, "").strip()


def show_timelines(chosen: Selection, slos: health.Slos, found: Diagnosis) -> None:
    """Trends by model, gateway or client, with the onsets of the causes and the markers."""
    with st.container(horizontal=True, vertical_alignment="center"):
        by = filters.choice("Group by", list(filters.FILTERS), "model", key="by", show_label=False)
        percentile = filters.choice(
            "Percentile", list(PERCENTILES), OBJECTIVE_PERCENTILE, key="at", show_label=False
        )
    data, chosen = timeline_query(chosen, by, percentile)(), widened(chosen, by)
    data = data.with_columns(
        (pl.col("output_tokens") / chosen.covered_s(overview.data_began(query_catalog))).alias("output_per_s")
    )
    if data["name"].n_unique() == 2:  # one group is the total
        data = data.filter(pl.col("name") != colors.TOTAL)
    group_colors = colors.of_groups(data)
    time = verdict.time_range(chosen)
    worst = [verdict.name_of(by, cause.where[by]) for cause in found.causes if by in cause.where]
    lines = partial(
        time_lines,
        time=time,
        series="name",
        series_colors=group_colors,
        highlighted=choose_series(group_colors, [*worst, colors.TOTAL] if worst else ()),
        samples="requests",
    )
    shares: dict[str, Any] = {"to_text": formatting.share, "percent": True}
    rates: dict[str, Any] = {"unit": "tok/s", "to_text": formatting.rate}
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


page_frame.show(body)
