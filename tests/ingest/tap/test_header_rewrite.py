"""Recording and forwarding of header fields."""

from __future__ import annotations

import asyncio
from itertools import product
from typing import get_args

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from streamgauge.ingest.http1.client_identity import client_id
from streamgauge.ingest.http1.fields import SPECIAL_IN_REQUESTS, SPECIAL_IN_RESPONSES
from streamgauge.ingest.http1.heads import (
    BadRequest,
    BadUpstream,
    HeadLimits,
    read_request_head,
    read_response_head,
    response_body,
)
from streamgauge.ingest.http1.trace_context import TraceContext
from streamgauge.ingest.http1.upstreams import parse_upstream, parse_upstreams
from streamgauge.ingest.records import Opened
from streamgauge.ingest.tap.http.rewriting import (
    XForwarded,
    adds_x_forwarded,
    request_for_upstream,
    response_for_client,
    signed_names,
)
from streamgauge.ingest.tap.http.routing import Router
from tests.ingest.running_tap import read_request, running_tap

SECRET = "sk-plan7ed-s3cret"
KEY = b"k" * 32


def test_client_id_is_a_keyed_hash_of_the_api_key():
    bearer = client_id({b"authorization": f"Bearer {SECRET}".encode()}, KEY)
    secret = SECRET.encode()
    assert bearer == client_id({b"authorization": b"bearer  " + secret}, KEY)
    for name in (b"x-api-key", b"api-key", b"x-goog-api-key"):
        assert bearer == client_id({name: secret}, KEY)
    assert bearer != client_id({b"x-api-key": secret + b"x"}, KEY)
    assert bearer != client_id({b"x-api-key": secret}, b"z" * 32)
    assert client_id({b"x-other": secret}, KEY) is None
    aws = [
        client_id({b"authorization": b"AWS4-HMAC-SHA256 Credential=" + value}, KEY)
        for value in (
            b"AKIA1/20260101/x, Signature=a",
            b"AKIA1/20260102/x, Signature=b",
            b"AKIA2/20260101/x, Signature=a",
        )
    ]
    assert aws[0] == aws[1] != aws[2]
    assert bearer is not None
    assert len(bearer) == 32
    assert SECRET not in bearer


async def test_planted_secrets_are_in_no_record():
    """Credentials in the path and headers of a request and of its response."""

    async def upstream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(
            f"HTTP/1.1 200 OK\r\nSet-Cookie: s={SECRET}\r\nX-Token: {SECRET}\r\nAuthorization: {SECRET}\r\n"
            "Content-Length: 0\r\n\r\n".encode()
        )
        await reader.read()

    async with running_tap(upstream) as tap:
        names = [
            "Authorization",
            "X-Api-Key",
            "api-key",
            "X-Goog-Api-Key",
            "Cookie",
            "Proxy-Authorization",
            "X-Weird",
        ]
        lines = "".join(f"{n}: Bearer {SECRET}\r\n" for n in names)
        await tap.request(f"GET /m?key={SECRET}&alt=sse HTTP/1.1\r\nHost: h\r\n{lines}\r\n".encode())
        [records] = await tap.records()
        assert SECRET.encode() not in msgspec.msgpack.encode(records)
        assert isinstance(records[0], Opened)
        assert records[0].path == "/m?alt=sse"
        assert records[0].client_id is not None


async def request_seen(extra: bytes, **options: object) -> bytes:
    seen: list[bytes] = []

    async def upstream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append((await read_request(reader))[0])
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        await reader.read()

    async with running_tap(upstream, **options) as tap:
        await tap.request(b"GET / HTTP/1.1\r\nHost: tap.example\r\n" + extra + b"\r\n")
    return seen[0]


async def test_forwarding_fields_extend_received_ones():
    head = await request_seen(b"X-Forwarded-For: 10.0.0.1\r\nX-Forwarded-Proto: https\r\n")
    assert b"\r\nX-Forwarded-For: 10.0.0.1, 127.0.0.1\r\n" in head
    assert head.count(b"X-Forwarded-Proto") == 1
    assert b"X-Forwarded-Proto: https" in head
    assert b"X-Forwarded-Host: tap.example" in head
    assert b"Via" not in head


async def test_x_forwarded_can_be_disabled():
    head = await request_seen(
        b"X-Forwarded-For: 10.0.0.1\r\nVia: 1.0 a\r\n",
        x_forwarded="never",
    )
    assert b"\r\nX-Forwarded-For: 10.0.0.1\r\n" in head
    assert b"X-Forwarded-Host" not in head
    assert b"\r\nVia: 1.0 a\r\n" in head
    assert b"\r\nHost: tap.example\r\n" not in head


