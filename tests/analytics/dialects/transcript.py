"""Decode hand-written events by one dialect, without selection and framing detection."""

from __future__ import annotations

import json
from typing import Any

from streamgauge.analytics.decoding.accumulator import StreamAccumulator
from streamgauge.analytics.decoding.sse import SSEDecoder
from streamgauge.analytics.dialects.dialect import Dialect, ExchangeInfo
from streamgauge.analytics.dialects.events import DecodedEvent, RawEvent, as_decoded_event

OK = ExchangeInfo()


def events(*data: dict[str, Any] | str, named: bool = True) -> bytes:
    """Encode payloads as SSE; with `named`, the `type` is the event name."""
    out = []
    for item in data:
        text = item if isinstance(item, str) else json.dumps(item)
        name = f"event: {item['type']}\n" if named and isinstance(item, dict) and "type" in item else ""
        out.append(f"{name}data: {text}\n\n")
    return "".join(out).encode()


def read(dialect: Dialect, body: bytes, exchange: ExchangeInfo = OK) -> StreamAccumulator:
    """Decode a stream; events arrive at 0, 1, 2 … ms."""
    reader, found = dialect.reader(exchange), StreamAccumulator(keep_text=True)
    for index, event in enumerate(split(body)):
        event.at_ns = index * 1_000_000
        found.add_events([event], [reader.read(event.name, event.data)])
    return found


def split(body: bytes) -> list[RawEvent]:
    return SSEDecoder().feed(body, 0)


def decoded_events(dialect: Dialect, body: bytes, exchange: ExchangeInfo = OK) -> list[DecodedEvent]:
    """Decode each event on its own."""
    reader = dialect.reader(exchange)
    return [as_decoded_event(reader.read(event.name, event.data)) for event in split(body)]


def read_body(
    dialect: Dialect, body: dict[str, Any] | bytes, exchange: ExchangeInfo = OK
) -> StreamAccumulator:
    """Decode a body that was not streamed."""
    found = StreamAccumulator(keep_text=True)
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    for event in dialect.reader(exchange).read_body(data):
        found.add_event(event, None, row=False)
    return found


def tools(found: StreamAccumulator) -> list[tuple[str, str, str]]:
    """(id, name, arguments) of the calls that the client is asked to run."""
    return [(t.id, t.name, t.arguments) for t in found.first_choice.tool_calls.values() if not t.server_side]


def usage(found: StreamAccumulator) -> tuple[int | None, ...]:
    """(input, output, reasoning, cached)."""
    seen = found.usage
    assert seen is not None
    return seen.input_tokens, seen.output_tokens, seen.reasoning_tokens, seen.cached_input_tokens
