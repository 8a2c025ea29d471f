"""What each gateway adds between client and model server: delays, failed attempts, changes."""

from __future__ import annotations

from typing import Any

import polars as pl
import streamlit as st

from streamgauge.analytics.reports import formatting, has_rows, hops
from streamgauge.analytics.reports.hops import CAUSES, hop_phases
from streamgauge.analytics.reports.metric_help import metric_help
from streamgauge.analytics.reports.selection import Selection
from streamgauge.dashboard import filters, page_frame, verdict
from streamgauge.dashboard.charts import colors
from streamgauge.dashboard.charts.drawing import draw, draw_legend
from streamgauge.dashboard.charts.group_charts import ecdf
from streamgauge.dashboard.charts.stream_charts import StreamAxis, phase_waterfall
from streamgauge.dashboard.charts.time_series import time_lines
from streamgauge.dashboard.panels import panel, section
from streamgauge.dashboard.query_runner import prefetch, query
from streamgauge.dashboard.report_tables import show_report

Row = dict[str, Any]
STATISTICS = colors.by_name(("p50", "p95", "max"))
PHASE_COLORS = {name: colors.CAUSES[cause] for name, cause in CAUSES.items()}


def body(chosen: Selection) -> None:
    # Queries that are drawn later run while the first numbers are queried.
    verdict.prefetch_marks(chosen)
    waterfall = prefetch(hops.waterfall, query, chosen)
    delays = prefetch(hops.event_delays, query, chosen)
    changes = prefetch(hops.changes, query, chosen)
    found = hops.by_gateway(query, chosen)
    if found.is_empty():
        page_frame.show_no_matches("No matched streams in") if has_rows(query, "hops") else show_first_steps()
        return
    show_sentences(found)
    show_waterfalls(waterfall())
    show_delays(chosen, delays())
    section("By gateway")
    show_report(hops.GATEWAYS, found)
    show_retries(chosen, found)
    section(
        "Changes by the gateway",
        "Differences between what the model server sent and what the client received.",
    )
    show_report(hops.CHANGES, changes())
    show_matching(chosen)


def show_first_steps() -> None:
    st.info(
        "**No hops yet.** A hop needs the streams on both sides of a gateway.",
        icon=":material/conversion_path:",
    )
    st.markdown("One tap is enough: its upstreams are the gateway and the model servers.")
    st.code(
        "streamgauge up --upstream gateway=http://127.0.0.1:4000 --upstream model=http://127.0.0.1:8000",
        language="shell",
    )
    st.markdown(
        "The gateway's base URL of the model server then ends in `/model` at the tap's address. This page shows what the gateway "
        "adds, and **Overview** and **Stream** split the time between upstream, gateway, tap and client.\n\n"
        "Guide: *Locate a delay* (`docs/how-to/find-who-is-slow.md`)."
    )


def sentence(row: Row) -> str:
    """What one gateway adds, as a sentence in Markdown."""
    name, streams = (
        f"**{formatting.markdown(row['gateway'])}**",
        f"{formatting.count(row['streams'])} streams",
    )
    if row["added_ttft_p50_ns"] is None:
        return f"{name}: no matched stream has output · {streams}"
    added = f"{name} adds **{formatting.duration(row['added_ttft_p50_ns'])}** to the TTFT (p50)"
    if row["event_p95_ns"] is not None:
        added += f" and **{formatting.duration(row['event_p95_ns'])}** per output event (p95)"
    notes = [streams]
    if row["clock_error_ns"]:
        notes.append(f"clock error up to ± {formatting.duration(row['clock_error_ns'])}")
    if row["stalls"]:
        notes.append(f"{formatting.count(row['stalls'])} stalls caused by it")
    return f"{added} · {' · '.join(notes)}"


def show_sentences(found: pl.DataFrame) -> None:
    with st.container(border=True):
        for row in found.to_dicts():
            st.markdown(
                f":material/conversion_path: **{sentence(row)}**",
                help=f"TTFT: {metric_help('hop_ttft')} Per event: {metric_help('hop_event')} Clock: {metric_help('hop_clock')}",
            )


