"""Completeness and freshness of the data: positions, losses, counters and versions."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import polars as pl
import streamlit as st

from streamgauge.analytics.reports import formatting, pipeline
from streamgauge.analytics.reports.selection import Selection
from streamgauge.dashboard import page_frame, page_settings
from streamgauge.dashboard.html_table import show_records
from streamgauge.dashboard.panels import numbers
from streamgauge.dashboard.query_runner import query

DELETED = {"expired": "expired_streams_rows", "forgotten": "forgotten_streams_rows"}
"""Counters of deleted streams."""


def body(_: Selection) -> None:
    freshness = pipeline.freshness(query)
    by_tap = pipeline.streams_by_tap(query)
    counters = pipeline.counters(query)
    finished, lost = (int(by_tap[c].sum()) for c in ("finished", "tap_lost"))
    in_flight = int(str(freshness["open"]))
    show_cards(freshness, finished, in_flight, lost)
    causes = pipeline.losses_by_cause(query)
    for line in page_settings.faults():
        st.error(f"Fault in {formatting.markdown(line)}", icon=":material/error:")
    if causes.is_empty() and not lost:
        st.success("Complete: no tap reported a loss, and no stream is lost.", icon=":material/check_circle:")
    else:
        st.warning("Incomplete: some data was lost. The losses below list it.", icon=":material/warning:")
    st.caption(
        "`streamgauge status` reconciles the counters of all parts: captured = stored + in flight + lost."
    )
    show_taps(counters, finished, in_flight)
    show_records("Streams by tap", by_tap)
    show_records(
        "Positions in the record log",
        pipeline.positions(query),
        "`high`: the end of the consumed records. `low`: the oldest record of a stream that is still open. After a "
        "restart, analytics reads again from `low`.",
    )
    show_records("Losses by cause", causes, title="Losses", empty="None.")
    if causes.height:
        show_records("Latest losses", pipeline.losses(query), title="")
    help_text = "Records that could not be decoded (`dead_letters`): reasons and hashes, no content."
    show_records("Dead letters", pipeline.dead_letters(query), help_text, empty="None.")
    both, equal = pipeline.equal_cache_miss_reasons(counters)
    if both:
        st.caption(
            f"Prompt cache misses: {formatting.count(both)} have a reason from both the provider and the comparison of prompts. "
            f"{formatting.share(equal / both)} of these agree."
        )
    show_totals(counters)


def show_cards(freshness: dict[str, object], finished: int, in_flight: int, lost: int) -> None:
    alive_help = (
        "The latest alive record of a running tap that analytics has read. Taps write one every few seconds, so an older one "
        "means that the tables lag behind."
    )
    cards = [
        ("Finished", formatting.count(finished), "All rows of `streams`."),
        ("In flight", formatting.count(in_flight), "All rows of `open_streams`."),
        ("Lost by the tap", formatting.count(lost), "Finished streams with the outcome `tap_lost`."),
        ("Latest end", age(freshness["newest_end_at"]), "When the latest finished stream ended."),
        ("Last commit", age(freshness["committed_at"]), "When analytics last committed a position."),
        ("Last heartbeat", age(freshness["alive_at"]), alive_help),
    ]
    numbers(cards, least_px=140)


def show_taps(counters: pl.DataFrame, finished: int, in_flight: int) -> None:
    """The tap processes, and the streams that they opened compared with the stored streams."""
    runs = pipeline.taps(query)
    if runs.is_empty():
        return
    opened = int(runs["streams_opened"].sum())
    count = formatting.count
    deleted = ", ".join(
        f"{count(int(counters.filter(pl.col('name') == counter)['value'].sum()))} {what}"
        for what, counter in DELETED.items()
    )
    st.caption(
        f"Streams opened by the taps: {count(opened)}. Stored: {count(finished)} finished, {count(in_flight)} in flight, "
        f"{deleted}. The counts can differ by the streams of the last few seconds, and by the answers on WebSockets: each is a row."
    )
    show_records("Tap processes", runs, "One row per process of a tap worker, as of its last heartbeat.")


def show_totals(counters: pl.DataFrame) -> None:
    with st.grid(2, min_column_width=310, key="totals"):
        with st.container():
            show_records("Stored rows", pipeline.sizes(query))
        with st.container():
            if counters.height:
                show_records("Counters of analytics", counters, "Since the creation of the store.")
    try:
        own_version = version("streamgauge")
    except PackageNotFoundError:
        own_version = "(source tree)"
    st.caption(
        f"Streamgauge {own_version} · DuckDB {pipeline.database_version(query)} · "
        f"data folder `{page_settings.data_dir()}`"
    )


def age(at: Any) -> str:
    """The time since an instant."""
    if not isinstance(at, datetime):
        return formatting.UNKNOWN
    since = max(datetime.now(UTC) - at, timedelta(0))
    short = since < timedelta(minutes=1)
    return f"{formatting.duration(since.total_seconds() * 1e9) if short else formatting.span(since)} ago"


def draw_page() -> None:
    """Completeness and freshness of the data: positions, losses, versions."""
    st.caption("Completeness and freshness of the data of all pages.")
    page_frame.show(body, needs_streams=False, uses_time_range=False)


PAGE = page_frame.Page(draw_page, "Pipeline", "valve", applying=lambda: ())
