"""No byte is lost and nothing is left, whoever pauses and leaves: random ends of responses and tunnels, over TCP and TLS."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from streamgauge.analytics.assembly.assembler import Assembler
from streamgauge.analytics.measures.measure import measure
from streamgauge.ingest.records import AnyRecord
from streamgauge.ingest.tap.connections.client_connection import ClientConnection
from streamgauge.ingest.tap.sockets import queued_bytes
from tests.ingest import peers
from tests.ingest.disconnects import SWITCH, UPGRADE, run, tls_contexts
from tests.ingest.running_tap import running_tap


def scale(short: int, long: int) -> Any:
    """Parameters of a count: the short form, and the long one marked slow."""
    return pytest.mark.parametrize("count", [short, pytest.param(long, marks=pytest.mark.slow)])


@scale(24, 200)
async def test_tls_upstream_that_closes_without_a_closing_alert_loses_no_byte(count: int):
    records: list[AnyRecord] = []
    seen = await run("responses", 1, count, upstream_tls=True, records=records, queue_bytes=2**30)
    assert (
        seen["complete"] > seen["upstream_reset"] > 0
    )  # a body that ends with the connection is incomplete without the alert
    assembler = Assembler()
    assembler.feed("w0", 0, records)
    assert measure(assembler.take_finished())["streams"]["outcome"].to_list() == ["ok"] * count


@scale(20, 1000)
async def test_tunnel_with_half_closes_and_pauses_is_byte_identical(count: int):
    assert (await run("tunnels", 2, count, upstream_tls=False))["complete"] == count


@pytest.mark.slow
async def test_direct_tunnel_is_byte_identical():
    """What the walks expect holds without a tap."""
    await run("tunnels", 2, 100, upstream_tls=False, directly=True)


@scale(20, 1000)
@pytest.mark.parametrize(
    ("upstream_tls", "client_tls"), [(False, False), (True, False), (False, True), (True, True)]
)
async def test_walk_of_disconnects_leaves_nothing_and_delivers_a_prefix(
    count: int, upstream_tls: bool, client_tls: bool
):
    await run("walks", 3, count, upstream_tls=upstream_tls, client_tls=client_tls)


@pytest.mark.parametrize("tls", [False, True])
@pytest.mark.interpreted
@pytest.mark.parametrize("fault", [None, "hangups.unwatch", "_last_response_undelivered", "_take_unread"])
async def test_paused_client_that_resets_leaves_nothing_whatever_a_step_raises(
    tls: bool, fault: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def fail(*_: Any) -> None:
        raise RuntimeError("injected")

    async def upstream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        await stop.wait()  # and reads nothing more

    stop, leave = asyncio.Event(), threading.Event()
    _, context = tls_contexts(tmp_path)
    pem = {"tls_cert": tmp_path / "cert.pem", "tls_key": tmp_path / "key.pem"} if tls else {}
    # Without time limits there is no timer: only the kernel reports that the client is gone.
    never = {"head_timeout_s": 0, "body_timeout_s": 0, "keep_alive_timeout_s": 0}
    async with running_tap(upstream, **pem, **never) as tap:
        tap_context = tap.worker.context

        def upload() -> None:
            sock = peers.connect(tap.worker.address, context if tls else None)
            post = b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 100000000\r\n\r\n"
            peers.talk(sock, post + b"x" * 50_000_000, "reset", leave=leave)

        uploads = [asyncio.create_task(asyncio.to_thread(upload)) for _ in range(4)]
        seen: list[bool] = []

        def stuck() -> bool:
            seen.append(sum(c.read_paused for c in tap_context.clients) == 4)
            return len(seen) >= 20 and all(seen[-20:])

        await tap.wait_until(stuck)
        if fault == "hangups.unwatch":
            monkeypatch.setattr(tap.worker.hangups, "unwatch", fail)
        elif fault is not None:
            monkeypatch.setattr(ClientConnection, fault, fail)
        leave.set()
        await asyncio.gather(*uploads)
        await tap.wait_until(lambda: not tap_context.clients and not tap_context.exchanges)
        for records in await tap.records(4):
            assert records[-1].cause == "client_left"
        assert bool(tap_context.guards.failures()["ends of client connections"]) == (fault is not None)
        stop.set()


async def test_last_bytes_of_an_upstream_that_left_without_reading_reach_a_slow_client():
    """The tap's write to it fails while the tap has paused reading from it. A direct client still reads what has arrived."""
    sent: Future[int] = Future()

    def serve(sock: socket.socket) -> None:
        peers.read_head(sock)
        sock.sendall(SWITCH)
        total, acknowledged = 0, True
        while acknowledged:
            sock.sendall(b"x" * 2**19)
            until_s = time.monotonic() + 0.5
            while queued_bytes(sock) and time.monotonic() < until_s:
                time.sleep(0.001)
            acknowledged = not queued_bytes(sock)
            total += 2**19 * acknowledged
        sock.close()
        sent.set_result(total)

    with peers.server(serve, None) as (port, _):
        async with running_tap(None, upstreams=[f"http://127.0.0.1:{port}"]) as tap:
            client = await asyncio.to_thread(peers.connect, tap.worker.address, None, 4096)
            client.sendall(UPGRADE % 1 + b"never read")
            total = await asyncio.wrap_future(sent)
            client.sendall(b"more")
            await tap.wait_until(lambda: not tap.worker.context.exchanges)
            received, _ = await asyncio.to_thread(peers.talk, client, b"", "stay")
            assert len(received) - len(SWITCH) >= total


async def test_reset_after_a_broken_body_waits_as_long_as_the_client_reads_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("streamgauge.ingest.tap.exchanges.client_side.RESET_PATIENCE_S", 0.5)
    body = b"x" * 2_000_000
    response = b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + body
    tls, _ = tls_contexts(tmp_path)

    def serve(sock: socket.socket) -> None:
        peers.read_head(sock)
        peers.talk(sock, response, "close")

    with peers.server(serve, tls) as (port, threads):
        upstream = f"https://localhost:{port}"
        async with running_tap(None, upstreams=[upstream], upstream_ca=tmp_path / "cert.pem") as tap:
            client = await asyncio.to_thread(peers.connect, tap.worker.address, None, 65_536)
            client.sendall(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n")
            pauses = [(at, 0.1) for at in range(0, len(body), 200_000)]
            talking = threads.submit(peers.talk, client, b"", "stay", pauses=pauses)
            received, end = await asyncio.wrap_future(talking)
            assert (received[-len(body) :], end) == (body, "reset")
