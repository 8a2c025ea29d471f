"""Refused requests are recorded as streams of their own, within a limit, and logged once per reason and minute."""

from __future__ import annotations

import asyncio
import logging
import shutil
import subprocess

import pytest

from streamgauge.ingest.records import AnyRecord, Closed, Opened
from streamgauge.ingest.tap.exchanges.refusals import BURST, PER_SECOND
from tests.ingest.running_tap import assert_complete, respond_with, running_tap

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
EMPTY_SETTINGS = b"\0\0\0\x04\0\0\0\0\0"
CLIENT_HELLO = bytes.fromhex("16030100a5010000a10303") + bytes(100)
KEY = b"authorization: Bearer sk-1\r\n"
TRACE = b"traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\r\n"

REFUSED = {
    "malformed": (b"GET\r\n\r\n", "bad_request", 400, "", ""),
    "no host": (b"GET /v1?key=sk-1 HTTP/1.1\r\n\r\n", "bad_request", 400, "GET", "/v1"),
    "long target": (b"GET /" + b"a" * 20_000, "target_too_long", 414, "", ""),
    "large head": (b"POST /v1 HTTP/1.1\r\nHost: h\r\nX: " + b"y" * 66_000, "headers_too_large", 431, "POST", "/v1"),
    "many fields": (b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 500 + b"\r\n", "headers_too_large", 431, "GET", "/"),
    "no upstream": (b"GET /c/x HTTP/1.1\r\nHost: h\r\nx-streamgauge-upstream: c\r\n\r\n", "unknown_upstream", 404, "GET", "/c/x"),
    "WebSocket": (
        b"GET /a/v1 HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: WebSocket\r\n\r\n", "websocket", 426, "GET", "/a/v1",
    ),
    "slow head": (b"GET /a/x HTTP/1.1\r\nHost", "request_timeout", 408, "GET", "/a/x"),
    "slow first line": (b"GET /a", "request_timeout", 408, "", ""),
    "HTTP/2": (PREFACE + EMPTY_SETTINGS, "http2", 505, "", ""),
    "TLS": (CLIENT_HELLO, "tls", 400, "", ""),
    "large body": (
        b"POST /a/v1 HTTP/1.1\r\nHost: h\r\nContent-Length: 2000\r\n\r\n" + b"x" * 2000, "body_too_large", 413, "POST", "/v1",
    ),
    "malformed body": (
        b"POST /a/v1 HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", "bad_request", 400, "POST", "/v1",
    ),
    "slow body": (
        b"POST /a/v1 HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\nab", "request_timeout", 408, "POST", "/v1",
    ),
}  # fmt: skip
UPSTREAMS = ["a=http://127.0.0.1:{port}", "b=http://127.0.0.1:{port}"]


def opened_and_closed(records: list[AnyRecord]) -> tuple[Opened, Closed]:
    assert_complete(records)
    opened, closed = records[0], records[-1]
    assert isinstance(opened, Opened)
    assert isinstance(closed, Closed)
    return opened, closed


@pytest.mark.parametrize("name", REFUSED)
async def test_refused_request_is_recorded_with_its_reason(name: str):
    raw, refusal, status, method, path = REFUSED[name]
    limits = {"head_timeout_s": 0.1, "body_timeout_s": 0.1, "max_request_bytes": 1000, "websockets": "refuse"}
    async with running_tap(respond_with(b""), upstreams=UPSTREAMS, **limits) as tap:
        client = await tap.client()
        await client.send(raw)
        answer = await client.read_to_end()
        [records] = await tap.records()
        opened, closed = opened_and_closed(records)
        assert (closed.cause, closed.detail, closed.refused_status) == ("bad_request", refusal, status)
        assert (opened.method, opened.path) == (method, path)
        assert opened.client_start_ns <= 0
        if refusal != "http2":
            assert answer.startswith(b"HTTP/1.1 %d " % status)
            assert b"x-streamgauge-error: %b\r\n" % refusal.encode() in answer
        counters = tap.worker.recording.counters
        assert counters.requests_refused + counters.requests_unrouted == 1
        assert (counters.streams_opened, counters.streams_closed) == (1, 1)


