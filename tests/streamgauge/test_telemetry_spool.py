"""What an agent sends is answered at once, and forwarded in whole when the receiver is there."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
import pytest

from streamgauge.commands import telemetry_spool
from streamgauge.commands.telemetry_spool import TelemetrySpool
from tests.deadline import DEADLINE_S

PROTOBUF = {"content-type": "application/x-protobuf", "content-encoding": "gzip"}


class Receiver(ThreadingHTTPServer):
    statuses: list[int]
    """Of the next answers. Then 200."""
    received: list[tuple[str, str | None, str | None, bytes]]


class Handler(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        status = self.server.statuses.pop() if self.server.statuses else 200
        if status == 200:
            self.server.received.append(
                (self.path, self.headers["content-type"], self.headers["content-encoding"], body)
            )
        self.send_response(status)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    server = Receiver(("127.0.0.1", 0), Handler)
    server.statuses, server.received = [], []
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def post(spool: TelemetrySpool, path: str, content: object = b"abc") -> httpx.Response:
    return httpx.post(
        spool.url + path, content=content, headers=PROTOBUF, timeout=DEADLINE_S, trust_env=False
    )  # type: ignore[arg-type]


def test_requests_are_answered_before_the_receiver_is_there_and_forwarded_then(receiver: Receiver) -> None:
    is_there = threading.Event()
    spool = TelemetrySpool(
        lambda: f"http://127.0.0.1:{receiver.server_address[1]}" if is_there.is_set() else None
    )
    answer = post(spool, "/v1/logs")
    assert (answer.status_code, answer.content, answer.headers["content-type"]) == (
        200,
        b"",
        "application/x-protobuf",
    )
    assert post(spool, "/v1/metrics", iter([b"ab", b"cd"])).status_code == 200  # chunked
    assert receiver.received == []
    receiver.statuses = [503]
    is_there.set()
    assert spool.finish() == 0
    assert sorted(receiver.received) == [
        ("/v1/logs", "application/x-protobuf", "gzip", b"abc"), ("/v1/metrics", "application/x-protobuf", "gzip", b"abcd"),
    ]  # fmt: skip


def test_refused_requests_and_those_without_a_receiver_are_counted(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    receiver.statuses = [400]
    refused = TelemetrySpool(lambda: f"http://127.0.0.1:{receiver.server_address[1]}")
    post(refused, "/v1/logs")
    assert refused.finish() == 1
    monkeypatch.setattr(telemetry_spool, "FINISH_WITHIN_S", 0.2)
    alone = TelemetrySpool(lambda: None)
    post(alone, "/v1/logs")
    assert alone.finish() == 1


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(telemetry_spool, "MAX_BYTES", 1000)
    monkeypatch.setattr(telemetry_spool, "FINISH_WITHIN_S", 0.2)
    spool = TelemetrySpool(lambda: None)
    assert [post(spool, "/v1/logs", bytes(400)).status_code for _ in range(3)] == [200, 200, 503]
    assert spool.finish() == 2


def test_foreign_page_on_a_rebound_name_is_refused() -> None:
    spool = TelemetrySpool(lambda: None)
    answer = httpx.post(
        f"{spool.url}/v1/logs", headers={"host": "evil.example"}, timeout=DEADLINE_S, trust_env=False
    )
    assert answer.status_code == 403
    assert spool.finish() == 0
