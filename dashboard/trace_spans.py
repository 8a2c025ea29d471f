"""Spans of one trace: those of the store, and spans that the tap measured in place of missing ones. Pure.

The store has the tap's own spans, which have a `stream_id`, and the spans that clients and gateways sent to `--otlp-listen`.
The tap sees both ends of a stream, so `with_measured` adds from the times of the stream:

- the client and the gateway, if they sent no span;
- the phases and the stalls of the stream, if no other service has a span below it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from streamgauge.analytics.schema.outcomes import NOT_ERRORS
from streamgauge.dashboard.stream_phases import phases

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
"""Phase of `stream_phases` → its name here, in the words of the tap's stored spans. Other phases keep their names."""
PHASES_WITHOUT_SPAN = ("request in", "send", "tail")
"""Phases that are not among the tap's stored spans."""
ERROR = "error"


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
    """A row of `queries.traces.spans`. Attributes and events that are not JSON of the expected form are shown as text."""
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
    if not found:
        return ()
    if not isinstance(found, list):
        return (SpanEvent(name=str(found), at_ns=None, attributes={}),)
    return tuple(
        SpanEvent(
            name=str(event.get("name", "")),
            at_ns=at_ns if isinstance(at_ns := event.get("at_ns"), int) else None,
            attributes=more if isinstance(more := event.get("attributes"), dict) else {},
        )
        if isinstance(event, dict)
        else SpanEvent(name=str(event), at_ns=None, attributes={})
        for event in found
    )


def with_measured(spans: Sequence[Span], streams: Sequence[Row], stalls: Sequence[Row] = ()) -> list[Span]:
    """The spans and those measured by the tap.

    `streams` are rows of `queries.traces.streams_of`, `stalls` rows of `queries.traces.stalls_of`.
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
        drained_ns = max(stream["client_drain_ns"] or 0, end_ns)
        client = _measured(operation, "client", t0_ns + begin_ns, drained_ns - begin_ns)
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
