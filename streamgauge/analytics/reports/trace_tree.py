"""One trace: its spans, those that the tap measured in place of missing ones, and their tree.

The store has the tap's own spans, which have a `stream_id`, and the spans that clients and gateways sent to `--otlp-listen`.
The tap sees both ends of a stream, so `with_measured` adds from the times of the stream:

- the client and the gateway, if they sent no span;
- the phases and the stalls of the stream, if no other service has a span below it.

The tree has its rows in this order:

- A span whose parent is unknown is a root. Of spans that are each other's parents, the first becomes a root.
- Siblings are in the order of their starts, then the longest first.
- At most `most` spans have a row: those with errors, those of the tap, then the longest, each with its ancestors. The rest is
  counted at the nearest row above it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import polars as pl

from streamgauge.analytics.reports import Query, columns, formatting, number_of
from streamgauge.analytics.reports.one_stream import phases
from streamgauge.analytics.reports.selection import GATEWAY, MODEL
from streamgauge.analytics.reports.traces import FAILED
from streamgauge.analytics.schema.outcomes import NOT_ERRORS
from streamgauge.analytics.schema.sql_quoting import literal

Row = Mapping[str, Any]
MEASURED = "measured by the tap"
MAX_STALL_SPANS = 20
"""Stalls of a stream with a span of their own: the longest. The stream's bar marks all."""
PHASE_NAMES = {
    "request in": "receive request",
    "send": "send request",
    "wait": "wait for headers",
    "first byte": "wait for first byte",
    "first token": "wait for first token",
    "answer": "output",
    "tail": "end of response",
}
"""Phase of `one_stream.phases` → its name here, in the words of the tap's stored spans. Other phases keep their names."""
PHASES_WITHOUT_SPAN = ("request in", "send", "tail", "delivery")
"""Phases that are not among the tap's stored spans."""
ERROR = "error"


# Rows of one trace


MAX_SPANS = 5_000
"""Spans of one trace that are read."""


def spans(query: Query, trace_id: str, *, most: int = MAX_SPANS) -> tuple[pl.DataFrame, int]:
    """(spans of one trace with their start `at_ns` in Unix time, number of its spans).

    The tap's span replaces others with its id. Above `most`, spans with errors stay, then those of the tap, then the longest.
    """
    frame = query(f"""
        SELECT *, count(*) OVER () AS total FROM (
            SELECT *, epoch_us(started_at) * 1000 AS at_ns FROM spans WHERE trace_id = {literal(trace_id.lower())}
            QUALIFY row_number() OVER (PARTITION BY span_id ORDER BY stream_id NULLS LAST) = 1)
        ORDER BY {FAILED} DESC, stream_id IS NULL, duration_ns DESC, span_id LIMIT {most:d}""")
    return frame.drop("total"), int(frame["total"][0]) if frame.height else 0


MAX_STREAMS = 50
"""Streams of one trace that are read."""
PHASE_COLUMNS = """client_start_ns, connected_ns, request_sent_ns, headers_ns, ttfb_ns, ttft_ns, ttfo_ns, last_output_ns, end_ns,
    client_drain_ns, delivered_ns"""


STREAMS = columns.table(
    "Streams of the trace",
    columns.STREAM,
    columns.outcome(),
    columns.HTTP,
    columns.CAUSE,
    columns.instant("started_at", "Started", form="%H:%M:%S.%f", priority=4),
    columns.MODEL,
    columns.GATEWAY,
    replace(columns.TTFT, priority=2),
    columns.number("stall_count", "Stalls", priority=3),
    columns.ms("end_ns", "Duration"),
    stacks=False,
)


def streams_of(query: Query, trace_id: str, *, most: int = MAX_STREAMS) -> pl.DataFrame:
    """The finished streams with this trace id.

    `stream_id, span_id, parent_span_id, started_at, at_ns` (start in Unix time), `gateway, model, outcome, http_status, error_type,
    stall_count` and `PHASE_COLUMNS`.
    """
    return query(f"""
        SELECT stream_id, span_id, parent_span_id, started_at, epoch_us(started_at) * 1000 AS at_ns, {GATEWAY} AS gateway,
            {MODEL} AS model, outcome, http_status, error_type, stall_count, {PHASE_COLUMNS}
        FROM streams WHERE trace_id = {literal(trace_id.lower())} ORDER BY started_at LIMIT {most:d}""")


