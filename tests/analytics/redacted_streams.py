"""The records of a stream, and its rows with and without redaction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import polars as pl

from streamgauge.analytics.assembly.assembler import Assembler
from streamgauge.analytics.decoding.conversation import ConversationReader
from streamgauge.analytics.measures.measure import measure
from streamgauge.ingest.records import AnyRecord, Frames, Request, ResponseHeaders
from streamgauge.ingest.redaction.record_redactor import Redactor
from tests.analytics.stream_records import NEED_TEXT, closed, opened, stream_id

TEXT = (*NEED_TEXT, "error_message", "output_text", "reasoning_text")
MS = 1_000_000


def exchange(
    body: Sequence[bytes],
    *,
    path: str = "/v1/chat/completions",
    status: int = 200,
    headers: Sequence[tuple[str, str]] = (("content-type", "text/event-stream"),),
    request: bytes = b'{"model":"m","stream":true}',
    request_headers: Sequence[tuple[str, str]] = (),
    **more: Any,
) -> list[AnyRecord]:
    """The records of one stream with these reads as its body."""
    stream = stream_id(1)
    frames = [((10 + i) * MS, data) for i, data in enumerate(body)]
    records: list[AnyRecord] = [
        opened(stream, path=path, headers=list(request_headers), **more),
        Request(stream, 1, request, False),
    ]
    head = ResponseHeaders(status, list(headers), 5 * MS)
    for i in range(0, max(1, len(frames)), 3):
        records.append(Frames(stream, len(records), frames[i : i + 3], head if i == 0 else None))
    size = sum(map(len, body))
    records.append(closed(stream, len(records), end_ns=(20 + len(frames)) * MS, response_bytes=size))
    return records


def measured(records: list[AnyRecord], capture: Sequence[str] = ()) -> dict[str, list[dict[str, Any]]]:
    assembler = Assembler(capture=capture)
    for i, record in enumerate(records):
        assembler.feed("w0", i, [record])
    assert not assembler.take_failures()
    tables = measure(assembler.take_finished())
    return {
        name: rows.drop(TEXT, strict=False).to_dicts()
        for name, rows in tables.items()
        if isinstance(rows, pl.DataFrame)
    }


def redacted(records: list[AnyRecord]) -> list[AnyRecord]:
    made = Redactor(conversation=ConversationReader(b"")).redact(records)
    assert len(made) == len(records)
    return made


def assert_same(records: list[AnyRecord], *, reports_have_text: bool = False) -> None:
    """The rows of redacted records are those of the records, also of captured content. `reports_have_text`: a report of counts."""
    found = measured(redacted(records))
    assert found == measured(records)
    if not reports_have_text:
        assert found == measured(records, capture=("*",))