def show_waterfalls(medians: pl.DataFrame) -> None:
    """Client → gateway → model server, one panel per gateway."""
    if medians.is_empty():
        return
    draw_legend({cause: colors.CAUSES[cause] for cause in ("gateway", "upstream")})
    with st.grid(2 if len(medians) > 1 else 1, min_column_width=420):
        for row in medians.to_dicts():
            phases = hop_phases(row)
            # 12 % for the length that is written behind the last bar of a narrow chart.
            axis = StreamAxis(0, max([p.end_ns for p in phases] + [1]) * 1.12)
            title = f"Client → {row['gateway']} → model server"
            with st.container(border=True):
                st.markdown(
                    f"**{formatting.markdown(title)}**, medians of {formatting.count(row['streams'])} streams",
                    help="Medians of each part over the streams with output. They need not add up to the median of the whole.",
                )
                draw(phase_waterfall(phases, axis, PHASE_COLORS), title, key=f"hop-{row['gateway']}")


def show_delays(chosen: Selection, delays: pl.DataFrame) -> None:
    timeline = hops.added_ttft_timeline(query, chosen)
    time = verdict.time_range(chosen)
    gateways = colors.of_groups(timeline)
    with st.grid(2, min_column_width=340):
        panel(
            "Added delay per output event",
            delays,
            lambda f: ecdf(f, STATISTICS),
            f"{metric_help('hop_event')} The lines are cumulative shares of streams. Delays below "
            f"{formatting.duration(hops.SHORTEST_NS)} are drawn as that.",
            legend=STATISTICS,
        )
        panel(
            "Added TTFT, p50 by gateway",
            timeline,
            lambda f: time_lines(f, "value_ns", time, series="name", series_colors=gateways, samples="n"),
            metric_help("hop_ttft"),
            legend=gateways,
            on_click=filters.opens_streams(time, by="gateway"),
        )


def show_retries(chosen: Selection, found: pl.DataFrame) -> None:
    section(
        "Attempts",
        "Requests that the gateway sent more than once: retries and fallbacks, and the time lost to failed attempts.",
    )
    failed, lost_ns, streams = (int(found[name].sum()) for name in ("failed_attempts", "lost_ns", "streams"))
    if not failed:
        st.caption("Every matched stream needed one attempt.")
        return
    st.caption(
        f"{formatting.count(failed)} failed attempts of {formatting.count(streams)} streams cost "
        f"{formatting.duration(lost_ns)}."
    )
    show_report(hops.FAILED_ATTEMPTS, hops.failed_attempts(query, chosen))
    st.caption("The newest streams with several attempts.")
    show_report(hops.ATTEMPTS, hops.attempts(query, chosen))


def show_matching(chosen: Selection) -> None:
    section("Matching", metric_help("hop_matched"))
    for row in hops.matched_share(query, chosen).to_dicts():
        unmatched = row["streams"] - row["matched"]
        st.markdown(
            f"{formatting.share(row['matched'] / row['streams'])} of the {formatting.count(row['streams'])} requests to "
            f"**{formatting.markdown(row['gateway'])}** are matched, {formatting.count(unmatched)} are not."
        )
    evidence = ", ".join(
        f"{formatting.count(n)} by `{name}`" for name, n in hops.evidence(query, chosen).iter_rows()
    )
    st.caption(
        f"Evidence of the matches: {evidence}. Ambiguous since the store was created, and not matched: "
        f"{formatting.count(hops.ambiguous(query))}."
    )


def draw_page() -> None:
    """Delays, failed attempts and changes that each gateway adds."""
    st.caption("Delays, failed attempts and changes that each gateway adds between client and model server.")
    page_frame.show(body)


PAGE = page_frame.Page(draw_page, "Hops", "conversion_path", diagnosed=True)
