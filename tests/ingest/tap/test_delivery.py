"""When a client's kernel has received a response, although the tap's kernel accepted it long before: with the client's own clock."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from streamgauge.ingest.records import Alive, Closed, Opened
from streamgauge.ingest.tap import sockets
from tests.deadline import DEADLINE_S
from tests.ingest.running_tap import END, SSE_HEAD, RunningTap, Script, chunk, read_request, running_tap
from tests.ingest.tap.test_tls import pki as pki

SMALL, LARGE = 20_000, 400_000
RECEIVE_BYTES = 4096
MOST_UNREAD_BYTES = 2 * RECEIVE_BYTES + 16_384
"""In the client's kernel (Linux doubles the size that is asked for), and in an incomplete TLS record."""
NEVER = Alive("", 0, "", 0, 0, 0)
SLACK_NS = 3_000_000_000
"""For a busy machine. The tap polls at least every 0.2 s."""


class SlowClient(threading.Thread):
    """Sends a request. Reads nothing before `go`, then slowly. `reads`: (monotonic time in ns, bytes read so far)."""

    def __init__(self, tap: RunningTap, pki: Path | None = None, *, close: bool = False) -> None:
        super().__init__(daemon=True)
        self.go, self.may_close = threading.Event(), threading.Event()
        self.reads: list[tuple[int, int]] = []
        self._sock = socket.socket()
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BYTES)
        self._address, self._pki, self._close = tap.worker.address, pki, close

    def run(self) -> None:
        with suppress(OSError), self._connected() as sock:
            fields = b"Connection: close\r\n" if self._close else b""
            sock.sendall(b"GET / HTTP/1.1\r\nHost: h\r\n" + fields + b"\r\n")
            assert self.go.wait(DEADLINE_S)
            total, tail = 0, b""
            while (data := sock.recv(2048)) and not (tail + data).endswith(b"\r\n" + END):
                total, tail = total + len(data), data[-16:]
                self.reads.append((time.monotonic_ns(), total))
                time.sleep(0.002)
            self.reads.append((time.monotonic_ns(), total + len(data)))
            assert self._close or self.may_close.wait(DEADLINE_S)

    def _connected(self) -> socket.socket:
        self._sock.connect(self._address)
        if self._pki is None:
            return self._sock
        context = ssl.create_default_context(cafile=self._pki / "ca.pem")
        self._sock = context.wrap_socket(self._sock, server_hostname="localhost")
        return self._sock

    def leave(self, *, reset: bool = False) -> None:
        if reset:
            sockets.reset_on_close(self._sock)
            self._sock.close()
        else:
            self._sock.shutdown(socket.SHUT_RDWR)

    @property
    def end_ns(self) -> int:
        return self.reads[-1][0]

    def had_ns(self, size: int) -> int:
        """When it had read this many bytes."""
        return next(at_ns for at_ns, total in self.reads if total >= size)


