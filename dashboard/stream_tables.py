"""Tables with one row per stream, attempt, change, session or trace. Rows with a page of their own open it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import polars as pl

from streamgauge.analytics.reports.metric_help import metric_help
from streamgauge.analytics.reports.stream_lists import ORDERS
from streamgauge.analytics.schema.clients import shortened
from streamgauge.analytics.schema.outcomes import NOT_COUNTED, OK
from streamgauge.dashboard import filters
from streamgauge.dashboard.html_table import (
    Column,
    Row,
    State,
    instant,
    ms,
    number,
    percent,
    seconds,
    show_table,
)

OUTCOME_SIGNS = {"ok": "✓", "client_abort": "◌", "tap_lost": "?", "refused": "⊘"}
"""Signs that distinguish outcomes without colour. All other outcomes are errors and have the sign ✕."""
ID_DIGITS = 8
SORTED_BY = {column: name for name, column in ORDERS.items()}
"""Column of `show_streams` → order of `reports.stream_lists.ORDERS`."""


def outcome_state(outcome: str | None) -> State | None:
    if outcome is None or outcome == OK:
        return None
    return "muted" if outcome in NOT_COUNTED else "bad"


def outcome_badge(outcome: str) -> str:
    """An outcome in its colour, in Markdown."""
    color = {None: "green", "muted": "gray", "bad": "red"}[outcome_state(outcome)]
    return f":{color}-badge[{outcome}]"


def outcome_column(name: str = "outcome", **options: Any) -> Column:
    """Outcomes with their signs. Errors have a colour."""
    return Column(
        name=name,
        heading="Outcome",
        text=lambda outcome: f"{OUTCOME_SIGNS.get(outcome, '✕')} {outcome}",
        line=True,
        is_sign=True,
        state=lambda row: outcome_state(row.get(name)),
        priority=0,
        **options,
    )


def id_column(
    name: str, heading: str, address: Callable[[Row], str | None], opens: str, part: slice, **options: Any
) -> Column:
    """Links to the pages of ids, of which the table shows only a part. `opens` names the page."""
    shown = "last" if part.start else "first"
    return Column(
        name=name,
        heading=heading,
        text=lambda value: str(value)[part],
        line=True,
        mono=True,
        link=address,
        help=f"Opens {opens}. The text is the {shown} digits of its id.",
        priority=0,
        **options,
    )


def stream_column(
    name: str = "stream_id", heading: str = "Stream", opens: str = "the stream", **options: Any
) -> Column:
    """Links to pages of streams."""

    def address(row: Row) -> str | None:
        return None if row[name] is None else filters.page_address("stream", {"id": str(row[name])})

    # Ids of streams begin with their time, so only the end tells two streams of one table apart.
    return id_column(name, heading, address, opens, slice(-ID_DIGITS, None), **options)


MODEL = Column(name="model", heading="Model", priority=2)
GATEWAY = Column(name="gateway", heading="Gateway", priority=2, min_characters=11)
CLIENT = Column(name="client", heading="Client", priority=6, min_characters=11, text=shortened,
                help="Name of the client, or keyed hash of its API key.")  # fmt: skip
HTTP = Column(name="http_status", heading="HTTP", number=True, priority=1)
CAUSE = Column(name="error_type", heading="Cause", priority=3, min_characters=12)
TOKENS_IN = number("input_tokens", "Tokens in", priority=3, help="Reported input tokens.")
TOKENS_OUT = number("output_tokens", "Tokens out", priority=3, help="Reported output tokens.")
TTFT = ms("ttft_ns", "TTFT", priority=3)


def started_column(started: pl.Series) -> Column:
    """Starts to the second, with the date if there are several. It may wrap before the time."""
    days = started.dt.convert_time_zone(filters.time_zone().key).dt.date().n_unique()
    form = "%H:%M:%S" if days < 2 else "%m-%d %H:%M:%S"
    return replace(instant("started_at", "Started", form=form), line=days < 2, min_characters=8)


def show_streams(
    frame: pl.DataFrame,
    *,
    sort_address: Callable[[str], str] | None = None,
    order: str = "newest",
    empty: str = "",
) -> None:
    """Finished streams (`reports.stream_lists.COLUMNS`).

    `sort_address` gives the address of the page in another order of `reports.stream_lists.ORDERS`; `order` is the present one.
    """
    columns = [
        stream_column(opens_row=True),
        outcome_column(),
        replace(HTTP, priority=4),
        Column(name="reason", heading="Cause", priority=2, help="The error type, or the finish reason.",
               state=lambda row: outcome_state(row["outcome"])),
        started_column(frame["started_at"]),
        replace(MODEL, priority=1, wraps_on_phone=True),
        GATEWAY,
        replace(TTFT, priority=1),
        ms("itl_ns", "ITL", digits=1, priority=4),
        ms("icl_max_ns", "Longest gap", priority=5),
        number("stall_count", "Stalls", priority=6),
        number("tps_user", "Tokens/s", digits=1, priority=5),
        seconds("end_ns", "Duration", digits=2, priority=3),
        replace(TOKENS_IN, priority=6),
        replace(TOKENS_OUT, priority=5),
        CLIENT,
    ]  # fmt: skip
    if sort_address is not None:
        columns = [
            replace(c, sort_address=sort_address(SORTED_BY[c.name])) if c.name in SORTED_BY else c
            for c in columns
        ]
    show_table(
        columns,
        frame.with_columns(pl.coalesce("error_type", "finish_reason").alias("reason")),
        label="Streams",
        order=ORDERS[order],
        empty=empty,
        zone_of="Started",
    )


def show_open_streams(frame: pl.DataFrame) -> None:
    """Streams in flight (`reports.stream_lists.open_streams`)."""
    columns = [
        stream_column(opens_row=True),
        Column(name="state", heading="State", line=True, priority=0),
        MODEL,
        GATEWAY,
        seconds("age_ns", "Open for", priority=1),
        seconds("silent_ns", "Since last event", priority=1),
        TTFT,
        number("tps", "Tokens/s", digits=1, priority=4, help="Output tokens / time from first to last output."),
        replace(TOKENS_OUT, priority=4, help="Output tokens reported so far."),
        number("event_count", "Events", priority=5),
        number("output_event_count", "Output events", priority=5, help="Events with output. A chunk is not a token."),
        number("events_per_s", "Output events/s", digits=1, priority=5),
        replace(HTTP, priority=6),
        CLIENT,
    ]  # fmt: skip
    has_output = pl.col("ttft_ns").is_not_null()
    state = (
        pl.when(pl.col("waits_for_client") & has_output)
        .then(pl.lit("client is not reading"))
        .when("waits_for_client")
        .then(pl.lit("waits for client"))
        .when(has_output)
        .then(pl.lit("streaming"))
        .otherwise(pl.lit("waiting"))
    )
    show_table(columns, frame.with_columns(state.alias("state")), label="Streams in flight")


def show_attempts(frame: pl.DataFrame) -> None:
    """Attempts in order (`reports.hops.ATTEMPT`)."""
    columns = [
        stream_column("outer_stream_id", opens="the stream between client and gateway"),
        number("attempt", "Attempt"),
        instant("outer_started_at", "Started", priority=2),
        replace(GATEWAY, name="inner_gateway", heading="Sent to", priority=1),
        outcome_column("inner_outcome"),
        Column(name="inner_error_type", heading="Cause", priority=2),
        ms("gateway_before_ns", "Started after", priority=2, help="From t0 of the stream to this attempt."),
        ms("lost_ns", "Time lost", help=metric_help("hop_lost")),
        stream_column("inner_stream_id", "Inner stream", "the stream between gateway and model server"),
        replace(GATEWAY, name="outer_gateway", priority=3),
        replace(MODEL, priority=3),
        Column(name="matched_by", heading="Matched by", priority=3, min_characters=11),
    ]
    show_table(columns, frame, label="Attempts")


def show_failed_attempts(frame: pl.DataFrame) -> None:
    """Kinds of failed attempts (`reports.hops.failed_attempts`)."""
    columns = [
        Column(name="inner_gateway", heading="Sent to", help="Upstream of the gateway's request."),
        replace(outcome_column(), priority=1),
        Column(name="error_type", heading="Cause"),
        number("attempts", "Attempts"),
        number("streams", "Streams"),
        ms("lost_p50_ns", "Time lost p50", help=metric_help("hop_lost")),
        seconds("lost_ns", "Time lost, all", help=metric_help("hop_lost")),
    ]
    show_table(columns, frame, label="Failed attempts", stacks=True)


def show_changes(frame: pl.DataFrame) -> None:
    """Changes by gateways (`reports.hops.changes`)."""
    columns = [
        Column(name="what", heading="What"),
        replace(GATEWAY, priority=1),
        number("streams", "Streams"),
        percent("share", "Share", help="Of the matched streams of the gateway."),
        Column(name="inner_value", heading="Example: the model server sent", help="Empty if it sent none.", min_characters=20),
        Column(name="outer_value", heading="The client received", min_characters=20),
        stream_column(opens="the newest stream with this change"),
    ]  # fmt: skip
    show_table(
        columns, frame, label="Changes by gateways", stacks=True, empty="No differences in these streams."
    )


def show_changes_of_stream(frame: pl.DataFrame) -> None:
    """Differences of one hop (`reports.hops.changes_of`)."""
    columns = [
        Column(name="what", heading="What"),
        Column(name="inner_value", heading="The model server sent", min_characters=20),
        Column(name="outer_value", heading="The client received", min_characters=20),
    ]
    show_table(columns, frame, label="Changes by the gateway", stacks=True)


def _session_address(row: Row) -> str:
    return filters.page_address("sessions", {"session": row["session_id"]})


SESSION = id_column("session_id", "Session", _session_address, "the session", slice(10), opens_row=True)


def show_sessions(frame: pl.DataFrame, label: str = "Sessions") -> None:
    """Sessions (rows of the view `sessions`, and `cost`). Each row opens its session."""
    columns = [
        SESSION,
        Column(name="agent", heading="Agent", line=True, help="Subagents have a session of their own."),
        Column(name="client_app", heading="Program", priority=2, min_characters=11),
        instant("last_at", "Last request", form="%m-%d %H:%M:%S"),
        number("turns", "Turns"),
        number("requests", "Requests"),
        number("errors", "Errors"),
        seconds("model_ns", "Model time", priority=2, help=metric_help("session_model")),
        seconds("tool_ns", "Tool time", priority=2, help=metric_help("session_tool")),
        seconds("subagent_ns", "Subagents", priority=3, help=metric_help("session_subagent")),
        seconds("user_wait_ns", "User wait", priority=2, help=metric_help("session_user")),
        TOKENS_IN,
        TOKENS_OUT,
        Column(name="cost", heading="Cost", number=True, help=metric_help("cost")),
        number("unfinished_output_tokens", "Unfinished", unit="tokens", priority=4, help=metric_help("session_unfinished")),
        Column(name="models", heading="Models", priority=3),
        CLIENT,
    ]  # fmt: skip
    agent = pl.when(pl.col("parent_session_id").is_not_null()).then(pl.lit("↳ subagent")).alias("agent")
    show_table(columns, frame.with_columns(agent, pl.col("models").list.join(", ")), label=label)


def show_requests(frame: pl.DataFrame) -> None:
    """The requests of one session (rows of the view `session_turns`)."""

    def turn_address(row: Row) -> str:
        return filters.page_address("sessions", {"session": row["session_id"], "turn": str(row["turn"])})

    columns = [
        stream_column(opens_row=True),
        outcome_column(),
        number("request", "Request"),
        number("turn", "Turn", link=turn_address, help="Opens the turn."),
        instant("started_at", "Started", priority=2),
        Column(name="pause", heading="Waited for", line=True, priority=2, help="What the session waited for before the request."),
        seconds("pause_ns", "Pause", priority=2),
        replace(TTFT, priority=2),
        seconds("end_ns", "Duration", digits=2, priority=2),
        Column(name="finish_reason", heading="Finish", line=True, priority=4),
        number("tool_call_count", "Tool calls", priority=4),
        TOKENS_IN,
        TOKENS_OUT,
        replace(MODEL, priority=3),
        replace(GATEWAY, priority=4),
    ]  # fmt: skip
    show_table(columns, frame, label="Requests of the session")


def show_activities(frame: pl.DataFrame) -> None:
    """What ran in a turn: `stream_id, name, part, source, start_ns, length_ns, critical_ns, outcome, agent`."""
    columns = [
        Column(name="name", heading="What", min_characters=12, priority=0),
        Column(name="part", heading="Part", line=True),
        seconds("start_ns", "Start", digits=2, priority=2, help="From the start of the turn."),
        seconds("length_ns", "Duration", digits=2),
        seconds("critical_ns", "On the critical path", digits=2, help=metric_help("critical_path")),
        replace(outcome_column(), priority=3),
        Column(name="agent", heading="Agent", line=True, priority=3),
        Column(name="source", heading="Seen as", line=True, priority=4),
        replace(stream_column(), priority=2),
    ]
    show_table(columns, frame, label="What ran in the turn")


def show_traces(frame: pl.DataFrame) -> None:
    """Traces (`reports.traces.latest`). A click on a row opens the trace."""

    def address(row: Row) -> str:
        return filters.address_with({"trace": [row["trace_id"]]})

    columns = [
        id_column("trace_id", "Trace", address, "the trace", slice(ID_DIGITS), opens_row=True),
        Column(name="root", heading="First span", priority=2, min_characters=18),
        outcome_column(help="Of the first failed stream, or else of the first stream."),
        HTTP,
        replace(CAUSE, state=lambda row: outcome_state(row["outcome"])),
        instant("began_at", "Started", priority=3),
        ms("duration_ns", "Duration", priority=1),
        number("errors", "Errors", priority=1, help="Spans with the status error.",
               state=lambda row: "bad" if row["errors"] else None),
        number("spans", "Spans", priority=3),
        number("streams", "Streams", priority=6),
        MODEL,
        GATEWAY,
        Column(name="services", heading="Services", priority=4, min_characters=16),
    ]  # fmt: skip
    show_table(columns, frame, label="Traces", zone_of="Started")


def show_streams_of_trace(frame: pl.DataFrame) -> None:
    """The streams of one trace (`reports.traces.streams_of`). A click on a row opens the stream."""
    columns = [
        stream_column(opens_row=True),
        outcome_column(),
        HTTP,
        CAUSE,
        instant("started_at", "Started", form="%H:%M:%S.%f", priority=4),
        MODEL,
        GATEWAY,
        replace(TTFT, priority=2),
        number("stall_count", "Stalls", priority=3),
        ms("end_ns", "Duration", priority=1),
    ]
    show_table(columns, frame, label="Streams of the trace")
