"""Cloudflare Workers AI's own endpoint (`/ai/run/@cf/…`): {"response": "…"} events, a last one with `usage`, then [DONE].

`p` is padding. There is no finish reason: the usage report, sent once at the end, is the terminal. Models that send OpenAI's
chunks on the same path are decoded by `openai_chat`, selected by their events.

Systems:

| Cloudflare Workers AI, native | `cloudflare` | `cloudflare_run` | `/client/v4/accounts/a/ai/run/@cf/meta/m` | last event | the usage
    report |
"""

from __future__ import annotations

from typing import Any

import msgspec

from streamgauge.analytics.dialects import kept
from streamgauge.analytics.dialects.dialect import Dialect, ExchangeInfo, by_path
from streamgauge.analytics.dialects.error_bodies import error_from
from streamgauge.analytics.dialects.events import ChoiceDelta, DecodedEvent, TextDelta
from streamgauge.analytics.dialects.json_reader import Event, JSONReader
from streamgauge.analytics.dialects.openai_delta import ToolCallKeys
from streamgauge.analytics.dialects.tolerant_json import string_of
from streamgauge.analytics.dialects.usage import usage_of


class _Result(msgspec.Struct, gc=False):
    response: Any = None
    tool_calls: Any = None
    usage: kept.Report = None


class _Event(Event):
    errors: None = None
    response: str | None = None
    tool_calls: Any = None
    usage: kept.Report = None


class _Body(Event):
    errors: Any = None
    result: _Result | None = None


def _recognises(name: str, data: bytes) -> int:
    if name or b'"response"' not in data or b'"choices"' in data or b'"done"' in data:
        return 0
    return 6 if data.lstrip()[1:].lstrip().startswith(b'"response"') else 3


class CloudflareReader(JSONReader, event=_Event, body=_Body):
    """Decodes one stream."""

    def __init__(self, exchange: ExchangeInfo) -> None:
        self._calls = ToolCallKeys()

    def event(self, event: _Event, kind: str) -> DecodedEvent | TextDelta:
        if event.response and event.tool_calls is None is event.usage:
            return TextDelta("text", event.response)
        tool_calls, usage = self._calls.decode(0, event.tool_calls), usage_of(event.usage)
        deltas = [ChoiceDelta(text=event.response or "", tool_calls=tool_calls)]
        return DecodedEvent(
            "usage" if usage else "other",
            deltas if event.response or tool_calls else None,
            usage,
            terminal=usage is not None,
        )

    def body(self, whole: _Body) -> list[DecodedEvent]:
        result = whole.result
        if result is None:
            return [DecodedEvent(error=error_from(whole.errors) if whole.errors else None)]
        delta = ChoiceDelta(
            text=string_of(result.response), tool_calls=self._calls.decode(0, result.tool_calls)
        )
        return [DecodedEvent(deltas=[delta], usage=usage_of(result.usage), terminal=True)]


DIALECT = Dialect("cloudflare_run", "cloudflare", "chat", by_path(r"/ai/run/"), _recognises, CloudflareReader)
