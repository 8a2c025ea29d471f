"""Conversations of the real clients of live audio: Google's with Gemini Live, OpenAI's with GPT-Live."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
from base64 import b64encode
from typing import Any

import openai
from google import genai
from google.genai import types

GEMINI_PATH = "/ws/google.ai.generativelanguage.v1beta.GenerativeService.BidiGenerateContent"
LOUD, QUIET = (sample.to_bytes(2, "little") * 3200 for sample in (9000, 0))
"""200 ms of PCM at 16 kHz. At 24 kHz it is 133 ms."""
TOOL = types.Tool(function_declarations=[types.FunctionDeclaration(name="read_gauge")])


def headers(name: str, **forced: Any) -> dict[str, str]:
    simulate = json.dumps({"ttft_ms": 700, "gap_ms": 5, "tokens": 6, **forced})
    return {"x-request-id": name, "x-simulate": simulate, "user-agent": "voice/1"}


def gemini(url: str, sent: dict[str, str], tls: ssl.SSLContext, *, has_key: bool = True) -> genai.Client:
    """The client uses TLS for any address. Without a key, as for a gateway, `base_url` is the whole address."""
    if has_key:
        options = types.HttpOptions(base_url=url, headers=sent, async_client_args={"ssl": tls})
        return genai.Client(api_key="key-1", http_options=options)
    address = url.replace("https", "wss") + GEMINI_PATH
    options = types.HttpOptions(base_url=address, headers=sent, async_client_args={"ssl": tls})
    return genai.Client(vertexai=True, http_options=options)


async def speak(session: Any) -> None:
    """Speech of the user, and the silence that ends it."""
    for data in (LOUD, LOUD, QUIET, QUIET, QUIET):
        await session.send_realtime_input(audio=types.Blob(data=data, mime_type="audio/pcm;rate=16000"))


async def turn(session: Any, interrupt: bool = False) -> list[types.LiveServerMessage]:
    """The messages up to the end of the turn, or to a call of a tool with its usage."""
    found = list[types.LiveServerMessage]()
    async for message in session.receive():
        found.append(message)
        content = message.server_content
        if interrupt and content is not None and content.model_turn is not None:
            interrupt = False
            await speak(session)
        if message.usage_metadata is not None and (content is None or content.turn_complete):
            break
    return found


def gpt(url: str) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="sk-client", max_retries=0)


@contextlib.asynccontextmanager
async def gpt_session(url: str, sent: dict[str, str], delegation: dict[str, Any], *, compress: bool) -> Any:
    options: Any = {"compression": "deflate" if compress else None}
    async with gpt(url) as client, client.live.connect(
        extra_headers=sent, websocket_connection_options=options
    ) as connection:  # fmt: skip
        await connection.session.start(session={"model": "gpt-live-1", "delegation": delegation})  # type: ignore[typeddict-item]
        while (await connection.recv()).type != "session.started":
            pass
        yield connection


async def say(connection: Any, *parts: bytes) -> None:
    for part in parts:
        await connection.session.input_audio.append(audio=b64encode(part).decode())


async def listen(connection: Any, *, interrupt: bool = False) -> list[Any]:
    """The events until the model has been silent for three messages after its speech. `interrupt`: speak until it is silent."""
    found, silent, spoke = list[Any](), 0, False
    while silent < 3 or interrupt:
        event = await connection.recv()
        found.append(event)
        if event.type == "response.event" and event.event["type"] == "response.completed":
            calls = [
                e
                for e in found
                if e.type == "response.event" and e.event.get("item", {}).get("type") == "function_call"
            ]
            if any(e.event["type"] == "response.output_item.done" for e in calls):
                await answer_calls(connection, calls)
                found = []
        if event.type != "session.output_audio.delta":
            continue
        is_silent = not event.delta.strip("A=")
        silent = silent + 1 if is_silent and spoke else 0
        if interrupt and not is_silent and not spoke:
            await say(connection, LOUD)
        elif interrupt and is_silent and spoke:
            await say(connection, LOUD, *[QUIET] * 5)
            interrupt, spoke = False, False
            continue
        spoke |= not is_silent
    return found


async def answer_calls(connection: Any, calls: list[Any]) -> None:
    for call in {e.event["item"]["call_id"] for e in calls}:
        item = {"type": "function_call_output", "call_id": call, "output": "2.31 m"}
        await connection.response.item.create(item=item)
    await connection.response.create()


async def close(connection: Any) -> None:
    await connection.session.close()
    while (await connection.recv()).type != "session.closed":
        pass


async def closed_by_server(read: Any) -> None:
    """Read until the connection ends."""
    with contextlib.suppress(Exception):
        async with asyncio.timeout(20):
            while True:
                await read()
