"""Spans as rows of table `spans`: a `SpanExporter` whose far end is a data frame.

Every span is kept, whatever its sampling flag says: that flag is about what leaves the machine. The rows go into the same
transaction as the rows of `streams` (`analytics.consumer`), so each span is there exactly once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import polars as pl
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.trace import SpanKind
from opentelemetry.trace.status import StatusCode

from analytics.semconv import OWN
from analytics.tables import SPANS, frame

_KINDS = {kind: kind.name.lower() for kind in SpanKind}
_STATUSES = {code: code.name.lower() for code in StatusCode}
_encode = msgspec.json.Encoder(decimal_format="number").encode


class SpanTable(SpanExporter):
    """Collects spans, column by column, until they are taken as rows. One owner thread; bounded by what one commit holds."""

    def __init__(self) -> None:
        self._columns: dict[str, list[Any]] = {name: [] for name in SPANS}

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """The spans of one stream, the operation's first: t0 and the stream's id are read from that one."""
        if not spans:
            return SpanExportResult.SUCCESS
        # The properties make copies to be safe from their callers; here nothing is changed.
        first, count, columns = spans[0], len(spans), self._columns
        t0 = first._start_time or 0
        service = {"service.name": first.resource.attributes.get("service.name")}
        bare = _json(service)
        ids, parents, starts, lengths, attributes, events = [], [], [], [], [], []
        for span in spans:
            context, parent, start = span._context, span._parent, span._start_time or t0
            assert context is not None
            ids.append(f"{context.span_id:016x}")
            parents.append(f"{parent.span_id:016x}" if parent else None)
            starts.append(start)
            lengths.append((span._end_time or start) - start)
            attributes.append(_json({**service, **span._attributes}) if span._attributes else bare)
            events.append(_json([_told(event, t0) for event in span._events]) if span._events else "[]")
        assert first._context is not None
        columns["trace_id"] += [f"{first._context.trace_id:032x}"] * count
        columns["span_id"] += ids
        columns["parent_span_id"] += parents
        columns["stream_id"] += [(first._attributes or {}).get(OWN + "stream_id")] * count
        columns["name"] += [span._name for span in spans]
        columns["kind"] += [_KINDS[span._kind] for span in spans]
        columns["started_at"] += [start // 1000 for start in starts]
        columns["start_ns"] += [start - t0 for start in starts]
        columns["duration_ns"] += lengths
        columns["status"] += [_STATUSES[span._status.status_code] for span in spans]
        columns["status_message"] += [span._status.description for span in spans]
        columns["attributes"] += attributes
        columns["events"] += events
        return SpanExportResult.SUCCESS

    def take(self) -> pl.DataFrame:
        """The rows since the last call."""
        columns, self._columns = self._columns, {name: [] for name in SPANS}
        return frame(SPANS, columns)

    def shutdown(self) -> None:
        self._columns = {name: [] for name in SPANS}


def _told(event: Event, t0: int) -> dict[str, Any]:
    return {"name": event.name, "at_ns": (event.timestamp or t0) - t0, "attributes": event.attributes or {}}


def _json(value: Any) -> str:
    """UTF-8 that DuckDB takes: half a surrogate pair is replaced."""
    try:
        return _encode(value).decode()
    except UnicodeEncodeError:
        return _encode(_sound(value)).decode()


def _sound(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, dict):
        return {key: _sound(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_sound(item) for item in value]
    return value
