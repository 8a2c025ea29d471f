"""Tables of hops: gateways, attempts and what a gateway changed."""

from __future__ import annotations

import polars as pl

from streamgauge.analytics.reports.metric_help import metric_help
from streamgauge.dashboard import filters
from streamgauge.dashboard.tables import html_table
from streamgauge.dashboard.tables.html_table import Column, ms, number, percent, seconds, show_table
from streamgauge.dashboard.tables.streams import outcome_column, stream_column


def show_gateways(frame: pl.DataFrame) -> None:
    """What each gateway adds (`reports.hops.by_gateway`)."""
    columns = [
        Column(name="gateway", heading="Gateway"),
        number("streams", "Streams", help="Matched streams between client and gateway."),
        ms("added_ttft_p50_ns", "Added TTFT p50", digits=1, help=metric_help("hop_ttft")),
        ms("added_ttft_p95_ns", "Added TTFT p95", digits=1, help=metric_help("hop_ttft")),
        ms("event_p50_ns", "Event delay p50", digits=1, help=metric_help("hop_event")),
        ms("event_p95_ns", "Event delay p95", digits=1, help=metric_help("hop_event")),
        ms("event_max_ns", "Event delay max", digits=1, help="Longest delay of any event of these streams."),
        ms("tail_p50_ns", "Tail p50", digits=1, help=metric_help("hop_tail")),
        percent("merged_share", "Merged", help="Events that the gateway merged into others / aligned events."),
        percent("split_share", "Split", help="Events that continue an event of the model server / aligned events."),
        percent("buffered_share", "Buffered", help=metric_help("hop_buffered")),
        number("stalls", "Stalls", help="Stalls that the gateway caused: the model server had no such gap."),
        ms("clock_error_ns", "Clock ±", digits=2, help=metric_help("hop_clock")),
    ]  # fmt: skip
    show_table(columns, frame, label="Delays by gateways", stacks=True)


def show_failed_attempts(frame: pl.DataFrame) -> None:
    """Kinds of failed attempts (`reports.hops.failed_attempts`)."""
    columns = [
        Column(name="inner_gateway", heading="Sent to", help="Upstream of the gateway's request."),
        outcome_column(),
        Column(name="error_type", heading="Cause"),
        number("attempts", "Attempts"),
        number("streams", "Streams"),
        ms("lost_p50_ns", "Time lost p50", help=metric_help("hop_lost")),
        seconds("lost_ns", "Time lost, all", help=metric_help("hop_lost")),
    ]
    show_table(columns, frame, label="Failed attempts", stacks=True)


def show_attempts(frame: pl.DataFrame) -> None:
    """Attempts in order (`reports.hops.ATTEMPT`)."""
    zone = filters.time_zone()
    columns = [
        stream_column("outer_stream_id", help_text="Opens the stream between client and gateway."),
        number("attempt", "Attempt"),
        html_table.instant("outer_started_at", "Started", zone, form="%m-%d %H:%M:%S.%f", priority=2),
        Column(name="inner_gateway", heading="Sent to", min_characters=11),
        outcome_column("inner_outcome", priority=0),
        Column(name="inner_error_type", heading="Cause", priority=2),
        ms("gateway_before_ns", "Started after", priority=2, help="From t0 of the stream to this attempt."),
        ms("lost_ns", "Time lost", help=metric_help("hop_lost")),
        stream_column(
            "inner_stream_id", "Inner stream", help_text="Opens the stream between gateway and model server."
        ),
        Column(name="outer_gateway", heading="Gateway", priority=3, min_characters=11),
        Column(name="model", heading="Model", priority=3),
        Column(name="matched_by", heading="Matched by", priority=3, min_characters=11),
    ]
    show_table(columns, frame, label="Attempts")


def show_changes(frame: pl.DataFrame) -> None:
    """Changes by gateways (`reports.hops.changes`)."""
    columns = [
        Column(name="what", heading="What"),
        Column(name="gateway", heading="Gateway", min_characters=11),
        number("streams", "Streams"),
        percent("share", "Share", help="Of the matched streams of the gateway."),
        Column(
            name="inner_value", heading="Example: the model server sent", help="Empty if it sent none.", min_characters=20
        ),
        Column(name="outer_value", heading="The client received", min_characters=20),
        stream_column(help_text="Opens the newest stream with this change."),
    ]  # fmt: skip
    show_table(columns, frame, label="Changes by gateways", stacks=True)


def show_changes_of_stream(frame: pl.DataFrame) -> None:
    """Differences of one hop (`reports.hops.changes_of`)."""
    columns = [
        Column(name="what", heading="What"),
        Column(name="inner_value", heading="The model server sent", min_characters=20),
        Column(name="outer_value", heading="The client received", min_characters=20),
    ]
    show_table(columns, frame, label="Changes by the gateway", stacks=True)
