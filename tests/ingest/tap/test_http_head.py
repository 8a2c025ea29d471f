"""Parsing of heads: accepted, refused, and compared with h11."""

from __future__ import annotations

import contextlib

import h11
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from streamgauge.ingest.http1.heads import (
    CHUNKED,
    LENGTH,
    NO_BODY,
    UNTIL_CLOSE,
    BadRequest,
    BadUpstream,
    HeadLimits,
    check_partial_head,
    read_request_head,
    read_response_head,
    response_body,
)

LIMITS = HeadLimits()


def request(raw: bytes):
    return read_request_head(raw, LIMITS)


def test_order_and_case_of_fields_are_kept():
    head = request(b"POST /v1/x?a=b HTTP/1.1\r\nHoSt: h\r\nX-B: 1\r\nx-a:\t2 \r\nX-B: 3\r\n\r\n")
    assert (head.method, head.target, head.minor) == ("POST", "/v1/x?a=b", 1)
    assert [(field.name, field.line, field.value) for field in head.fields] == [
        (b"host", b"HoSt: h\r\n", b"h"),
        (b"x-b", b"X-B: 1\r\n", b"1"),
        (b"x-a", b"x-a:\t2 \r\n", b"2"),
        (b"x-b", b"X-B: 3\r\n", b"3"),
    ]


@pytest.mark.parametrize(
    ("fields", "body", "length"),
    [
        (b"", NO_BODY, 0),
        (b"Content-Length: 0\r\n", NO_BODY, 0),
        (b"Content-Length: 12\r\n", LENGTH, 12),
        (b"Transfer-Encoding: chunked\r\n", CHUNKED, 0),
        (b"transfer-encoding: Chunked \r\n", CHUNKED, 0),
    ],
)
def test_request_body_framing(fields: bytes, body: int, length: int):
    head = request(b"POST / HTTP/1.1\r\nHost: h\r\n" + fields + b"\r\n")
    assert (head.body, head.length) == (body, length)


SMUGGLING = {
    "CL.TE": b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 6\r\nTransfer-Encoding: chunked\r\n\r\n",
    "TE.CL": b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\nContent-Length: 6\r\n\r\n",
    "TE.TE": b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n",
    "TE list": b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
    "TE unknown": b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: xchunked\r\n\r\n",
    "TE with a vertical tab": b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: \x0bchunked\r\n\r\n",
    "TE quoted": b'POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: "chunked"\r\n\r\n',
    "TE empty": b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding:\r\n\r\n",
    "TE in HTTP/1.0": b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n",
    "space before colon": b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding : chunked\r\n\r\n",
    "two lengths": b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n",
    "the same length twice": b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\n",
    "length list": b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 5, 5\r\n\r\n",
    "signed length": b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: +5\r\n\r\n",
    "negative length": b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: -5\r\n\r\n",
    "hex length": b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 0x5\r\n\r\n",
    "length with underscore": b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 1_0\r\n\r\n",
    "empty length": b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length:\r\n\r\n",
    "huge length": b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 99999999999999999999\r\n\r\n",
    "unicode digits": "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: ５\r\n\r\n".encode(),
    "obs-fold": b"POST / HTTP/1.1\r\nHost: h\r\nX: a\r\n b\r\n\r\n",
    "obs-fold on the first line": b"POST / HTTP/1.1\r\n Host: h\r\n\r\n",
    "bare LF": b"POST / HTTP/1.1\nHost: h\r\n\r\n",
    "bare LF in a field": b"POST / HTTP/1.1\r\nHost: h\r\nX: a\nContent-Length: 5\r\n\r\n",
    "bare CR in a field": b"POST / HTTP/1.1\r\nHost: h\r\nX: a\rb\r\n\r\n",
    "NUL": b"POST / HTTP/1.1\r\nHost: h\r\nX: a\0b\r\n\r\n",
    "no name": b"POST / HTTP/1.1\r\nHost: h\r\n: a\r\n\r\n",
    "no colon": b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length\r\n\r\n",
    "non-ASCII name": "POST / HTTP/1.1\r\nHost: h\r\nCöntent-Length: 1\r\n\r\n".encode(),
    "TE with an underscore": b"POST / HTTP/1.1\r\nHost: h\r\nTransfer_Encoding: chunked\r\n\r\n",
    "TE with a dot": b"POST / HTTP/1.1\r\nHost: h\r\ntransfer.encoding: chunked\r\n\r\n",
    "length with an underscore": b"POST / HTTP/1.1\r\nHost: h\r\nContent_Length: 5\r\n\r\n",
    "length with a tilde": b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\ncontent~length: 5\r\n\r\n",
    "control byte after a name": b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding\x0b: chunked\r\n\r\n",
    "tab before colon": b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length\t: 5\r\n\r\n",
    "two upstreams": b"GET / HTTP/1.1\r\nHost: h\r\nX-Streamgauge-Upstream: a\r\nx-streamgauge-upstream: a\r\n\r\n",
    "no host": b"GET / HTTP/1.1\r\n\r\n",
    "two hosts": b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
    "tab in the request line": b"GET\t/ HTTP/1.1\r\nHost: h\r\n\r\n",
    "two spaces": b"GET  / HTTP/1.1\r\nHost: h\r\n\r\n",
    "space in the target": b"GET /a b HTTP/1.1\r\nHost: h\r\n\r\n",
    "no version": b"GET /\r\nHost: h\r\n\r\n",
    "HTTP/2.0": b"GET / HTTP/2.0\r\nHost: h\r\n\r\n",
    "HTTP/1.10": b"GET / HTTP/1.10\r\nHost: h\r\n\r\n",
    "h2 preface": b"PRI * HTTP/2.0\r\n\r\n",
    "CONNECT": b"CONNECT example.org:443 HTTP/1.1\r\nHost: example.org\r\n\r\n",
    "other scheme": b"GET ftp://example.org/ HTTP/1.1\r\nHost: example.org\r\n\r\n",
    "authority form": b"GET example.org:80 HTTP/1.1\r\nHost: example.org\r\n\r\n",
    "user in the target": b"GET http://u:p@example.org/ HTTP/1.1\r\nHost: example.org\r\n\r\n",
}


