"""Writer's text completions (`/v1/completions` of api.writer.com): events {"value": "…"}, nothing else, and no terminal."""

from __future__ import annotations

from typing import Any

import msgspec

from analytics.dialects.errors import error_event, unreadable
from analytics.dialects.payload import decode_or_none
from analytics.dialects.shape import Delta, Exchange, Fragment, Reading


class _Choice(msgspec.Struct):
    text: str | None = None


class _Event(msgspec.Struct):
    value: str | None = None
    model: str | None = None
    choices: list[_Choice] | None = None
    error: Any = None


_event = msgspec.json.Decoder(_Event)


class WriterCompletion:
    """The dialect; see `shape.Dialect`."""

    name = "writer_completion"
    provider = "writer"
    operation = "text_completion"

    def claims(self, exchange: Exchange) -> int:
        is_writer = exchange.host.endswith("writer.com")
        return 6 if is_writer and exchange.path.partition("?")[0].endswith("/v1/completions") else 0

    def recognises(self, name: str, data: bytes) -> int:
        return 6 if data.lstrip()[1:].lstrip().startswith(b'"value"') and b'"choices"' not in data else 0

    def reader(self, exchange: Exchange) -> WriterReader:
        return WriterReader()


class WriterReader:
    """Reads one stream."""

    def read(self, name: str, data: bytes) -> Reading | Delta:
        event = decode_or_none(_event, data)
        if event is None:
            return unreadable(name, data)
        if event.error:
            return Reading(kind="error", error=error_event(data))
        return Delta("text", event.value) if event.value else Reading(kind="other")

    def read_body(self, body: bytes) -> list[Reading]:
        whole = decode_or_none(_event, body)
        if whole is None:
            return [Reading(kind="malformed")]
        if whole.error:
            return [Reading(kind="error", error=error_event(body))]
        texts = [choice.text or "" for choice in whole.choices or []]
        fragments = [Fragment(choice=index, text=text) for index, text in enumerate(texts)]
        return [Reading(kind="text", fragments=fragments, model=whole.model or None)]


DIALECT = WriterCompletion()
