"""Tables of single streams, finished or in flight. Each row opens the page of its stream."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import polars as pl
import streamlit as st

from streamgauge.analytics.schema.clients import shortened
from streamgauge.analytics.schema.outcomes import NOT_COUNTED, OK
from streamgauge.dashboard import filters
from streamgauge.dashboard.tables import html_table
from streamgauge.dashboard.tables.html_table import Column, State, ms, number, seconds, show_table

OUTCOME_SIGNS = {
    "ok": "✓",
    "client_abort": "◌",
    "tap_lost": "?",
    "refused": "⊘",
}
"""Signs that distinguish outcomes without colour. All other outcomes are errors and have the sign ✕."""
ID_DIGITS = 8


def outcome_text(outcome: str) -> str:
    """An outcome with its sign."""
    return f"{OUTCOME_SIGNS.get(outcome, '✕')} {outcome}"


def outcome_state(outcome: str | None) -> State | None:
    if outcome is None or outcome == OK:
        return None
    return "muted" if outcome in NOT_COUNTED else "bad"


def outcome_column(name: str = "outcome", **options: Any) -> Column:
    """Outcomes with their signs. Errors have a colour."""
    return Column(name=name, heading="Outcome", text=outcome_text, line=True,
                  state=lambda row: outcome_state(row.get(name)), **options)  # fmt: skip


def stream_column(
    name: str = "stream_id",
    heading: str = "Stream",
    *,
    opens_row: bool = False,
    help_text: str = "Opens the stream.",
) -> Column:
    """Links to pages of streams. The text is the last digits of the id."""

    def link(row: Mapping[str, Any]) -> str | None:
        return None if row[name] is None else filters.page_address("stream", {"id": str(row[name])})

    return Column(name=name, heading=heading, text=lambda value: str(value)[-ID_DIGITS:], line=True, mono=True, link=link,
                  opens_row=opens_row, help=f"{help_text} The text is the last digits of its id.", priority=0)  # fmt: skip


MODEL = Column(name="model", heading="Model", priority=2)
GATEWAY = Column(name="gateway", heading="Gateway", priority=2, min_characters=11)
CLIENT = Column(name="client", heading="Client", priority=6, min_characters=11, text=shortened,
                help="Name of the client, or keyed hash of its API key.")  # fmt: skip
HTTP = Column(name="http_status", heading="HTTP", number=True, priority=1)


def show_streams(
    frame: pl.DataFrame, *, sort_address: Callable[[str], str] | None = None, order: str = "newest"
) -> None:
    """Finished streams (`reports.stream_lists.COLUMNS`).

    `sort_address` gives the address of the page in another order of `reports.stream_lists.ORDERS`; `order` is the present one.
    """
    zone = filters.time_zone()
    sorts: dict[str, dict[str, Any]] = {
        name: {"sort_address": sort_address(key)} if sort_address else {} for name, key in SORTED_BY.items()
    }
    reason = Column(name="reason", heading="Cause", priority=0, help="The error type, or the finish reason.",
                    state=lambda row: outcome_state(row["outcome"]))  # fmt: skip
    columns = [
        stream_column(opens_row=True),
        outcome_column(priority=0),
        HTTP,
        reason,
        html_table.instant("started_at", "Started", zone, form="%m-%d %H:%M:%S.%f", priority=3, **sorts["started_at"]),
        MODEL,
        GATEWAY,
        ms("ttft_ns", "TTFT", priority=3, **sorts["ttft_ns"]),
        ms("itl_ns", "ITL", digits=1, priority=4, **sorts["itl_ns"]),
        ms("icl_max_ns", "Longest gap", priority=5, **sorts["icl_max_ns"]),
        number("stall_count", "Stalls", priority=6),
        number("tps_user", "Tokens/s", digits=1, priority=5),
        seconds("end_ns", "Duration", digits=2, priority=3, **sorts["end_ns"]),
        number("input_tokens", "Tokens in", priority=6, help="Reported input tokens."),
        number("output_tokens", "Tokens out", priority=5, help="Reported output tokens.", **sorts["output_tokens"]),
        CLIENT,
    ]  # fmt: skip
    ordered_by = next((name for name, key in SORTED_BY.items() if key == order), None)
    show_table(
        columns,
        frame.with_columns(pl.coalesce("error_type", "finish_reason").alias("reason")),
        label="Streams",
        order=ordered_by,
    )
    st.caption(f"Started: time zone {zone.key}.")


SORTED_BY = {
    "started_at": "newest",
    "ttft_ns": "highest TTFT",
    "itl_ns": "highest ITL",
    "icl_max_ns": "longest gap",
    "end_ns": "longest",
    "output_tokens": "most output",
}
"""Column → order of `reports.stream_lists.ORDERS`."""


def show_open_streams(frame: pl.DataFrame) -> None:
    """Streams in flight (`reports.stream_lists.open_streams`)."""
    columns = [
        stream_column(opens_row=True),
        Column(name="state", heading="State", line=True, priority=0),
        MODEL,
        GATEWAY,
        seconds("age_ns", "Open for", priority=1),
        seconds("silent_ns", "Since last event", priority=1),
        ms("ttft_ns", "TTFT", priority=3),
        number("tps", "Tokens/s", digits=1, priority=4, help="Output tokens / time from first to last output."),
        number("output_tokens", "Tokens out", priority=4, help="Output tokens reported so far."),
        number("event_count", "Events", priority=5),
        number("output_event_count", "Output events", priority=5, help="Events with output. A chunk is not a token."),
        number("events_per_s", "Output events/s", digits=1, priority=5),
        Column(name="http_status", heading="HTTP", number=True, priority=6),
        CLIENT,
    ]  # fmt: skip
    waiting = pl.when(pl.col("ttft_ns").is_null()).then(pl.lit("waiting")).otherwise(pl.lit("streaming"))
    show_table(columns, frame.with_columns(waiting.alias("state")), label="Streams in flight")
