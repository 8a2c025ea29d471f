"""The first bytes of a body decide whether it is captured, whatever its content type says."""

from __future__ import annotations

import gzip
import json
import random
import zlib
from collections.abc import Callable

import brotli
import pytest
import zstandard

from streamgauge.analytics.assembly.assembler import Assembler
from streamgauge.ingest.facts import FieldFacts, ResponseFacts
from streamgauge.ingest.recording.body_capture import (
    LOOK_BYTES,
    MAX_PLAIN_BODY_BYTES,
    UNLIMITED,
    ResponseLook,
    captures_request,
    named_coding,
)
from streamgauge.ingest.records import AnyRecord, Frames
from tests.analytics.log_entries import chunk, ending
from tests.analytics.stream_records import rows_of
from tests.ingest.running_tap import END, assert_complete, body_of, request_of, respond_with, running_tap
from tests.ingest.running_tap import chunk as http_chunk
from tests.ingest.tap.recorders import RecorderGroup

CHAT = chunk("Hel") + chunk("lo") + ending(tokens=20)
LINES = b"".join(
    json.dumps({"model": "m", "created_at": "2026-09-01T00:00:00Z", "message": {"content": text}, "done": not text, **counts}).encode()
    + b"\n"
    for text, counts in (("Hel", {}), ("lo", {}), ("", {"done_reason": "stop", "prompt_eval_count": 7, "eval_count": 20}))
)  # fmt: skip
JSON = (
    b'{"id":"c1","object":"chat.completion","model":"m","choices":[{"index":0,"message":{"role":"assistant",'
    b'"content":"Hello"},"finish_reason":"stop"}],"usage":{"prompt_tokens":7,"completion_tokens":20,"total_tokens":27}}'
)
SAFETENSORS = (
    (0x7B).to_bytes(8, "little") + b'{"w":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}}' + bytes(5000)
)
WAV = b"RIFF\x24\x08\x00\x00WAVEfmt " + random.Random(1).randbytes(5000)
WHOLE, PART, NOTHING = (UNLIMITED, False), (MAX_PLAIN_BODY_BYTES, False), (0, False)
STREAM = (UNLIMITED, True)
Coder = Callable[[bytes], bytes]
CODERS: dict[str, Coder] = {
    "gzip": gzip.compress,
    "br": brotli.compress,
    "zstd": zstandard.ZstdCompressor().compress,
}

BODIES: dict[str, tuple[bytes, tuple[int, bool]]] = {
    "events": (CHAT, STREAM),
    "events after a byte order mark": (b"\xef\xbb\xbf" + CHAT, STREAM),
    "events after blanks": (b"\r\n\n  " + CHAT, STREAM),
    "events after comments": (b": ping\n\n:\r\n\r\n: OPENROUTER PROCESSING\n\n" + CHAT, STREAM),
    "events with a name, an id and a time": (b"id: 1\nretry: 5\nevent: x\n" + CHAT, STREAM),
    "lines": (LINES, WHOLE),
    "lines of JSON text sequences": (b"\x1e" + LINES.replace(b"\n", b"\n\x1e"), WHOLE),
    "indented JSON": (json.dumps(json.loads(JSON), indent=1).encode(), PART),
    "a long JSON line": (b'[{"text":"' + b"x" * LOOK_BYTES + b'"}]', PART),
    "text": (b"upstream connect error", NOTHING),
    "a page": (b"<html>data: x</html>", NOTHING),
    "a style sheet": (b":root {\n  --data: x;\n}\n", NOTHING),
    "a file of settings": (b'[section]\ndata="x"\n', NOTHING),
    "weights": (SAFETENSORS, NOTHING),
    "audio": (WAV, NOTHING),
    "a picture": (b"\x89PNG\r\n\x1a\n" + bytes(200), NOTHING),
    "a compressed file": (gzip.compress(CHAT), NOTHING),
    "blanks": (b" " * LOOK_BYTES, NOTHING),
}


def limit_of(body: bytes, step: int, *, method: str = "POST", coding: str = "") -> tuple[int, bool] | None:
    fields = [FieldFacts(b"content-encoding", coding.encode(), None)] if coding else []
    look = ResponseLook(method, named_coding(fields), 0)
    return next(
        (found for at in range(0, len(body), step) if (found := look.feed(body[at : at + step]))), None
    )


@pytest.mark.parametrize("step", [1, 3, 4096, 10**6])
@pytest.mark.parametrize("name", BODIES)
def test_first_bytes_decide_in_any_reads(name: str, step: int) -> None:
    body, expected = BODIES[name]
    assert limit_of(body, step) == expected


@pytest.mark.parametrize("coding", CODERS)
@pytest.mark.parametrize("name", ["events", "lines", "text", "audio", "a long JSON line"])
def test_first_bytes_are_those_without_the_content_coding(name: str, coding: str) -> None:
    body, expected = BODIES[name]
    packed = CODERS[coding](body)
    assert limit_of(packed, 10**6, coding=coding) == expected
    assert limit_of(packed, 1, coding=coding) in (expected, PART)


def test_body_with_a_coding_that_it_does_not_have_is_looked_at_as_it_is() -> None:
    for coding in (*CODERS, "gzip, br", "new"):
        assert limit_of(CHAT, 10**6, coding=coding) == STREAM


def test_lines_that_are_downloaded_are_captured_in_part() -> None:
    assert limit_of(LINES, 10**6, method="GET") == PART
    assert limit_of(CHAT, 10**6, method="GET") == STREAM


