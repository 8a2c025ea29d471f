"""A finished stream as OpenTelemetry spans: the operation, and a child for each of its phases. Pure: no I/O, no clock.

Rules
- The operation's span has the ids that the tap put into `traceparent`, so the gateway's own spans are its children and the
  caller's span is its parent. Phases have ids made from the stream's id: a replay makes the same spans again.
- Start is t0 on the tap's wall clock; every other time is that plus a length of the tap's monotonic clock.
- Status is Error, and `error.type` set, only where the upstream failed: a client that left and a tap that died
  (`client_abort`, `tap_lost`) are outcomes, not the operation's errors.
- Attributes are what the row of `streams` says, under the conventions' names (`analytics.semconv`) or `streamgauge.*`; what is
  NULL there is absent here. Text is only ever told when it was captured and content was asked for.
- Numbers are bounded: `MAX_STALLS`, `MAX_TOOL_CALLS`; how many were left out stands in an attribute.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Sequence

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, TraceFlags
from opentelemetry.trace.status import Status, StatusCode

from analytics import span_attributes
from analytics.dialects.shape import OUTPUT_KINDS
from analytics.semconv import OWN, Names
from analytics.span_attributes import MAX_WORD_CHARS, Attributes, Row, SpanAttributes, failed
from analytics.stream import FinishedStream
from analytics.tally import EventColumns

MAX_STALLS = 32
MAX_TOOL_CALLS = 32
MIN_LINGER_NS = 1_000_000
"""Below this a connection that stays open after the terminal is just how it is closed."""
SCOPE = "streamgauge"

_UNSET = Status(StatusCode.UNSET)
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
        phases: bool = True,
    ) -> None:
        self._names = names
        self._attributes = SpanAttributes(names, content=content).of
        self._resource = resource
        self._scope = InstrumentationScope(SCOPE, version or None, names.schema_url)
        self._stall = (stall_floor_ns, stall_factor)
        self._phases = phases

    def build(self, stream: FinishedStream, row: Row) -> list[ReadableSpan]:
        """The spans of one stream, the operation's first; none for a stream whose `Opened` was lost: it has no ids."""
        context = _context(row.get("trace_id"), row.get("span_id"), row.get("trace_flags"))
        if context is None:
            return []
        t0 = stream.started_wall_ns
        end_ns = _end_ns(stream, row)
        attributes = self._attributes(stream, row)
        operation = self._span(
            " ".join(filter(None, (row.get("operation") or "request", row.get("request_model")))),
            context,
            _context(row.get("trace_id"), row.get("parent_span_id"), row.get("trace_flags"), remote=True),
            SpanKind.CLIENT,
            (t0, t0 + end_ns),
            attributes,
            self._events(stream, row, t0, attributes),
            _status(row),
        )
        if not self._phases:
            return [operation]
        spans = [operation]
        phases = self._phases_of(stream, row, end_ns)
        for phase_id, (name, start_ns, stop_ns, more) in zip(
            _phase_ids(stream.stream_id, len(phases)), phases, strict=True
        ):
            own = SpanContext(context.trace_id, phase_id, False, context.trace_flags)
            spans.append(
                self._span(name, own, context, SpanKind.INTERNAL, (t0 + start_ns, t0 + stop_ns), more)
            )
        return spans

    def _span(
        self,
        name: str,
        context: SpanContext,
        parent: SpanContext | None,
        kind: SpanKind,
        times: tuple[int, int],
        attributes: Attributes,
        events: Sequence[Event] = (),
        status: Status = _UNSET,
    ) -> ReadableSpan:
        return ReadableSpan(
            name,
            context,
            parent,
            self._resource,
            attributes,
            events,
            (),
            kind,
            None,
            status,
            *times,
            self._scope,
        )

    # -- events of the operation's span ------------------------------------------------------------------------------

    def _events(self, stream: FinishedStream, row: Row, t0: int, attributes: Attributes) -> list[Event]:
        decoder = stream.decoder
        if decoder is None:
            return []
        marks: list[tuple[int, str, Attributes | None]] = []

        def mark(at_ns: int | None, name: str, more: Attributes | None = None) -> None:
            if at_ns is not None:
                marks.append((at_ns, OWN + name, more))

        columns = decoder.events
        mark(decoder.first_event_ns, "first_chunk")
        if decoder.reasoning_seen:
            mark(_first(columns, "reasoning"), "first_reasoning")
        mark(decoder.first_nonreasoning_output_ns, "first_output")
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
        marks.sort(key=lambda m: m[0])
        return [Event(name, more or {}, t0 + at_ns) for at_ns, name, more in marks]

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
        first, last = decoder.first_output_ns, decoder.last_output_ns
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
        spoken = decoder.first_nonreasoning_output_ns
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


def _context(
    trace_id: str | None, span_id: str | None, flags: int | None, *, remote: bool = False
) -> SpanContext | None:
    if not trace_id or not span_id:
        return None
    context = SpanContext(int(trace_id, 16), int(span_id, 16), remote, TraceFlags(flags or 0))
    return context if context.is_valid else None


def _phase_ids(stream_id: str, count: int) -> list[int]:
    blocks = (
        hashlib.blake2b(stream_id.encode(), digest_size=64, salt=number.to_bytes(16, "big")).digest()
        for number in range(0, count, 8)
    )
    digest = b"".join(blocks)
    return [int.from_bytes(digest[i : i + 8], "big") or 1 for i in range(0, 8 * count, 8)]


def _end_ns(stream: FinishedStream, row: Row) -> int:
    """tE, else the last that is known of it."""
    end_ns: int | None = row.get("end_ns")
    if end_ns is not None:
        return max(0, end_ns)
    last = stream.decoder.last_event_ns if stream.decoder is not None else None
    return max(0, last or 0, row.get("headers_ns") or 0)


def _status(row: Row) -> Status:
    if not failed(row):
        return _UNSET
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
    """(when it began, length) of the gaps that `analytics.measure` counts as stalls."""
    limit = max(floor_ns, factor * median_ns)
    pairs = (pair for one in output_times(columns) for pair in itertools.pairwise(one))
    return sorted((a, b - a) for a, b in pairs if b - a > limit)


def output_times(columns: EventColumns) -> list[list[int]]:
    """When the output events of each choice came, in order, ns."""
    if not columns.more_choices and not any(columns.choice):  # nearly always
        kinds_and_times = zip(columns.kind, columns.at_ns, strict=True)
        return [[at_ns for kind, at_ns in kinds_and_times if kind in OUTPUT_KINDS]]
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
