"""A bench run with a real tap accounts for every byte, and the load client counts errors."""

from __future__ import annotations

import contextlib
import shutil
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.tap.measure import Failed, Load, measure
from bench.tap.servers import Target, compile_c, mock_upstream, tap

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bench")
    compile_c(folder)
    return folder


@pytest.fixture(scope="module")
def target(built: Path) -> Iterator[Target]:
    with mock_upstream(built) as upstream, tap("tap", built / "tap", upstream, queue_bytes=1 << 20) as found:
        yield found


def test_every_byte_of_a_flood_is_recorded_or_dropped(built: Path, target: Target) -> None:
    run = measure(built, target, Load("flood", 8), 0.3)
    assert run["errors"] == 0
    assert run["shed_bytes"] > 0
    assert run["mirrored_bytes"] > 0
    assert run["forwarded_bytes"] == run["mirrored_bytes"] + run["shed_bytes"] > run["chunks"] * 220
    assert run["unaccounted_bytes"] == 0


def test_paced_chunks_are_complete_and_timed(built: Path, target: Target) -> None:
    run = measure(built, target, Load("paced", 20, 20_000, 2), 0.5)
    assert run["errors"] == run["unaccounted_bytes"] == 0
    assert run["forwarded_bytes"] == run["mirrored_bytes"]
    assert run["forwarded_bytes"] % 220 == 0
    assert run["samples"] == run["chunks"] > 0
    assert 0 < run["p50_ns"] <= run["p99_ns"]


def test_streams_alone_have_three_chunks_each(built: Path, target: Target) -> None:
    run = measure(built, target, Load("alone", 1, 5_000), 0.5)
    assert run["errors"] == run["unaccounted_bytes"] == 0
    assert run["forwarded_bytes"] == run["mirrored_bytes"]
    assert run["forwarded_bytes"] > 3 * 220 * (run["requests"] - 1) > 0


def test_responses_without_a_stream_are_errors(built: Path) -> None:
    with mock_upstream(built) as upstream, socket.create_server(("127.0.0.1", 0)) as server:
        assert upstream

        def refuse() -> None:
            for _ in range(2):
                client, _ = server.accept()
                with client:
                    client.recv(1000)
                    client.sendall(b"HTTP/1.1 503 No\r\nContent-Length: 0\r\n\r\n")

        thread = threading.Thread(target=refuse)
        thread.start()
        run = measure(built, Target("refuses", server.getsockname()[1], []), Load("flood", 2), 0.1)
        thread.join()
    assert run["errors"] == 4  # two error responses and two interrupted streams


RESPONSE = b'HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n@E"}'


def test_burst_sends_all_requests_before_it_needs_a_response(built: Path) -> None:
    """The server withholds its responses until every connection has sent a request."""
    with mock_upstream(built), socket.create_server(("127.0.0.1", 0)) as server:

        def respond() -> None:
            clients = [server.accept()[0] for _ in range(5)]
            for client in clients:  # each connection sends its first request when it is opened
                client.recv(1000)
                client.sendall(RESPONSE)
            with contextlib.suppress(OSError):
                while all(client.recv(1000) for client in clients):
                    for client in clients:
                        client.sendall(RESPONSE)

        thread = threading.Thread(target=respond, daemon=True)
        thread.start()
        run = measure(built, Target("waits", server.getsockname()[1], []), Load("burst", 5, 10_000), 0.5)
    assert run["errors"] == 0
    assert run["requests"] >= 10


def test_latency_begins_when_the_request_is_due_even_without_an_idle_connection(built: Path) -> None:
    """The server needs 50 ms and a request is due every 10 ms. Without the wait for a connection, p50 would be 50 ms."""
    with mock_upstream(built), socket.create_server(("127.0.0.1", 0)) as server:

        def respond() -> None:
            client = server.accept()[0]
            with contextlib.suppress(OSError):
                while client.recv(1000):
                    time.sleep(0.05)
                    client.sendall(RESPONSE)

        thread = threading.Thread(target=respond, daemon=True)
        thread.start()
        run = measure(built, Target("late", server.getsockname()[1], []), Load("short", 1, 10_000), 0.5)
    assert run["errors"] == 0
    assert run["p50_ns"] > 100e6


def test_alone_times_the_first_byte_and_pauses_after_the_end_of_each_stream(built: Path) -> None:
    """The head comes after 5 ms and the end of the stream after 100 ms more. The next request comes at least 10 ms later."""
    pauses_s: list[float] = []
    with mock_upstream(built), socket.create_server(("127.0.0.1", 0)) as server:

        def respond() -> None:
            client = server.accept()[0]
            with contextlib.suppress(OSError):
                while client.recv(1000):
                    time.sleep(0.005)
                    client.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
                    time.sleep(0.1)
                    ended_s = time.monotonic()
                    client.sendall(b"1\r\nx\r\n0\r\n\r\n")
                    if client.recv(1, socket.MSG_PEEK):
                        pauses_s.append(time.monotonic() - ended_s)

        thread = threading.Thread(target=respond, daemon=True)
        thread.start()
        run = measure(built, Target("three", server.getsockname()[1], []), Load("alone", 1, 20_000), 1.0)
        thread.join()
    assert run["errors"] == 0
    assert 5e6 < run["p50_ns"] < 100e6
    assert 3 < run["requests"] == run["samples"]
    assert min(pauses_s) > 0.01


def test_missing_target_fails_the_run(built: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(Failed, match="gone"):
        measure(built, Target("gone", port, []), Load("paced", 1, 1_000), 0.1)