@pytest.mark.parametrize(
    ("url", "public"),
    [
        ("http://api.example.com", False),
        ("https://api.example.com", True),
        ("https://8.8.8.8", True),
        ("https://[2606:4700::1]", True),
        ("https://10.0.0.7:8443", False),
        ("https://[fd00::1]", False),
        ("https://localhost:4000", False),
        ("https://vllm", False),
        ("https://vllm.models.svc", False),
        ("https://gateway.corp.internal", False),
    ],
)
def test_public_upstream_gets_no_x_forwarded_fields_by_default(url: str, public: bool):
    upstream = parse_upstream(url)
    sends = {choice: adds_x_forwarded(choice, upstream) for choice in get_args(XForwarded)}
    assert sends == {"always": True, "private": not public, "never": False}


async def test_host_of_a_request_that_is_signed_for_aws_is_kept():
    signed = (
        b"Authorization: AWS4-HMAC-SHA256 Credential=AKIA/x, SignedHeaders=host;x-amz-date, Signature=0\r\n"
    )
    assert b"\r\nHost: tap.example\r\n" in await request_seen(signed)
    assert b"\r\nHost: 127.0.0.1:" in await request_seen(b"Authorization: Bearer AWS4\r\n")


async def test_fields_signed_for_aws_are_forwarded_as_received_unless_they_end_at_this_hop():
    names = "connection;host;keep-alive;traceparent;x-forwarded-for;x-streamgauge-capture"
    fields = b"traceparent: 00-a\r\nX-Forwarded-For: 10.0.0.1\r\nx-streamgauge-capture: none\r\nx-streamgauge-other: 1\r\n"
    signed = (
        f"Authorization: AWS4-HMAC-SHA256 Credential=AKIA/x, SignedHeaders={names}, Signature=0\r\n".encode()
    )
    hops = b"Connection: close\r\nKeep-Alive: timeout=5\r\n"
    head = await request_seen(fields + hops + signed, x_forwarded="always")
    assert (
        b"\r\ntraceparent: 00-a\r\nX-Forwarded-For: 10.0.0.1\r\nx-streamgauge-capture: none\r\nAuthorization:"
        in head
    )
    assert head.lower().count(b"\r\ntraceparent:") == head.lower().count(b"\r\nx-forwarded-for:") == 1
    assert not [p for p in (b"Connection:", b"Keep-Alive:", b"x-streamgauge-other:") if b"\r\n" + p in head]


def test_uncached_lines_are_parsed_and_keys_are_not_cached():
    from streamgauge.ingest.http1.heads import REQUEST_FIELDS

    planted = f"sk-{'x' * 20}"
    for _ in range(2):
        raw = f"GET /?key={planted} HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer {planted}\r\nX-Odd: {planted}\r\n"
        head = read_request_head(f"{raw}Accept: {'y' * 300}\r\n\r\n".encode(), HeadLimits())
        assert head.known[b"authorization"] == f"Bearer {planted}".encode()
        assert head.fields[-1].recorded == ("accept", "y" * 300)
    assert not any(planted.encode() in line for line in REQUEST_FIELDS.cached)


def test_field_cache_is_bounded():
    from streamgauge.ingest.http1.fields import _MAX_LINES
    from streamgauge.ingest.http1.heads import REQUEST_FIELDS

    for number in range(_MAX_LINES + 10):
        raw = f"GET / HTTP/1.1\r\nHost: h\r\nX-Request-Id: {number}\r\n\r\n"
        head = read_request_head(raw.encode(), HeadLimits())
        assert head.fields[1].recorded == ("x-request-id", str(number))
        assert len(REQUEST_FIELDS.cached) <= _MAX_LINES


async def test_fields_for_the_tap_are_not_forwarded():
    assert b"streamgauge" not in await request_seen(
        b"x-streamgauge-capture: none\r\nX-Streamgauge-Whatever: 1\r\n"
    )


async def test_connection_header_cannot_drop_framing_fields():
    raw = b"POST / HTTP/1.1\r\nHost: h\r\nConnection: content-length, host, x-a\r\nX-A: 1\r\nContent-Length: 0\r\n\r\n"
    assert read_request_head(raw, HeadLimits()).length == 0
    head = await request_seen(b"Connection: content-length, host, x-a\r\nX-A: 1\r\nContent-Length: 0\r\n")
    assert b"Content-Length: 0\r\n" in head
    assert b"Host: " in head
    assert b"X-A" not in head


async def test_framing_fields_are_forwarded_without_odd_whitespace():
    assert b"\r\nCONTENT-length: 0\r\n" in await request_seen(b"CONTENT-length:\t 0\t\r\n")


