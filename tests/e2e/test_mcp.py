"""The official MCP SDK, client and server, through a tap: rows of its requests."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx2
import pytest
import uvicorn
from mcp.client import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.server.mcpserver import Context, MCPServer
from mcp.shared.exceptions import MCPError
from mcp.shared.subscriptions import ToolsListChanged
from opentelemetry import trace

from streamgauge.analytics.assembly.assembler import Assembler
from streamgauge.analytics.measures.measure import measure
from streamgauge.ingest.keyed_ids import session_hash
from streamgauge.ingest.records import Closed
from tests.ingest.running_tap import RunningTap, running_tap


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def server() -> MCPServer:
    gauge = MCPServer("gauge")

    @gauge.tool()
    async def build(context: Context) -> str:
        await context.notify_tools_changed()
        return "built"

    @gauge.tool()
    async def level(river: str, context: Context) -> str:
        if river == "Styx":
            raise ValueError("nobody measures it")
        await context.report_progress(1, 2)
        return f"{river}: 2.31 m"

    return gauge


@contextlib.asynccontextmanager
async def tapped_server(
    wrapped: Callable[[Any], Any] = lambda app: app, **options: Any
) -> AsyncIterator[RunningTap]:
    app = wrapped(server().streamable_http_app(**options))
    service = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error", timeout_graceful_shutdown=1))
    serving = asyncio.create_task(service.serve())
    while not service.started:  # noqa: ASYNC110 - uvicorn has no event
        await asyncio.sleep(0.01)
    port = service.servers[0].sockets[0].getsockname()[1]
    try:
        async with running_tap(None, upstreams=[f"http://127.0.0.1:{port}"]) as tap:
            yield tap
    finally:
        service.should_exit = True
        await serving


def rows_of(tap: RunningTap) -> list[dict[str, Any]]:
    assembler = Assembler()
    for offset, record in enumerate(tap.log.records):
        assembler.feed("w0", offset, [record])
    return measure(assembler.take_finished())["streams"].sort("started_at").to_dicts()


async def session(mode: Any, **options: Any) -> list[dict[str, Any]]:
    """List the tools, call one with success and with failure, read a missing resource; then close. Returns the rows."""
    async with tapped_server(**options) as tap:
        url = f"http://127.0.0.1:{tap.worker.address[1]}/mcp"
        async with Client(streamable_http_client(url), mode=mode) as client:
            await client.list_tools()
            good = await client.call_tool("level", {"river": "Rhine"}, progress_callback=_ignore)
            assert not good.is_error
            assert (await client.call_tool("level", {"river": "Styx"})).is_error
            with pytest.raises(MCPError):
                await client.read_resource("gauge://nowhere")
        opened = len(tap.log.streams)
        await tap.wait_until(lambda: sum(isinstance(r, Closed) for r in tap.log.records) >= opened)
        await tap.stop()
        return rows_of(tap)


async def _ignore(*_: object) -> None:
    pass


LEGACY = {
    ("initialize", "ok", None),
    ("notifications/initialized", "ok", None),
    ("listen", "ok", None),
    ("tools/list", "ok", None),
    ("tools/call", "ok", None),
    ("resources/read", "inband_error", "-32602"),
    ("end_session", "ok", None),
}
CURRENT = {
    ("server/discover", "ok", None),
    ("tools/list", "ok", None),
    ("tools/call", "ok", None),
    ("resources/read", "http_error", "-32602"),
}


@pytest.mark.parametrize("json_response", [False, True], ids=["sse", "json"])
@pytest.mark.parametrize(
    ("mode", "expected"), [("legacy", LEGACY), ("auto", CURRENT)], ids=["legacy", "current"]
)
async def test_session_of_the_official_sdk_has_honest_rows(
    mode: Any, expected: set[tuple[str, str, str | None]], json_response: bool
) -> None:
    rows = await session(mode, json_response=json_response)
    assert {row["dialect"] for row in rows} == {"mcp"}
    assert {(row["operation"], row["outcome"], row["error_type"]) for row in rows} == expected
    good, failed = [row for row in rows if row["operation"] == "tools/call"]
    assert (good["tool_failure_count"], failed["tool_failure_count"]) == (0, 1)
    assert good["streamed"] is not json_response
    if good["streamed"]:
        assert good["event_count"] == 2
        assert good["terminator_ns"] <= good["end_ns"]
    assert (good["ttft_ns"], good["output_event_count"], good["request_model"]) == (None, 0, None)


TRACE_ID, CALLER = 0x0AF7651916CD43DD8448EB211C80319C, 0xB7AD6B7169203331


class Bodies:
    """Bodies of requests and responses, in the order of their beginning. A wrapper of the server, and a transport of the client."""

    def __init__(self) -> None:
        self.received: list[bytearray] = []
        self.sent: list[bytearray] = []

    def served(self, app: Any) -> Any:
        async def wrapped(scope: Any, receive: Any, send: Any) -> None:
            if scope["type"] != "http":
                await app(scope, receive, send)
                return
            self.received.append(asked := bytearray())
            self.sent.append(answered := bytearray())

            async def read() -> Any:
                message = await receive()
                asked.extend(message.get("body", b""))
                return message

            async def write(message: Any) -> None:
                answered.extend(message.get("body", b""))
                await send(message)

            await app(scope, read, write)

        return wrapped

    def transport(self) -> httpx2.AsyncHTTPTransport:
        bodies = self

        class Seen(httpx2.AsyncByteStream):
            def __init__(self, stream: Any) -> None:
                self._stream, self._seen = stream, bytearray()
                bodies.received.append(self._seen)

            async def __aiter__(self) -> AsyncIterator[bytes]:
                async for part in self._stream:
                    self._seen.extend(part)
                    yield part

            async def aclose(self) -> None:
                await self._stream.aclose()

        class Transport(httpx2.AsyncHTTPTransport):
            async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
                bodies.sent.append(bytearray(await request.aread()))
                response = await super().handle_async_request(request)
                response.stream = Seen(response.stream)
                return response

        return Transport()


@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_calls_are_unchanged_and_join_the_trace_and_the_session_of_their_caller(mode: Any) -> None:
    at_server, at_client = Bodies(), Bodies()
    span = trace.NonRecordingSpan(trace.SpanContext(TRACE_ID, CALLER, is_remote=False))
    async with tapped_server(at_server.served) as tap:
        url = f"http://127.0.0.1:{tap.worker.address[1]}/mcp"
        http = httpx2.AsyncClient(transport=at_client.transport())
        async with http, Client(streamable_http_client(url, http_client=http), mode=mode) as client:
            with trace.use_span(span):
                await client.call_tool("level", {"river": "Rhine"}, meta={"sessionID": "ses_1"})
            if mode == "auto":
                async with client.listen(tools_list_changed=True) as changes:
                    await client.call_tool("build")
                    assert isinstance(await anext(aiter(changes)), ToolsListChanged)
        opened = len(tap.log.streams)
        await tap.wait_until(lambda: sum(isinstance(r, Closed) for r in tap.log.records) >= opened)
        await tap.stop()
        rows = rows_of(tap)
    assert sorted(at_client.sent) == sorted(at_server.received)
    assert sorted(at_client.received) == sorted(at_server.sent)
    assert sorted(row["response_bytes"] for row in rows) == sorted(map(len, at_client.received))
    (call,) = [row for row in rows if row["operation"] == "tools/call" and row["parent_span_id"]]
    assert (int(call["trace_id"], 16), int(call["parent_span_id"], 16)) == (TRACE_ID, CALLER)
    assert call["session_id"] == session_hash("ses_1", b"")
    # The client lists the tools before it calls one. Nothing else is part of the caller's trace.
    joined = {row["operation"] for row in rows if int(row["trace_id"], 16) == TRACE_ID}
    assert joined == {"tools/list", "tools/call"}
    assert {row["operation"] for row in rows} > joined
    if mode == "auto":
        (listening,) = [row for row in rows if row["operation"] == "subscriptions/listen"]
        assert (listening["method"], listening["outcome"], listening["error_type"]) == ("POST", "ok", None)
