"""A model server that gives every request the same answer, in OpenAI's and Anthropic's format, and notes who asked.

A request has its number in `seed` or `metadata.user_id`. The tap before the server adds a `traceparent`, so the server knows
which inner stream belongs to which number.
"""

from __future__ import annotations

import asyncio
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.deadline import DEADLINE_S
from tests.ingest.running_tap import END, SSE_HEAD, chunk, read_request

WORDS = [f"word{i} " for i in range(12)]
GAP_S = 0.02
FAILS = "fails"
"""The model that answers 429."""


@dataclass
class ModelServer:
    port: int = 0
    without_trace_port: int = 0
    """The way to a tap for gateways: it removes `traceparent`."""
    spans: dict[int, list[str]] = field(default_factory=dict)
    """Span ids of the inner streams by number, in order of arrival."""
    tap: tuple[str, int] | None = None
    """Where `without_trace_port` leads."""
    _answers: int = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head, body = await read_request(reader)
                await self._answer(head, json.loads(body), writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    async def _answer(self, head: bytes, body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        number = int(body["seed"] if "seed" in body else body["metadata"]["user_id"])
        span = re.search(rb"(?im)^traceparent: *\w+-\w+-(\w+)", head)
        self.spans.setdefault(number, []).append(span[1].decode() if span else "")
        self._answers += 1
        if body["model"] == FAILS:
            error = json.dumps({"error": {"type": "rate_limit_error", "message": "later"}}).encode()
            writer.write(
                b"HTTP/1.1 429 Too Many Requests\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s"
                % (len(error), error)
            )
            return
        writer.write(SSE_HEAD)
        events = anthropic if b"/messages" in head.split(b"\r\n", 1)[0] else openai
        for name, value in events(body["model"], f"answer-{self._answers}"):
            data = value if isinstance(value, str) else json.dumps(value)
            writer.write(chunk((f"event: {name}\n" if name else "").encode() + f"data: {data}\n\n".encode()))
            await writer.drain()
            await asyncio.sleep(GAP_S)
        writer.write(END)

    async def without_trace(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass the requests of one connection on to the tap, without `traceparent`."""
        assert self.tap is not None
        answers, requests = await asyncio.open_connection(*self.tap)
        back = asyncio.create_task(_copy(answers, writer))
        try:
            while True:
                head, body = await read_request(reader)
                requests.write(re.sub(rb"(?im)^(traceparent|tracestate):.*\r\n", b"", head) + body)
        except (asyncio.IncompleteReadError, ConnectionError):
            requests.close()
            await back


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(2**16):
            writer.write(data)
    except ConnectionError:
        pass
    writer.close()


def openai(model: str, response_id: str) -> Iterator[tuple[str, Any]]:
    base = {"id": response_id, "object": "chat.completion.chunk", "created": 1, "model": model}
    yield "", {**base, "choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]}
    for word in WORDS:
        yield "", {**base, "choices": [{"index": 0, "delta": {"content": word}}]}
    yield "", {**base, "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
    usage = {"prompt_tokens": 9, "completion_tokens": len(WORDS), "total_tokens": 9 + len(WORDS)}
    yield "", {**base, "choices": [], "usage": usage}
    yield "", "[DONE]"


def anthropic(model: str, response_id: str) -> Iterator[tuple[str, Any]]:
    message = {
        "id": response_id, "type": "message", "role": "assistant", "model": model, "content": [], "stop_reason": None,
        "stop_sequence": None, "usage": {"input_tokens": 9, "output_tokens": 1},
    }  # fmt: skip
    yield "message_start", {"type": "message_start", "message": message}
    block = {"type": "text", "text": ""}
    yield "content_block_start", {"type": "content_block_start", "index": 0, "content_block": block}
    for word in WORDS:
        delta = {"type": "text_delta", "text": word}
        yield "content_block_delta", {"type": "content_block_delta", "index": 0, "delta": delta}
    yield "content_block_stop", {"type": "content_block_stop", "index": 0}
    end = {"stop_reason": "end_turn", "stop_sequence": None}
    yield "message_delta", {"type": "message_delta", "delta": end, "usage": {"output_tokens": len(WORDS)}}
    yield "message_stop", {"type": "message_stop"}


@contextmanager
def model_server() -> Iterator[ModelServer]:
    """The server in a thread of its own."""
    server = ModelServer()
    ready, stop = threading.Event(), asyncio.Event()
    loop = asyncio.new_event_loop()

    async def run() -> None:
        answering = await asyncio.start_server(server.serve, "127.0.0.1", 0)
        passing = await asyncio.start_server(server.without_trace, "127.0.0.1", 0)
        server.port = answering.sockets[0].getsockname()[1]
        server.without_trace_port = passing.sockets[0].getsockname()[1]
        ready.set()
        await stop.wait()
        for listening in (answering, passing):
            listening.close()

    thread = threading.Thread(target=loop.run_until_complete, args=(run(),), daemon=True)
    thread.start()
    assert ready.wait(DEADLINE_S)
    try:
        yield server
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(DEADLINE_S)
