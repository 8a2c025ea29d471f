"""Spans as rows of table `spans`: a `SpanExporter` whose far end is a data frame.

Every span is kept, whatever its sampling flag says: that flag is about what leaves the machine. The rows go into the same
transaction as the rows of `streams` (`analytics.consumer`), so each span is there exactly once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import polars as pl
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from analytics.semconv import OWN
from analytics.tables import SPANS, frame

_encode = msgspec.json.Encoder(decimal_format="number").encode


class SpanTable(SpanExporter):
    """Collects spans until they are taken as rows. One owner thread; bounded by what one commit holds."""

    def __init__(self) -> None:
        self._rows: list[tuple[Any, ...]] = []

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """The spans of one stream, the operation's first: t0 and the stream's id are read from that one."""
        if not spans:
            return SpanExportResult.SUCCESS
        # The properties make copies to be safe from their callers; here nothing is changed.
        t0 = spans[0].start_time or 0
        stream_id = (spans[0]._attributes or {}).get(OWN + "stream_id")
        service = spans[0].resource.attributes.get("service.name")
        for span in spans:
            context, parent, start = span.context, span.parent, span.start_time or 0
            assert context is not None
            self._rows.append(
                (
                    f"{context.trace_id:032x}",
                    f"{context.span_id:016x}",
                    f"{parent.span_id:016x}" if parent is not None else None,
                    stream_id,
                    span.name,
                    span.kind.name.lower(),
                    start // 1000,
                    start - t0,
                    (span.end_time or start) - start,
                    span.status.status_code.name.lower(),
                    span.status.description,
                    _json({"service.name": service, **(span._attributes or {})}),
                    _json(
                        [
                            {
                                "name": e.name,
                                "at_ns": (e.timestamp or t0) - t0,
                                "attributes": e.attributes or {},
                            }
                            for e in span._events
                        ]
                    ),
                )
            )
        return SpanExportResult.SUCCESS

    def take(self) -> pl.DataFrame:
        """The rows since the last call."""
        rows, self._rows = self._rows, []
        columns = list(zip(*rows, strict=True)) if rows else [()] * len(SPANS)
        return frame(SPANS, dict(zip(SPANS, columns, strict=True)))

    def shutdown(self) -> None:
        self._rows.clear()


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
