"""Body readers: end and payload do not depend on how the bytes are split, and agree with h11."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Sequence

import h11
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from streamgauge.ingest.tap.http.bodies import (
    ChunkedRequestBody,
    ChunkedResponseBody,
    CloseBody,
    LengthBody,
    native_relay,
    request_reader,
    response_reader,
)
from streamgauge.ingest.tap.http.heads import BadRequest, BadUpstream, Body

RESPONSE_READERS = [ChunkedResponseBody, *([native_relay.ChunkedBody] if native_relay is not None else [])]
CHUNKS = st.lists(st.binary(min_size=1, max_size=40), max_size=6)
EXTENSION = st.sampled_from([b"", b";a", b";a=b", b';a="b c"'])
TRAILER = st.sampled_from([b"", b"X: y\r\n", b"A: b\r\nC:\r\n"])
CUTS = st.lists(st.integers(0, 400), max_size=8)


def chunked(parts: Sequence[bytes], extension: bytes = b"", trailer: bytes = b"") -> bytes:
    framed = b"".join(b"%x%s\r\n%s\r\n" % (len(p), extension, p) for p in parts)
    return framed + b"0" + extension + b"\r\n" + trailer + b"\r\n"


def cut(raw: bytes, at: Sequence[int]) -> list[bytes]:
    edges = [0, *sorted({a for a in at if 0 < a < len(raw)}), len(raw)]
    return [raw[a:b] for a, b in itertools.pairwise(edges)]


@pytest.mark.parametrize("reader", [ChunkedRequestBody, *RESPONSE_READERS])
@given(parts=CHUNKS, extension=EXTENSION, trailer=TRAILER, cuts=CUTS)
@settings(max_examples=200, deadline=None)
def test_chunked_payload_does_not_depend_on_how_reads_are_split(reader, parts, extension, trailer, cuts):
    body = reader()
    got = b""
    pieces = cut(chunked(parts, extension, trailer), cuts)
    for i, piece in enumerate(pieces):
        assert not body.complete
        got += body.feed(piece)
        assert body.complete == (i == len(pieces) - 1)
    assert got == b"".join(parts)
    assert body.excess == 0


@given(parts=CHUNKS, cuts=CUTS, junk=st.binary(min_size=1, max_size=30))
@settings(max_examples=200, deadline=None)
def test_bytes_after_a_request_are_excess(parts, cuts, junk):
    raw = chunked(parts)
    pieces = cut(raw, cuts)
    pieces[-1] += junk
    body = ChunkedRequestBody()
    got = b"".join(body.feed(piece) for piece in pieces)
    assert (got, body.complete, body.excess) == (b"".join(parts), True, len(junk))


@pytest.mark.parametrize("raw", [b"0\r\n\r\n", b"2\r\n\r\n\r\n0\r\n\r\n", b"1\r\na\r\n0\r\nA: b\r\n\r\n"])
@pytest.mark.parametrize("junk", [b"", b"\n", b"\r\n", b"\r\n\r\n\r\n"])
@pytest.mark.parametrize("reader", RESPONSE_READERS)
def test_line_ends_after_a_response_are_excess_however_reads_are_split(reader, raw, junk):
    for at in range(len(raw)):
        body = reader()
        body.feed(raw[:at])
        body.feed(raw[at:] + junk)
        assert (body.complete, body.excess) == (True, len(junk))


@pytest.mark.parametrize("reader", RESPONSE_READERS)
@given(parts=CHUNKS, at=st.integers(0, 400), junk=st.binary(min_size=1, max_size=30))
@example(parts=[b"a", b"0\r\n\r\n"], at=0, junk=b"x")
@example(parts=[b"\r\n0\r\n\r\n" * 3], at=9, junk=b"0\r\n\r\n")
@settings(max_examples=300, deadline=None)
def test_bytes_after_a_response_are_excess(reader, parts, at, junk):
    raw = chunked(parts)
    at = min(at, len(raw) - 1)
    body = reader()
    if at:
        body.feed(raw[:at])
    body.feed(raw[at:] + junk)
    assert (body.complete, body.excess) == (True, len(junk))


def _feed_all(body: ChunkedRequestBody, pieces: Sequence[bytes]) -> None:
    for piece in pieces:
        body.feed(piece)


MALFORMED = {
    "no size": b"\r\n",
    "LF only": b"5\nhello\r\n0\r\n\r\n",
    "LF after data": b"5\r\nhello\n0\r\n\r\n",
    "too much data": b"5\r\nhellohello\r\n0\r\n\r\n",
    "0x": b"0x5\r\nhello\r\n0\r\n\r\n",
    "sign": b"+5\r\nhello\r\n0\r\n\r\n",
    "minus": b"-5\r\nhello\r\n0\r\n\r\n",
    "underscore": b"1_0\r\nhello\r\n0\r\n\r\n",
    "space before": b" 5\r\nhello\r\n0\r\n\r\n",
    "overflow": b"FFFFFFFFFFFFFFFFF\r\nhello",
    "bare LF in extension": b"5;a\nX\r\nhello\r\n0\r\n\r\n",
    "bare CR in extension": b"5;a\rX\r\nhello\r\n0\r\n\r\n",
    "NUL in extension": b"5;a\0X\r\nhello\r\n0\r\n\r\n",
    "trailer with space": b"5\r\nhello\r\n0\r\nA : b\r\n\r\n",
    "trailer folded": b"5\r\nhello\r\n0\r\nA: b\r\n c\r\n\r\n",
    "trailer with LF": b"5\r\nhello\r\n0\r\nA: b\n\r\n",
}


@pytest.mark.parametrize("raw", MALFORMED.values(), ids=MALFORMED.keys())
@pytest.mark.parametrize("bytewise", [False, True])
def test_malformed_request_chunks_are_refused(raw: bytes, bytewise: bool):
    body = ChunkedRequestBody()
    pieces = [raw[i : i + 1] for i in range(len(raw))] if bytewise else [raw]
    with pytest.raises(BadRequest):
        _feed_all(body, pieces)
    assert not body.complete


@pytest.mark.parametrize("reader", RESPONSE_READERS)
@pytest.mark.parametrize("raw", MALFORMED.values(), ids=MALFORMED.keys())
def test_malformed_response_chunks_raise_bad_upstream(reader, raw: bytes):
    with pytest.raises(BadUpstream):
        reader().feed(raw)


TRAILERS_TOO_LARGE = {
    "many": [b"A: b\r\n" * 5000],
    "many in small reads": [b"A: b\r\n"] * 5000,
    "one line": [b"A: " + b"b" * 17_000],
    "one line without an end": [b"A: ", *[b"b" * 1000] * 40],
    "one name without an end": [b"b" * 1000] * 40,
}


@pytest.mark.parametrize("pieces", TRAILERS_TOO_LARGE.values(), ids=TRAILERS_TOO_LARGE.keys())
@pytest.mark.parametrize("reader", RESPONSE_READERS)
def test_large_trailers_of_a_response_raise_bad_upstream(reader, pieces: list[bytes]):
    body = reader()
    pieces = [b"3\r\nabc\r\n0\r\n" + pieces[0], *pieces[1:], b"\r\n", b"\r\n"]
    with pytest.raises(BadUpstream):
        _feed_all(body, pieces)
    assert not body.complete


@pytest.mark.parametrize("reader", RESPONSE_READERS)
def test_endless_chunk_line_of_a_response_raises_bad_upstream(reader):
    with pytest.raises(BadUpstream):
        _feed_all(reader(), [b"3;a=", *[b"b" * 1000] * 40])


@pytest.mark.parametrize("read_bytes", [1, 1000, 100_000])
@pytest.mark.parametrize("reader", RESPONSE_READERS)
def test_trailers_within_the_limit_pass_however_reads_are_split(reader, read_bytes: int):
    raw = chunked([b"abc"] * 9000, trailer=b"A: " + b"b" * 16_000 + b"\r\nC: d\r\n")
    body = reader()
    _feed_all(body, [raw[at : at + read_bytes] for at in range(0, len(raw), read_bytes)])
    assert (body.complete, body.excess) == (True, 0)


@pytest.mark.parametrize("name", [b"Content_Length", b"Content-Length", b"transfer.encoding"])
def test_framing_fields_in_the_trailer_of_a_request_are_refused(name: bytes):
    with pytest.raises(BadRequest, match="a trailer reads as"):
        ChunkedRequestBody().feed(b"0\r\n" + name + b": 5\r\n\r\n")


@pytest.mark.parametrize("reader", RESPONSE_READERS)
@pytest.mark.parametrize("name", [b"Content_Length", b"Content-Length", b"transfer.encoding"])
def test_framing_fields_in_the_trailer_of_a_response_raise_bad_upstream(reader, name: bytes):
    with pytest.raises(BadUpstream):
        reader().feed(b"0\r\n" + name + b": 5\r\n\r\n")
    reader().feed(b"0\r\nX-" + name + b": 5\r\n\r\n")


def test_endless_chunk_lines_and_trailers_are_refused():
    with pytest.raises(BadRequest):
        ChunkedRequestBody().feed(b"5;" + b"a" * 5000)
    with pytest.raises(BadRequest):
        ChunkedRequestBody().feed(b"0\r\n" + b"A: b\r\n" * 5000)


@given(
    st.lists(
        st.sampled_from(
            [b"5", b"\r\n", b"hello", b"0", b"\n", b"\r", b";a=b", b"A: b", b" ", b"a", b"\0", b":"]
        ),
        max_size=14,
    ).map(b"".join)
)
@settings(max_examples=600, deadline=None)
def test_accepted_input_is_parsed_the_same_by_h11(raw: bytes):
    body = ChunkedRequestBody()
    try:
        payload = body.feed(raw)
    except BadRequest:
        return
    server = h11.Connection(h11.SERVER)
    server.receive_data(b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n" + raw)
    assert isinstance(server.next_event(), h11.Request)
    theirs = b""
    event = server.next_event()
    while isinstance(event, h11.Data):
        theirs += bytes(event.data)
        event = server.next_event()
    assert theirs == payload
    assert isinstance(event, h11.EndOfMessage) == body.complete
    if body.complete:
        assert server.trailing_data[0] == raw[len(raw) - body.excess :]


PARTS_OF_CHUNKS = st.sampled_from(
    [
        *(b"%c" % c for c in range(256)), *[b"5\r\nhello\r\n", b"0\r\n", b"\r\n"] * 40, b"0" * 15, b"4" + b"0" * 15, b";" + b"x" * 4089,
        b"A: b\r\n", b"Content_Length: 1\r\n", b"Transfer-Encoding:\r\n", b"Xontent-Length: 1\r\n",
        b"A: " + b"b" * 16_377, b"A: " + b"b" * 8_187 + b"\r\n",
    ]
)  # fmt: skip


@pytest.mark.skipif(native_relay is None, reason="the native relay is not built: no C compiler")
@given(st.lists(PARTS_OF_CHUNKS, max_size=20).map(b"".join), st.lists(st.integers(0, 17_000), max_size=8))
@settings(max_examples=2000, deadline=None)
def test_native_chunk_reader_agrees_with_the_reference(raw: bytes, cuts: list[int]):
    python, native = ChunkedResponseBody(), native_relay.ChunkedBody()
    for piece in cut(raw, cuts):
        results = []
        for body in (python, native):
            try:
                results.append((body.feed(piece), bool(body.complete), body.excess))
            except BadUpstream:
                results.append(None)
        assert results[0] == results[1]
        if results[0] is None or python.complete:
            return


def calls_of(function: Callable[[], object]) -> int:
    """The number of calls that Python code makes in `function`."""
    count = 0

    def on_event(_frame: object, event: str, _argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(on_event)
    try:
        function()
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.parametrize("reader", [ChunkedRequestBody, *RESPONSE_READERS])
@pytest.mark.parametrize("sizes", [(1,), (1, 2), (3, 15, 1, 7)])
@pytest.mark.parametrize("form", [b"%x\r\n%s\r\n", b"%04X\r\n%s\r\n"])
def test_work_for_small_chunks_does_not_grow_with_their_number(reader, sizes: tuple[int, ...], form: bytes):
    parts = [b"\r\n1\r\nx\r\n1\r\nyyy"[-size:] for size in sizes] * 5_000
    raw = b"".join(form % (len(part), part) for part in parts)
    body = reader()
    assert calls_of(lambda: body.feed(raw)) < 60
    assert body.feed(b"0\r\n\r\n") == b""
    assert body.complete
    whole = reader()
    assert whole.feed(raw) == b"".join(parts)


@given(st.binary(min_size=1, max_size=50), CUTS, st.binary(max_size=10))
def test_body_of_known_length_ends_after_that_length(payload: bytes, cuts, junk: bytes):
    body = LengthBody(len(payload))
    pieces = cut(payload, cuts)
    pieces[-1] += junk
    assert b"".join(body.feed(p) for p in pieces) == payload
    assert (body.complete, body.excess) == (True, len(junk))


def test_bodies_without_length_or_chunks():
    assert request_reader(Body.NONE, 0, native=False).complete
    assert isinstance(response_reader(Body.CLOSE, 0, native=False), CloseBody)
    body = LengthBody(0)
    assert body.complete
    assert body.feed(b"abc") == b""
    assert body.excess == 3
