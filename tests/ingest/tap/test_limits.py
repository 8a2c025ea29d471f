"""Refused requests, time limits and routing over real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time

import pytest

from streamgauge.ingest.http1.heads import HeadLimits, read_request_head
from streamgauge.ingest.http1.upstreams import parse_upstreams
from streamgauge.ingest.records import Closed, Frames
from streamgauge.ingest.tap.http.error_responses import HTTP2_REFUSAL
from streamgauge.ingest.tap.http.routing import Router
from tests.ingest.running_tap import (
    END,
    SSE_HEAD,
    assert_complete,
    chunk,
    read_request,
    respond_with,
    running_tap,
)
from tests.ingest.tap.test_http_body import MALFORMED
from tests.ingest.tap.test_http_head import SMUGGLING

GET = b"GET / HTTP/1.1\r\nHost: h\r\n\r\n"
SMUGGLED = b"GET /smuggled HTTP/1.1\r\nHost: h\r\n\r\n"


async def test_request_smuggling_is_refused_and_never_reaches_the_upstream():
    reached: list[bytes] = []

    async def upstream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        reached.append((await read_request(reader))[0])

    async with running_tap(upstream) as tap:
        for name, raw in SMUGGLING.items():
            client = await tap.client()
            await client.send(raw + SMUGGLED)
            answer = await client.read_to_end()
            if name == "h2 preface":
                assert answer == HTTP2_REFUSAL
                continue
            assert answer.startswith(b"HTTP/1.1 400 Bad Request\r\n"), name
            assert b"Connection: close\r\n" in answer
            assert answer.count(b"Content-Length: ") == 1
        assert reached == []
        assert tap.worker.recording.counters.requests_refused == len(SMUGGLING)


@pytest.mark.parametrize("name", MALFORMED)
async def test_malformed_chunk_is_refused_and_the_upstream_never_gets_the_end(name: str):
    seen: list[bytes] = []

    async def upstream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        seen.append(await reader.read())

    async with running_tap(upstream) as tap:
        client = await tap.client()
        await client.send(b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n")
        await tap.wait_until(lambda: bool(tap.upstream_connections))
        await client.send(MALFORMED[name] + SMUGGLED)
        answer = await client.read_to_end()
        assert answer.startswith(b"HTTP/1.1 400 ")
        assert answer.count(b"HTTP/1.1") == 1
        [records] = await tap.records()
        assert_complete(records)
        assert records[-1].cause == "bad_request"
    assert not any(b"smuggled" in s or s.endswith(END) for s in seen)


@pytest.mark.parametrize(
    ("raw", "status"),
    [
        (b"GET /" + b"a" * 20_000 + b" HTTP/1.1\r\nHost: h\r\n\r\n", b"414"),
        (b"GET /" + b"a" * 20_000, b"414"),
        (b"GET / HTTP/1.1\r\nHost: h\r\n" + b"X: y\r\n" * 500 + b"\r\n", b"431"),
        (b"GET / HTTP/1.1\r\nHost: h\r\nX: " + b"y" * 66_000, b"431"),
        (b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 2000\r\n\r\n" + b"x" * 2000, b"413"),
        (b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n7d0\r\n" + b"x" * 2000, b"413"),
    ],
)
async def test_too_large_requests_are_refused(raw: bytes, status: bytes):
    async with running_tap(respond_with(b""), max_request_bytes=1000) as tap:
        client = await tap.client()
        await client.send(raw)
        assert (await client.read_to_end()).startswith(b"HTTP/1.1 " + status)


async def test_slow_request_head_is_a_408():
    async with running_tap(respond_with(b""), head_timeout_s=0.1) as tap:
        client = await tap.client()
        await client.send(b"GET / HTTP/1.1\r\nHost")
        assert (await client.read_to_end()).startswith(b"HTTP/1.1 408 ")


async def test_trickling_bytes_do_not_extend_the_head_timeout():
    async with running_tap(respond_with(b""), head_timeout_s=0.2) as tap:
        client = await tap.client()

        async def trickle() -> None:
            while True:
                await client.send(b"X")
                await asyncio.sleep(0.02)

        await client.send(b"GET / HTTP/1.1\r\n")
        task = asyncio.create_task(trickle())
        assert (await client.read_to_end()).startswith(b"HTTP/1.1 408 ")
        task.cancel()


async def test_stalled_request_body_is_a_408():
    async with running_tap(respond_with(b""), body_timeout_s=0.1) as tap:
        client = await tap.client()
        await client.send(b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\nab")
        assert (await client.read_to_end()).startswith(b"HTTP/1.1 408 ")
        [records] = await tap.records()
        assert records[-1].cause == "bad_request"


async def test_idle_client_connection_is_closed():
    async with running_tap(
        respond_with(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"), keep_alive_timeout_s=0.1
    ) as tap:
        client = await tap.client()
        await client.send(GET)
        await client.response()
        assert await client.read_to_end() == b""


async def test_silence_before_the_response_is_a_504():
    async def upstream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async with running_tap(upstream, headers_timeout_s=0.1) as tap:
        head, body = await tap.request(GET)
        assert head.startswith(b"HTTP/1.1 504 ")
        assert b"headers_timeout" in body
        [records] = await tap.records()
        assert_complete(records)
        assert records[-1].cause == "headers_timeout"


async def test_silence_mid_stream_ends_the_stream():
    async def upstream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(SSE_HEAD + chunk(b"data: 1\n\n"))
        await reader.read()

    async with running_tap(upstream, idle_timeout_s=0.1) as tap:
        client = await tap.client()
        await client.send(GET)
        assert (await client.read_to_end()).endswith(chunk(b"data: 1\n\n"))
        [records] = await tap.records()
        assert_complete(records)
        assert records[-1].cause == "idle_bytes"


class Clock:
    """The monotonic clock of a tap under test, which a test can advance."""

    def __init__(self) -> None:
        self._offset_ns = 0

    def __call__(self) -> int:
        return time.monotonic_ns() + self._offset_ns

    def advance(self, seconds: float) -> None:
        self._offset_ns += round(seconds * 1e9)


@pytest.mark.parametrize(
    ("beat", "cause"), [(b": heartbeat\n\n", "idle_output"), (b"data: x\n\n", "client_left")]
)
async def test_heartbeats_do_not_count_as_output(beat: bytes, cause: str):
    async def upstream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(SSE_HEAD)
        while True:
            writer.write(chunk(beat))
            await asyncio.sleep(0.05)

    async with running_tap(upstream, idle_output_timeout_s=1.0, idle_timeout_s=20.0) as tap:
        client = await tap.client()
        await client.send(b"GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(2.0):
                await client.read_to_end()
        client.reset()
        [records] = await tap.records()
        assert records[-1].cause == cause


@pytest.mark.parametrize("limit", ["idle_timeout_s", "idle_output_timeout_s"])
async def test_slow_client_does_not_make_the_upstream_time_out(limit: str):
    clock = Clock()
    total = 24 * 2**20

    async def upstream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % total + b"y" * total)
        await reader.read()

    async with running_tap(upstream, clock_ns=clock, **{limit: 60.0}) as tap:
        client = await tap.client(limit=4096)
        await client.send(GET)
        await tap.wait_for_stuck_client()
        [connection], [under_way] = tap.worker.context.clients, tap.worker.context.exchanges
        clock.advance(61)
        connection.check_timeouts(clock())
        assert not under_way.ended
        # The client reads again, and the limit is checked before the upstream's next byte arrives.
        if connection.write_paused:
            connection.resume_writing()
            connection.check_timeouts(clock())
        assert not under_way.ended
        await client.read_until(b"\r\n\r\n")
        assert len(await client.read(total)) == total
        [records] = await tap.records()
        assert records[-1].cause == "complete"


async def test_upstream_times_out_after_a_slow_client_has_caught_up():
    clock = Clock()
    total = 24 * 2**20

    async def upstream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (total + 1) + b"y" * total)
        await reader.read()

    async with running_tap(upstream, clock_ns=clock, idle_timeout_s=60.0) as tap:
        client = await tap.client(limit=4096)
        await client.send(GET)
        await tap.wait_for_stuck_client()
        [connection] = tap.worker.context.clients
        await client.read_until(b"\r\n\r\n")
        await client.read(total)
        await tap.wait_until(lambda: not tap.waits_for_client())
        clock.advance(61)
        connection.check_timeouts(clock())
        assert await client.read_to_end() == b""
        [records] = await tap.records()
        assert records[-1].cause == "idle_bytes"


async def test_slow_upstream_does_not_make_the_request_body_time_out():
    clock = Clock()
    total = 24 * 2**20
    read_on = asyncio.Event()

    async def upstream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        await read_on.wait()
        await reader.readexactly(total)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")

    async with running_tap(upstream, clock_ns=clock, body_timeout_s=60.0, headers_timeout_s=60.0) as tap:
        client = await tap.client()
        sending = asyncio.create_task(
            client.send(b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n" % total + b"x" * total)
        )
        await tap.wait_until(lambda: any(c.read_paused for c in tap.worker.context.clients))
        [connection], [under_way] = tap.worker.context.clients, tap.worker.context.exchanges
        clock.advance(61)
        under_way.on_writable(under_way._upstream)
        connection.check_timeouts(clock())
        assert not under_way.ended
        read_on.set()
        assert (await client.response())[1] == b"ok"
        await sending


async def test_keep_alive_timeout_starts_at_the_end_of_the_response():
    clock = Clock()
    go_on = asyncio.Event()

    async def upstream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await read_request(reader)
            writer.write(SSE_HEAD + chunk(b"data: 1\n\n"))
            await go_on.wait()
            writer.write(END)

    async with running_tap(upstream, clock_ns=clock, keep_alive_timeout_s=60.0) as tap:
        client = await tap.client()
        await client.send(GET)
        await client.read_until(b"data: 1\n\n")
        clock.advance(61)
        go_on.set()
        await client.read_until(END)
        [connection] = tap.worker.context.clients
        connection.check_timeouts(clock())
        await client.send(GET)
        await client.response()
        clock.advance(61)
        connection.check_timeouts(clock())
        assert await client.read_to_end() == b""


async def test_connect_timeout_is_a_504():
    # A listener with a full backlog: the kernel no longer answers connection attempts.
    import socket

    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        port = full.getsockname()[1]
        fill = [socket.socket() for _ in range(4)]
        for s in fill:
            s.setblocking(False)
            s.connect_ex(("127.0.0.1", port))
        async with running_tap(None, upstreams=[f"http://127.0.0.1:{port}"], connect_timeout_s=0.2) as tap:
            head, body = await tap.request(GET)
            assert head.startswith(b"HTTP/1.1 504 ")
            assert b"127.0.0.1:%d did not accept the connection within 0.2 s. " % port in body
            assert b"connect_timeout" in body
            [records] = await tap.records()
            assert records[-1].cause == "connect_timeout"
        for s in fill:
            s.close()


def _echo_target(name: bytes):
    async def upstream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            head, _ = await read_request(reader)
            text = name + b" " + head.split(b" ")[1]
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(text), text))

    return upstream


@pytest.mark.parametrize(
    ("path", "extra", "target", "gateway"),
    [
        (b"/a/v1/x?q=1", b"", b"/v1/x?q=1", "a"),
        (b"/b/v1/x", b"", b"/base/v1/x", "b"),
        (b"/a", b"", b"/", "a"),
        (b"/a?q=1", b"", b"/?q=1", "a"),
        (b"/v1/x", b"x-streamgauge-upstream: b\r\n", b"/base/v1/x", "b"),
        (b"/a/v1/x", b"x-streamgauge-upstream: a\r\n", b"/v1/x", "a"),
        (b"/v1/x?q=1", b"", b"/v1/x?q=1", "a"),
        (b"/", b"", b"/", "a"),
        (b"/" + b"c" * 5000, b"", b"/" + b"c" * 5000, "a"),
        (b"//b/v1//x", b"", b"/base/v1//x", "b"),
        (b"/%62/v1/x%2Fy", b"", b"/base/v1/x%2Fy", "b"),
    ],
)
async def test_upstream_is_chosen_by_prefix_or_header(path: bytes, extra: bytes, target: bytes, gateway: str):
    ups = ["a=http://127.0.0.1:{port}", "b=http://127.0.0.1:{port}/base"]
    async with running_tap(_echo_target(b"got"), upstreams=ups) as tap:
        _, body = await tap.request(b"GET " + path + b" HTTP/1.1\r\nHost: h\r\n" + extra + b"\r\n")
        assert body == b"got " + target
        [records] = await tap.records()
        assert records[0].gateway == gateway


async def test_request_that_names_no_upstream_goes_to_the_first():
    ups = ["anthropic=http://127.0.0.1:{port}/base", "vllm=http://127.0.0.1:{port}"]
    async with running_tap(_echo_target(b"got"), upstreams=ups) as tap:
        _, body = await tap.request(b"GET /v1 HTTP/1.1\r\nHost: h\r\n\r\n")
        assert body == b"got /base/v1"


def test_request_that_names_no_upstream_goes_to_no_provider_on_the_internet():
    head = read_request_head(b"GET /v1/x HTTP/1.1\r\nHost: h\r\n\r\n", HeadLimits())
    providers = parse_upstreams(["a=https://api.a.com", "b=https://api.b.com"])
    assert Router(providers).route(head) is None
    assert Router(providers[:1]).route(head) is not None


@pytest.mark.parametrize(
    "raw",
    [
        b"GET /model/m/converse HTTP/1.1\r\nHost: API.b.com\r\n\r\n",
        b"GET http://api.b.com/model/m/converse HTTP/1.1\r\nHost: x\r\n\r\n",
    ],
)
def test_request_that_names_no_upstream_goes_to_that_of_its_host(raw: bytes):
    upstreams = parse_upstreams(["a=https://api.a.com", "b=https://api.b.com", "c=https://api.b.com/c"])
    route = Router(upstreams).route(read_request_head(raw, HeadLimits()))
    assert route is not None
    assert (route.upstream.name, route.target) == ("b", "/model/m/converse")


@pytest.mark.parametrize(
    "raw",
    [
        b"GET /antropic/v1 HTTP/1.1\r\nHost: h\r\n\r\n",
        b"GET /vLLM?a=b HTTP/1.1\r\nHost: h\r\n\r\n",
        b"GET /vllm/ HTTP/1.1\r\nHost: h\r\nx-streamgauge-upstream: c\r\n\r\n",
    ],
)
async def test_unknown_upstream_is_a_404_with_the_configured_names(raw: bytes):
    ups = ["anthropic=http://127.0.0.1:{port}", "vllm=http://127.0.0.1:{port}"]
    async with running_tap(_echo_target(b"x"), upstreams=ups) as tap:
        head, body = await tap.request(raw)
        assert head.startswith(b"HTTP/1.1 404 ")
        assert json.loads(body)["error"]["upstreams"] == ["anthropic", "vllm"]
        assert tap.worker.recording.counters.requests_unrouted == 1


@pytest.mark.parametrize(
    "path",
    ["/claude/v1/messages", "/mistral/v1/chat/completions", "//mistral//v1/x", "/./mistral/v1/x", "/mistral%2Fv1/x", "/MISTRAL/V1/x",
     "/anthropic%2Fv1/messages", "/Anthropic/v1/messages", "/x/../Anthropic/y", "/gemini/v1beta/models/g", "/ollama/api/chat",
     "/azure/openai/deployments/d", "/bedrock/model/m/invoke", "/mistral/chat/completions?a=/v1", "/anthropic-eu/messages"],
)  # fmt: skip
def test_path_of_another_upstream_has_no_route(path: str):
    assert _routed(path, "openai", "anthropic") is None


@pytest.mark.parametrize(
    ("path", "names"),
    [
        ("/openai/deployments/d/chat/completions", ["openai-eu", "openai-us"]),
        ("/openai/v1/responses", ["azure", "openai-us"]),
        ("/model/x/invoke", ["bedrock", "models"]),
        ("/chat/completions", ["litellm", "chats"]),
        ("/v1/models", ["a", "b"]),
        ("/v1beta/openai/chat/completions", ["a", "b"]),
        ("/api/v1/chat", ["a", "b"]),
        ("/inference/v1/chat/completions", ["a", "b"]),
        ("/key/generate", ["a", "b"]),
        ("/health?next=/c/v1", ["a", "b"]),
    ],
)
def test_api_path_without_a_name_goes_unchanged_to_the_default(path: str, names: list[str]):
    assert _routed(path, *names) == (names[0], path)


def _routed(path: str, *names: str) -> tuple[str, str] | None:
    head = read_request_head(f"GET {path} HTTP/1.1\r\nHost: h\r\n\r\n".encode(), HeadLimits())
    route = Router(parse_upstreams(f"{name}=http://localhost" for name in names)).route(head)
    return None if route is None else (route.upstream.name, route.target)


@pytest.mark.parametrize(
    ("path", "forwarded"),
    [("/gw/v1/messages", "/v1/messages"), ("/gw", "/"), ("/gw?a=1", "/?a=1"), ("/gwx/v1", "/gwx/v1"), ("/v1/x", "/v1/x"),
     ("/claude/v1/messages", "/claude/v1/messages"), ("/openai/v1/responses", "/openai/v1/responses")],
)  # fmt: skip
@pytest.mark.parametrize("base", ["", "/base"])
def test_single_upstream_serves_every_path_and_its_name_is_stripped(path: str, forwarded: str, base: str):
    head = read_request_head(f"GET {path} HTTP/1.1\r\nHost: h\r\n\r\n".encode(), HeadLimits())
    route = Router(parse_upstreams([f"gw=http://localhost{base}"])).route(head)
    assert route is not None
    assert route.target == base + forwarded


async def test_head_limits_are_configurable():
    async with running_tap(respond_with(b""), head_limits=HeadLimits(head_bytes=200, target_bytes=50)) as tap:
        client = await tap.client()
        await client.send(b"GET / HTTP/1.1\r\nHost: h\r\nX: " + b"y" * 300 + b"\r\n\r\n")
        assert (await client.read_to_end()).startswith(b"HTTP/1.1 431 ")


async def test_binary_bodies_are_only_counted():
    answer = b"HTTP/1.1 200 OK\r\nContent-Type: image/png\r\nContent-Length: 4\r\n\r\n\x89PNG"
    async with running_tap(respond_with(answer)) as tap:
        await tap.request(GET)
        [records] = await tap.records()
        assert_complete(records)
        [frames] = [r for r in records if isinstance(r, Frames)]
        assert (frames.frames, frames.uncaptured_bytes) == ([], 4)
        assert isinstance(records[-1], Closed)
        assert records[-1].response_bytes == 4
        assert frames.response.headers_ns <= records[-1].first_byte_ns <= records[-1].end_ns
