"""The diagnosis, objectives, top offenders, changes, trends, counts and the latest streams that failed or missed one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any

import polars as pl
import streamlit as st

from streamgauge.analytics.diagnosis import report
from streamgauge.analytics.diagnosis.diagnosis import OBJECTIVES, Diagnosis, Measured
from streamgauge.analytics.reports import (
    blame,
    formatting,
    hops,
    objectives,
    overview,
    rate_limits,
    stream_lists,
)
from streamgauge.analytics.reports.metric_help import metric_help
from streamgauge.analytics.reports.selection import Selection, dimension
from streamgauge.dashboard import filters, page_frame, verdict
from streamgauge.dashboard.charts import colors
from streamgauge.dashboard.charts.drawing import choose_series, draw_split, largest
from streamgauge.dashboard.charts.time_series import time_lines
from streamgauge.dashboard.panels import (
    Summary,
    card,
    draw_trend,
    p95_outside_noise,
    panel,
    rate_outside_noise,
    section,
    tile,
)
from streamgauge.dashboard.query_runner import prefetch, query, query_catalog
from streamgauge.dashboard.report_download import draw_report_button
from streamgauge.dashboard.report_tables import show_report

OBJECTIVE_PERCENTILE = "p95"
PERCENTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
MAX_GATEWAYS = 3
BLAME_OF_MANY = "Medians over streams. The gateway: streams with a hop only. Streams recorded behind a gateway do not count."
NOISE_HELP = (
    "The change is from {previous}. It is grey unless it is larger than 1.96 standard errors, which happens by chance in "
    "5 % of cases."
)


def widened(chosen: Selection, by: str) -> Selection:
    return overview.widened(query_catalog, chosen, dimension(by))


def timeline(chosen: Selection, by: str, percentile: str) -> pl.DataFrame:
    return overview.timeline_by(query, widened(chosen, by), by, quantile=PERCENTILES[percentile])


def body(chosen: Selection) -> None:
    state = st.session_state  # the widgets of the timelines are drawn later
    by, percentile = state.get("by") or "model", state.get("at") or OBJECTIVE_PERCENTILE
    diagnosis = verdict.begun(chosen, recent=page_frame.opens())
    # A new diagnosis takes longer while other queries run, so the page starts them after it. Those of the lower parts then run while
    # the upper parts are drawn.
    found = diagnosis()
    verdict.show_verdict(found)
    trends = prefetch(timeline, chosen, by, OBJECTIVE_PERCENTILE)
    judged = overview.judged(query, widened(chosen, by), datetime.now(UTC))
    summary = prefetch(overview.summary_now_and_before, query, judged)
    prefetch(overview.markers, query, chosen)
    if percentile != OBJECTIVE_PERCENTILE:
        prefetch(timeline, chosen, by, percentile)
    compared = judged.with_comparable_before()
    compared_length = formatting.span(compared.length)
    changes = prefetch(overview.largest_changes, query, compared)
    burning = prefetch(objectives.burning, query_catalog, chosen)
    limits = prefetch(rate_limits.table, query_catalog, datetime.now(UTC), chosen)
    parts = prefetch(blame.quantiles, query, chosen)
    gateways = prefetch(hops.by_gateway, query, chosen, most=MAX_GATEWAYS)
    counts = prefetch(overview.counts_now_and_before, query, chosen)
    in_flight = prefetch(overview.in_flight_now_and_before, query, chosen, datetime.now(UTC))
    bad_streams = prefetch(stream_lists.table, query, chosen, overview.IS_BAD, limit=15)
    judged_by = objectives.stored_objectives(query_catalog)
    contributors = prefetch(report.offenders, query, judged, judged_by, found, filters.label_names())

    periods = summary()
    now, before = periods["now"], periods["before"]
    onset = found.causes[0].onset if found.causes else None
    total = trends().filter(pl.col("name") == colors.TOTAL)
    show_objectives(widened(chosen, by), judged, found, now, before, total, onset)
    if not now.get("requests") and not any(counts()["now"].get(name) for name in ("requests", "refused")):
        show_counts(judged, now, before, counts(), in_flight())
        page_frame.show_no_matches()
        return
    groups, burns = st.grid(2, min_column_width=420, key="groups"), st.container()
    # The browser draws the charts while the queries of the tables above them run.
    show_timelines(chosen, found)
    with groups:
        with st.container():
            section(
                "Top offenders",
                "Models, gateways, clients and labels with clearly more affected streams than their share of the requests. A stream is "
                "affected if the first cause of the diagnosis counts it. Without a cause, it is affected if it failed or missed an "
                "objective. The link filters all pages.",
            )
            by_what = report.offenders_by(found, judged_by)
            st.caption(f"Affected: {by_what}")
            missed = by_what == report.MISSED
            show_report(overview.UNSUCCESSFUL if missed else overview.CONTRIBUTORS, contributors())
        with st.container():
            section(
                "Largest changes",
                f"Models and gateways with the largest change of TTFT or error rate in the latest {compared_length} from the "
                f"previous {compared_length}, with at least 5 requests in both periods.",
            )
            if compared.length < judged.length:
                st.caption(f"The latest {compared_length} against the {compared_length} before")
            show_report(overview.CHANGES, changes(), period=compared_length)
    with burns:
        show_burning(burning())
        show_limits(limits())
    show_blame(parts(), gateways())
    show_counts(judged, now, before, counts(), in_flight())
    bad = bad_streams()
    if bad.is_empty():
        section("Latest streams", "No stream failed or missed an objective.")
        show_report(stream_lists.TABLE, stream_lists.table(query, chosen, limit=15))
    else:
        section("Latest streams that failed or missed an objective", "Newest first.")
        show_report(stream_lists.TABLE, bad)
    draw_report_button(chosen)


def show_burning(burning: pl.DataFrame) -> None:
    """One line per objective that burns too fast."""
    if burning.is_empty():
        return
    with st.container(border=True):
        for row in burning.to_dicts():
            color = "red" if row["severity"] == "page" else "orange"
            source = " · ".join(formatting.markdown(row[name]) for name in ("gateway", "model") if row[name])
            others = f" and {row['sources'] - 1} more" if row["sources"] > 1 else ""
            st.markdown(
                f":{color}-badge[:material/local_fire_department: {row['severity']}] **{formatting.markdown(row['objective'])}**, "
                f"{row['indicator'].replace('_', ' ')}: burn rate {objectives.burn_text(row)} "
                f"at {source or 'all streams'}{others} · "
                f"{formatting.share(row['spent'])} of the error budget spent",
                help=metric_help("burn_rate"),
            )


def show_limits(limits: pl.DataFrame) -> None:
    """One line per model at a gateway whose rate limit is used up soon."""
    warned = rate_limits.with_text(limits)["text"].drop_nulls()
    if warned.is_empty():
        return
    with st.container(border=True):
        for text in warned.head(MAX_GATEWAYS):
            badge = ":orange-badge[:material/hourglass_bottom: rate limit]"
            st.markdown(f"{badge} {formatting.markdown(text)}", help=metric_help("rate_limit_forecast"))
        filters.page_link("throughput", "Rate limits", ":material/speed:")


def show_blame(parts: Summary, gateways: pl.DataFrame) -> None:
    """Delay by part: the median stream split between upstream, gateway, tap and client, and what each gateway adds."""
    adding = gateways.drop_nulls("added_ttft_p50_ns").to_dicts()
    if not parts["streams"] and not adding:
        return
    with st.container(border=True):
        with st.container(horizontal=True, vertical_alignment="center", horizontal_alignment="distribute"):
            st.markdown("**Delay by part**", help=metric_help("blame", more=BLAME_OF_MANY), width="content")
            for row in adding:
                label = f"+{formatting.duration(row['added_ttft_p50_ns'])} TTFT by gateway {formatting.markdown(row['gateway'])}"
                filters.page_link("hops", label, ":material/conversion_path:")
        p50, p95 = (
            {cause: v for cause in blame.CAUSES if (v := parts[f"{cause}_{q}_ns"]) is not None}
            for q in ("p50", "p95")
        )
        if p50:
            draw_split(p50, colors.CAUSES, "Medians")
            slowest = ", ".join(f"{cause} {formatting.duration(value)}" for cause, value in p95.items())
            st.caption(f"Medians of {formatting.count(parts['streams'])} streams. p95: {slowest}.")


def show_objectives(
    chosen: Selection, judged: Selection, found: Diagnosis, now: Summary, before: Summary, trends: pl.DataFrame,
    onset: datetime | None,
) -> None:  # fmt: skip
    """One tile per objective: its state as colour, its trend with the objective drawn in; then goodput. All of complete streams."""
    length_s = (chosen.until - chosen.drawn_since).total_seconds()
    at = None if onset is None else (onset - chosen.drawn_since).total_seconds() / length_s
    at = at if at is not None and 0 <= at <= 1 else None
    x = (pl.col("at") - pl.lit(chosen.drawn_since)).dt.total_seconds() / length_s
    is_complete = verdict.time_range(chosen).is_complete()
    trends = trends.with_columns(x.clip(0, 1).alias("x"), is_complete.alias("complete"))
    kinds = {
        "errors": "errors",
        "aborts": "client aborts",
        "lost": "lost by the tap",
        "refused": "refused by the tap",
    }
    errors_help = ", ".join(f"{formatting.count(now.get(key))} {label}" for key, label in kinds.items())
    noise_help = NOISE_HELP.format(previous=f"the previous {formatting.span(chosen.length)}")
    with st.grid(4, min_column_width=170, key="objectives"):
        for name, key, column, to_text, help_text, outside_noise in (
            ("error_rate", "error_rate", "error_rate", formatting.share,
             metric_help("error_rate", more=f"Now: {errors_help}."), rate_outside_noise(now, before, "errors", "counted")),
            ("ttft", "ttft_p95_ns", "ttft_ns", formatting.duration, metric_help("ttft"), p95_outside_noise(now, before, "ttft")),
            ("itl", "itl_p95_ns", "itl_ns", formatting.duration, metric_help("itl"), p95_outside_noise(now, before, "itl")),
        ):  # fmt: skip
            measured, title = found.measured_of(name), OBJECTIVES[name]
            with tile(key, measured[0].state if measured else "unknown"):
                card(
                    title, now.get(key), before.get(key), to_text, f"{help_text} {noise_help}",
                    outside_noise=outside_noise, border=False,
                )  # fmt: skip
                known = trends.drop_nulls(column).select("x", column, "complete").rows()
                draw_trend(known, f"{title} over time", objective=found.limit(name), onset=at)
                st.caption(objective_text(measured, to_text, now.get(key)))
        with tile("goodput", "none"):
            card(
                "Goodput", per_second(judged, now, "good"), per_second(judged.before(), before, "good"),
                partial(formatting.rate, unit="/s"), metric_help("goodput"), up_is_worse=False,
                outside_noise=rate_outside_noise(now, before, "good", "requests"), border=False,
            )  # fmt: skip
            rates = trends.select("x", pl.col("good") / chosen.covered_s(), "complete").rows()
            draw_trend(rates, "Goodput over time", onset=at)
            requests, good = now.get("requests"), now.get("good")
            share = good / requests if requests and good is not None else None
            st.caption(f"{formatting.share(share)} of requests within all limits")


def objective_text(
    judged: Sequence[Measured], to_text: Callable[[float | None], str], on_tile: float | None
) -> str:
    """The objective of a tile. If streams have several, the one that is missed most, with the value of its streams."""
    if not judged:
        return "no requests with an objective"
    worst, *others = judged
    text = f"{formatting.markdown(worst.objective) if others else 'objective'} ≤ {to_text(worst.limit)}"
    if not worst.missed:
        return text
    value = to_text(worst.value)
    if others:
        return f"{text}, missed: {value}"
    # The diagnosis judges all streams, the tile shows those of complete intervals.
    return f"{text}, missed" if value == to_text(on_tile) else f"{text}, with the latest streams {value}"


def per_second(period: Selection, summary: Summary, key: str) -> float | None:
    """A count of a period per second since the first stored data."""
    count = summary.get(key)
    return None if count is None else count / period.seconds_with_data()


def show_counts(
    judged: Selection, now: Summary, before: Summary, counts: Mapping[str, Summary], in_flight: tuple[int, int]
) -> None:  # fmt: skip
    """Counts and further quantiles. Their changes are grey, because they have no objective."""
    tokens = (per_second(judged, now, "output_tokens"), per_second(judged.before(), before, "output_tokens"))
    number = partial(formatting.rate, unit="")  # narrow cards have the unit in their label
    with st.grid(8, min_column_width=98, key="cards"):
        for label, key, to_text, metric in (
            ("Requests", [counts[period].get("requests") for period in counts], formatting.count, "requests"),
            ("In flight", in_flight, formatting.count, "active"),
            ("TTFT p50", "ttft_p50_ns", formatting.duration, "ttft"),
            ("TTFT p99", "ttft_p99_ns", formatting.duration, "ttft"),
            ("ITL p50", "itl_p50_ns", formatting.duration, "itl"),
            ("tok/s p50", "tps_user_p50", number, "tps_user"),
            ("tok/s, all", tokens, number, "tps_total"),
            ("Stalls", "stalls", formatting.count, "stall"),
        ):
            a, b = (now.get(key), before.get(key)) if isinstance(key, str) else key
            card(label, a, b, to_text, metric_help(metric))


def show_timelines(chosen: Selection, found: Diagnosis) -> None:
    """Trends by model, gateway or client, with the onsets of the causes and the markers."""
    with st.container(horizontal=True, vertical_alignment="center"):
        by = filters.choice("Group by", filters.groupings(), "model", key="by", show_label=False)
        percentile = filters.choice(
            "Percentile", list(PERCENTILES), OBJECTIVE_PERCENTILE, key="at", show_label=False
        )
    data, chosen = timeline(chosen, by, percentile), widened(chosen, by)
    data = data.with_columns((pl.col("output_tokens") / chosen.covered_s()).alias("output_per_s"))
    if data["name"].n_unique() == 2:  # one group is the total
        data = data.filter(pl.col("name") != colors.TOTAL)
    group_colors = colors.of_groups(data)
    time = verdict.time_range(chosen)
    worst = [
        verdict.name_of(by, value) for cause in found.causes if (value := cause.value_of(by)) is not None
    ]
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
        for title, value, metric, limit, options, order in (
            (f"TTFT {percentile}", "ttft_ns", "ttft", found.limit("ttft"), {}, {"order": "highest TTFT"}),
            ("Error rate", "error_rate", "error_rate", found.limit("error_rate"), shares, {"kind": "errors"}),
            (f"ITL {percentile}", "itl_ns", "itl", found.limit("itl"), {}, {"order": "highest ITL"}),
            ("Output of all streams", "output_per_s", "tps_total", None, rates, {"order": "most output"}),
        ):
            # An objective far above the lines would flatten them.
            objective = (
                limit if limit is not None and largest(time.complete(data), value) >= limit / 3 else None
            )
            panel(
                title,
                data,
                partial(lines, value=value, objective=objective, **options),
                metric_help(metric, more="The dashed line is the objective." if objective else ""),
                metric=metric,
                value=value,
                on_click=filters.opens_streams(time, by=by, **order),
            )


def draw_page() -> None:
    """Diagnosis, objectives, top offenders, requests, errors, TTFT, ITL, tokens per second."""
    page_frame.show(body)


PAGE = page_frame.Page(draw_page, "Overview", "monitor_heart", diagnosed=True)
