"""Cloudflare Workers AI's own endpoint (`/ai/run/@cf/…`): {"response": "…"} a piece, a last one with `usage`, then [DONE].

`p` is padding. There is no finish reason: the usage report, which comes once and last, is the terminal. A model that speaks
OpenAI's chunks behind the same path is read by `openai_chat`, which its events call for.
"""

from __future__ import annotations

from typing import Any

import msgspec

from analytics.dialects.errors import error_event, error_from, unreadable
from analytics.dialects.openai_calls import Calls
from analytics.dialects.openai_usage import usage_of
from analytics.dialects.payload import decode_or_none, json_or_none
from analytics.dialects.shape import Delta, Exchange, Fragment, Reading


class _Event(msgspec.Struct, gc=False):
    response: str | None = None
    tool_calls: Any = None
    usage: Any = None
    error: Any = None
    errors: Any = None


_decoder = msgspec.json.Decoder(_Event)


class CloudflareRun:
    name = "cloudflare_run"
    provider = "cloudflare"
    operation = "chat"

    def claims(self, exchange: Exchange) -> int:
        return 5 if "/ai/run/" in exchange.path else 0

    def recognises(self, name: str, data: bytes) -> int:
        if name or b'"response"' not in data or b'"choices"' in data or b'"done"' in data:
            return 0
        return 6 if data.lstrip()[1:].lstrip().startswith(b'"response"') else 3

    def reader(self, exchange: Exchange) -> CloudflareReader:
        return CloudflareReader()


class CloudflareReader:
    """Reads one stream."""

    def __init__(self) -> None:
        self._calls = Calls()

    def read(self, name: str, data: bytes) -> Reading | Delta:
        event = decode_or_none(_decoder, data)
        if event is None:
            return unreadable(name, data)
        if event.error or event.errors:
            return Reading(kind="error", error=error_event(data) if event.error else error_from(event.errors))
        tools = self._calls.pieces(0, event.tool_calls)
        usage = usage_of(event.usage)
        if event.response and tools is None and usage is None:
            return Delta("text", event.response)
        fragments = [Fragment(text=event.response or "", tools=tools)] if event.response or tools else None
        return Reading(
            kind="usage" if usage else "other", fragments=fragments, usage=usage, terminal=usage is not None
        )

    def read_body(self, body: bytes) -> list[Reading]:
        whole = json_or_none(body)
        if not isinstance(whole, dict):
            return [Reading(kind="malformed")]
        result = whole.get("result")
        if not isinstance(result, dict):
            errors = whole.get("errors")
            return [Reading(kind="error", error=error_from(errors))] if errors else [Reading()]
        tools = self._calls.pieces(0, result.get("tool_calls"))
        text = result.get("response")
        fragment = Fragment(text=text if isinstance(text, str) else "", tools=tools)
        return [Reading(fragments=[fragment], usage=usage_of(result.get("usage")), terminal=True)]


DIALECT = CloudflareRun()
