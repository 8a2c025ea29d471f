"""Spans received over OTLP: parsed, reduced to what may be stored, and queued for the next commit.

Rules
1. Stored are ids, name, kind, times, status code, `service.name`, the scope's name and allow-listed attributes (`KEYS`: names,
   sizes, settings, addresses and kinds from the GenAI, HTTP and server conventions, old and new). Status messages, events,
   links, trace state and all other attributes are dropped, because they can contain prompts and responses. `status_message` and
   `stream_id` are NULL.
2. The value of an attribute is a number, a boolean, an identifier, or a list of up to `MAX_WORDS` names. Text is hashed and paths
   lose their secrets, as in `streamgauge.ingest.identifiers`.
3. A span with invalid ids or times is rejected and counted. The rest of its request is stored.
4. Times are the sender's. A span more than an hour in the future is rejected, because retention would never delete it.
5. A span whose ids are already stored is skipped (`stored_once`): senders retry, and our own spans can return through a collector.
"""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Callable
from typing import Any

import duckdb
import msgspec
import polars as pl
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from streamgauge.analytics.intake.commit_queue import CommitQueue, stored_once
from streamgauge.analytics.intake.otlp_messages import AHEAD_NS, Received, Row, parse, scalar, service
from streamgauge.analytics.schema.tables import SPANS
from streamgauge.analytics.telemetry.semconv import SERVER_LATENCIES, WITHOUT_CONTENT
from streamgauge.analytics.telemetry.spans import hex_id
from streamgauge.ingest import identifiers

_LONGEST_NS = 2**63 - 1
_KINDS = ("internal", "internal", "server", "client", "producer", "consumer")
_STATUSES = ("unset", "ok", "error")


def parse_spans(body: bytes, *, is_json: bool, now_ns: int, max_items: int) -> Received:
    """The rows of an uncompressed request body, at most `max_items`. Raises NotOtlp."""
    found = Received()
    for resource_spans in parse(body, ExportTraceServiceRequest, is_json=is_json).resource_spans:
        name = service(resource_spans.resource.attributes)
        for scope_spans in resource_spans.scope_spans:
            source = {"service.name": name}
            if scope := identifiers.title(scope_spans.scope.name):
                source["otel.scope.name"] = scope
            for span in scope_spans.spans:
                if len(found.rows) >= max_items:
                    found.rejected[f"more than {max_items} spans in one request"] += 1
                    continue
                row = _row(span, source, is_json, now_ns)
                if isinstance(row, str):
                    found.rejected[row] += 1
                else:
                    found.rows.append(row)
    return found


def _row(span: Span, source: dict[str, str], is_json: bool, now_ns: int) -> Row | str:
    """The row of a span, or the reason for rejecting it."""
    trace_id, span_id = _id(span.trace_id, is_json, 32), _id(span.span_id, is_json, 16)
    if trace_id is None or span_id is None:
        return "with invalid ids"
    start_ns, end_ns = span.start_time_unix_nano, span.end_time_unix_nano
    if not 0 < start_ns <= now_ns + AHEAD_NS or end_ns > _LONGEST_NS:
        return "with invalid or future times"
    attributes: dict[str, Any] = dict(source)
    for attribute in span.attributes:
        value = kept_value(attribute.key, attribute.value)
        if value is not None and not (isinstance(value, float) and not math.isfinite(value)):
            attributes[attribute.key] = value
    kind, status = span.kind, span.status.code
    return (
        trace_id,
        span_id,
        _id(span.parent_span_id, is_json, 16),
        None,
        identifiers.title(span.name) or "(no name)",
        _KINDS[kind] if 0 <= kind < len(_KINDS) else "internal",
        start_ns // 1000,
        0,
        max(0, end_ns - start_ns),
        _STATUSES[status] if 0 <= status < len(_STATUSES) else "unset",
        None,
        msgspec.json.encode(attributes).decode(),
        "[]",
    )


def _id(raw: bytes, is_json: bool, digits: int) -> str | None:
    """An id in hex, None if it is invalid. In OTLP's JSON, ids are hex, but protobuf's JSON parser decodes them as base64."""
    try:
        text = (base64.b64encode(raw) if is_json else raw.hex().encode()).decode().lower()
        return hex_id(text, digits) if len(text) == digits else None
    except (binascii.Error, ValueError):
        return None


QUEUE_SPANS = 20_000
"""A few seconds of a busy gateway, usually below 2 KiB each, so 40 MB."""


def span_queue(
    new_cursor: Callable[[], duckdb.DuckDBPyConnection], *, max_spans: int = QUEUE_SPANS,
    on_stored: Callable[[pl.DataFrame], None] = lambda rows: None,
) -> CommitQueue[Row]:  # fmt: skip
    """The queue of received spans. `new_cursor` returns a new connection to the store's tables."""
    counters = ("received", "stored", "doubled", "refused", "turned_away")
    return CommitQueue(
        SPANS.name,
        stored_once(SPANS, new_cursor),
        name="otlp",
        counters=counters,
        max_items=max_spans,
        on_stored=on_stored,
    )


MAX_WORDS = 16

_PATHS = frozenset({"url.path", "http.target", "http.route"})
KEYS = _PATHS | WITHOUT_CONTENT | {*SERVER_LATENCIES} | {
    "error.type", "http.method", "http.request.body.size", "http.request.method", "http.request.resend_count",
    "http.response.body.size", "http.response.status_code", "http.status_code", "net.peer.name", "net.peer.port",
    "network.protocol.name", "network.protocol.version", "rpc.grpc.status_code", "rpc.method", "rpc.service", "rpc.system",
    "server.address", "server.port", "url.scheme", "anthropic.request.id",
}  # fmt: skip
"""Kept attribute keys. `service.name` and `otel.scope.name` come from the resource and the scope."""


def kept_value(key: str, value: AnyValue) -> Any:
    """The stored value of an attribute, None if it is dropped."""
    if key not in KEYS:
        return None
    if value.WhichOneof("value") == "array_value":
        words = [identifiers.name(one.string_value) for one in value.array_value.values[:MAX_WORDS]]
        return words if all(words) else None
    found = scalar(value)
    if not isinstance(found, str):
        return found
    if key in _PATHS:
        return identifiers.path(found).partition("?")[0] or None
    return identifiers.identifier(found) if key.endswith(".id") else identifiers.name(found)
