"""The official A2A SDK, client and server, through a tap: exchanges that end in different ways, in both versions and bindings."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import uvicorn
from a2a.client import Client, ClientConfig, ClientFactory
from a2a.client.errors import A2AClientError
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.events import EventQueue
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.routes import create_jsonrpc_routes, create_rest_routes
from a2a.server.tasks import InMemoryTaskStore, TaskUpdater
from a2a.types import a2a_pb2 as a2a
from a2a.utils.errors import A2AError
from starlette.applications import Starlette

from streamgauge.ingest.records import Closed
from tests.deadline import DEADLINE_S
from tests.e2e.test_mcp import rows_of
from tests.ingest.running_tap import RunningTap, running_tap

BINDINGS = [("JSONRPC", "1.0"), ("JSONRPC", "0.3"), ("HTTP+JSON", "1.0"), ("HTTP+JSON", "0.3")]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Agent(AgentExecutor):
    """Ends each task in the way that the user asks for, after an artifact in three parts."""

    def __init__(self) -> None:
        self.canceled = asyncio.Event()

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        end = context.get_user_input()
        if end == "message":
            said = [a2a.Part(text="hello")]
            await event_queue.enqueue_event(a2a.Message(message_id="m", role=a2a.ROLE_AGENT, parts=said))
            return
        submitted = a2a.TaskStatus(state=a2a.TASK_STATE_SUBMITTED)
        task = a2a.Task(id=context.task_id, context_id=context.context_id, status=submitted)
        await event_queue.enqueue_event(task)
        updater = TaskUpdater(event_queue, task.id, task.context_id)
        await updater.start_work(updater.new_agent_message([a2a.Part(text="looking")]))
        for part in range(3):
            await updater.add_artifact(
                [a2a.Part(text=f"part {part}")], artifact_id="a", append=part > 0, last_chunk=part == 2
            )
        if end == "error":
            raise RuntimeError("boom")
        if end in ("canceled", "left"):
            await (self.canceled if end == "canceled" else asyncio.Event()).wait()
        elif end == "input-required":
            await updater.requires_input(updater.new_agent_message([a2a.Part(text="which?")]))
        elif end != "hang-up":
            await {"completed": updater.complete, "failed": updater.failed, "rejected": updater.reject}[end]()

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        await TaskUpdater(event_queue, context.task_id or "", context.context_id or "").cancel()
        self.canceled.set()


def card(url: str, binding: str, version: str) -> a2a.AgentCard:
    return a2a.AgentCard(
        name="gauge", description="levels", version="1", capabilities=a2a.AgentCapabilities(streaming=True),
        default_input_modes=["text/plain"], default_output_modes=["text/plain"],
        supported_interfaces=[a2a.AgentInterface(url=url, protocol_binding=binding, protocol_version=version)],
    )  # fmt: skip


@contextlib.asynccontextmanager
async def tapped_agent(binding: str, version: str) -> AsyncIterator[tuple[RunningTap, Client]]:
    handler = DefaultRequestHandler(Agent(), InMemoryTaskStore(), card("http://agent", binding, version))
    routes = [
        *create_jsonrpc_routes(handler, "/", enable_v0_3_compat=True),
        *create_rest_routes(handler, enable_v0_3_compat=True),
    ]
    config = uvicorn.Config(
        Starlette(routes=routes), port=0, log_level="critical", timeout_graceful_shutdown=1
    )
    service = uvicorn.Server(config)
    serving = asyncio.create_task(service.serve())
    while not service.started:  # noqa: ASYNC110 - uvicorn has no event
        await asyncio.sleep(0.01)
    port = service.servers[0].sockets[0].getsockname()[1]
    try:
        async with (
            running_tap(None, upstreams=[f"http://127.0.0.1:{port}"]) as tap,
            httpx.AsyncClient(timeout=DEADLINE_S) as http,
        ):
            url = f"http://127.0.0.1:{tap.worker.address[1]}"
            options = ClientConfig(httpx_client=http, supported_protocol_bindings=[binding])
            yield tap, ClientFactory(options).create(card(url, binding, version))
    finally:
        service.should_exit = True
        await serving


def message(text: str) -> a2a.SendMessageRequest:
    return a2a.SendMessageRequest(
        message=a2a.Message(message_id=text, role=a2a.ROLE_USER, parts=[a2a.Part(text=text)])
    )


async def received(client: Client, end: str) -> list[a2a.StreamResponse]:
    """What the client receives. After the artifact it cancels the task, or leaves, if `end` says so."""
    found = []
    async with contextlib.aclosing(client.send_message(message(end))) as events:  # type: ignore[type-var]
        async for event in events:
            found.append(event)
            if event.artifact_update.last_chunk and end == "left":
                break
            if event.artifact_update.last_chunk and end == "canceled":
                await client.cancel_task(a2a.CancelTaskRequest(id=event.artifact_update.task_id))
    return found


ENDS: dict[str, tuple[str, str | None, str | None]] = {
    # what the user asks for → outcome, error type, finish reason
    "completed": ("ok", None, "completed"),
    "message": ("ok", None, None),
    "failed": ("inband_error", "failed", "failed"),
    "rejected": ("inband_error", "rejected", "rejected"),
    "input-required": ("ok", None, "input-required"),
    "canceled": ("ok", None, "canceled"),
    "error": ("inband_error", "-32603", None),
    "hang-up": ("truncated", "stream_truncated", None),
    "left": ("client_abort", "client_abort", None),
}


@pytest.mark.parametrize(("binding", "version"), BINDINGS, ids=["-".join(b) for b in BINDINGS])
async def test_exchanges_of_the_official_sdk_end_as_their_rows_say(binding: str, version: str) -> None:
    texts = {}
    async with tapped_agent(binding, version) as (tap, client):
        for end in ENDS:
            try:
                events = await received(client, end)
            except (A2AClientError, A2AError, httpx.RemoteProtocolError):
                assert end == "error"
                continue
            parts = [part for event in events for part in event.artifact_update.artifact.parts]
            texts[end] = "".join(part.text for part in parts)
        opened = len(tap.log.streams)
        await tap.wait_until(lambda: sum(isinstance(r, Closed) for r in tap.log.records) >= opened)
        await tap.stop()
        rows = rows_of(tap)
    assert {row["dialect"] for row in rows} == {"a2a"}
    (cancel,) = [row for row in rows if row["operation"] == "CancelTask"]
    assert (cancel["outcome"], cancel["streamed"], cancel["finish_reason"]) == ("ok", False, None)
    streams = [row for row in rows if row["operation"] == "SendStreamingMessage"]
    for (end, (outcome, error_type, finish)), row in zip(ENDS.items(), streams, strict=True):
        if binding == "HTTP+JSON" and end == "error":  # version 0.3 of REST has no error in a stream
            outcome, error_type = (
                (outcome, "INTERNAL") if version == "1.0" else ("upstream_reset", "upstream_reset")
            )
        assert (row["outcome"], row["error_type"], row["finish_reason"]) == (outcome, error_type, finish), end
        if end == "message":
            assert (row["event_count"], row["text_chars"]) == (1, 5)
            continue
        # The status that tells what the agent does is the first word, but no part of the answer.
        assert row["text_chars"] == len(texts.get(end, texts["completed"])) + 6 * (end == "input-required")
        assert row["ttfc_ns"] <= row["ttft_ns"] <= row["ttfo_ns"] <= row["last_output_ns"] <= row["end_ns"]
        assert row["output_event_count"] == 4 + (end == "input-required")
        assert row["response_id"] is not None


@pytest.mark.parametrize(("binding", "version"), BINDINGS, ids=["-".join(b) for b in BINDINGS])
async def test_agent_that_dies_resets_the_stream_and_the_task_can_be_read(binding: str, version: str) -> None:
    async with tapped_agent(binding, version) as (tap, client):
        task_id = (await received(client, "completed"))[-1].status_update.task_id
        assert (
            await client.get_task(a2a.GetTaskRequest(id=task_id))
        ).status.state == a2a.TASK_STATE_COMPLETED
        with contextlib.suppress(A2AClientError, A2AError):
            await client.get_task(a2a.GetTaskRequest(id="nowhere"))
        opened = len(tap.log.streams)
        await tap.wait_until(lambda: sum(isinstance(r, Closed) for r in tap.log.records) >= opened)
        await tap.stop()
        _, read, missing = rows_of(tap)
    found: list[Any] = [
        (row["outcome"], row["finish_reason"], row["output_event_count"]) for row in (read, missing)
    ]
    assert found[0] == ("ok", None, 0)
    assert found[1][0] == ("inband_error" if binding == "JSONRPC" else "http_error")
