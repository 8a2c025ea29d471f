"""A finished stream as OpenTelemetry spans: the operation, and a child for each of its phases. Pure: no I/O, no clock.

Rules
- The operation's span has the ids that the tap put into `traceparent`, so the gateway's own spans are its children and the
  caller's span is its parent. Phases have ids made from the stream's id: a replay makes the same spans again.
- Start is t0 on the tap's wall clock; every other time is that plus a length of the tap's monotonic clock.
- Status is Error, and `error.type` set, only where the upstream failed: a client that left and a tap that died
  (`client_abort`, `tap_lost`) are outcomes, not the operation's errors.
- Attributes are what the row of `streams` says, under the conventions' names (`analytics.telemetry.semconv`) or
  `streamgauge.*`; what is NULL there is absent here. Text is only ever told when it was captured and content was asked for.
- Numbers are bounded: `MAX_STALLS`, `MAX_TOOL_CALLS`; how many were left out stands in an attribute.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Sequence
from operator import itemgetter

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, TraceFlags
from opentelemetry.trace.status import Status, StatusCode

from analytics.assembly.stream import FinishedStream
from analytics.decoded.decoded_event import OUTPUT_KINDS
from analytics.decoded.event_columns import EventColumns
from analytics.measures.timing import (
    first_event_ns,
    first_nonreasoning_output_ns,
    first_output_ns,
    last_output_ns,
)
from analytics.telemetry import span_attributes
from analytics.telemetry.semconv import OWN, Names
from analytics.telemetry.span_attributes import MAX_WORD_CHARS, Attributes, Row, SpanAttributes, failed

MAX_STALLS = 32
MAX_TOOL_CALLS = 32
MIN_LINGER_NS = 1_000_000
"""Below this a connection that stays open after the terminal is just how it is closed."""
SCOPE = "streamgauge"

UNSET = Status(StatusCode.UNSET)
"""The status of all that did not fail."""
Mark = tuple[int, str, Attributes]
"""An event of a span: when, in ns from its start; name; attributes."""
_at = itemgetter(0)
COLUMNS = tuple(
    dict.fromkeys(
        (
            *span_attributes.COLUMNS, "trace_id", "span_id", "parent_span_id", "trace_flags", "operation", "request_model",
            "outcome", "error_type", "error_message", "stall_count", "icl_p50_ns", "connected_ns", "headers_ns", "end_ns",
            "streamed",
        )
    )
)  # fmt: skip
"""Columns of `streams` that spans are made of."""


class StreamSpan(ReadableSpan):
    """A span as the SDK has it, made for less: its ids stay the digits that they came as and are stored as.

    The SDK's `SpanContext`s and `Event`s are made when an exporter asks for them. The table never does, and to make them cost
    more than all the rest of the span.
    """

    __slots__ = (
        "_attributes", "_end_time", "_ids", "_instrumentation_scope", "_kind", "_name", "_resource", "_start_time", "_status",
        "marks",
    )  # fmt: skip
    _start_time: int
    _end_time: int
    _links = ()
    _instrumentation_info = None

    def __init__(
        self,
        name: str,
        ids: tuple[str, str, str | None, int],
        times_ns: tuple[int, int],
        attributes: Attributes,
        source: tuple[Resource, InstrumentationScope],
        *,
        kind: SpanKind = SpanKind.INTERNAL,
        marks: Sequence[Mark] = (),
        status: Status = UNSET,
    ) -> None:
        """`ids`: of the trace, the span, its parent (`hex_id`), and the trace's flags; `times_ns`: start and end."""
        self._name, self._ids, self._kind = name, ids, kind
        self._start_time, self._end_time = times_ns
        self._attributes, self._status = attributes, status
        self._resource, self._instrumentation_scope = source
        self.marks = marks
        """Its events, in order."""

    @property
    def ids(self) -> tuple[str, str, str | None]:
        """Of the trace, the span and its parent, as hexadecimal digits."""
        return self._ids[:3]

    @property
    def _context(self) -> SpanContext:  # type: ignore[override]
        trace_id, span_id, _, flags = self._ids
        return SpanContext(int(trace_id, 16), int(span_id, 16), False, TraceFlags(flags))

    @property
    def _parent(self) -> SpanContext | None:  # type: ignore[override]
        trace_id, _, parent_id, flags = self._ids
        if parent_id is None:
            return None
        remote = (
            self._kind is SpanKind.CLIENT
        )  # the caller's; a phase's parent is the operation, which is ours
        return SpanContext(int(trace_id, 16), int(parent_id, 16), remote, TraceFlags(flags))

    @property
    def _events(self) -> Sequence[Event]:  # type: ignore[override]
        return [Event(name, more, self._start_time + at_ns) for at_ns, name, more in self.marks]


