"""One stream: its row, phases, events, stalls, usage reports and server-reported statistics.

Times of phases are ns from t0; only the phase before t0 is negative. A phase with an unknown start or end is left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal
from uuid import UUID

import polars as pl

from streamgauge.analytics.reports import Query, formatting
from streamgauge.analytics.schema.dimensions import is_one_of
from streamgauge.analytics.schema.event_kinds import IS_OUTPUT
from streamgauge.analytics.schema.outcomes import OK
from streamgauge.analytics.schema.sql_quoting import instant, literal

State = Literal["finished", "in_flight"]
TABLES: Mapping[State, str] = {"finished": "streams", "in_flight": "open_streams"}


def find(query: Query, stream_id: UUID) -> tuple[State, dict[str, Any]] | None:
    """The state of a stream and its row in the table of that state."""
    for state, table in TABLES.items():
        rows = query(f"SELECT * FROM {table} WHERE stream_id = '{stream_id}'::UUID LIMIT 1").to_dicts()
        if rows:
            return state, rows[0]
    return None


LONGEST_GAPS = 300
"""Sampling keeps the events after this many of the longest gaps, so it drops no stall."""


def events(query: Query, stream_id: UUID, *, most: int = 4000) -> tuple[pl.DataFrame, int]:
    """(events of a stream in order, their total number).

    Above `most` events: every n-th output event, those after the longest gaps, and all events of other kinds. Columns:
    `seq, read_seq, at_ns, kind, event_name, choice, chars, tokens, bytes, finish_reason, gap_ns` (since the previous output
    event of the same choice), `chars_sum, tokens_sum, bytes_sum` (running sums over all events).
    """
    frame = query(f"""
        WITH e AS (
                SELECT seq, read_seq, at_ns, kind, event_name, choice, chars, tokens, bytes, finish_reason,
                    {IS_OUTPUT} AS is_output
                FROM events WHERE stream_id = '{stream_id}'::UUID),
            s AS (
                SELECT *, count(*) OVER () AS total,
                    CASE WHEN is_output
                        THEN at_ns - lag(at_ns) OVER (PARTITION BY is_output, choice ORDER BY seq) END AS gap_ns,
                    sum(coalesce(chars, 0)) OVER (ORDER BY seq)::BIGINT AS chars_sum,
                    sum(coalesce(tokens, 0)) OVER (ORDER BY seq)::BIGINT AS tokens_sum,
                    sum(coalesce(bytes, 0)) OVER (ORDER BY seq)::BIGINT AS bytes_sum
                FROM e),
            ranked AS (SELECT *, row_number() OVER (ORDER BY gap_ns DESC NULLS LAST, seq) AS gap_rank FROM s)
        SELECT * EXCLUDE (gap_rank, is_output) FROM ranked
        WHERE seq % ceil(total / {most:d})::BIGINT = 0 OR NOT is_output OR gap_rank <= {LONGEST_GAPS}
        ORDER BY seq LIMIT {most * 2:d}""")
    return frame.drop("total"), int(frame["total"][0]) if frame.height else 0


def stalls(query: Query, *stream_ids: object, most: int = 500) -> pl.DataFrame:
    """The longest stalls of streams in order: `stream_id, seq, choice, at_ns` (of the output event before it), `gap_ns, cause`."""
    return query(f"""
        SELECT * FROM (
            SELECT stream_id, seq, choice, at_ns, gap_ns, cause FROM stalls
            WHERE {is_one_of("stream_id", list(map(str, stream_ids)))} ORDER BY gap_ns DESC, seq LIMIT {most:d})
        ORDER BY stream_id, seq""")


def usage_reports(query: Query, stream_id: UUID) -> pl.DataFrame:
    """The usage reports of a stream in order, at most 200."""
    return query(f"SELECT * FROM usage_reports WHERE stream_id = '{stream_id}'::UUID ORDER BY seq LIMIT 200")


def server_stats(query: Query, stream_id: UUID) -> pl.DataFrame:
    """Server-reported statistics of a stream, at most 200."""
    return query(
        f"SELECT source, name, value, unit, raw FROM server_stats WHERE stream_id = '{stream_id}'::UUID "
        "ORDER BY source, name, seq LIMIT 200"
    )


CLOSED_BY = {
    "client_abort": "The client closed the connection",
    "upstream_reset": "The upstream closed the connection",
    "truncated": "The upstream ended the response too early",
    "idle_timeout": "The tap closed the connection, because the upstream had sent nothing for too long,",
}
"""Outcome → who ended the stream before its response was complete."""
PEERS_WITHIN = "INTERVAL 1 HOUR"
LEAST_AT_ONE_AGE = 3


def closing(query: Query, row: Mapping[str, Any]) -> str | None:
    """Who ended a row of `streams` before its response was complete, and its age then against its peers. None: nobody, or unknown.

    Its peers ended so, and have the same client (client aborts: a timeout of the client) or the same gateway.
    """
    who, age_ns, at = CLOSED_BY.get(row["outcome"]), row["end_ns"], instant(row["started_at"])
    if who is None or age_ns is None:
        return None
    low_ns, high_ns = round(age_ns * 0.95), round(age_ns * 1.05)

    def same(*columns: str) -> str:
        return " AND ".join(
            f"{name} IS NOT DISTINCT FROM {literal(row[name]) if row[name] is not None else 'NULL'}"
            for name in columns
        )

    column = "client_id" if row["outcome"] == "client_abort" else "gateway"
    peers, alike, ok, ok_ns = query(f"""
        SELECT count(*) FILTER (is_peer), count(*) FILTER (is_peer AND end_ns BETWEEN {low_ns} AND {high_ns}),
            count(*) FILTER (is_ok), quantile_cont(end_ns, [0.5, 0.95]) FILTER (is_ok)
        FROM (
            SELECT end_ns, outcome = '{row["outcome"]}' AND {same(column)} AS is_peer,
                outcome = '{OK}' AND {same("request_model", "gateway")} AS is_ok
            FROM streams WHERE started_at BETWEEN {at} - {PEERS_WITHIN} AND {at} + {PEERS_WITHIN}
                AND stream_id <> '{row["stream_id"]}')""").row(0)
    duration = formatting.duration
    of = f"the same {column.partition('_')[0]}"
    text = f"{who} after {duration(age_ns)}. "
    if not peers:
        text += f"No other stream of {of} ended so within an hour."
    else:
        text += f"{alike} of {peers} others of {of} that ended so within an hour did at about this age"
        text += ": the sign of a time limit." if alike >= LEAST_AT_ONE_AGE and 2 * alike > peers else "."
    if ok:
        text += f" The {ok} ok streams of its model there took {duration(ok_ns[0])} (p50), {duration(ok_ns[1])} (p95)."
    return text


# Phases. Pure.


@dataclass(frozen=True)
class Phase:
    """One bar of the waterfall."""

    name: str
    start_ns: int
    end_ns: int
    meaning: str

    @property
    def length_ns(self) -> int:
        return self.end_ns - self.start_ns


LEAST_DELIVERY_NS = 10_000_000
"""A shorter time is that of the network."""


def phases(row: Mapping[str, Any]) -> list[Phase]:
    """The phases of a row of `streams`, in order."""
    connected, sent, headers, ttfb = (
        row.get(k) for k in ("connected_ns", "request_sent_ns", "headers_ns", "ttfb_ns")
    )
    ttft, ttfo, last, end = (row.get(k) for k in ("ttft_ns", "ttfo_ns", "last_output_ns", "end_ns"))
    reasoned = ttft is not None and ttfo is not None and ttfo > ttft
    candidates: list[tuple[str, int | None, int | None, str]] = [
        ("request in", row.get("client_start_ns"), 0, "From the first byte of the client's request to t0."),
        ("connect", 0, connected, "DNS, TCP and TLS to the upstream, or reuse of a kept connection."),
        ("send", connected, sent, "Sending the request to the upstream."),
        ("wait", sent, headers, "Waiting for the response headers."),
        ("first byte", headers, ttfb, "From the response headers to the first byte of the body."),
        ("first token", ttfb, ttft, "The body has begun without output: role chunks, pings, prompt processing."),
        ("reasoning", ttft if reasoned else None, ttfo, "From the first output to the first non-reasoning output."),
        ("answer", ttfo if ttfo is not None else ttft, last, "To the last output event."),
        ("tail", last, end, "From the last output to the end of the body: finish, usage, terminator."),
    ]  # fmt: skip
    if ttft is None and ttfb is not None:
        candidates.append(("body", ttfb, end, "A body without streamed output."))
    delivered = row.get("delivered_ns")
    if end is not None and delivered is not None and delivered - end >= LEAST_DELIVERY_NS:
        candidates.append(
            ("delivery", end, delivered, "From the end of the body until the client had received it.")
        )
    return [
        Phase(name, int(start), int(stop), meaning)
        for name, start, stop, meaning in candidates
        if start is not None and stop is not None and stop >= start
    ]