def sends(size: int, *, piece: int = 2000) -> Script:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await read_request(reader)
            writer.write(SSE_HEAD)
            for _ in range(size // piece):
                writer.write(chunk(b"data: " + b"x" * (piece - 8) + b"\n\n"))
                await writer.drain()
            writer.write(END)

    return script


def tls_of(pki: Path) -> dict[str, Path]:
    return {"tls_cert": pki / "cert.pem", "tls_key": pki / "key.pem"}


async def over(tap: RunningTap) -> None:
    """By the tap's own clock the response is over."""
    await tap.wait_until(
        lambda: tap.worker.recording.counters.body_bytes > 0 and not tap.worker.context.exchanges
    )


async def closed_of(tap: RunningTap) -> tuple[Closed, Callable[[int | None], int]]:
    """The last record of the only stream, and what turns its times into those of the client's clock."""
    [records] = await tap.records()
    opened, closed = records[0], records[-1]
    assert isinstance(opened, Opened)
    assert isinstance(closed, Closed)

    def at(time_ns: int | None) -> int:
        assert time_ns is not None
        return opened.mono_ns + time_ns

    return closed, at


@pytest.mark.parametrize("secure", [False, True], ids=["plain", "tls"])
@pytest.mark.parametrize(
    ("size", "close", "relay"),
    [(SMALL, False, "python"), (LARGE, False, "auto"), (LARGE, True, "python")],
    ids=["small", "large", "closing"],
)
async def test_response_is_delivered_when_a_slow_client_has_taken_it(
    pki: Path, secure: bool, size: int, close: bool, relay: str
):
    async with running_tap(sends(size), relay=relay, **(tls_of(pki) if secure else {})) as tap:
        client = SlowClient(tap, pki if secure else None, close=close)
        client.start()
        await over(tap)
        await asyncio.sleep(0.3)
        assert not [r for r in tap.log.records if isinstance(r, Closed)]
        began_ns = time.monotonic_ns()
        client.go.set()
        closed, at = await closed_of(tap)
        client.may_close.set()
        await asyncio.to_thread(client.join)
    assert closed.cause == "complete"
    assert closed.client_left_ns is None
    assert closed.delivered_bytes == closed.response_bytes == size
    assert at(closed.end_ns) <= at(closed.client_drain_ns) < began_ns
    assert client.had_ns(size - MOST_UNREAD_BYTES) <= at(closed.delivered_ns) <= client.end_ns + SLACK_NS


async def test_response_that_a_client_reads_is_delivered_when_it_is_written(monkeypatch: pytest.MonkeyPatch):
    asked: list[socket.socket] = []

    def queued_bytes(sock: socket.socket, unsent: bool = False) -> int:
        if unsent:
            asked.append(sock)
        return 0

    monkeypatch.setattr(sockets, "queued_bytes", queued_bytes)
    for size, count in ((SMALL, 1), (2000, 0)):
        asked.clear()
        async with running_tap(sends(size)) as tap:
            await tap.request(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n")
            closed, _ = await closed_of(tap)
        assert closed.delivered_ns == closed.client_drain_ns
        assert len(asked) == count


async def test_response_of_an_unknown_queue_has_no_time_of_delivery(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sockets, "queued_bytes", lambda sock, unsent=False: None)
    async with running_tap(sends(SMALL)) as tap:
        await tap.request(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n")
        closed, _ = await closed_of(tap)
    assert closed.client_drain_ns is not None
    assert closed.delivered_ns is None


@pytest.mark.parametrize("reset", [False, True], ids=["end", "reset"])
@pytest.mark.parametrize("secure", [False, True], ids=["plain", "tls"])
async def test_client_that_leaves_before_the_delivery_is_recorded_with_what_it_lacks(
    pki: Path, secure: bool, reset: bool
):
    async with running_tap(sends(LARGE), **(tls_of(pki) if secure else {})) as tap:
        client = SlowClient(tap, pki if secure else None)
        client.start()
        await over(tap)
        client.leave(reset=reset)
        closed, at = await closed_of(tap)
        assert not tap.worker.context.guards.failures().get("ends of client connections")
        client.go.set()
        client.may_close.set()
        await asyncio.to_thread(client.join)
    assert closed.cause == "complete"
    assert at(closed.client_left_ns) >= at(closed.end_ns)
    assert closed.delivered_ns is None
    if not secure:  # the kernel counts TLS records, not bytes of the response
        assert closed.delivered_bytes <= MOST_UNREAD_BYTES


class ClosedTransport:
    """What uvloop has at times between the end of TCP and that of TLS."""

    def get_extra_info(self, name: str) -> None:
        return None


async def test_connection_whose_socket_is_closed_has_no_queue():
    async with running_tap(sends(SMALL)) as tap:
        client = await tap.client()
        await tap.wait_until(lambda: bool(tap.worker.context.clients))
        [connection] = tap.worker.context.clients
        reading, connection.reading = connection.reading, ClosedTransport()
        assert connection._queued_bytes() is None
        assert connection._undelivered_bytes() == 0
        connection.reading = reading
        client.writer.close()


async def test_client_that_takes_nothing_is_given_up_and_its_connection_stays(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(sockets, "STUCK_S", 0.3)
    async with running_tap(sends(SMALL)) as tap:
        client = SlowClient(tap)
        client.start()
        closed, _ = await closed_of(tap)
        assert (closed.delivered_ns, closed.client_left_ns) == (None, None)
        assert closed.delivered_bytes <= MOST_UNREAD_BYTES
        client.go.set()
        client.may_close.set()
        await asyncio.to_thread(client.join)
    assert client.reads[-1][1] > SMALL


async def test_next_request_ends_the_watch_of_the_response_before():
    async with running_tap(sends(LARGE)) as tap:
        client = await tap.client(limit=4096)
        client.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BYTES)
        client.writer.transport.pause_reading()
        await client.send(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n")
        await over(tap)
        await client.send(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n")
        await tap.wait_until(lambda: any(isinstance(r, Closed) for r in tap.log.records))
        closed = next(r for r in tap.log.records if isinstance(r, Closed))
        assert closed.client_drain_ns is not None
        assert closed.delivered_ns is None


@pytest.mark.parametrize("secure", [False, True], ids=["plain", "tls"])
async def test_stop_does_not_wait_for_the_delivery(pki: Path, secure: bool):
    async with running_tap(sends(LARGE), **(tls_of(pki) if secure else {})) as tap:
        client = SlowClient(tap, pki if secure else None, close=True)
        client.start()
        await over(tap)
        await tap.stop()
        closed, _ = await closed_of(tap)
        client.go.set()
        await asyncio.to_thread(client.join)
    assert (closed.cause, closed.delivered_ns, closed.client_left_ns) == ("complete", None, None)
    assert client.reads[-1][1] > LARGE


@pytest.mark.parametrize(
    ("size", "relay"),
    [(LARGE, "python"), (16 * 2**20, "python"), (16 * 2**20, "auto")],
    ids=["delivery", "python", "relay"],
)
async def test_tap_reports_the_streams_whose_client_does_not_read(size: int, relay: str):
    async with running_tap(sends(size, piece=20_000), relay=relay, alive_s=0.05) as tap:

        def waiting() -> list[str]:
            return next(
                r.waiting_for_client for r in [*reversed(tap.log.records), NEVER] if isinstance(r, Alive)
            )

        client = SlowClient(tap)
        client.start()
        await tap.wait_until(lambda: bool(tap.log.streams) and waiting() == tap.log.streams)
        client.leave()
        await tap.wait_until(lambda: not waiting())
        client.go.set()
        client.may_close.set()
        await asyncio.to_thread(client.join)