ROUTERS = [
    Router(parse_upstreams([url])) for url in ("a=http://127.0.0.1:1/base", "a=https://api.example.com")
]
TRACES = TraceContext("1" * 32, "2" * 16, None, 1), TraceContext("1" * 32, "2" * 16, "3" * 16, 0)
NAMES = [*SPECIAL_IN_REQUESTS, *SPECIAL_IN_RESPONSES, b"accept", b"cookie", b"x", b"x-streamgauge-x"]
NAME = st.sampled_from(NAMES).flatmap(lambda name: st.sampled_from([name, name.title(), name.upper()]))
WORDS = b"5 0 05 h chunked close keep-alive upgrade trailers h2c websocket".split()
SIGNED = b"AWS4-HMAC-SHA256 SignedHeaders=%b, x" % b";".join((*SPECIAL_IN_REQUESTS, b"x-streamgauge-x"))
VALUE = st.sampled_from([*WORDS, b"", b"x, accept", b"AWS4-HMAC-SHA256 x", SIGNED, b"Bearer x", b"a" * 300])
LINES = st.lists(
    st.builds(lambda *parts: b"%b:%b%b\r\n" % parts, NAME, st.sampled_from([b"", b" ", b"\t"]), VALUE),
    max_size=6,
)
REQUEST_LINES = [
    b"GET / HTTP/1.1",
    b"POST /v1/x?a=b HTTP/1.1",
    b"POST /x HTTP/1.0",
    b"PUT http://h2/p HTTP/1.1",
    b"OPTIONS * HTTP/1.1",
]
STATUS_LINES = [b"HTTP/1.1 200 OK", b"HTTP/1.1 404 ", b"HTTP/1.0 200 OK"]


@given(st.sampled_from(REQUEST_LINES), st.sampled_from([b"Host: h\r\n", b"host:\r\n", b""]), LINES)
@example(REQUEST_LINES[0], b"Host: h\r\n", [b"TE: trailers\r\n", b"Connection: x, TE\r\n", b"x: 1\r\n"])
@settings(max_examples=200, deadline=None)
def test_upstream_reads_the_request_that_the_client_sent(start: bytes, host: bytes, lines: list[bytes]):
    try:
        head = read_request_head(b"%b\r\n%b%b\r\n" % (start, host, b"".join(lines)), HeadLimits())
    except BadRequest:
        return
    for router, choice, trace in product(ROUTERS, get_args(XForwarded), TRACES):
        route = router.route(head)
        assert route is not None
        raw = request_for_upstream(head, route, trace, choice, "10.0.0.9", "http")
        seen = read_request_head(raw, HeadLimits())
        assert (seen.method, seen.target, seen.minor) == (head.method, route.target, 1)
        assert (seen.body, seen.length) == (head.body, head.length)
        signed = signed_names(head)
        host = head.host if signed else b""
        assert b"Host: %b\r\n" % (host or seen.host) in raw
        assert host or b"Host: %b\r\n" % seen.host == route.upstream.host_line
        if adds_x_forwarded(choice, route.upstream) and not signed:
            assert seen.known[b"x-forwarded-for"].endswith(b"10.0.0.9")
        sent = [f.value for f in head.fields if f.name == b"traceparent" and f.name not in head.connection]
        traces = [f.value for f in seen.fields if f.name == b"traceparent"]
        assert traces == (sent if signed else [trace.header.encode()])
        hidden = head.connection | {
            b"keep-alive",
            b"proxy-connection",
            b"proxy-authorization",
            b"http2-settings",
        }
        end_to_end = [
            f.line
            for f in head.fields
            if f.special in ((0, -1) if signed else (0,)) and f.name not in hidden  # else none for the tap
        ]
        assert [f.line for f in seen.fields if f.special <= 0] == end_to_end


@given(st.sampled_from(STATUS_LINES), LINES, st.booleans())
@settings(max_examples=200, deadline=None)
def test_client_reads_the_response_that_the_upstream_sent(start: bytes, lines: list[bytes], keep_alive: bool):
    try:
        head = read_response_head(b"%b\r\n%b\r\n" % (start, b"".join(lines)))
        framing = response_body(head, "GET")
    except BadUpstream:
        return
    raw = response_for_client(head, keep_alive=keep_alive, client_minor=1, drop_chunked=False)
    seen = read_response_head(raw)
    assert (seen.status, seen.reason, seen.keep_alive) == (head.status, head.reason, keep_alive)
    assert response_body(seen, "GET") == framing
    assert len(seen.lengths) <= 1
    assert seen.content_type == (b"" if b"content-type" in head.connection else head.content_type)
    end_to_end = [f.line for f in head.fields if f.special == 0 and f.name not in head.connection]
    assert [f.line for f in seen.fields if f.special == 0] == end_to_end