@pytest.mark.parametrize("raw", SMUGGLING.values(), ids=SMUGGLING.keys())
def test_ambiguous_requests_are_refused(raw: bytes):
    with pytest.raises(BadRequest) as refusal:
        request(raw)
    assert refusal.value.status == 400


def test_names_that_only_resemble_framing_fields_are_forwarded():
    lines = [
        b"X-Content-Length: 5\r\n",
        b"Content-Lengths: 5\r\n",
        b"X_Api_Version: 1\r\n",
        b"Decoded_Length: 5\r\n",
    ]
    head = request(b"GET / HTTP/1.1\r\nHost: h\r\n" + b"".join(lines) + b"\r\n")
    assert [field.line for field in head.fields[1:]] == lines


def test_request_head_has_limits():
    with pytest.raises(BadRequest) as long_url:
        request(b"GET /" + b"a" * 20_000 + b" HTTP/1.1\r\nHost: h\r\n\r\n")
    assert long_url.value.status == 414
    with pytest.raises(BadRequest) as large:
        request(b"GET / HTTP/1.1\r\nHost: h\r\nX: " + b"a" * 70_000 + b"\r\n\r\n")
    assert large.value.status == 431
    with pytest.raises(BadRequest) as many:
        request(b"GET / HTTP/1.1\r\nHost: h\r\n" + b"X: 1\r\n" * 300 + b"\r\n")
    assert many.value.status == 431


@pytest.mark.parametrize(
    ("raw", "status"),
    [
        (b"GET / HTTP/1.1\n", 400),
        (b"G\0", 400),
        (b"GET /" + b"a" * 17_000, 414),
        (b"GET / HTTP/1.1\r\nX: " + b"a" * 66_000, 431),
    ],
)
def test_incomplete_head_is_refused_once_it_cannot_become_valid(raw: bytes, status: int):
    with pytest.raises(BadRequest) as refusal:
        check_partial_head(LIMITS, raw)
    assert refusal.value.status == status


def test_every_prefix_of_a_valid_head_is_accepted_as_incomplete():
    raw = b"POST /v1 HTTP/1.1\r\nHost: h\r\nX: y\r\n\r\n"
    for end in range(len(raw)):
        check_partial_head(LIMITS, raw[:end])


def test_absolute_target_becomes_a_path_and_its_host_takes_precedence():
    head = request(b"GET http://a.example:81?x=1 HTTP/1.1\r\nHost: b.example\r\n\r\n")
    assert (head.target, head.host) == ("/?x=1", b"a.example:81")
    head = request(b"GET HTTP://a.example/y HTTP/1.1\r\nHost: b\r\n\r\n")
    assert (head.target, head.host) == ("/y", b"a.example")


@pytest.mark.parametrize(
    ("raw", "keep"),
    [
        (b"GET / HTTP/1.1\r\nHost: h\r\n\r\n", True),
        (b"GET / HTTP/1.1\r\nHost: h\r\nConnection: foo, Close\r\n\r\n", False),
        (b"GET / HTTP/1.0\r\n\r\n", False),
        (b"GET / HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n", True),
    ],
)
def test_request_keep_alive(raw: bytes, keep: bool):
    assert request(raw).keep_alive is keep


