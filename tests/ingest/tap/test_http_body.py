"""Body readers: end and payload do not depend on how the bytes are split, and agree with h11."""

from __future__ import annotations

import gc
import itertools
import sys
from collections.abc import Callable, Sequence

import h11
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from streamgauge.ingest.http1.bodies import MAX_CHUNK_LINE_BYTES, MAX_TRAILER_BYTES, BodyReader
from streamgauge.ingest.http1.heads import (
    CHUNKED,
    LENGTH,
    NO_BODY,
    UNTIL_CLOSE,
    BadRequest,
    BadUpstream,
)

CHUNKS = st.lists(st.binary(min_size=1, max_size=40), max_size=6)
EXTENSION = st.sampled_from([b"", b";a", b";a=b", b';a="b c"'])
TRAILER = st.sampled_from([b"", b"X: y\r\n", b"A: b\r\nC:\r\n"])
CUTS = st.lists(st.integers(0, 400), max_size=8)


def chunked(parts: Sequence[bytes], extension: bytes = b"", trailer: bytes = b"") -> bytes:
    framed = b"".join(b"%x%s\r\n%s\r\n" % (len(p), extension, p) for p in parts)
    return framed + b"0" + extension + b"\r\n" + trailer + b"\r\n"


def request() -> BodyReader:
    return BodyReader(CHUNKED, 0, of_request=True)


def response() -> BodyReader:
    return BodyReader(CHUNKED, 0)


def cut(raw: bytes, at: Sequence[int]) -> list[bytes]:
    edges = [0, *sorted({a for a in at if 0 < a < len(raw)}), len(raw)]
    return [raw[a:b] for a, b in itertools.pairwise(edges)]


@given(parts=CHUNKS, extension=EXTENSION, trailer=TRAILER, cuts=CUTS)
@settings(max_examples=200, deadline=None)
def test_chunked_payload_does_not_depend_on_how_reads_are_split(parts, extension, trailer, cuts):
    body = response()
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
    body = request()
    got = b"".join(body.feed(piece) for piece in pieces)
    assert (got, body.complete, body.excess) == (b"".join(parts), True, len(junk))


@pytest.mark.parametrize("raw", [b"0\r\n\r\n", b"2\r\n\r\n\r\n0\r\n\r\n", b"1\r\na\r\n0\r\nA: b\r\n\r\n"])
@pytest.mark.parametrize("junk", [b"", b"\n", b"\r\n", b"\r\n\r\n\r\n"])
def test_line_ends_after_a_response_are_excess_however_reads_are_split(raw, junk):
    for at in range(len(raw)):
        body = response()
        body.feed(raw[:at])
        body.feed(raw[at:] + junk)
        assert (body.complete, body.excess) == (True, len(junk))


@given(parts=CHUNKS, at=st.integers(0, 400), junk=st.binary(min_size=1, max_size=30))
@example(parts=[b"a", b"0\r\n\r\n"], at=0, junk=b"x")
@example(parts=[b"\r\n0\r\n\r\n" * 3], at=9, junk=b"0\r\n\r\n")
@settings(max_examples=300, deadline=None)
def test_bytes_after_a_response_are_excess(parts, at, junk):
    raw = chunked(parts)
    at = min(at, len(raw) - 1)
    body = response()
    if at:
        body.feed(raw[:at])
    body.feed(raw[at:] + junk)
    assert (body.complete, body.excess) == (True, len(junk))


def _feed_all(body: BodyReader, pieces: Sequence[bytes]) -> None:
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
    body = request()
    pieces = [raw[i : i + 1] for i in range(len(raw))] if bytewise else [raw]
    with pytest.raises(BadRequest):
        _feed_all(body, pieces)
    assert not body.complete


@pytest.mark.parametrize("raw", MALFORMED.values(), ids=MALFORMED.keys())
def test_malformed_response_chunks_raise_bad_upstream(raw: bytes):
    with pytest.raises(BadUpstream):
        response().feed(raw)


