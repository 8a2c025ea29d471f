"""Redacted records have the same measures as the records that the tap wrote."""

from __future__ import annotations

import gzip
import json
import random
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import brotli
import msgspec
import pytest
import zstandard

from streamgauge.analytics.assembly.assembler import Assembler
from streamgauge.analytics.decoding.conversation import ConversationReader
from streamgauge.analytics.measures.measure import measure
from streamgauge.ingest.files import har
from streamgauge.ingest.files.exchange_log import Exchange, exchange_log
from streamgauge.ingest.record_log.embedded_reader import EmbeddedReader
from streamgauge.ingest.records import Alive, AnyRecord, Frames, unpack
from streamgauge.ingest.redaction.record_redactor import Redactor
from streamgauge.python_api.recorded_response import exchange_of_file
from tests.analytics.amazon_event_stream import CONVERSE, exception
from tests.analytics.corpus import CORPUS, SKIP_REASON, Recording, recordings
from tests.analytics.redacted_streams import TEXT, assert_same, exchange, measured, redacted
from tests.analytics.schema.test_server_timing import SERVERS, sse
from tests.analytics.stream_records import alive
from tests.options import tap_options

CAPTURES = Path(__file__).parent / "captures"


def cut(body: bytes, rng: random.Random, longest: int) -> list[bytes]:
    reads = []
    while body:
        size = rng.randint(1, longest)
        reads.append(body[:size])
        body = body[size:]
    return reads


def whole_and_cut(body: bytes, seed: str) -> list[list[bytes]]:
    rng = random.Random(seed)
    return [[body], body.splitlines(keepends=True), cut(body, rng, 60), cut(body, rng, 1500)]


RECORDINGS = recordings()


def recorded(recording: Recording, reads: Sequence[bytes]) -> list[AnyRecord]:
    found = recording.found
    url = urlsplit(found["url"] or "")
    return exchange(
        reads,
        path=url.path + ("?alt=sse" if "alt=sse" in url.query else ""),
        status=found["http_status"] or 200,
        headers=[("content-type", found["content_type"] or "")],
        server_address=url.hostname or "",
    )