# --- compared with h11

TOKEN = st.text(st.sampled_from("abcXYZ-_!~09"), min_size=1, max_size=8).map(str.encode)
NAME = (
    st.sampled_from([b"Content-Length", b"Transfer-Encoding", b"Host", b"Connection", b"Expect", b"X"])
    | TOKEN
)
VALUE = st.sampled_from([b"5", b"0", b"05", b"chunked", b"close", b"h", b"a, b", b"5, 5", b""]) | st.binary(
    max_size=8
)
EOL = st.sampled_from([b"\r\n"] * 12 + [b"\n", b"\r", b"\r\n "])
LINE = st.builds(
    lambda n, s, v, e: n + s + v + e, NAME, st.sampled_from([b":", b": ", b" :", b":\t", b""]), VALUE, EOL
)
START = st.sampled_from(
    [b"GET / HTTP/1.1", b"POST /x HTTP/1.1", b"POST /x HTTP/1.0", b"PUT * HTTP/1.1", b"GET /\x7f HTTP/1.1"]
)
HEAD = st.builds(
    lambda start, eol, host, lines: start + eol + host + b"".join(lines) + b"\r\n",
    START, EOL, st.sampled_from([b"Host: h\r\n", b""]), st.lists(LINE, max_size=5),
)  # fmt: skip


@given(HEAD)
@settings(max_examples=600, deadline=None)
@example(b"POST /x HTTP/1.1\r\nHost: h\r\nContent-Length: 05\r\n\r\n")
def test_accepted_input_is_parsed_the_same_by_h11(raw: bytes):
    try:
        head = request(raw)
    except BadRequest:
        return
    server = h11.Connection(h11.SERVER)
    server.receive_data(raw)
    theirs = server.next_event()
    assert isinstance(theirs, h11.Request)
    assert theirs.method.decode() == head.method
    assert theirs.http_version == b"1.%d" % head.minor
    ours = [(field.name, field.value) for field in head.fields]
    assert [(bytes(n), bytes(v)) for n, v in theirs.headers] == [
        (n, v.lower() if n == b"transfer-encoding" else v) for n, v in ours
    ]
    # h11 must expect the same number of body bytes.
    after = server.next_event()
    if head.body == NO_BODY:
        assert isinstance(after, h11.EndOfMessage)
    else:
        assert after is h11.NEED_DATA
        body = b"0\r\n\r\n" if head.body == CHUNKED else b"x" * head.length
        server.receive_data(body)
        seen = server.next_event()
        while isinstance(seen, h11.Data):
            seen = server.next_event()
        assert isinstance(seen, h11.EndOfMessage)


@given(st.binary(max_size=200))
@settings(max_examples=500, deadline=None)
def test_arbitrary_bytes_raise_only_bad_request(raw: bytes):
    with contextlib.suppress(BadRequest):
        request(raw)
    with contextlib.suppress(BadUpstream):
        response_body(read_response_head(raw), "GET")


# --- responses


def response(raw: bytes, method: str = "GET"):
    return response_body(read_response_head(raw), method)


@pytest.mark.parametrize(
    ("raw", "method", "expected"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n", "GET", (LENGTH, 3)),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n", "HEAD", (NO_BODY, 0)),
        (b"HTTP/1.1 204 No Content\r\n\r\n", "GET", (NO_BODY, 0)),
        (b"HTTP/1.1 304\r\nContent-Length: 3\r\n\r\n", "GET", (NO_BODY, 0)),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", "GET", (CHUNKED, 0)),
        (
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, Chunked\r\nContent-Length: 3\r\n\r\n",
            "GET",
            (CHUNKED, 0),
        ),
        (b"HTTP/1.0 200 OK\r\n\r\n", "GET", (UNTIL_CLOSE, 0)),
        (b"HTTP/1.1 200 \r\nContent-Length: 3\r\nContent-Length: 3\r\n\r\n", "GET", (LENGTH, 3)),
    ],
)
def test_response_body_framing(raw: bytes, method: str, expected: tuple[int, int]):
    assert response(raw, method) == expected


@pytest.mark.parametrize(
    "raw",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked, gzip\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX : y\r\n\r\n",
        b"HTTP/1.1 20 OK\r\n\r\n",
        b"HTTP/2 200\r\n\r\n",
        b"ICY 200 OK\r\n\r\n",
    ],
)
def test_invalid_responses_raise_bad_upstream(raw: bytes):
    with pytest.raises(BadUpstream):
        response(raw)
