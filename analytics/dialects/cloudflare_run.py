"""Cloudflare Workers AI's own endpoint (`/ai/run/@cf/…`): {"response": "…"} events, a last one with `usage`, then [DONE].

`p` is padding. There is no finish reason: the usage report, sent once at the end, is the terminal. Models that send OpenAI's
chunks on the same path are decoded by `openai_chat`, selected by their events.
"""

from __future__ import annotations

from typing import Any

import msgspec

from streamgauge.analytics.dialects.dialect import Dialect, DialectReader, ExchangeInfo, by_path
from streamgauge.analytics.dialects.errors import error_from, error_in_event, failed_event
from streamgauge.analytics.dialects.events import ChoiceDelta, DecodedEvent, TextDelta
from streamgauge.analytics.dialects.openai_delta import ToolCallKeys
from streamgauge.analytics.dialects.tolerant_json import decode_or_none, json_or_none, string_of
from streamgauge.analytics.dialects.usage import usage_of


class _Event(msgspec.Struct, gc=False):
    response: str | None = None
    tool_calls: Any = None
    usage: Any = None
    error: Any = None
    errors: Any = None


_decoder = msgspec.json.Decoder(_Event)


def _recognises(name: str, data: bytes) -> int:
    if name or b'"response"' not in data or b'"choices"' in data or b'"done"' in data:
        return 0
    return 6 if data.lstrip()[1:].lstrip().startswith(b'"response"') else 3


class CloudflareReader(DialectReader):
    """Decodes one stream."""

    def __init__(self, exchange: ExchangeInfo) -> None:
        self._calls = ToolCallKeys()

    def read(self, name: str, data: bytes) -> DecodedEvent | TextDelta:
        event = decode_or_none(_decoder, data)
        if event is None:
            return failed_event(None, data, name)
        if event.error or event.errors:
            return DecodedEvent(error=error_in_event(data) if event.error else error_from(event.errors))
        tool_calls = self._calls.decode(0, event.tool_calls)
        usage = usage_of(event.usage)
        if event.response and tool_calls is None and usage is None:
            return TextDelta("text", event.response)
        event_deltas = [ChoiceDelta(text=event.response or "", tool_calls=tool_calls)]
        has_output = event.response or tool_calls
        return DecodedEvent(
            "usage" if usage else "other",
            event_deltas if has_output else None,
            usage,
            terminal=usage is not None,
        )

    def read_body(self, body: bytes) -> list[DecodedEvent]:
        whole = json_or_none(body)
        if not isinstance(whole, dict):
            return [DecodedEvent(kind="malformed")]
        result = whole.get("result")
        if not isinstance(result, dict):
            errors = whole.get("errors")
            return [DecodedEvent(kind="error", error=error_from(errors))] if errors else [DecodedEvent()]
        tool_calls = self._calls.decode(0, result.get("tool_calls"))
        text = result.get("response")
        delta = ChoiceDelta(text=string_of(text), tool_calls=tool_calls)
        return [DecodedEvent(deltas=[delta], usage=usage_of(result.get("usage")), terminal=True)]


DIALECT = Dialect("cloudflare_run", "cloudflare", "chat", by_path(r"/ai/run/"), _recognises, CloudflareReader)
