"""Spans as rows of table `spans`: a `SpanExporter` that collects rows.

All spans are stored, because the sampling flag only controls export. The rows are committed together with those of `streams`
(`streamgauge.analytics.consumer`), so each span is stored exactly once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import polars as pl
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.trace import SpanKind
from opentelemetry.trace.status import StatusCode

from streamgauge.analytics.schema.tables import SPANS, frame_of_rows
from streamgauge.analytics.telemetry.semconv import NAMESPACE
from streamgauge.analytics.telemetry.spans import UNSET, StreamSpan

_KINDS = {kind: kind.name.lower() for kind in SpanKind}
_STATUSES = {code: code.name.lower() for code in StatusCode}
_encode = msgspec.json.Encoder(decimal_format="number").encode


class SpanTable(SpanExporter):
    """Collects the rows of one commit. Not thread-safe."""

    def __init__(self) -> None:
        self._rows: list[tuple[Any, ...]] = []

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Add the `StreamSpan`s of one stream. The first is the operation's: it has t0 and the stream id."""
        if not spans:
            return SpanExportResult.SUCCESS
        # The SDK's properties return copies. Private attributes avoid that cost.
        first = spans[0]
        assert isinstance(first, StreamSpan)
        t0, stream_id = first._start_time, (first._attributes or {}).get(NAMESPACE + "stream_id")
        service = _json({"service.name": first.resource.attributes.get("service.name")})
        rows = []
        for span in spans:
            assert isinstance(span, StreamSpan)
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
        self._rows += rows
        return SpanExportResult.SUCCESS

    def take(self) -> pl.DataFrame:
        rows, self._rows = self._rows, []
        return frame_of_rows(SPANS, rows)

    def shutdown(self) -> None:
        self._rows = []


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
