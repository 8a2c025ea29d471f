"""Build the OpenTelemetry spans of a finished stream: the operation and one child per phase. Pure: no I/O, no clock.

Rules
- The operation span has the ids that the tap put into `traceparent`, so the gateway's spans are its children and the caller's
  span is its parent. Span ids of phases derive from the stream id, so a replay builds the same spans.
- The start is t0 on the tap's wall clock. All other times are t0 plus a duration of the tap's monotonic clock.
- Status is Error, with `error.type`, only if the upstream failed. The outcomes `NOT_COUNTED` are not errors.
- Attributes come from the row of `streams` (`streamgauge.analytics.telemetry.span_attributes`).
- Stalls and tool calls are bounded by `MAX_STALLS` and `MAX_TOOL_CALLS`. An attribute has the number of omitted ones.
- `span_rows` turns all spans into rows of `spans`, because the sampling flag only controls export. They are committed together
  with the rows of `streams` (`streamgauge.analytics.consumer`), so each span is stored exactly once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from operator import itemgetter
from typing import Any

import msgspec
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, TraceFlags
from opentelemetry.trace.status import Status, StatusCode

from streamgauge.analytics.assembly.finished_stream import FinishedStream
from streamgauge.analytics.decoding.decoded_body import DecodedBody
from streamgauge.analytics.decoding.stream_output import ToolCall
from streamgauge.analytics.measures import stream_latency
from streamgauge.analytics.measures.outcome import LOST
from streamgauge.analytics.schema.stall_limit import StallLimit
from streamgauge.analytics.telemetry.semconv import NAMESPACE, Names
from streamgauge.analytics.telemetry.span_attributes import Attributes, Row, SpanAttributes, failed

MAX_STALLS = 32
MAX_TOOL_CALLS = 32
MIN_LINGER_NS = 1_000_000
"""Shorter times from the terminal to the end of the connection are normal."""
SCOPE = "streamgauge"
_DEFAULT_STALL = StallLimit()

UNSET = Status(StatusCode.UNSET)
"""The status of a span that did not fail."""
Mark = tuple[int, str, Attributes]
"""A span event: ns since the span's start, name, attributes."""
_at = itemgetter(0)


