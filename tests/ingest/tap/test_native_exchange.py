"""Which exchanges end in native code, and that all others continue in Python."""

from __future__ import annotations

import asyncio
import dataclasses
import socket
from typing import Any

import msgspec
import pytest

from streamgauge.ingest.records import AnyRecord
from streamgauge.ingest.tap.connections import client_connection
from streamgauge.ingest.tap.connections.upstream_connection import UpstreamConnection
from streamgauge.ingest.tap.exchanges.exchange import Exchange
from streamgauge.ingest.tap.relay import choice as relay_choice
from tests.ingest.running_tap import (
    Client,
    Script,
    assert_complete,
    body_of,
    read_request,
    request_of,
    respond_with,
)
from tests.ingest.running_tap import running_tap as run

pytestmark = pytest.mark.skipif(relay_choice.native_relay is None, reason="the native relay is not built")
if relay_choice.native_relay is not None:
    from streamgauge.ingest.tap.exchanges import native_exchange

GET = b"GET /v1/models HTTP/1.1\r\nHost: h\r\n\r\n"
POST = b'POST /v1/embeddings HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\nContent-Length: 13\r\n\r\n{"model":"m"}'
HEAD_REQUEST = b"HEAD / HTTP/1.1\r\nHost: h\r\n\r\n"
OK = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"


@dataclasses.dataclass
class Seen:
    """Exchanges in Python: those that started there, and those that continued there."""

    started: list[Exchange] = dataclasses.field(default_factory=list)
    continued: list[Exchange] = dataclasses.field(default_factory=list)

    @property
    def counts(self) -> tuple[int, int]:
        return len(self.started), len(self.continued)


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Seen:
    found = Seen()

    def watch(module: object, exchanges: list[Exchange]) -> None:
        class Watched(Exchange):
            def __init__(self, *args: Any) -> None:
                super().__init__(*args)
                exchanges.append(self)

        monkeypatch.setattr(module, "Exchange", Watched)

    watch(client_connection, found.started)
    watch(native_exchange, found.continued)
    return found


def comparable(records: list[AnyRecord]) -> list[Any]:
    """Records without identifiers, times and ports; of times only whether they are known."""
    opened, *others, closed = [msgspec.structs.asdict(record) for record in records]
    kept = ("method", "path", "headers", "query_model", "client_id", "trace_flags", "parent_span_id")
    bodies = [request_of(records) and request_of(records).body, body_of(records), len(others)]
    ending = {name: value is None if name.endswith("_ns") else value for name, value in closed.items()}
    return [{name: opened[name] for name in kept}, bodies, {**ending, "stream": None}]


async def exchange_twice(request: bytes, relay: str) -> list[list[AnyRecord]]:
    """Two exchanges on one connection: the second finds an idle upstream connection."""
    async with run(respond_with(OK, OK), relay=relay) as tap:
        client = await tap.client()
        for _ in range(2):
            await client.send(request)
            assert (await client.response())[1] == b"{}"
        assert tap.worker.counters.upstream_reuses == 1
        assert not tap.worker.context.exchanges
        return await tap.records(2)


@pytest.mark.parametrize("request_", [GET, POST])
async def test_short_exchange_ends_in_native_code_with_the_same_records(request_: bytes, seen: Seen):
    [first, second] = await exchange_twice(request_, "native")
    assert seen.counts == (1, 0)
    assert_complete(second)
    assert body_of(second) == b"{}"
    assert (request_of(second) is not None) == (request_ == POST)
    assert second[-1].reused_connection
    [first_in_python, second_in_python] = await exchange_twice(request_, "python")
    assert comparable(first) == comparable(first_in_python)
    assert comparable(second) == comparable(second_in_python)


async def second_response(first: Client, request: bytes, **how: bool) -> tuple[bytes, bytes]:
    await first.send(GET)
    await first.response()
    await first.send(request)
    return await first.response(**how)


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"