async def test_unrouted_request_is_recorded_with_its_client_and_trace():
    async with running_tap(respond_with(b""), upstreams=UPSTREAMS) as tap:
        await tap.request(
            b"GET /c HTTP/1.1\r\nHost: h\r\nx-streamgauge-upstream: c\r\nuser-agent: u\r\n"
            + KEY
            + TRACE
            + b"\r\n"
        )
        [records] = await tap.records()
        opened, _ = opened_and_closed(records)
        assert (opened.gateway, opened.server_address, opened.server_port) == ("", "", 0)
        assert (opened.trace_id, opened.parent_span_id) == (
            "0af7651916cd43dd8448eb211c80319c",
            "b7ad6b7169203331",
        )
        assert len(opened.client_id or "") == 32
        assert ("user-agent", "u") in opened.headers
        assert "sk-1" not in repr(opened)


async def test_refused_requests_beyond_the_limit_are_only_counted():
    now_ns = [10**12]
    async with running_tap(respond_with(b""), clock_ns=lambda: now_ns[0]) as tap:

        async def refused(count: int) -> None:
            for _ in range(count):
                await tap.request(b"GET\r\n\r\n")

        await refused(BURST + 20)
        now_ns[0] += 1_000_000_000
        await refused(PER_SECOND + 5)
        await tap.records(BURST + PER_SECOND)
        counters = tap.worker.recording.counters
        assert counters.streams_opened == BURST + PER_SECOND
        assert counters.refusals_unrecorded == 25
        assert counters.requests_refused == BURST + PER_SECOND + 25


async def test_refused_requests_are_logged_once_a_minute_without_text_of_the_request(
    caplog: pytest.LogCaptureFixture,
):
    now_ns = [10**12]
    with caplog.at_level(logging.WARNING, "streamgauge.tap"):
        async with running_tap(respond_with(b""), clock_ns=lambda: now_ns[0]) as tap:
            for _ in range(3):
                await tap.request(b"GET /s3cret\r\n\r\n")
            now_ns[0] += 60_000_000_000
            await tap.request(b"GET /s3cret\r\n\r\n")
    messages = [r.getMessage() for r in caplog.records if "refused" in r.getMessage()]
    assert [m.split(":")[0] for m in messages] == [
        "refused a request (bad_request)", "refused a request (bad_request, 3 since the last message)",
    ]  # fmt: skip
    assert "s3cret" not in caplog.text


async def test_refused_requests_do_not_enter_a_full_record_buffer():
    async with running_tap(respond_with(b""), queue_bytes=4096) as tap:
        tap.log.gate.clear()
        for _ in range(20):
            await tap.request(b"GET\r\n\r\n")
        counters = tap.worker.recording.counters
        assert counters.refusals_unrecorded > 0
        assert counters.streams_opened + counters.refusals_unrecorded == 20
        assert counters.lost_records == 0


async def test_http2_without_tls_is_answered_with_goaway():
    async with running_tap(respond_with(b"")) as tap:
        client = await tap.client()
        await client.send(PREFACE + EMPTY_SETTINGS)
        answer = await client.read_to_end()
    assert answer.startswith(EMPTY_SETTINGS)
    goaway = answer[len(EMPTY_SETTINGS) :]
    assert int.from_bytes(goaway[:3], "big") == len(goaway) - 9
    assert goaway[3:9] == b"\x07\0\0\0\0\0"
    assert goaway[9:17] == b"\0\0\0\0\0\0\0\x0d"
    assert b"HTTP/1.1" in goaway[17:]


CURL = shutil.which("curl")
CURL_HAS_HTTP2 = (
    CURL is not None and "HTTP2" in subprocess.run([CURL, "--version"], capture_output=True, text=True).stdout
)


@pytest.mark.skipif(not CURL_HAS_HTTP2, reason="curl with HTTP/2 is not installed")
async def test_curl_fails_at_once_with_http2_and_the_log_says_why(caplog: pytest.LogCaptureFixture):
    assert CURL is not None
    async with running_tap(respond_with(b"")) as tap:
        host, port = tap.worker.address
        command = [
            CURL,
            "-sS",
            "--max-time",
            "8",
            "--http2-prior-knowledge",
            f"http://{host}:{port}/v1/models",
        ]
        process = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.PIPE)
        _, errors = await process.communicate()
        assert process.returncode not in (0, 28), errors  # 28: timed out
        [records] = await tap.records()
        assert opened_and_closed(records)[1].detail == "http2"
    assert "Configure the client for HTTP/1.1" in caplog.text