QUESTION = b'{"model": "m", "stream": true, "messages": []}'


@pytest.mark.parametrize(
    ("content_type", "body", "captured"),
    [
        (None, QUESTION, True), ("application/x-www-form-urlencoded", QUESTION, True), ("text/plain;charset=UTF-8", QUESTION, True),
        ("application/octet-stream", b"\n" + QUESTION, True), ("application/octet-stream", b"{", True),
        ("application/x-www-form-urlencoded", b"prompt=a", False), ("multipart/form-data; boundary=x", b"--x\r\n", False),
        (None, SAFETENSORS, False), ("audio/wav", WAV, False), (None, b"text", True),
    ],
)  # fmt: skip
def test_first_bytes_of_a_request_decide(content_type: str | None, body: bytes, captured: bool) -> None:
    kind = None if content_type is None else content_type.encode()
    assert captures_request(kind, [], body) == captured
    for coding, coder in CODERS.items():
        fields = [FieldFacts(b"content-encoding", coding.encode(), None)]
        assert captures_request(kind, fields, coder(body)) == captured


async def exchange(
    kind: str,
    body: bytes,
    *,
    request_kind: str = "",
    fields: bytes = b"",
    path: bytes = b"/v1/chat/completions",
) -> list[AnyRecord]:
    """The records of an answer in one chunk for each of its lines."""
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n" + fields
    asked = b"POST %b HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n" % (path, len(QUESTION))
    asked += f"Content-Type: {request_kind}\r\n".encode() if request_kind else b""
    head += f"Content-Type: {kind}\r\n".encode() if kind else b""
    chunks = b"".join(http_chunk(line) for line in body.splitlines(keepends=True))
    async with running_tap(respond_with(head + b"\r\n" + chunks + END)) as tap:
        _, received = await tap.request(asked + b"\r\n" + QUESTION)
        assert received == chunks + END
        (records,) = await tap.records()
        counters = tap.worker.recording.counters
        assert counters.captured_bytes + counters.uncaptured_bytes == counters.body_bytes == len(body)
    assert_complete(records)
    return records


KINDS = ["", "application/octet-stream", "text/plain", "application/json", "text/html", "image/png"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["events", "events in gzip", "lines", "JSON"])
async def test_streams_without_their_content_type_are_recorded_and_measured(name: str, kind: str) -> None:
    body = {"events": CHAT, "events in gzip": gzip.compress(CHAT), "lines": LINES, "JSON": JSON}[name]
    coding = b"Content-Encoding: gzip\r\n" if "gzip" in name else b""
    records = await exchange(
        kind, body, request_kind="application/x-www-form-urlencoded" if kind else "", fields=coding,
        path=b"/api/chat" if name == "lines" else b"/v1/chat/completions",
    )  # fmt: skip
    assert body_of(records) == body
    request = request_of(records)
    assert request is not None
    assert request.body == QUESTION
    assembler = Assembler()
    for offset, record in enumerate(records):
        assembler.feed("w0", offset, [record])
    (row,) = rows_of(assembler)
    found = [row[name] for name in ("outcome", "output_tokens", "input_tokens", "request_model")]
    assert found == ["ok", 20, 7, "m"]


@pytest.mark.parametrize(
    "kind", ["", "application/octet-stream", "audio/wav", "text/plain", "application/json"]
)
@pytest.mark.parametrize("body", [SAFETENSORS, WAV], ids=["weights", "audio"])
async def test_binary_bodies_are_counted_and_not_recorded(kind: str, body: bytes) -> None:
    records = await exchange(kind, body)
    assert body_of(records) == b""
    assert sum(r.uncaptured_bytes for r in records if isinstance(r, Frames)) == len(body)


async def test_a_coding_that_cannot_be_undone_leaves_the_decision_to_the_content_type() -> None:
    packed = zlib.compress(CHAT)
    assert (
        body_of(await exchange("application/json", packed, fields=b"Content-Encoding: deflate\r\n")) == packed
    )
    assert body_of(await exchange("", packed, fields=b"Content-Encoding: deflate\r\n")) == b""


@pytest.mark.parametrize("kind", ["text/plain", "application/octet-stream"])
async def test_a_stream_above_the_limit_of_other_text_is_recorded_whole(kind: str) -> None:
    body = (b"data: " + b"x" * 60_000 + b"\n\n") * 80
    assert len(body) > MAX_PLAIN_BODY_BYTES
    assert body_of(await exchange(kind, body)) == body


async def test_a_body_that_is_cut_before_the_decision_is_recorded() -> None:
    for start in (b"", b"\xef\xbb", b"\n\n", b"da", b": ping\n\n", b"{", b'{"id": "c1"'):
        assert body_of(await exchange("", start)) == start


async def test_the_relay_does_not_take_a_body_before_the_decision() -> None:
    group = RecorderGroup()
    recorder = group.start()
    group.respond(recorder, fields=b"Content-Type: text/plain\r\n")
    assert recorder.state_for_relay() is not None  # the first content type counts
    other = group.start()
    other.response_head(ResponseFacts(200, [], b"", 0), 1)
    other.response_data(b"da", 2)
    assert other.state_for_relay() is None
    other.response_data(b"ta: x\n\n", 3)
    found = other.state_for_relay()
    assert found is not None
    assert (found.capture_bytes, found.event_stream) == (UNLIMITED, True)
    for one in (recorder, other):
        group.end(one)
    group.settle()
    assert body_of(group.records_of(other)) == b"data: x\n\n"