@pytest.mark.parametrize(
    ("request_", "response", "cause"),
    [
        (GET, HEAD + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n", "complete"),
        (GET, HEAD + b"Content-Length: 2\r\nConnection: close\r\n\r\n{}", "complete"),
        (GET, HEAD + b"Content-Length: 2\r\nContent-Length: 2\r\n\r\n{}", "complete"),
        (GET, b"HTTP/1.1 100 Continue\r\n\r\n" + OK, "complete"),
        (GET, b"HTTP/1.1 204 No Content\r\n\r\n", "complete"),
        (GET, OK + b"HTTP/1.1 200 excess", "complete"),
        (HEAD_REQUEST, HEAD + b"Content-Length: 2\r\n\r\n", "complete"),
        (GET, b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n{}", "bad_upstream"),
        (GET, b"HTTP/2 what\r\n\r\n", "bad_upstream"),
    ],
)
async def test_unusual_response_continues_in_python(request_: bytes, response: bytes, cause: str, seen: Seen):
    async with run(respond_with(OK, response), relay="native") as tap:
        client = await tap.client()
        head, _ = await second_response(client, request_, head_only=request_.startswith(b"HEAD"))
        assert head.startswith(b"HTTP/1.1 502" if cause == "bad_upstream" else response[:12])
        [_, records] = await tap.records(2)
    assert seen.counts == (1, 1)
    assert_complete(records)
    assert records[-1].cause == cause


async def respond_slowly(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """The second response comes in two parts, the first after the records were flushed."""
    await read_request(reader)
    writer.write(OK)
    await read_request(reader)
    await asyncio.sleep(0.15)
    writer.write(OK[:-1])
    await asyncio.sleep(0.02)
    writer.write(OK[-1:])
    await reader.read()


async def test_late_response_in_two_parts_continues_in_python(seen: Seen):
    async with run(respond_slowly, relay="native") as tap:
        _, body = await second_response(await tap.client(), POST)
        [_, records] = await tap.records(2)
    assert body == b"{}"
    assert seen.counts == (1, 1)
    assert_complete(records)
    assert body_of(records) == b"{}"
    assert request_of(records) is not None
    assert records[-1].request_bytes == 13


async def test_head_response_with_a_body_is_forwarded_without_it(seen: Seen):
    async with run(respond_with(OK, OK), relay="native") as tap:
        await second_response(await tap.client(), HEAD_REQUEST, head_only=True)
        [_, records] = await tap.records(2)
        assert tap.worker.counters.bad_upstream_excess_bytes == 2
    assert seen.counts == (1, 1)
    assert records[-1].response_bytes == 0


@pytest.mark.parametrize("request_", [GET, POST])
async def test_connection_that_is_not_quiet_is_not_used(
    request_: bytes, seen: Seen, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(UpstreamConnection, "is_quiet", lambda _: False)
    async with run(respond_with(OK, OK), relay="native") as tap:
        await second_response(await tap.client(), request_)
        assert tap.worker.counters.upstream_connections == 2
    assert seen.counts == (2, 0)


async def never_respond_again(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await read_request(reader)
    writer.write(OK)
    await reader.read()


@pytest.mark.parametrize("event", ["client leaves", "client pipelines", "tap stops"])
async def test_event_before_the_response_continues_in_python(event: str, seen: Seen):
    async with run(never_respond_again, relay="native") as tap:
        client = await tap.client()
        await client.send(GET)
        await client.response()
        await client.send(POST)
        await tap.wait_until(lambda: tap.worker.counters.upstream_reuses == 1)
        assert seen.counts == (1, 0)
        if event == "client pipelines":
            await client.send(GET)
            await tap.wait_until(lambda: bool(seen.continued))
        if event == "tap stops":
            await tap.stop()
        else:
            client.reset()
        [_, records] = await tap.records(2)
    assert seen.counts == (1, 1)
    assert_complete(records)
    assert records[-1].cause == ("tap_stopped" if event == "tap stops" else "client_left")


def close_on_second(script: Script) -> Script:
    """The first connection closes at its second request, all later ones run `script`."""
    connections = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        if connections > 1:
            await script(reader, writer)
        else:
            await read_request(reader)
            writer.write(OK)
            await read_request(reader)
            writer.close()

    return serve


@pytest.mark.parametrize(("request_", "status"), [(GET, b"200"), (POST, b"502")])
async def test_only_a_safe_request_is_repeated_after_the_upstream_closed(
    request_: bytes, status: bytes, seen: Seen
):
    async with run(close_on_second(respond_with(OK)), relay="native") as tap:
        head, _ = await second_response(await tap.client(), request_)
        assert head.split(b" ")[1] == status
        assert tap.worker.counters.retries == (status == b"200")
        [_, records] = await tap.records(2)
    assert seen.counts == (1, 1)
    assert_complete(records)


@pytest.mark.parametrize(
    "request_",
    [
        b"GET / HTTP/1.0\r\nHost: h\r\nConnection: keep-alive\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: h\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    ],
)
async def test_unusual_request_starts_in_python(request_: bytes, seen: Seen):
    async with run(respond_with(OK, OK), relay="native") as tap:
        _, body = await second_response(await tap.client(), request_)
        assert body == b"{}"
        [_, records] = await tap.records(2)
    assert seen.counts == (2, 0)
    assert_complete(records)
    assert records[-1].cause == "complete"


async def test_body_above_the_limit_is_refused(seen: Seen):
    async with run(respond_with(OK, OK), relay="native", max_request_bytes=12) as tap:
        head, _ = await second_response(await tap.client(), POST)
        assert head.startswith(b"HTTP/1.1 413")
    assert seen.counts == (2, 0)


def fill_at_once(transport: asyncio.Transport) -> None:
    """Make the kernel's send buffer so small that it accepts only a part of a write."""
    transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)


@pytest.mark.parametrize("slow", ["client", "upstream"])
async def test_full_write_buffer_pauses_the_other_side(slow: str):
    """A request or response that the kernel accepts only in part."""
    big = b"Content-Length: 60000\r\n\r\n" + b"x" * 60_000
    request, answer = GET, HEAD + big
    if slow == "upstream":
        request, answer = POST.split(b"Content-Length")[0] + big, OK
    async with run(respond_with(OK, answer, answer), relay="native", write_buffer_bytes=16_384) as tap:
        client = await tap.client()
        await client.send(GET)
        await client.response()
        [pool] = tap.worker._pools
        [accepted] = tap.worker.context.clients
        fill_at_once(accepted.transport if slow == "client" else pool._idle[0].transport)
        for _ in range(2):
            await client.send(request)
            assert (await client.response())[1] == answer.partition(b"\r\n\r\n")[2]
        await tap.wait_until(lambda: not tap.worker.context.exchanges)
        streams = await tap.records(3)
    for records in streams:
        assert_complete(records)
        assert records[-1].cause == "complete"
        assert records[-1].request_sent_ns is not None
        assert (records[-1].client_drain_ns or 0) >= records[-1].end_ns
    sent_later = any(records[-1].request_sent_ns > records[-1].connected_ns for records in streams)
    assert sent_later == (slow == "upstream")