class StreamSpan(ReadableSpan):
    """An SDK span that keeps its ids as hex text.

    `SpanContext`s and `Event`s are created only when an exporter reads them. The table does not need them, and creating them
    costs more than the rest of the span.
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
        """`ids`: trace, span, parent (each as from `hex_id`), trace flags. `times_ns`: start and end."""
        self._name, self._ids, self._kind = name, ids, kind
        self._start_time, self._end_time = times_ns
        self._attributes, self._status = attributes, status
        self._resource, self._instrumentation_scope = source
        self.marks = marks
        """Span events by time."""

    @property
    def ids(self) -> tuple[str, str, str | None]:
        """Ids of the trace, the span and its parent, in hex."""
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
        # The parent of the operation is the caller's span. The parent of a phase is our operation span.
        remote = self._kind is SpanKind.CLIENT
        return SpanContext(int(trace_id, 16), int(parent_id, 16), remote, TraceFlags(flags))

    @property
    def _events(self) -> Sequence[Event]:  # type: ignore[override]
        return [Event(name, more, self._start_time + at_ns) for at_ns, name, more in self.marks]


class SpanBuilder:
    """Builds the spans of streams. `stall` is the limit that they were measured with."""

    def __init__(
        self,
        names: Names,
        resource: Resource,
        *,
        version: str = "",
        stall: StallLimit = _DEFAULT_STALL,
        content: bool = False,
    ) -> None:
        self._names = names
        self._attributes = SpanAttributes(names, content=content).of
        self._resource = resource
        self._scope = InstrumentationScope(SCOPE, version or None, names.schema_url)
        self._stall = stall

    def build(self, stream: FinishedStream, row: Row) -> list[StreamSpan]:
        """The spans of one stream, the operation's first. A stream without `Opened` has no ids and no spans."""
        trace_id, span_id = hex_id(row["trace_id"], 32), hex_id(row["span_id"], 16)
        if trace_id is None or span_id is None:
            return []
        t0, end_ns = stream.started_wall_ns, _end_ns(stream, row)
        flags, resource, scope = row["trace_flags"] or 0, self._resource, self._scope
        attributes = self._attributes(stream, row)
        marks = self._marks(stream, row, attributes)
        tool = stream.conversation.tool if stream.conversation is not None else None
        operation = StreamSpan(
            " ".join(filter(None, (row["operation"] or "request", row["request_model"] or tool))),
            (trace_id, span_id, hex_id(row["parent_span_id"], 16), flags),
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
        body = stream.body
        if body is None:
            return []
        marks: list[Mark] = []

        def mark(at_ns: int | None, name: str, more: Attributes | None = None) -> None:
            if at_ns is not None:
                marks.append((at_ns, NAMESPACE + name, more or {}))

        columns = body.events
        mark(stream_latency.first_event_ns(columns), "first_chunk")
        if body.columns["reasoning_chars"]:
            mark(_time_of("reasoning", columns.kind, columns.at_ns), "first_reasoning")
        mark(stream_latency.first_nonreasoning_output_ns(columns), "first_output")
        mark(body.audio.first_ns, "first_audio")
        tools = _tool_calls(body)
        if tools and row["outcome"] != LOST.outcome:
            for tool in tools[:MAX_TOOL_CALLS]:
                mark(tool.began_ns, "tool_call", {self._names.tool_name: tool.name} if tool.name else None)
            if len(tools) > MAX_TOOL_CALLS:
                attributes[NAMESPACE + "tool_calls_not_shown"] = len(tools) - MAX_TOOL_CALLS
        waits = stream_latency.output_waits(columns, stream.closed)
        median_gap_ns = row["icl_p50_ns"]
        if median_gap_ns is not None and (row["stall_count"] or waits):
            stalls = stream_latency.stalls_of(columns, median_gap_ns, self._stall, waits)
            for at_ns, gap_ns, cause, _ in stalls[:MAX_STALLS]:
                more = {NAMESPACE + "stall.duration": gap_ns / 1e9, NAMESPACE + "stall.cause": cause}
                mark(at_ns, "stall", more)
            if len(stalls) > MAX_STALLS:
                attributes[NAMESPACE + "stalls_not_shown"] = len(stalls) - MAX_STALLS
        if body.error is not None:
            mark(body.error_ns, "error", {"error.type": row["error_type"] or "error"})
        mark(body.terminal_ns, "terminal")
        marks.sort(key=_at)
        return marks

    # -- phases ------------------------------------------------------------------------------------------------------

    def _phases_of(
        self, stream: FinishedStream, row: Row, end_ns: int
    ) -> list[tuple[str, int, int, Attributes]]:
        """(name, start, end, attributes) of each phase, in their usual order."""
        found: list[tuple[str, int, int, Attributes]] = []

        def add(name: str, start_ns: int, stop_ns: int | None, more: Attributes | None = None) -> None:
            if stop_ns is not None and stop_ns >= start_ns:
                found.append((name, start_ns, stop_ns, more or {}))

        connected, headers = row["connected_ns"], row["headers_ns"]
        if stream.opened is not None and stream.opened.connection_id is not None:
            headers = (
                0  # an answer on a WebSocket begins on an open connection, and has no headers of its own
            )
        else:
            if connected is not None or row["outcome"] == "connect_error":
                add("connect", 0, connected if connected is not None else end_ns)
            if connected is not None or headers is not None:
                add("wait for headers", connected or 0, headers if headers is not None else end_ns)
        body = stream.body
        if body is None or row["outcome"] == LOST.outcome or headers is None or not row["streamed"]:
            return found
        columns = body.events
        first, last = stream_latency.first_output_ns(columns), stream_latency.last_output_ns(columns)
        add("wait for first output", headers, first if first is not None else body.terminal_ns or end_ns)
        if body.dialect.startswith("lmstudio"):
            loading = [
                at
                for at, n in zip(columns.at_ns, columns.event_name, strict=True)
                if (n or "").startswith("model_load.")
            ]
            if loading:
                add("model load", loading[0], loading[-1])
        began = (
            _time_of("reasoning", columns.kind, columns.at_ns) if body.columns["reasoning_chars"] else None
        )
        if began is not None:
            add("reasoning", began, _time_of("reasoning", columns.kind[::-1], columns.at_ns[::-1]))
        output_ns = stream_latency.first_nonreasoning_output_ns(columns)
        if output_ns is not None:
            add("output", output_ns, last)
        for tool in _tool_calls(body)[:MAX_TOOL_CALLS]:
            if tool.began_ns is not None:
                more = {self._names.tool_name: tool.name, self._names.tool_call_id: tool.id}
                kept = {name: value for name, value in more.items() if value}
                add(f"tool call {tool.name}".rstrip(), tool.began_ns, tool.last_ns, kept)
        terminal = body.terminal_ns
        if terminal is not None and end_ns - terminal >= MIN_LINGER_NS:
            add("linger", terminal, end_ns)
        return found


def hex_id(text: str | None, digits: int) -> str | None:
    """A normalized id (lower-case hex with leading zeros). None for no id, including all zeros."""
    number = int(text, 16) if text else 0
    spelled = f"{number:0{digits}x}"
    return spelled if number > 0 and len(spelled) == digits else None


def _phase_ids(stream_id: str, count: int) -> list[str]:
    digits, name = "", stream_id.encode()
    for number in range(0, count, 8):
        digits += hashlib.blake2b(name, digest_size=64, salt=number.to_bytes(16, "big")).hexdigest()
    return [digits[i : i + 16] for i in range(0, 16 * count, 16)]


def _end_ns(stream: FinishedStream, row: Row) -> int:
    """The end of the exchange, else the last known time."""
    end_ns: int | None = row["end_ns"]
    if end_ns is not None:
        return max(0, end_ns)
    at_ns = stream.body.events.at_ns if stream.body is not None else ()
    return max(0, *at_ns[-1:], row["headers_ns"] or 0)


def _status(row: Row) -> Status:
    if not failed(row):
        return UNSET
    return Status(StatusCode.ERROR, row["error_message"] or row["error_type"] or row["outcome"])


def _tool_calls(body: DecodedBody) -> Sequence[ToolCall]:
    """The tool calls of a response. Empty if the provider runs all of them: `tool_call_count` does not count those."""
    return body.tool_times if body.columns["tool_call_count"] else ()


def _time_of(kind: str, kinds: Sequence[str], at_ns: Sequence[int]) -> int | None:
    """Time of the first event of this kind."""
    return at_ns[kinds.index(kind)] if kind in kinds else None


_KINDS = {kind: kind.name.lower() for kind in SpanKind}
_STATUSES = {code: code.name.lower() for code in StatusCode}
_encode = msgspec.json.Encoder(decimal_format="number").encode


def span_rows(spans: Sequence[StreamSpan]) -> list[tuple[Any, ...]]:
    """The spans of one stream as rows of table `spans`. The first is the operation's: it has t0 and the stream id."""
    if not spans:
        return []
    # The SDK's properties return copies. Private attributes avoid that cost.
    first = spans[0]
    t0, stream_id = first._start_time, (first._attributes or {}).get(NAMESPACE + "stream_id")
    service = _json({"service.name": first.resource.attributes.get("service.name")})
    rows = []
    for span in spans:
        start, status, attributes, marks = span._start_time, span._status, span._attributes, span.marks
        rows.append(
            (
                *span.ids,
                stream_id,
                span._name,
                "internal" if span._kind is SpanKind.INTERNAL else _KINDS[span._kind],
                start // 1000,
                start - t0,
                span._end_time - start,
                "unset" if status is UNSET else _STATUSES[status.status_code],
                status.description,
                f"{service[:-1]},{_json(attributes)[1:]}" if attributes else service,
                _json([{"name": name, "at_ns": at_ns, "attributes": more} for at_ns, name, more in marks])
                if marks
                else "[]",
            )
        )
    return rows


def _json(value: Any) -> str:
    """JSON as valid UTF-8: unpaired surrogates are replaced."""
    try:
        return _encode(value).decode()
    except UnicodeEncodeError:
        return _encode(_valid_utf8(value)).decode()


def _valid_utf8(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, dict):
        return {key: _valid_utf8(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_valid_utf8(item) for item in value]
    return value