def streams_in_flight(query: Query, trace_id: str) -> int:
    """Number of streams in flight with this trace id."""
    return number_of(query, "count(*)", f"open_streams WHERE trace_id = {literal(trace_id.lower())}")


# Spans. Pure.


@dataclass(frozen=True, kw_only=True)
class SpanEvent:
    """An event of a span. `at_ns` is the time from the start of the span, None if it is unknown."""

    name: str
    at_ns: int | None
    attributes: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Span:
    """One span. `start_ns` is Unix time. `duration_ns` is None while the span is open."""

    span_id: str
    parent_id: str | None
    name: str
    service: str
    start_ns: int
    duration_ns: int | None
    kind: str = "internal"
    status: str = "unset"
    message: str | None = None
    stream_id: str | None = None
    attributes: Mapping[str, Any] = field(default_factory=dict)
    events: tuple[SpanEvent, ...] = ()
    measured: bool = False
    """Computed from the times of a stream, not stored."""
    cause: str | None = None
    """Who caused a stall."""

    @property
    def end_ns(self) -> int:
        """The end. The start of an open span."""
        return self.start_ns + max(self.duration_ns or 0, 0)

    @property
    def failed(self) -> bool:
        return self.status.lower() == ERROR


def instant(unix_ns: int) -> datetime:
    """Unix time as an instant. Exact to 1 µs."""
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=unix_ns // 1000)


def from_row(row: Row) -> Span:
    """A row of `spans`. Attributes and events that are not JSON of the expected form are shown as text."""
    attributes = _json(row["attributes"])
    if not isinstance(attributes, dict):
        attributes = {} if attributes is None else {"attributes": attributes}
    return Span(
        span_id=str(row["span_id"]),
        parent_id=row["parent_span_id"] or None,
        name=str(row["name"]),
        service=str(attributes.get("service.name") or row["kind"]),
        start_ns=row["at_ns"],
        duration_ns=row["duration_ns"],
        kind=str(row["kind"]),
        status=str(row["status"]),
        message=row["status_message"] or None,
        stream_id=str(row["stream_id"]) if row["stream_id"] else None,
        attributes=attributes,
        events=_events(_json(row["events"])),
    )


def _json(text: str | None) -> Any:
    try:
        return json.loads(text) if text else None
    except ValueError:
        return text


def _events(found: Any) -> tuple[SpanEvent, ...]:
    """Other values than objects are names of events."""
    listed = found if isinstance(found, list) else [found] if found else []
    objects = (event if isinstance(event, dict) else {"name": event} for event in listed)
    return tuple(
        SpanEvent(
            name=str(event.get("name", "")),
            at_ns=at_ns if isinstance(at_ns := event.get("at_ns"), int) else None,
            attributes=more if isinstance(more := event.get("attributes"), dict) else {},
        )
        for event in objects
    )


def with_measured(spans: Sequence[Span], streams: Sequence[Row], stalls: Sequence[Row] = ()) -> list[Span]:
    """The spans and those measured by the tap.

    `streams` are rows of `streams_of`, `stalls` rows of `one_stream.stalls`.
    """
    found = {span.span_id: span for span in spans}
    for stream in streams:
        stream_id = str(stream["stream_id"])
        operation = found.get(operation_id(stream)) or _operation(stream)
        found[operation.span_id] = operation
        below = [span for span in found.values() if span.parent_id == operation.span_id]
        foreign = any(span.stream_id != stream_id for span in below)
        own = any(span.stream_id == stream_id for span in below)
        added = list(_ends(operation, stream, with_gateway=not foreign, known=found))
        if not foreign:
            added += _phases(operation, stream, only=PHASES_WITHOUT_SPAN if own else None)
            added += _stalls(operation, [s for s in stalls if str(s["stream_id"]) == stream_id])
        for span in added:
            found[span.span_id] = span
    return list(found.values())


