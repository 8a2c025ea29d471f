"""Tables of sessions and of the requests of one session."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import polars as pl

from streamgauge.analytics.reports.metric_help import metric_help
from streamgauge.dashboard import filters
from streamgauge.dashboard.tables import html_table
from streamgauge.dashboard.tables.html_table import Column, ms, number, seconds, show_table
from streamgauge.dashboard.tables.streams import CLIENT, outcome_column, stream_column

SHOWN_OF_ID = 10


def _session_address(row: Mapping[str, Any]) -> str:
    return filters.page_address("sessions", {"session": row["session_id"]})


def show_sessions(frame: pl.DataFrame) -> None:
    """Sessions (rows of the view `sessions`). Each row opens its session."""
    zone = filters.time_zone()
    columns = [
        Column(name="session_id", heading="Session", text=lambda name: name[:SHOWN_OF_ID], line=True, mono=True,
               link=_session_address, opens_row=True, help="Opens the session. The text is the start of its id."),
        html_table.instant("last_at", "Last request", zone),
        number("turns", "Turns"),
        number("requests", "Requests"),
        number("errors", "Errors"),
        seconds("model_ns", "Model time", priority=2, help=metric_help("session_model")),
        seconds("tool_ns", "Tool time", priority=2, help=metric_help("session_tool")),
        seconds("user_wait_ns", "User wait", priority=2, help=metric_help("session_user")),
        number("input_tokens", "Tokens in", priority=3),
        number("output_tokens", "Tokens out", priority=3),
        number("unfinished_output_tokens", "Unfinished", unit="tokens", priority=4, help=metric_help("session_unfinished")),
        Column(name="models", heading="Models", priority=3),
        CLIENT,
    ]  # fmt: skip
    show_table(columns, frame.with_columns(pl.col("models").list.join(", ")), label="Sessions")


def show_requests(frame: pl.DataFrame) -> None:
    """The requests of one session (rows of the view `session_turns`)."""
    zone = filters.time_zone()
    columns = [
        stream_column(opens_row=True),
        outcome_column(priority=0),
        number("request", "Request"),
        number("turn", "Turn"),
        html_table.instant("started_at", "Started", zone, form="%m-%d %H:%M:%S.%f", priority=2),
        Column(name="pause", heading="Waited for", line=True, priority=2, help="What the session waited for before the request."),
        seconds("pause_ns", "Pause", priority=2),
        ms("ttft_ns", "TTFT", priority=2),
        seconds("end_ns", "Duration", digits=2, priority=2),
        Column(name="finish_reason", heading="Finish", line=True, priority=4),
        number("tool_call_count", "Tool calls", priority=4),
        number("input_tokens", "Tokens in", priority=3),
        number("output_tokens", "Tokens out", priority=3),
        Column(name="model", heading="Model", priority=3),
        Column(name="gateway", heading="Gateway", priority=4, min_characters=11),
    ]  # fmt: skip
    show_table(columns, frame, label="Requests of the session")