TRAILERS_TOO_LARGE = {
    "many": [b"A: b\r\n" * 5000],
    "many in small reads": [b"A: b\r\n"] * 5000,
    "one line": [b"A: " + b"b" * 17_000],
    "one line without an end": [b"A: ", *[b"b" * 1000] * 40],
    "one name without an end": [b"b" * 1000] * 40,
}


@pytest.mark.parametrize("pieces", TRAILERS_TOO_LARGE.values(), ids=TRAILERS_TOO_LARGE.keys())
def test_large_trailers_of_a_response_raise_bad_upstream(pieces: list[bytes]):
    body = response()
    pieces = [b"3\r\nabc\r\n0\r\n" + pieces[0], *pieces[1:], b"\r\n", b"\r\n"]
    with pytest.raises(BadUpstream):
        _feed_all(body, pieces)
    assert not body.complete


def test_endless_chunk_line_of_a_response_raises_bad_upstream():
    with pytest.raises(BadUpstream):
        _feed_all(response(), [b"3;a=", *[b"b" * 1000] * 40])


@pytest.mark.parametrize("read_bytes", [1, 1000, 100_000])
def test_trailers_within_the_limit_pass_however_reads_are_split(read_bytes: int):
    raw = chunked([b"abc"] * 9000, trailer=b"A: " + b"b" * 16_000 + b"\r\nC: d\r\n")
    body = response()
    _feed_all(body, [raw[at : at + read_bytes] for at in range(0, len(raw), read_bytes)])
    assert (body.complete, body.excess) == (True, 0)


@pytest.mark.parametrize("name", [b"Content_Length", b"Content-Length", b"transfer.encoding"])
def test_framing_fields_in_the_trailer_of_a_request_are_refused(name: bytes):
    with pytest.raises(BadRequest, match="a trailer reads as"):
        request().feed(b"0\r\n" + name + b": 5\r\n\r\n")


@pytest.mark.parametrize("name", [b"Content_Length", b"Content-Length", b"transfer.encoding"])
def test_framing_fields_in_the_trailer_of_a_response_raise_bad_upstream(name: bytes):
    with pytest.raises(BadUpstream):
        response().feed(b"0\r\n" + name + b": 5\r\n\r\n")
    response().feed(b"0\r\nX-" + name + b": 5\r\n\r\n")


def test_endless_chunk_lines_and_trailers_are_refused():
    with pytest.raises(BadRequest):
        request().feed(b"5;" + b"a" * 5000)
    with pytest.raises(BadRequest):
        request().feed(b"0\r\n" + b"A: b\r\n" * 5000)


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
    body = request()
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
        *(b"%c" % c for c in range(256)), *[b"5\r\nhello\r\n", b"0\r\n", b"\r\n"] * 40, *[b"2\r\n\r\n\r\n" * 9, b"3\r\nabc\r\n" * 99] * 9,
        b"A: b\r\n", b"Content_Length: 1\r\n", b"Transfer-Encoding:\r\n", b"Xontent-Length: 1\r\n", b"content-lengt: 1\r\n",
    ]
)  # fmt: skip


def outcome(pieces: Sequence[bytes]) -> tuple[bytes, bool, int] | str:
    """(payload, whether the body is complete, excess bytes), or the reason of the refusal."""
    body = request()
    payload = bytearray()
    for at, piece in enumerate(pieces):
        try:
            payload += body.feed(piece)
        except BadRequest as e:
            return e.reason
        if body.complete:
            return bytes(payload), True, body.excess + sum(map(len, pieces[at + 1 :]))
    return bytes(payload), False, 0


@given(st.lists(PARTS_OF_CHUNKS, max_size=20).map(b"".join), st.lists(st.integers(0, 500), max_size=8))
@settings(max_examples=600, deadline=None)
def test_outcome_does_not_depend_on_how_reads_are_split(raw: bytes, cuts: list[int]):
    assert outcome(cut(raw, cuts)) == outcome([raw]) == outcome([raw[at : at + 1] for at in range(len(raw))])