def operation_id(stream: Row) -> str:
    """The id of a stream's span. A stream without a span id has one that is only used here."""
    return stream["span_id"] or f"stream:{stream['stream_id']}"


def _operation(stream: Row) -> Span:
    """The stream itself, if its span is not stored."""
    stream_id = str(stream["stream_id"])
    failed = stream["outcome"] not in NOT_ERRORS
    return Span(
        span_id=operation_id(stream),
        parent_id=stream["parent_span_id"] or None,
        name=f"stream {stream['model'] or ''}".strip(),
        service=MEASURED,
        start_ns=stream["at_ns"],
        duration_ns=stream["end_ns"],
        status=ERROR if failed else "unset",
        message=stream["error_type"] if failed else None,
        stream_id=stream_id,
        measured=True,
    )


def _ends(operation: Span, stream: Row, *, with_gateway: bool, known: Mapping[str, Span]) -> Iterator[Span]:
    """Spans of the client and the gateway that sent none. The stream's span becomes a child of the client's."""
    t0_ns, end_ns = operation.start_ns, stream["end_ns"]
    if end_ns is None:
        return
    if operation.parent_id not in known:
        begin_ns = min(stream["client_start_ns"] or 0, 0)
        until_ns = max(stream["delivered_ns"] or 0, stream["client_drain_ns"] or 0, end_ns)
        client = _measured(operation, "client", t0_ns + begin_ns, until_ns - begin_ns)
        yield replace(client, parent_id=operation.parent_id)
        yield replace(operation, parent_id=client.span_id)
    sent_ns = stream["request_sent_ns"]
    if with_gateway and sent_ns is not None:
        name = f"gateway {stream['gateway'] or ''}".strip()
        yield _measured(operation, name, t0_ns + sent_ns, end_ns - sent_ns)


def _phases(operation: Span, stream: Row, *, only: Sequence[str] | None) -> Iterator[Span]:
    for phase in phases(stream):
        if only is None or (phase.name in only and phase.length_ns):
            name, start_ns = PHASE_NAMES.get(phase.name, phase.name), operation.start_ns + phase.start_ns
            span = _measured(operation, name, start_ns, phase.length_ns)
            yield replace(span, attributes={"meaning": phase.meaning})


def _stalls(operation: Span, stalls: Sequence[Row]) -> Iterator[Span]:
    longest = sorted(stalls, key=lambda stall: -stall["gap_ns"])[:MAX_STALL_SPANS]
    for number, stall in enumerate(sorted(longest, key=lambda stall: stall["at_ns"]), start=1):
        name = f"stall {number}, caused by the {stall['cause']}"
        span = _measured(operation, name, operation.start_ns + stall["at_ns"], stall["gap_ns"])
        yield replace(span, cause=stall["cause"])


def _measured(operation: Span, name: str, start_ns: int, duration_ns: int) -> Span:
    return Span(
        span_id=f"{name}:{operation.span_id}", parent_id=operation.span_id, name=name, service=MEASURED, kind="measured",
        start_ns=start_ns, duration_ns=max(duration_ns, 0), stream_id=operation.stream_id, measured=True,
    )  # fmt: skip


# The tree of the spans. Pure.

MIN_SKEW_NS = 1_000_000
"""A child that starts earlier than its parent by less is no sign of different clocks."""


@dataclass(kw_only=True)
class TreeRow:
    """One span in the tree."""

    span: Span
    depth: int
    children: list[TreeRow] = field(default_factory=list)
    omitted: int = 0
    """Spans below this one without a row, not counting those below its children."""
    notes: tuple[str, ...] = ()
    """What is unusual about the place or the times of the span."""