@pytest.mark.skipif(not RECORDINGS, reason=SKIP_REASON)
@pytest.mark.parametrize("recording", RECORDINGS, ids=str)
def test_recorded_stream_has_the_same_measures_after_redaction(recording: Recording) -> None:
    body = recording.body.read_bytes()
    assert_same(recorded(recording, cut(body, random.Random(str(recording)), max(60, len(body) // 200))))


@pytest.mark.slow
@pytest.mark.skipif(not RECORDINGS, reason=SKIP_REASON)
@pytest.mark.parametrize("recording", RECORDINGS, ids=str)
def test_redaction_keeps_measures_for_any_record_boundaries(recording: Recording) -> None:
    for reads in whole_and_cut(recording.body.read_bytes(), str(recording)):
        assert_same(recorded(recording, reads))


FILES = sorted(path for path in CORPUS.parent.glob("*/*") if path.suffix in (".sse", ".har"))


def exchanges_of(file: Path) -> list[Exchange]:
    if file.suffix == ".sse":
        return list(filter(None, [exchange_of_file(file, file.read_bytes())]))
    with file.open("rb") as source:
        return [found for found in har.exchanges(source, 1) if isinstance(found, Exchange)]


@pytest.mark.slow
@pytest.mark.skipif(not FILES, reason=f"no files beside {CORPUS}")
@pytest.mark.parametrize("file", FILES, ids=lambda path: path.name)
async def test_file_has_the_same_measures_after_redaction(file: Path, tmp_path: Path) -> None:
    everything = Redactor(capture=("*",), conversation=ConversationReader(b""))
    data = tmp_path / "data"
    async with exchange_log(tap_options(data=data, client_key=b"k"), everything, b"k") as log:
        for one in exchanges_of(file):
            log.add(one, "file")
    with EmbeddedReader(data / "log", "test") as reader:
        records = [record for entry in reader.poll(1, 2**30) for record in unpack(entry.payload)[0]]
    assert_same([record for record in records if not isinstance(record, Alive)])


@pytest.mark.parametrize("body", sorted(CAPTURES.glob("*/*.sse")), ids=lambda p: f"{p.parent.name}/{p.stem}")
def test_generated_stream_has_the_same_measures_after_redaction(body: Path) -> None:
    for reads in whole_and_cut(body.read_bytes(), str(body.name)):
        assert_same(exchange(reads, path=""))


def compressors() -> dict[str, Callable[[bytes], bytes]]:
    return {
        "gzip": gzip.compress,
        "deflate": zlib.compress,
        "br": brotli.compress,
        "zstd": zstandard.ZstdCompressor().compress,
        "gzip, br": lambda body: brotli.compress(gzip.compress(body)),
    }


CHAT = b"".join(
    b'data: {"id":"c1","object":"chat.completion.chunk","model":"m-1",'
    b'"choices":[{"index":0,"delta":{"content":"w%d "}}]}\n\n' % i
    for i in range(40)
) + b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'  # fmt: skip


@pytest.mark.parametrize("coding", compressors())
@pytest.mark.parametrize("damage", ["none", "cut", "garbage", "not coded"])
def test_compressed_stream_has_the_same_measures_after_redaction(coding: str, damage: str) -> None:
    packed = compressors()[coding](CHAT)
    if damage == "cut":
        packed = packed[: len(packed) // 2]
    elif damage == "garbage":
        packed = packed[:60] + b"\x00\xff\x13" * 30 + packed[90:]
    elif damage == "not coded":
        packed = CHAT
    headers = [("content-type", "text/event-stream"), ("content-encoding", coding)]
    for reads in whole_and_cut(packed, coding + damage):
        assert_same(exchange([packed], headers=headers))
        assert_same(exchange(reads, headers=headers))


HALVES = [{"content": "ok "}, {"content": "\ud83d"}, {"content": "\ude00b"}, {"content": "\ud83d\ude00"}]
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}}
OUTPUT: dict[str, tuple[str, list[Any]]] = {
    "halves of characters": ("/v1/chat/completions", [{"choices": [{"delta": delta}]} for delta in HALVES]),
    "images of chat": ("/v1/chat/completions", [
        {"choices": [{"delta": {"images": [IMAGE]}}]},
        {"choices": [{"delta": {"content": [IMAGE, {"type": "text", "text": "t"}]}}]},
    ]),
    "images of Responses": ("/v1/responses", [
        {"type": "response.image_generation_call.partial_image", "partial_image_b64": "aGk="},
        {"type": "response.output_item.done", "item": {"type": "image_generation_call", "result": "aGk="}},
    ]),
    "images of Gemini": ("/v1/models/m:streamGenerateContent", [
        {"candidates": [{"content": {"parts": [{"inlineData": {"mimeType": "image/png", "data": "aGk="}}]}}]},
    ]),
    "images of Interactions": ("/v1/interactions", [
        {"event_type": "step.delta", "delta": {"type": "image", "data": "aGk="}},
    ]),
}  # fmt: skip


@pytest.mark.parametrize("name", OUTPUT)
def test_rare_output_has_the_same_measures_after_redaction(name: str) -> None:
    path, events = OUTPUT[name]
    body = b"".join(b"data: %b\n\n" % json.dumps(event).encode() for event in events)
    if "image" in name:
        found = measured(exchange([body], path=path))["events"]
        assert "image" in {event["kind"] for event in found}
        assert len([event for event in found if event["kind"] in ("image", "text")]) == len(events)
    for reads in whole_and_cut(body, name):
        assert_same(exchange(reads, path=path))


ERRORS = [
    {"error": {"type": "invalid_request_error", "code": "x", "param": "p", "message": "m"}}, {"code": 4001, "msg": "m"},
    {"type": "https://errors.example/a", "title": "Too Many Requests", "status": 429, "detail": "d", "instance": "/i"},
    {"__type": "ThrottlingException", "message": "m"}, {"detail": [{"loc": ["body", "n"], "msg": "m", "type": "missing"}]},
    [{"error": {"code": 429, "status": "RESOURCE_EXHAUSTED", "message": "m", "details": [{"reason": "RATE_LIMIT"}]}}],
    {"success": False, "errors": [{"code": 5006, "message": "m"}], "messages": [], "result": {}}, {"error": "m"},
]  # fmt: skip
VALUES: dict[str, tuple[str, list[Any], dict[str, Any]]] = {
    # what is compared → (path, events, expected columns)
    "lifetime of a cache": (
        "/model/m/converse-stream",
        [("metadata", {"metrics": {"latencyMs": 9}, "usage": {"inputTokens": 1, "outputTokens": 1, "cacheDetails": [
            {"ttl": "1h", "inputTokens": 3000}, {"ttl": "5m", "inputTokens": 1000}]}})],
        {"cache_write_1h_tokens": 3000},
    ),
    "modality": (
        "/v1beta/models/m:streamGenerateContent",
        [{"candidates": [{"content": {"parts": [{"text": "a"}]}, "finishReason": "STOP"}], "usageMetadata": {
            "promptTokenCount": 5, "promptTokensDetails": [{"modality": "AUDIO", "tokenCount": 5}], "trafficType": "ON_DEMAND"}}],
        {"input_audio_tokens": 5},
    ),
    "media type with parameters": (
        "/v1beta/models/m:streamGenerateContent",
        [{"candidates": [{"content": {"parts": [
            {"inlineData": {"mimeType": "audio/L16;codec=pcm;rate=24000", "data": "aGk="}}]}, "finishReason": "STOP"}]}],
        {"output_event_count": 1},
    ),
    "unlabelled error": (
        "/v1/chat/completions",
        [{"object": "chat.completion.chunk", "choices": [{"delta": {"content": "a"}}]},
         {"statusCode": 500, "message": "m", "requestId": "r", "timestamp": "t", "path": "/p", "instance": "i", "param": None}],
        {"outcome": "inband_error"},
    ),
    "success without an error": (
        "/v1/chat/completions",
        [{"object": "chat.completion.chunk", "choices": [{"delta": {"content": "a"}}]}, {"success": True, "message": "m"}],
        {"outcome": "truncated"},
    ),
    "reason of a cancelled answer": (
        "/v1/realtime",
        [{"type": "response.done", "response": {
            "object": "realtime.response", "id": "r", "status": "cancelled", "status_details": {"reason": "turn_detected"}}}],
        {"finish_reason": "turn_detected"},
    ),
    "format of audio": (
        "/v1/realtime",
        [{"type": "response.created", "response": {"id": "r", "audio": {"output": {"format": {"type": "audio/pcmu"}}}}},
         {"type": "response.output_audio.delta", "response_id": "r", "delta": "A" * 400},
         {"type": "response.done", "response": {"id": "r", "status": "completed"}}],
        {"output_event_count": 1},
    ),
    "escaped slashes": (
        "/v1/chat/completions",
        [b'data: {"model":"vendor\\/m-1","choices":[{"delta":{"content":"a"},"finish_reason":"stop"}]}\n\n'],
        {"response_model": "vendor/m-1"},
    ),
    "tier, speed and region": (
        "/v1/messages",
        [{"type": "message_start", "message": {"id": "msg_1", "model": "m", "usage": {
            "input_tokens": 1, "output_tokens": 1, "service_tier": "priority", "speed": "fast", "inference_geo": "us"}}},
         {"type": "message_stop"}],
        {"input_tokens": 1},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", VALUES)
def test_values_that_are_compared_survive_redaction(name: str) -> None:
    path, events, expected = VALUES[name]
    named = [event if isinstance(event, tuple) else ("", event) for event in events]
    body = b"".join(event if isinstance(event, bytes) else sse(event, name) for name, event in named)
    (row,) = measured(exchange([body], path=path))["streams"]
    assert row.items() >= expected.items()
    for reads in [*whole_and_cut(body, name), [body[at : at + 1] for at in range(len(body))]]:
        assert_same(exchange(reads, path=path))


@pytest.mark.parametrize("server", SERVERS)
def test_server_reports_have_the_same_measures_after_redaction(server: str) -> None:
    path, body, head, _ = SERVERS[server]
    for reads in whole_and_cut(body, server):
        records = exchange(reads, path=path, status=head.status, headers=head.headers)
        assert_same(records, reports_have_text=server == "SGLang")


@pytest.mark.parametrize("status", [400, 429, 503])
@pytest.mark.parametrize("error", ERRORS, ids=str)
def test_errors_have_the_same_measures_after_redaction(error: Any, status: int) -> None:
    headers = [("content-type", "application/json")]
    assert_same(exchange([json.dumps(error).encode()], status=status, headers=headers))


PIECES = ["I", " am", " It", "It", " here", ", I", " think so", "I am", "é", " am", "!"] + [
    f" word{i}" for i in range(20)
]


def sglang(texts: Sequence[str], choices: int) -> list[bytes]:
    made = []
    for i, text in enumerate(texts):
        for c in range(choices):
            content = f"{'ab'[c]}{text}" if choices > 1 else text
            made.append({"text": content, "index": c, "meta_info": {"completion_tokens": i}})
    return [b"data: " + json.dumps(event).encode() + b"\n\n" for event in made]


def dashscope(texts: Sequence[str], choices: int) -> list[bytes]:
    made = []
    for i, text in enumerate(texts):
        choice_list = [
            {
                "message": {"content": f"{'ab'[c]}{text}" if choices > 1 else text},
                "index": c,
                "finish_reason": "null",
            }
            for c in range(choices)
        ]
        event = {"output": {"choices": choice_list}, "usage": {"output_tokens": i}, "request_id": "r-1"}
        made.append(f"id:{i}\nevent:result\ndata:{json.dumps(event)}\n\n".encode())
    return made  # fmt: skip


@pytest.mark.parametrize("make", [sglang, dashscope])
@pytest.mark.parametrize("choices", [1, 2])
@pytest.mark.parametrize("grows", [False, True])
def test_cumulative_and_incremental_text_stay_distinguishable(make: Any, choices: int, grows: bool) -> None:
    texts = ["".join(PIECES[: i + 1]) for i in range(len(PIECES))] if grows else PIECES
    path = "/generate" if make is sglang else "/api/v1/services/aigc/text-generation/generation"
    records = exchange(make(texts, choices), path=path)
    assert measured(records)["streams"][0]["dialect"] == make.__name__.replace("sglang", "sglang_generate")
    if choices == 1:
        assert measured(records)["streams"][0]["text_chars"] == len("".join(PIECES))
    assert_same(records)


# -- checkpoints of long streams ----------------------------------------------------------------------------------


def long_stream(
    capture: Sequence[str], headers: Sequence[tuple[str, str]], body: bytes
) -> tuple[Assembler, list[bytes]]:
    """A stream that has been open for a minute, and its checkpoints."""
    records = exchange([body[i : i + 20] for i in range(0, len(body), 20)], headers=headers)
    assembler = Assembler(capture=capture)
    for offset, record in enumerate([alive(0), *records[:5], alive(61)]):
        assembler.feed("w0", offset, [record])
    return assembler, [checkpoint.payload for checkpoint in assembler.checkpoint_records()]


def test_checkpoints_have_no_text_unless_it_is_captured() -> None:
    headers = [("content-type", "text/event-stream")]
    (kept,) = long_stream((), headers, CHAT)[1]
    assert b"w0 " not in b"".join(
        data for r in unpack(kept)[0] if isinstance(r, Frames) for _, data in r.frames
    )
    (kept,) = long_stream(("*",), headers, CHAT)[1]
    assert b"w0 " in b"".join(data for r in unpack(kept)[0] if isinstance(r, Frames) for _, data in r.frames)


def test_compressed_stream_is_replayed_from_the_log_instead_of_a_checkpoint() -> None:
    headers = [("content-type", "text/event-stream"), ("content-encoding", "gzip")]
    body = gzip.compress(CHAT, 1)
    assembler, kept = long_stream((), headers, body)
    assert kept == []
    assert assembler._out.held_bytes == 0
    position = assembler.position("w0", 7)
    assert position.low == 1

    records = exchange([body[i : i + 20] for i in range(0, len(body), 20)], headers=headers)
    again = Assembler()
    again.resume("w0", position.open_stream_ids)
    for offset, record in enumerate([alive(0), *records[:5], alive(61)]):
        again.feed("w0", offset, [record])
    again.end_replay("w0")
    for offset, record in enumerate(records[5:], 7):
        again.feed("w0", offset, [record])
    (row,) = measure(again.take_finished())["streams"].drop(TEXT, strict=False).to_dicts()
    assert [row] == measured(records)["streams"]


def test_text_in_server_reports_is_redacted() -> None:
    last = b'data: {"choices":[],"usage":{"completion_tokens":4,"note":"secret"},"timings":{"note":"secret","ms":5}}\n\n'
    found = measured(exchange([CHAT, last]))
    assert found["usage_reports"][0]["raw"] == '{"completion_tokens":4,"note":"xxxxxx"}'
    assert [(stat["name"], stat["raw"]) for stat in found["server_stats"]] == [
        ("note", "xxxxxx"),
        ("ms", "5"),
    ]
    captured = measured(exchange([CHAT, last]), capture=("*",))
    assert "secret" in captured["usage_reports"][0]["raw"]


def test_stop_sequences_are_stored_only_with_captured_content() -> None:
    request = b'{"model":"m","stop":["secret"]}'
    for capture, expected in (((), None), (("*",), ("secret",))):
        assembler = Assembler(capture=capture)
        assembler.feed("w0", 0, exchange([CHAT], request=request))
        (stream,) = assembler.take_finished()
        assert stream.request.stop_sequences == expected


def test_mcp_stream_has_the_same_measures_after_redaction() -> None:
    body = (
        b'data: {"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"secret","progress":1}}\n\n'
        b'data: {"jsonrpc":"2.0","id":1234567,"result":{"content":[{"type":"text","text":"secret"}],"isError":true}}\n\n'
    )
    request = b'{"jsonrpc":"2.0","id":1234567,"method":"tools/call","params":{"name":"level","arguments":{"a":"secret"}}}'
    for reads in whole_and_cut(body, "mcp"):
        records = exchange(reads, path="/servers/1", request=request)
        assert_same(records)
        (row,) = measured(redacted(records))["streams"]
        assert (row["operation"], row["outcome"], row["tool_failure_count"]) == ("tools/call", "ok", 1)
        assert b"secret" not in b"".join(msgspec.msgpack.encode(record) for record in redacted(records))


def test_amazon_event_stream_has_the_same_measures_after_redaction() -> None:
    headers = [("content-type", "application/vnd.amazon.eventstream")]
    for tail, outcome in ((b"", "ok"), (exception("throttlingException", "river of my customer"), "ok")):
        body = b"".join(CONVERSE) + tail
        for reads in whole_and_cut(body, "bedrock"):
            records = exchange(reads, path="/model/m/converse-stream", headers=headers)
            assert_same(records)
            (row,) = measured(redacted(records))["streams"]
            assert (row["dialect"], row["outcome"], row["output_tokens"]) == ("bedrock_converse", outcome, 9)
            sent = b"".join(msgspec.msgpack.encode(record) for record in redacted(records))
            assert not any(text in sent for text in (b"The river", b"rises", b"customer"))
    failed = exchange([*CONVERSE[:5], exception("throttlingException")], headers=headers)
    assert_same(failed)
    assert measured(redacted(failed))["streams"][0]["error_type"] == "throttlingException"