SIZES_AT_THE_LIMIT = {
    "chunk line": (b"1;%s\r\na\r\n0\r\n\r\n", MAX_CHUNK_LINE_BYTES - 4, 400, "a chunk line is too long"),
    "trailer": (b"0\r\nA:%s\r\n\r\n", MAX_TRAILER_BYTES - 4, 431, "the trailer is too large"),
    "second line of a trailer": (
        b"0\r\nA:\r\nB:%s\r\n\r\n",
        MAX_TRAILER_BYTES - 8,
        431,
        "the trailer is too large",
    ),
    "digits": (b"%sf\r\n" + b"a" * 15 + b"\r\n0\r\n\r\n", 15, 400, "a chunk is too large"),
}


@pytest.mark.parametrize(
    ("form", "size", "status", "reason"), SIZES_AT_THE_LIMIT.values(), ids=SIZES_AT_THE_LIMIT
)
@pytest.mark.parametrize("read_bytes", [1, 1000, 100_000])
def test_limits_are_exact_however_reads_are_split(
    form: bytes, size: int, status: int, reason: str, read_bytes: int
):
    for raw in (form % (b"0" * size), form % (b"0" * (size + 1))):
        body = request()
        pieces = [raw[at : at + read_bytes] for at in range(0, len(raw), read_bytes)]
        if len(raw) == len(form) - 2 + size:
            _feed_all(body, pieces)
            assert body.complete
        else:
            with pytest.raises(BadRequest, match=reason) as refused:
                _feed_all(body, pieces)
            assert refused.value.status == status


def test_chunks_below_4_exbibytes_pass():
    assert request().feed(b"3fffffffffffffff\r\nab") == b"ab"
    with pytest.raises(BadRequest, match="a chunk is too large"):
        request().feed(b"4000000000000000\r\nab")


def calls_of(function: Callable[[], object]) -> int:
    """The number of calls that Python code makes in `function`, without those of a garbage collection."""
    count = 0

    def on_event(_frame: object, event: str, _argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    gc.disable()  # Hypothesis registers a callback, which would be counted.
    sys.setprofile(on_event)
    try:
        function()
    finally:
        sys.setprofile(None)
        gc.enable()
    return count


@pytest.mark.parametrize("sizes", [(1,), (1, 2), (3, 15, 1, 7)])
@pytest.mark.parametrize("form", [b"%x\r\n%s\r\n", b"%04X\r\n%s\r\n"])
def test_work_for_small_chunks_does_not_grow_with_their_number(sizes: tuple[int, ...], form: bytes):
    parts = [b"\n\r1\n\rx\n\r1\n\ryyy"[-size:] for size in sizes] * 5_000
    raw = b"".join(form % (len(part), part) for part in parts)
    body = response()
    assert calls_of(lambda: body.feed(raw)) < 1_000
    assert body.feed(b"0\r\n\r\n") == b""
    assert body.complete
    whole = response()
    assert whole.feed(raw) == b"".join(parts)


@given(st.binary(min_size=1, max_size=50), CUTS, st.binary(max_size=10))
def test_body_of_known_length_ends_after_that_length(payload: bytes, cuts, junk: bytes):
    body = BodyReader(LENGTH, len(payload))
    pieces = cut(payload, cuts)
    pieces[-1] += junk
    assert b"".join(body.feed(p) for p in pieces) == payload
    assert (body.complete, body.excess) == (True, len(junk))


def test_bodies_without_length_or_chunks():
    until_close = BodyReader(UNTIL_CLOSE, 0)
    assert until_close.feed(b"abc") == b"abc"
    assert (until_close.complete, until_close.excess, until_close.until_close) == (False, 0, True)
    none = BodyReader(NO_BODY, 0)
    assert none.complete
    assert none.feed(b"abc") == b""
    assert none.excess == 3


def test_only_a_known_length_is_shorter():
    length = BodyReader(LENGTH, 10)
    assert (length.is_shorter_than(10), length.is_shorter_than(11)) == (False, True)
    assert length.feed(b"a") == b"a"
    assert length.is_shorter_than(10)
    assert not BodyReader(UNTIL_CLOSE, 0).is_shorter_than(10)
    assert not response().is_shorter_than(10)