class SpanBuilder:
    """Makes the spans of streams. Stall settings are those of the measuring; times in ns."""

    def __init__(
        self,
        names: Names,
        resource: Resource,
        *,
        version: str = "",
        stall_floor_ns: int = 500_000_000,
        stall_factor: float = 5.0,
        content: bool = False,
    ) -> None:
        self._names = names
        self._attributes = SpanAttributes(names, content=content).of
        self._resource = resource
        self._scope = InstrumentationScope(SCOPE, version or None, names.schema_url)
        self._stall = (stall_floor_ns, stall_factor)

    def build(self, stream: FinishedStream, row: Row) -> list[StreamSpan]:
        """The spans of one stream, the operation's first; none for a stream whose `Opened` was lost: it has no ids."""
        trace_id, span_id = hex_id(row.get("trace_id"), 32), hex_id(row.get("span_id"), 16)
        if trace_id is None or span_id is None:
            return []
        t0, end_ns = stream.started_wall_ns, _end_ns(stream, row)
        flags, resource, scope = row.get("trace_flags") or 0, self._resource, self._scope
        attributes = self._attributes(stream, row)
        marks = self._marks(stream, row, attributes)
        operation = StreamSpan(
            " ".join(filter(None, (row.get("operation") or "request", row.get("request_model")))),
            (trace_id, span_id, hex_id(row.get("parent_span_id"), 16), flags),
            (t0, t0 + end_ns),
            attributes,
            (resource, scope),
            kind=SpanKind.CLIENT,
            marks=marks,
            status=_status(row),
        )
        spans, phases = [operation], self._phases_of(stream, row, end_ns)
        for phase_id, (name, start_ns, stop_ns, more) in zip(
            _phase_ids(stream.stream_id, len(phases)), phases, strict=True
        ):
            ids, times = (trace_id, phase_id, span_id, flags), (t0 + start_ns, t0 + stop_ns)
            spans.append(StreamSpan(name, ids, times, more, (resource, scope)))
        return spans

    # -- events of the operation's span ------------------------------------------------------------------------------

    def _marks(self, stream: FinishedStream, row: Row, attributes: Attributes) -> list[Mark]:
        decoder = stream.decoder
        if decoder is None:
            return []
        marks: list[Mark] = []

        def mark(at_ns: int | None, name: str, more: Attributes | None = None) -> None:
            if at_ns is not None:
                marks.append((at_ns, OWN + name, more or {}))

        columns = decoder.events
        mark(first_event_ns(columns), "first_chunk")
        if decoder.reasoning_seen:
            mark(_first(columns, "reasoning"), "first_reasoning")
        mark(first_nonreasoning_output_ns(columns), "first_output")
        if decoder.tool_call_count and not stream.lost:
            tools = decoder.tool_times
            for tool in tools[:MAX_TOOL_CALLS]:
                mark(tool.began_ns, "tool_call", {self._names.tool_name: tool.name} if tool.name else None)
            if len(tools) > MAX_TOOL_CALLS:
                attributes[OWN + "tool_calls_not_shown"] = len(tools) - MAX_TOOL_CALLS
        if row.get("stall_count"):
            stalls = _stalls(columns, row["icl_p50_ns"], *self._stall)
            for at_ns, gap_ns in stalls[:MAX_STALLS]:
                mark(at_ns, "stall", {OWN + "stall.duration": gap_ns / 1e9})
            if len(stalls) > MAX_STALLS:
                attributes[OWN + "stalls_not_shown"] = len(stalls) - MAX_STALLS
        if decoder.error is not None:
            mark(decoder.error_ns, "error", {"error.type": row.get("error_type") or "error"})
        mark(decoder.terminal_ns, "terminal")
        marks.sort(key=_at)
        return marks

    # -- phases ------------------------------------------------------------------------------------------------------

    def _phases_of(
        self, stream: FinishedStream, row: Row, end_ns: int
    ) -> list[tuple[str, int, int, Attributes]]:
        """(name, start, end, attributes) of each phase that took place, in their usual order."""
        found: list[tuple[str, int, int, Attributes]] = []

        def add(name: str, start_ns: int, stop_ns: int | None, more: Attributes | None = None) -> None:
            if stop_ns is not None and stop_ns >= start_ns:
                found.append((name, start_ns, stop_ns, more or {}))

        connected, headers = row.get("connected_ns"), row.get("headers_ns")
        if connected is not None or row.get("outcome") == "connect_error":
            add("connect", 0, connected if connected is not None else end_ns)
        if connected is not None or headers is not None:
            add("wait for headers", connected or 0, headers if headers is not None else end_ns)
        decoder = stream.decoder
        if decoder is None or stream.lost or headers is None or not row.get("streamed"):
            return found
        columns = decoder.events
        first, last = first_output_ns(columns), last_output_ns(columns)
        add("wait for first output", headers, first if first is not None else decoder.terminal_ns or end_ns)
        if decoder.dialect.startswith("lmstudio"):
            loading = [
                at
                for at, n in zip(columns.at_ns, columns.event_name, strict=True)
                if (n or "").startswith("model_load.")
            ]
            if loading:
                add("model load", loading[0], loading[-1])
        if decoder.reasoning_seen and (began := _first(columns, "reasoning")) is not None:
            add("reasoning", began, _last(columns, "reasoning"))
        spoken = first_nonreasoning_output_ns(columns)
        if spoken is not None:
            add("output", spoken, last)
        if decoder.tool_call_count:
            for tool in decoder.tool_times[:MAX_TOOL_CALLS]:
                if tool.began_ns is not None:
                    more = {
                        self._names.tool_name: tool.name[:MAX_WORD_CHARS] or None,
                        self._names.tool_call_id: tool.id[:MAX_WORD_CHARS] or None,
                    }
                    kept = {k: v for k, v in more.items() if v}
                    add(f"tool call {tool.name[:100]}".rstrip(), tool.began_ns, tool.last_ns, kept)
        terminal = decoder.terminal_ns
        if terminal is not None and end_ns - terminal >= MIN_LINGER_NS:
            add("linger", terminal, end_ns)
        return found


