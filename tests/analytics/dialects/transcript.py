"""Let one dialect read a hand-written transcript, and say what it found in plain values."""

from __future__ import annotations

import json
from typing import Any

from analytics.decoding.accumulator import Tally
from analytics.decoding.sse import Event, SSEDecoder
from analytics.dialects.shape import Dialect, Exchange, Reading, in_full

OK = Exchange()


def events(*data: dict[str, Any] | str, named: bool = True) -> bytes:
    """SSE bytes of these payloads; an event is named by its `type` if `named`."""
    out = []
    for item in data:
        text = item if isinstance(item, str) else json.dumps(item)
        name = f"event: {item['type']}\n" if named and isinstance(item, dict) and "type" in item else ""
        out.append(f"{name}data: {text}\n\n")
    return "".join(out).encode()


def read(dialect: Dialect, body: bytes, exchange: Exchange = OK) -> Tally:
    """The stream as this dialect alone reads it; event i arrives at i ms."""
    reader, tally = dialect.reader(exchange), Tally(keep_text=True)
    for index, event in enumerate(split(body)):
        event.at_ns = index * 1_000_000
        tally.add_events([event], [reader.read(event.name, event.data)])
    return tally


def split(body: bytes) -> list[Event]:
    return SSEDecoder().feed(body, 0)


def readings(dialect: Dialect, body: bytes, exchange: Exchange = OK) -> list[Reading]:
    """Each answer as a full reading."""
    reader = dialect.reader(exchange)
    return [in_full(reader.read(event.name, event.data)) for event in split(body)]


def read_body(dialect: Dialect, body: dict[str, Any] | bytes) -> Tally:
    """A non-streamed body."""
    tally = Tally(keep_text=True)
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    for reading in dialect.reader(OK).read_body(data):
        tally.add(reading, None, row=False)
    return tally


def tools(tally: Tally) -> list[tuple[str, str, str]]:
    """(id, name, arguments) of the calls that the client is asked to run."""
    return [(t.id, t.name, t.arguments) for t in tally.first_choice.tools.values() if not t.server]


def usage(tally: Tally) -> tuple[int | None, ...]:
    """(input, output, reasoning, cached)."""
    seen = tally.usage
    assert seen is not None
    return seen.input_tokens, seen.output_tokens, seen.reasoning_tokens, seen.cached_input_tokens