@dataclass(frozen=True, kw_only=True)
class Tree:
    """The tree of a trace. Times are Unix times of all spans, also of those without a row."""

    roots: Sequence[TreeRow]
    start_ns: int
    end_ns: int
    spans: int
    omitted: int
    """Spans without a row."""
    omitted_roots: int
    """Spans without a row and without a row above them."""

    def rows(self) -> Iterator[TreeRow]:
        """All rows from top to bottom."""
        stack = [*reversed(self.roots)]
        while stack:
            row = stack.pop()
            yield row
            stack += reversed(row.children)


@dataclass(frozen=True)
class _Place:
    span: Span
    parent: int | None
    """Index of the parent in the order of the rows."""
    notes: tuple[str, ...]


def tree(spans: Sequence[Span], *, most: int) -> Tree:
    """The tree of the spans with at most `most` rows. Span ids are unique."""
    places = _ordered(spans)
    kept = _most_important(places, most)
    rows: dict[int, TreeRow] = {}
    above: list[int | None] = []  # the nearest row at or above each place
    roots: list[TreeRow] = []
    omitted_roots = 0
    for index, place in enumerate(places):
        parent = None if place.parent is None else above[place.parent]
        if index not in kept:
            above.append(parent)
            if parent is None:
                omitted_roots += 1
            else:
                rows[parent].omitted += 1
            continue
        above.append(index)
        depth = 0 if parent is None else rows[parent].depth + 1
        rows[index] = TreeRow(span=place.span, depth=depth, notes=place.notes)
        (roots if parent is None else rows[parent].children).append(rows[index])
    start_ns = min((span.start_ns for span in spans), default=0)
    return Tree(
        roots=roots,
        start_ns=start_ns,
        end_ns=max((span.end_ns for span in spans), default=start_ns),
        spans=len(spans),
        omitted=len(spans) - len(rows),
        omitted_roots=omitted_roots,
    )


def _ordered(spans: Sequence[Span]) -> list[_Place]:
    """Each span followed by those below it."""
    by_id = {span.span_id: span for span in spans}
    children: dict[str | None, list[Span]] = {}
    for span in sorted(spans, key=lambda s: (s.start_ns, -(s.duration_ns or 0))):
        children.setdefault(span.parent_id if span.parent_id in by_id else None, []).append(span)
    places: list[_Place] = []
    reached: set[str] = set()

    def add(root: Span, note: str | None) -> None:
        stack: list[tuple[Span, int | None, str | None]] = [(root, None, note)]
        while stack:
            span, parent, remark = stack.pop()
            if span.span_id in reached:
                continue
            reached.add(span.span_id)
            skew = None if parent is None else _skew(span, places[parent].span)
            places.append(_Place(span, parent, tuple(filter(None, (remark, skew)))))
            index = len(places) - 1
            stack += [(child, index, None) for child in reversed(children.get(span.span_id, []))]

    for root in children.get(None, []):
        add(root, "The parent span is not stored." if root.parent_id and not root.measured else None)
    for span in spans:
        if span.span_id not in reached:
            add(span, "This span is below itself.")
    return places


def _skew(span: Span, parent: Span) -> str | None:
    earlier_ns = parent.start_ns - span.start_ns
    if earlier_ns < MIN_SKEW_NS or parent.measured or span.measured:
        return None
    cause = "" if span.service == parent.service else ": the clocks of the services differ"
    return f"Starts {formatting.duration(earlier_ns)} before its parent{cause}."


def _most_important(places: Sequence[_Place], most: int) -> set[int]:
    """Indexes of the rows that stay."""
    if len(places) <= most:
        return set(range(len(places)))

    def rank(index: int) -> tuple[bool, bool, int]:
        span = places[index].span
        return not span.failed, span.stream_id is None, -(span.duration_ns or 0)

    kept: set[int] = set()
    for index in sorted(range(len(places)), key=rank):
        path: list[int] = []
        at: int | None = index
        while at is not None and at not in kept and len(kept) + len(path) <= most:
            path.append(at)
            at = places[at].parent
        if len(kept) + len(path) <= most:
            kept.update(path)
    return kept
