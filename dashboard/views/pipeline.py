"""Is what I see complete, and how old is it? Positions, freshness, losses and versions."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import polars as pl
import streamlit as st

from dashboard import filters, formatting, page_frame, query_runner
from dashboard.queries import pipeline
from dashboard.queries.selection import Selection
from dashboard.tables import generic

EXPIRED = "expired_streams_rows"


def body(_: Selection) -> None:
    fresh = pipeline.freshness(query_runner.ask)
    ledger = pipeline.ledger(query_runner.ask)
    causes = pipeline.losses_by_cause(query_runner.ask)
    finished, lost = (int(ledger[c].sum()) for c in ("finished", "tap_lost"))
    with st.grid(6, min_column_width=140):
        for label, value, about in (
            ("Finished", formatting.count(finished), "Rows of `streams`, all of them."),
            ("In flight", formatting.count(float(str(fresh["open"]))), "Rows of `open_streams`."),
            ("Lost by the tap", formatting.count(lost), "Finished streams with the outcome `tap_lost`."),
            ("Newest end", ago(fresh["newest_end_at"]), "When the newest finished stream ended."),
            (
                "Last commit",
                ago(fresh["committed_at"]),
                "When analytics last committed a position of the log.",
            ),
            (
                "Heard of a tap",
                ago(pipeline.last_heard(query_runner.ask)),
                "The newest sign of life of a running tap that analytics has read. A tap gives one every few seconds: what is "
                "much older is lag between tap and tables.",
            ),
        ):
            st.metric(label, value, border=True, help=about, height="stretch")
    if causes.is_empty() and not lost:
        st.success(
            "No loss was told by any tap, and no stream is marked lost.", icon=":material/check_circle:"
        )
    else:
        st.warning(
            "Some data never arrived: see the losses below. What is missing is counted, never guessed.",
            icon=":material/warning:",
        )
    st.caption(
        "`streamgauge status` reconciles the counters of every part: captured = stored + in flight + lost."
    )
    runs, counted = pipeline.taps(query_runner.ask), pipeline.counters(query_runner.ask)
    told, expired = (
        int(runs["streams_opened"].sum()),
        int(counted.filter(pl.col("name") == EXPIRED)["value"].sum()),
    )
    if runs.height:
        st.caption(
            f"The taps last told of {formatting.count(told)} streams that they opened. Here: {formatting.count(finished)} finished, "
            f"{formatting.count(float(str(fresh['open'])))} in flight, {formatting.count(expired)} expired. What differs was told or "
            "read in the last seconds."
        )
        st.subheader(
            "Runs of the taps", anchor=False, help="Each run of each worker, as of its last sign of life."
        )
        table(runs, key="runs")
    st.subheader("By tap", anchor=False)
    table(ledger, key="ledger")
    st.subheader("Positions in the log", anchor=False, help="`high`: consumed up to here. `low`: the oldest record of a stream "
                 "that is still open; a restart replays from there.")  # fmt: skip
    table(pipeline.positions(query_runner.ask), key="positions")
    st.subheader("Losses", anchor=False)
    if causes.is_empty():
        st.caption("None.")
    else:
        table(causes, key="causes")
        table(pipeline.losses(query_runner.ask), key="losses")
    letters = pipeline.dead_letters(query_runner.ask)
    st.subheader(
        "Records that could not be read", anchor=False, help="`dead_letters`: reasons and hashes, no text."
    )
    if letters.is_empty():
        st.caption("None.")
    else:
        table(letters, key="letters")
    with st.grid(2, min_column_width=310, key="totals"):
        with st.container():
            st.subheader("Stored", anchor=False)
            table(pipeline.sizes(query_runner.ask), key="sizes")
        with st.container():
            if counted.height:
                st.subheader("Counted by analytics", anchor=False, help="Since the database was made.")
                table(counted, key="counted")
    st.caption(
        f"Streamgauge {_own_version()} · DuckDB {pipeline.versions(query_runner.ask)} · data folder `{query_runner.data_dir()}`"
    )


def table(frame: pl.DataFrame, *, key: str) -> None:
    generic.plain(frame, key=key, zone=filters.zone(), in_words=True)


def ago(at: Any) -> str:
    """How long ago an instant was."""
    if not isinstance(at, datetime):
        return formatting.UNKNOWN
    age = max(datetime.now(UTC) - at, timedelta(0))
    return f"{formatting.duration(age.total_seconds() * 1e9) if age < timedelta(minutes=1) else formatting.span(age)} ago"


def _own_version() -> str:
    try:
        return version("streamgauge")
    except PackageNotFoundError:
        return "from a source tree"


page_frame.title("Pipeline", "Is what the other pages show complete, and how fresh is it?")
page_frame.show(body, need_streams=False, timed=False)
