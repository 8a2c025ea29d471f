"""The official MCP SDK, client and server, through a tap: rows of its requests."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
import uvicorn
from mcp.client import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.server.mcpserver import Context, MCPServer
from mcp.shared.exceptions import MCPError

from streamgauge.analytics.assembly.assembler import Assembler
from streamgauge.analytics.measures.measure import measure
from streamgauge.ingest.records import Closed
from tests.ingest.running_tap import RunningTap, running_tap


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def server() -> MCPServer:
    gauge = MCPServer("gauge")

    @gauge.tool()
    async def level(river: str, context: Context) -> str:
        if river == "Styx":
            raise ValueError("nobody measures it")
        await context.report_progress(1, 2)
        return f"{river}: 2.31 m"

    return gauge


@contextlib.asynccontextmanager
async def tapped_server(**options: Any) -> AsyncIterator[RunningTap]:
    app = server().streamable_http_app(**options)
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