def hex_id(text: str | None, digits: int) -> str | None:
    """An id in the one spelling that it has in the table; None for none, and for the ids of zeros that stand for none."""
    number = int(text, 16) if text else 0
    spelled = f"{number:0{digits}x}"
    return spelled if number > 0 and len(spelled) == digits else None


def _phase_ids(stream_id: str, count: int) -> list[str]:
    digits, name = "", stream_id.encode()
    for number in range(0, count, 8):
        digits += hashlib.blake2b(name, digest_size=64, salt=number.to_bytes(16, "big")).hexdigest()
    return [digits[i : i + 16] for i in range(0, 16 * count, 16)]


def _end_ns(stream: FinishedStream, row: Row) -> int:
    """tE, else the last that is known of it."""
    end_ns: int | None = row.get("end_ns")
    if end_ns is not None:
        return max(0, end_ns)
    last = stream.decoder.last_event_ns if stream.decoder is not None else None
    return max(0, last or 0, row.get("headers_ns") or 0)


def _status(row: Row) -> Status:
    if not failed(row):
        return UNSET
    return Status(StatusCode.ERROR, row.get("error_message") or row.get("error_type") or row.get("outcome"))


def _first(columns: EventColumns, kind: str) -> int | None:
    try:
        return columns.at_ns[columns.kind.index(kind)]
    except ValueError:
        return None


def _last(columns: EventColumns, kind: str) -> int | None:
    for i in range(len(columns.kind) - 1, -1, -1):
        if columns.kind[i] == kind:
            return columns.at_ns[i]
    return None


def _stalls(columns: EventColumns, median_ns: float, floor_ns: int, factor: float) -> list[tuple[int, int]]:
    """(when it began, length) of the gaps that `analytics.measures.measure` counts as stalls."""
    limit = max(floor_ns, factor * median_ns)
    pairs = (pair for one in output_times(columns) for pair in itertools.pairwise(one))
    return sorted((a, b - a) for a, b in pairs if b - a > limit)


def output_times(columns: EventColumns) -> list[list[int]]:
    """When the output events of each choice came, in order, ns."""
    if not columns.more_choices and not any(columns.choice):  # nearly always
        return [list(itertools.compress(columns.at_ns, map(OUTPUT_KINDS.__contains__, columns.kind)))]
    times: dict[int, list[int]] = {}
    for kind, choice, at_ns in zip(columns.kind, columns.choice, columns.at_ns, strict=True):
        if kind in OUTPUT_KINDS:
            times.setdefault(choice or 0, []).append(at_ns)
    for i, choice in columns.more_choices:
        times.setdefault(choice, []).append(columns.at_ns[i])
    if columns.more_choices:
        for one in times.values():
            one.sort()
    return list(times.values())
