"""What each gateway adds to the streams, its attempts and its changes.

Rows of `hops` are selected by the outer stream: its start, its model, and either gateway of the hop. The columns that compare
both streams are known only for the attempt that answered.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from uuid import UUID

import polars as pl

from streamgauge.analytics.reports import Query, columns, latency, number_of
from streamgauge.analytics.reports.columns import (
    MODEL,
    STREAMS,
    ms,
    number,
    outcome,
    percent,
    seconds,
    stream,
    text,
)
from streamgauge.analytics.reports.metric_help import metric_help
from streamgauge.analytics.reports.one_stream import Phase
from streamgauge.analytics.reports.selection import GATEWAY, Selection, instant
from streamgauge.analytics.schema.dimensions import is_one_of
from streamgauge.analytics.schema.outcomes import IS_REQUEST

HOP_GATEWAY = "coalesce(outer_gateway, '(no gateway)')"
HOP_MODEL = "coalesce(model, '(no model)')"
SHORTEST_NS = 1000
"""Delays below are drawn as this. Differences of two clocks can be negative."""


def within(selection: Selection) -> str:
    """SQL condition of the time range over `hops` and `hop_changes`."""
    return f"outer_started_at >= {instant(selection.since)} AND outer_started_at < {instant(selection.until)}"


def outer_where(selection: Selection) -> str:
    """SQL condition over `hops`: the outer gateway is selected."""
    return is_one_of(HOP_GATEWAY, selection.gateways) if selection.gateways else "TRUE"


def where(selection: Selection) -> str:
    """SQL condition of the selection over `hops`."""
    parts = [within(selection)]
    if selection.models:
        parts.append(is_one_of(HOP_MODEL, selection.models))
    if selection.gateways:
        sides = (is_one_of(side, selection.gateways) for side in (HOP_GATEWAY, "inner_gateway"))
        parts.append(f"({' OR '.join(sides)})")
    if selection.clients or selection.apps or selection.labels:
        # Inner streams have the gateway's key and program, so the client is that of the outer stream.
        of_clients = replace(selection, models=(), gateways=())
        parts.append(f"outer_stream_id IN (SELECT stream_id FROM streams WHERE {of_clients.where()})")
    return " AND ".join(parts)


GATEWAYS = columns.table(
    "Delays by gateways",
    text("gateway", "Gateway"),
    number("streams", "Streams", help="Matched streams between client and gateway.", opens={}, of="gateway"),
    *(ms(f"added_ttft_{q}_ns", f"Added TTFT {q}", digits=1, help=metric_help("hop_ttft")) for q in ("p50", "p95")),
    *(ms(f"event_{q}_ns", f"Event delay {q}", digits=1, help=metric_help("hop_event")) for q in ("p50", "p95")),
    ms("event_max_ns", "Event delay max", digits=1, help="Longest delay of any event of these streams."),
    ms("tail_p50_ns", "Tail p50", digits=1, help=metric_help("hop_tail")),
    percent("merged_share", "Merged", help="Events that the gateway merged into others / aligned events."),
    percent("split_share", "Split", help="Events that continue an event of the model server / aligned events."),
    percent("buffered_share", "Buffered", help=metric_help("hop_buffered")),
    number("stalls", "Stalls", help="Stalls that the gateway caused: the model server had no such gap."),
    ms("clock_error_ns", "Clock ±", digits=2, help=metric_help("hop_clock")),

)  # fmt: skip


def by_gateway(query: Query, selection: Selection, *, most: int = 20) -> pl.DataFrame:
    """What each gateway adds, busiest first. Quantiles are over streams.

    `gateway, streams, added_ttft_p50_ns, added_ttft_p95_ns, event_p50_ns, event_p95_ns` (medians of the streams' quantiles),
    `event_max_ns, tail_p50_ns, merged_share, split_share` (of the aligned events), `buffered_share` (median), `stalls,
    failed_attempts, lost_ns, clock_error_ns` (largest).
    """
    return query(f"""
        SELECT {HOP_GATEWAY} AS gateway, count(*) FILTER (lost_ns IS NULL) AS streams,
            quantile_cont(added_ttft_ns, 0.5) AS added_ttft_p50_ns, quantile_cont(added_ttft_ns, 0.95) AS added_ttft_p95_ns,
            quantile_cont(added_event_p50_ns, 0.5) AS event_p50_ns, quantile_cont(added_event_p95_ns, 0.5) AS event_p95_ns,
            max(added_event_max_ns) AS event_max_ns, quantile_cont(added_tail_ns, 0.5) AS tail_p50_ns,
            sum(merged_event_count) / nullif(sum(aligned_event_count), 0) AS merged_share,
            sum(split_event_count) / nullif(sum(aligned_event_count), 0) AS split_share,
            quantile_cont(buffered_share, 0.5) AS buffered_share, sum(gateway_stall_count)::BIGINT AS stalls,
            count(lost_ns) AS failed_attempts, sum(lost_ns)::BIGINT AS lost_ns,
            coalesce(max(clock_error_ns), 0) AS clock_error_ns
        FROM hops WHERE {where(selection)} GROUP BY ALL ORDER BY streams DESC, gateway LIMIT {most:d}""")


def waterfall(query: Query, selection: Selection, *, most: int = 4) -> pl.DataFrame:
    """Medians of the parts of a stream by gateway, busiest first. The parts of one stream add up to its length.

    `gateway, streams, before_ns, failed_ns, model_ttft_ns, first_token_ns, streaming_ns, tail_ns`. `failed_ns` is 0 in streams
    without a failed attempt.
    """
    return query(f"""
        WITH failed AS (
                SELECT outer_stream_id, sum(lost_ns) AS failed_ns FROM hops
                WHERE {where(selection)} AND lost_ns IS NOT NULL GROUP BY ALL),
            outer_streams AS (SELECT stream_id, ttft_ns, end_ns FROM streams
                WHERE {selection.within()})
        SELECT {HOP_GATEWAY} AS gateway, count(*) AS streams,
            quantile_cont(gateway_before_ns - coalesce(failed_ns, 0), 0.5) AS before_ns,
            quantile_cont(coalesce(failed_ns, 0), 0.5) AS failed_ns,
            quantile_cont(ttft_ns - added_ttft_ns, 0.5) AS model_ttft_ns,
            quantile_cont(added_ttft_ns - gateway_before_ns, 0.5) AS first_token_ns,
            quantile_cont(end_ns - added_tail_ns - ttft_ns, 0.5) AS streaming_ns,
            quantile_cont(added_tail_ns, 0.5) AS tail_ns
        FROM hops JOIN outer_streams ON stream_id = outer_stream_id LEFT JOIN failed USING (outer_stream_id)
        WHERE {where(selection)} AND added_ttft_ns IS NOT NULL
        GROUP BY ALL ORDER BY streams DESC, gateway LIMIT {most:d}""")


def event_delays(query: Query, selection: Selection) -> pl.DataFrame:
    """Distributions over streams of the median (`p50`), the 95th percentile (`p95`) and the longest (`max`) delay of an output
    event: the columns of `latency.shares`."""
    delays = "added_event_p50_ns AS p50, added_event_p95_ns AS p95, added_event_max_ns AS max"
    values = f"""(
            SELECT name, greatest(value, {SHORTEST_NS}) AS value, 1 AS n
            FROM (UNPIVOT (SELECT {delays} FROM hops WHERE {where(selection)}) ON p50, p95, max INTO NAME name VALUE value))"""
    return query(latency.shares(values))


def added_ttft_timeline(query: Query, selection: Selection, *, most: int = 7) -> pl.DataFrame:
    """`at, name, value_ns, n`: median added TTFT of the busiest gateways."""
    return query(f"""
        WITH chosen AS (
                SELECT outer_started_at AS started_at, {HOP_GATEWAY} AS name, added_ttft_ns FROM hops
                WHERE {where(selection)} AND added_ttft_ns IS NOT NULL),
            busiest AS (SELECT name FROM chosen GROUP BY name ORDER BY count(*) DESC, name LIMIT {most:d})
        SELECT {selection.bucket()} AS "at", name, quantile_cont(added_ttft_ns, 0.5) AS value_ns, count(*) AS n
        FROM chosen WHERE name IN (SELECT name FROM busiest) GROUP BY ALL ORDER BY "at", name""")


FAILED_ATTEMPTS = columns.table(
    "Failed attempts",
    text("inner_gateway", "Sent to", help="Upstream of the gateway's request."),
    outcome(priority=1),
    text("error_type", "Cause"),
    number("attempts", "Attempts"),
    STREAMS,
    ms("lost_p50_ns", "Time lost p50", help=metric_help("hop_lost")),
    seconds("lost_ns", "Time lost, all", help=metric_help("hop_lost")),
)


def failed_attempts(query: Query, selection: Selection, *, most: int = 50) -> pl.DataFrame:
    """`inner_gateway, outcome, error_type, attempts, streams, lost_p50_ns, lost_ns` of the attempts that another followed."""
    return query(f"""
        SELECT inner_gateway, inner_outcome AS outcome, inner_error_type AS error_type, count(*) AS attempts,
            count(DISTINCT outer_stream_id) AS streams, quantile_cont(lost_ns, 0.5) AS lost_p50_ns,
            sum(lost_ns)::BIGINT AS lost_ns
        FROM hops WHERE {where(selection)} AND lost_ns IS NOT NULL
        GROUP BY ALL ORDER BY attempts DESC, inner_gateway, outcome, error_type LIMIT {most:d}""")


ATTEMPTS = columns.table(
    "Attempts",
    stream("outer_stream_id", what="the stream between client and gateway"),
    number("attempt", "Attempt"),
    columns.instant("outer_started_at", "Started", priority=2),
    text("inner_gateway", "Sent to", min_characters=11),
    outcome("inner_outcome"),
    text("inner_error_type", "Cause", priority=2),
    ms("gateway_before_ns", "Started after", priority=2, help="From t0 of the stream to this attempt."),
    ms("lost_ns", "Time lost", help=metric_help("hop_lost")),
    stream("inner_stream_id", "Inner stream", "the stream between gateway and model server"),
    text("outer_gateway", "Gateway", min_characters=11, priority=3),
    replace(MODEL, priority=3),
    text("matched_by", "Matched by", priority=3, min_characters=11),
    stacks=False,
)


def attempts(query: Query, selection: Selection, *, most: int = 25) -> pl.DataFrame:
    """The attempts of the newest `most` streams with more than one, in order.

    `outer_stream_id, inner_stream_id, outer_started_at, outer_gateway, model, attempt, inner_gateway, inner_outcome,
    inner_error_type, gateway_before_ns, lost_ns, matched_by`.
    """
    return query(f"""
        WITH newest AS (
            SELECT outer_stream_id, any_value(outer_started_at) AS started_at FROM hops
            WHERE {where(selection)} AND attempt > 1
            GROUP BY ALL ORDER BY started_at DESC, outer_stream_id LIMIT {most:d})
        SELECT {ATTEMPT} FROM hops WHERE {within(selection)} AND outer_stream_id IN (SELECT outer_stream_id FROM newest)
        ORDER BY outer_started_at DESC, outer_stream_id, attempt LIMIT {20 * most:d}""")


ATTEMPT = """outer_stream_id, inner_stream_id, outer_started_at, outer_gateway, model, attempt, inner_gateway, inner_outcome,
    inner_error_type, gateway_before_ns, lost_ns, matched_by"""


CHANGES = columns.table(
    "Changes by gateways",
    text("what", "What"),
    text("gateway", "Gateway", min_characters=11),
    STREAMS,
    percent("share", "Share", help="Of the matched streams of the gateway."),
    text("inner_value", "Example: the model server sent", help="Empty if it sent none.", min_characters=20),
    text("outer_value", "The client received", min_characters=20),
    stream(what="the newest stream with this change"),
    empty="No differences in these streams.",
)


def changes(query: Query, selection: Selection, *, most: int = 100) -> pl.DataFrame:
    """`gateway, what, streams, share` (of the gateway's matched streams), and the newest example: `outer_value, inner_value,
    stream_id, at`."""
    return query(f"""
        WITH chosen AS (
                SELECT outer_stream_id, inner_stream_id, {HOP_GATEWAY} AS gateway FROM hops WHERE {where(selection)}),
            totals AS (SELECT gateway, count(DISTINCT outer_stream_id) AS n FROM chosen GROUP BY ALL),
            differing AS (
                SELECT gateway, what, count(DISTINCT outer_stream_id) AS streams,
                    arg_max({{'outer': outer_value, 'inner': inner_value, 'stream_id': outer_stream_id}}, outer_started_at)
                        AS example, max(outer_started_at) AS "at"
                FROM hop_changes JOIN chosen USING (outer_stream_id, inner_stream_id)
                WHERE {within(selection)} GROUP BY ALL)
        SELECT gateway, what, streams, streams / n AS share, example.outer AS outer_value, example.inner AS inner_value,
            example.stream_id AS stream_id, "at"
        FROM differing JOIN totals USING (gateway) ORDER BY streams DESC, gateway, what LIMIT {most:d}""")


def matched_share(query: Query, selection: Selection) -> pl.DataFrame:
    """`gateway, streams, matched`: requests to the gateways of `by_gateway`, and how many of them are matched.

    A filter by gateway selects the gateways, not their streams.
    """
    all_streams = replace(selection, gateways=())
    return query(f"""
        SELECT {GATEWAY} AS gateway, count(*) AS streams,
            count(*) FILTER (stream_id IN (SELECT outer_stream_id FROM hops WHERE {where(all_streams)})) AS matched
        FROM streams
        WHERE {all_streams.where()} AND {IS_REQUEST}
            AND {GATEWAY} IN (SELECT {HOP_GATEWAY} FROM hops WHERE {where(selection)})
        GROUP BY ALL ORDER BY streams DESC, gateway""")


def evidence(query: Query, selection: Selection) -> pl.DataFrame:
    """`matched_by, hops`: matches by their evidence."""
    return query(
        f"SELECT matched_by, count(*) AS hops FROM hops WHERE {where(selection)} GROUP BY ALL ORDER BY hops DESC, matched_by"
    )


def ambiguous(query: Query) -> int:
    """Streams without hops because several streams fitted equally well, since the store was created."""
    return number_of(query, "sum(value)::BIGINT", "counters WHERE name = 'hops_ambiguous'")


def of_stream(query: Query, stream_id: UUID, *, most: int = 50) -> pl.DataFrame:
    """The rows of `hops` with this stream as the outer or the inner one."""
    return query(f"""
        SELECT * FROM hops WHERE outer_stream_id = '{stream_id}'::UUID OR inner_stream_id = '{stream_id}'::UUID
        ORDER BY outer_started_at, outer_stream_id, attempt LIMIT {most:d}""")


CHANGES_OF_STREAM = columns.table(
    "Changes by the gateway",
    text("what", "What"),
    text("inner_value", "The model server sent", min_characters=20),
    text("outer_value", "The client received", min_characters=20),
)


def changes_of(query: Query, stream_id: UUID, *, most: int = 100) -> pl.DataFrame:
    """`what, outer_value, inner_value, outer_stream_id, inner_stream_id`: differences of the hops of a stream."""
    return query(f"""
        SELECT what, outer_value, inner_value, outer_stream_id, inner_stream_id FROM hop_changes
        WHERE outer_stream_id = '{stream_id}'::UUID OR inner_stream_id = '{stream_id}'::UUID
        ORDER BY what, outer_value LIMIT {most:d}""")


# The phases of a hop (client → gateway → model server), and who took them. Pure.

PARTS: dict[str, tuple[str, str, str]] = {
    "before forwarding": ("before_ns", "gateway", "From t0 to the start of the gateway's request to the model server."),
    "failed attempts": ("failed_ns", "upstream", "Attempts that another one followed."),
    "model's TTFT": ("model_ttft_ns", "upstream", "From the gateway's request to the first token of the model server."),
    "first token delay": ("first_token_ns", "gateway", "From the model server's first token to the client's."),
    "streaming": ("streaming_ns", "upstream", "From the client's first token to the end of the model server's response."),
    "added tail": ("tail_ns", "gateway", "From the end of the model server's response to the end of the gateway's."),
}  # fmt: skip
"""Phase → (column of `reports.hops.waterfall`, cause, meaning)."""
CAUSES = {name: cause for name, (_, cause, _) in PARTS.items()}
"""Phase → who took it."""


def hop_phases(row: Mapping[str, Any]) -> list[Phase]:
    """The phases of a row of `reports.hops.waterfall`, one after the other. Unknown parts and those of 0 are left out.

    Errors of the clocks can make a short part negative. It is drawn with length 0.
    """
    found: list[Phase] = []
    at_ns = 0
    for name, (column, _, meaning) in PARTS.items():
        length_ns = round(row[column] or 0)
        if length_ns:
            end_ns = at_ns + max(length_ns, 0)
            found.append(Phase(name, at_ns, end_ns, meaning))
            at_ns = end_ns
    return found
