"""A client of the simulator's WebSockets: one conversation of a few answers. `events` is of either side.

A conversation is a script: it yields the messages to send, and is sent each event of the server.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from base64 import b64encode
from collections.abc import AsyncIterator, Callable, Generator
from random import Random
from typing import Any

import msgspec
from wsproto import ConnectionType, WSConnection
from wsproto.events import CloseConnection, Event, Message, Ping, RejectConnection, Request, TextMessage

READ_BYTES = 65_536
Script = Generator[list[dict[str, Any]], dict[str, Any], None]
_ENDS = {"response.completed", "response.incomplete", "response.failed", "error"}
_LOUD, _QUIET = (
    {"type": "input_audio_buffer.append", "audio": b64encode(sample * 1600).decode()}
    for sample in (b"\x10", b"\xff")
)
"""200 ms of input audio in G.711."""


def responses_script(rng: Random, body: dict[str, Any]) -> Script:
    """Sometimes a warm-up, then one to three turns."""
    previous = None
    for turn in range(rng.randint(1, 3)):
        warm_up = {"generate": False} if turn == 0 and rng.random() < 0.3 else {}
        event = yield [{**body, "type": "response.create", "previous_response_id": previous, **warm_up}]
        while event.get("type") not in _ENDS:
            event = yield []
        if "response" not in event or event["type"] == "response.failed":
            return
        previous = event["response"]["id"]


def realtime_script(rng: Random, prompt: str, tools: list[dict[str, Any]]) -> Script:
    """One to three turns, in text or speech. Some answers are interrupted by more speech or a cancellation."""
    audio = {"format": {"type": "audio/pcmu"}}
    yield []  # session.created
    modality = rng.choice(("audio", "audio", "text"))
    session: dict[str, Any] = {"type": "realtime", "tools": tools, "output_modalities": [modality]}
    update: dict[str, Any] = {"session": {**session, "audio": {"input": audio, "output": audio}}}
    event = yield [{"type": "session.update", **update}]
    asked: list[dict[str, Any]] = [_LOUD, _LOUD, *[_QUIET] * 3]
    for _ in range(rng.randint(1, 3)):
        if rng.random() < 0.5:
            content = [{"type": "input_text", "text": prompt}]
            item = {"type": "message", "role": "user", "content": content}
            asked = [{"type": "conversation.item.create", "item": item}, {"type": "response.create"}]
        event = yield asked
        interruption = rng.choice(([], [], [_LOUD, *[_QUIET] * 3], [{"type": "response.cancel"}]))
        while event.get("type") != "response.done":
            is_audio = event.get("type") == "response.output_audio.delta"
            event = yield interruption if is_audio else []
            interruption = [] if is_audio else interruption
        if event["response"]["status"] == "failed":
            return


async def events(
    protocol: WSConnection, reader: asyncio.StreamReader, write: Callable[[bytes], object]
) -> AsyncIterator[tuple[Event, int]]:
    """Whole messages and other events, each with the time of the read that completed it. Pings are answered."""
    parts = list[str | bytes]()
    while data := await reader.read(READ_BYTES):
        read_ns = time.monotonic_ns()
        protocol.receive_data(data)
        for event in protocol.events():
            if isinstance(event, Ping):
                write(protocol.send(event.response()))
            elif isinstance(event, Message):
                parts.append(event.data)
                if event.message_finished:
                    yield type(event)(parts[0][:0].join(parts)), read_ns  # type: ignore[arg-type]
                    parts = []
            else:
                yield event, read_ns


async def converse(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: Request, script: Script, *, close: bool
) -> int:  # fmt: skip
    """Have one conversation. Returns the status of the upgrade. `close`: end with a Close frame. Raises OSError and EOFError."""
    protocol = WSConnection(ConnectionType.CLIENT)
    writer.write(protocol.send(request))
    messages = next(script)
    async for event, _ in events(protocol, reader, writer.write):
        if isinstance(event, RejectConnection):
            return event.status_code
        if isinstance(event, CloseConnection):
            writer.write(protocol.send(event.response()))
            return 101
        if isinstance(event, Message):
            try:
                messages = script.send(_decoded(event.data))
            except StopIteration:
                if close:
                    writer.write(protocol.send(CloseConnection(1000)))
                return 101
        for message in messages:
            writer.write(protocol.send(TextMessage(msgspec.json.encode(message).decode())))
    raise EOFError


def _decoded(text: str | bytes) -> dict[str, Any]:
    """A malformed message, which is a fault of the simulator, is an event without members."""
    with contextlib.suppress(msgspec.DecodeError):
        return msgspec.json.decode(text, type=dict[str, Any])
    return {}
