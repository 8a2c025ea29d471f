"""Decoding of whole bodies: dialect selection, non-streamed bodies, tails, large and invalid input."""

from __future__ import annotations

import gzip
import itertools
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamgauge.analytics.decoding import framing
from streamgauge.analytics.decoding.accumulator import StreamAccumulator
from streamgauge.analytics.decoding.dialect_selection import DialectSelector
from streamgauge.analytics.decoding.framing import Framer
from streamgauge.analytics.decoding.sse import MAX_EVENT_BYTES, SSEDecoder
from streamgauge.analytics.decoding.stream_decoder import StreamDecoder
from streamgauge.analytics.dialects import all_dialects
from streamgauge.analytics.dialects.dialect import ExchangeInfo
from streamgauge.analytics.dialects.openai_completions import ChoicesReader
from streamgauge.analytics.measures.stream_latency import first_event_ns, first_output_ns, last_output_ns
from tests.analytics.corpus import Recording, recordings

SSE = "text/event-stream"
CHAT_PATH = "/v1/chat/completions"


def chat(text: str, finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": finish}
    return f"data: {json.dumps({'id': 'c', 'object': 'chat.completion.chunk', 'choices': [choice]})}\n\n".encode()


MESSAGE = (
    b'event: message_start\ndata: {"type":"message_start","message":{"id":"msg_1","model":"m","usage":{"input_tokens":1}}}\n\n'
    b'event: content_block_start\ndata: {"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}\n\n'
    b'event: content_block_delta\ndata: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"Hi"}}\n\n'
    b'event: message_delta\ndata: {"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":2}}\n\n'
    b'event: message_stop\ndata: {"type":"message_stop"}\n\n'
)


def decode(body: bytes, step: int = 64, **exchange: Any) -> StreamDecoder:
    """Decode a body whose byte n arrives at n ns."""
    decoder = StreamDecoder(ExchangeInfo(**exchange), keep_text=True)
    for at in range(0, len(body), step):
        decoder.feed([(at, body[at : at + step])])
    decoder.finish()
    return decoder


@pytest.mark.parametrize("excess", [-100, 0, 1, 100])
def test_limit_of_an_event_holds_where_the_template_matches(excess: int) -> None:
    large = chat("x" * (MAX_EVENT_BYTES + excess - len(chat("")) + len("\n\n")))
    reads = [chat("a"), chat("b"), *[chat("c")] * 10, large, *[chat("d")] * 10]
    decoder = StreamDecoder(ExchangeInfo(path=CHAT_PATH, content_type=SSE))
    decoder.feed(list(enumerate(reads)))
    decoder.finish()
    assert (decoder.event_count, decoder.malformed_events) == ((23, 0) if excess <= 0 else (22, 1))


@pytest.mark.parametrize("step", [1, 50, 10**6])
@pytest.mark.parametrize("path", ["", CHAT_PATH, "/v1/responses", "/mcp", "/v2/chat", "/v1/completions"])
def test_events_override_a_misleading_path(path: str, step: int) -> None:
    found = decode(b": x\n\n" + MESSAGE, step, path=path, content_type=SSE)
    assert (found.dialect, found.text, found.finish_reason) == ("anthropic_messages", "Hi", "end_turn")
    assert found.event_count == 5
    found = decode(
        b"event: ping\ndata: {}\n\n" + chat("a") + chat("b", "stop"), step, path=path, content_type=SSE
    )
    assert (found.dialect, found.text, found.event_count) == ("openai_chat", "ab", 3)
    assert found.events.at_ns == sorted(found.events.at_ns)


def test_events_are_decoded_again_after_the_dialect_changes() -> None:
    vague = b'data: {"choices": [{"index": 0, "text": "a"}]}\n\n'
    found = decode(vague + chat("b", "stop"), path="/v1/completions", content_type=SSE)
    assert found.event_count == 2
    assert found.output_event_count == 2


def test_unknown_stream_has_bytes_events_and_times() -> None:
    body = b'data: {"jsonrpc": "2.0", "result": {}}\n\nevent: x\ndata: y\n\n'
    found = decode(body, 1, path="/rpc", content_type=SSE)
    assert (found.dialect, found.event_count, found.body_bytes) == ("unknown", 2, len(body))
    assert found.events.kind == ["other", "other"]
    assert first_event_ns(found.events) == body.index(b"\n\n") + 1
    assert found.streamed


def test_labelled_error_in_an_unknown_stream_is_found() -> None:
    found = decode(b'data: {"x": 1}\n\ndata: {"error": {"type": "boom"}}\n\n', path="/x", content_type=SSE)
    assert found.error is not None
    assert (found.dialect, found.error.type) == ("unknown", "boom")


def test_weak_claim_without_a_confirming_event_is_dropped() -> None:
    body = b"".join(b'data: {"n": %d}\n\n' % n for n in range(40))
    assert decode(body, path="/my/chat", content_type=SSE).dialect == "unknown"
    assert decode(body[:34], path="/my/chat", content_type=SSE).dialect == "unknown"


@pytest.mark.parametrize("tail", [b"data: [DONE]", b"data: [DONE]\n", b"data: [DONE] \r\n"])
def test_unterminated_terminator_is_flagged_but_not_an_event(tail: bytes) -> None:
    found = decode(chat("a", "stop") + tail, path=CHAT_PATH, content_type=SSE)
    assert (found.event_count, found.tail_event_count, found.unterminated_tail, found.done_seen) == (
        1,
        1,
        True,
        True,
    )


def test_unterminated_json_counts_but_is_not_an_event() -> None:
    found = decode(chat("a") + chat("b", "stop").rstrip(), path=CHAT_PATH, content_type=SSE)
    assert (found.text, found.finish_reason, found.unterminated_tail) == ("ab", "stop", True)
    assert (found.event_count, found.tail_event_count) == (1, 1)
    assert found.terminal_ns is not None


def test_half_event_at_disconnect_is_ignored() -> None:
    found = decode(chat("a") + chat("b")[:-20], path=CHAT_PATH, content_type=SSE)
    assert (found.text, found.unterminated_tail, found.malformed_events, found.tail_event_count) == (
        "a",
        False,
        0,
        1,
    )


@pytest.mark.parametrize("content_type", ["application/json", "text/event-stream", ""])
@pytest.mark.parametrize("indent", [None, 2])
def test_non_streamed_response(content_type: str, indent: int | None) -> None:
    body = json.dumps(
        {
            "id": "c-1", "object": "chat.completion", "model": "m",
            "choices": [{"index": 0, "message": {"content": "Hi"}, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 1, "completion_tokens": 2},
        },
        indent=indent,
    ).encode()  # fmt: skip
    found = decode(body, path=CHAT_PATH, content_type=content_type)
    assert (found.dialect, found.text, found.finish_reason, found.response_id) == (
        "openai_chat",
        "Hi",
        "stop",
        "c-1",
    )
    assert found.usage is not None
    assert (found.event_count, first_output_ns(found.events), found.usage_is_final) == (0, None, True)
    assert found.streamed == (content_type == SSE and indent is not None), (
        "only indented JSON labelled as SSE counts as streamed"
    )


def test_whole_body_is_recognised_without_a_path() -> None:
    found = decode(
        b'{"object": "chat.completion", "choices": [{"message": {"content": "Hi"}}]}',
        content_type="application/json",
    )
    assert (found.dialect, found.text, found.streamed) == ("openai_chat", "Hi", False)


@pytest.mark.parametrize(
    ("body", "error_type", "message"),
    [
        (b'{"error": {"message": "no", "type": "t", "code": "c"}}', "t", "no"),
        (b'{"error": {"message": "no", "type": null, "code": "c"}}', "c", "no"),
        (b"<html><head><title>502 Bad Gateway</title></head></html>", None, "502 Bad Gateway"),
        (b"upstream connect error", None, "upstream connect error"),
        (b'event: error\ndata: {"type":"error","error":{"type":"overloaded","message":"no"}}\n\n', "overloaded", "no"),
        (b'data: {"error": {"code": 429, "status": "RESOURCE_EXHAUSTED", "message": "no"}}\n\n', "RESOURCE_EXHAUSTED", "no"),
        (b'[{"error": {"code": 429, "status": "RESOURCE_EXHAUSTED", "message": "no"}}]', "RESOURCE_EXHAUSTED", "no"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("content_type", ["application/json", SSE, "text/html"])
@pytest.mark.parametrize("path", [CHAT_PATH, "/v1/messages", "/nothing"])
def test_error_bodies_of_every_shape(
    body: bytes, error_type: str | None, message: str, content_type: str, path: str
) -> None:
    if content_type != SSE and not body.startswith((b"{", b"[", b"<", b"event:", b"data:")):
        content_type = "text/plain"
    found = decode(body, path=path, status=502, content_type=content_type)
    assert found.error is not None
    assert (found.error.type, found.error.message) == (error_type, message)


def test_empty_error_body_has_no_error_report() -> None:
    found = decode(b"", path=CHAT_PATH, status=503)
    assert (found.error, found.streamed, found.first_byte_ns) == (None, False, None)


def test_invalid_content_coding_counts_as_malformed() -> None:
    found = decode(
        b"\x1f\x8b" + b"\xff" * 200,
        path=CHAT_PATH,
        content_type=SSE,
        response_headers={"content-encoding": "gzip"},
    )
    assert (found.malformed_events, found.event_count, found.body_bytes) == (1, 0, 202)


def test_stream_continues_after_invalid_json() -> None:
    found = decode(chat("a") + b"data: {oops\n\n" + chat("b", "stop"), path=CHAT_PATH, content_type=SSE)
    assert (found.text, found.malformed_events, found.finish_reason) == ("ab", 1, "stop")
    assert found.events.kind == ["text", "malformed", "text"]


def test_event_of_10_mb_is_decoded() -> None:
    found = decode(chat("x" * 10_000_000) + chat("y", "stop"), 65536, path=CHAT_PATH, content_type=SSE)
    assert (found.text_chars, found.malformed_events, found.finish_reason) == (10_000_001, 0, "stop")


def test_stream_continues_after_an_event_of_20_mb() -> None:
    found = decode(chat("x" * 20_000_000) + chat("y", "stop"), 65536, path=CHAT_PATH, content_type=SSE)
    assert (found.text, found.malformed_events, found.finish_reason) == ("y", 1, "stop")


@pytest.mark.parametrize("depth", [100, 3000, 200_000])
def test_deeply_nested_json_never_raises(depth: int) -> None:
    body = b'data: {"choices": ' + b"[" * depth + b"]" * depth + b"}\n\n" + chat("a", "stop")
    found = decode(body, 4096, path=CHAT_PATH, content_type=SSE)
    assert (found.text, found.event_count) == ("a", 2)


@pytest.mark.parametrize("charset", ["latin-1", "utf-16", "utf-8-sig"])
def test_unknown_charset_never_raises(charset: str) -> None:
    body = 'data: {"choices":[{"delta":{"content":"é"}}]}\n\n'.encode(charset)
    found = decode(body, 7, path=CHAT_PATH, content_type=f"{SSE}; charset=klingon")
    assert found.body_bytes == len(body)
    if charset == "latin-1":
        assert found.text == "\ufffd"


def test_results_are_valid_at_any_time() -> None:
    decoder = StreamDecoder(ExchangeInfo(path=CHAT_PATH, content_type=SSE))
    assert (decoder.dialect, decoder.event_count, decoder.usage) == ("openai_chat", 0, None)
    decoder.feed([(1, chat("a"))])
    assert (decoder.output_event_count, last_output_ns(decoder.events), decoder.finish_reason) == (1, 1, None)
    decoder.finish()
    decoder.finish()
    assert decoder.event_count == 1


def test_text_is_kept_only_with_keep_text() -> None:
    decoder = StreamDecoder(ExchangeInfo(path=CHAT_PATH, content_type=SSE))
    decoder.feed([(1, chat("secret", "stop"))])
    assert (decoder.text, decoder.text_chars) == ("", 6)


def test_usage_of_an_unfinished_stream_is_not_final() -> None:
    body = (
        b'data: {"choices":[{"delta":{"content":"a"}}],"usage":{"prompt_tokens":1,"completion_tokens":1}}\n\n'
    )
    assert not decode(body, path=CHAT_PATH, content_type=SSE).usage_is_final
    assert decode(body + chat("", "stop"), path=CHAT_PATH, content_type=SSE).usage_is_final


TOKENS = [
    b"data: ", b"{", b"}", b'"choices":[', b"]", b"\n", b"\n\n", b'"error":', b'"type":', b'"message_start"', b"event: ",
    b"null", b"1", b",",
]  # fmt: skip
PATHS = [
    "",
    CHAT_PATH,
    "/v1/messages",
    "/v1/responses",
    "/v2/chat",
    "/api/v1/chat",
    "/x:streamGenerateContent",
]


@settings(max_examples=150)
@given(
    body=st.binary(max_size=300) | st.lists(st.sampled_from(TOKENS), max_size=40).map(b"".join),
    path=st.sampled_from(PATHS),
    status=st.sampled_from([200, 400, 503]),
    content_type=st.sampled_from(["", SSE, "application/json", "application/x-ndjson", "text/html"]),
    coding=st.sampled_from(["", "gzip", "br", "zstd", "deflate"]),
)  # fmt: skip
def test_any_body_never_raises(body: bytes, path: str, status: int, content_type: str, coding: str) -> None:
    found = decode(
        body,
        13,
        path=path,
        status=status,
        content_type=content_type,
        response_headers={"content-encoding": coding},
    )
    columns = found.events
    lengths = {
        len(column)
        for column in (
            columns.read_seq, columns.at_ns, columns.kind, columns.event_name, columns.choice, columns.chars,
            columns.tokens, columns.bytes, columns.finish_reason,
        )
    }  # fmt: skip
    assert lengths == {found.event_count}


@pytest.mark.parametrize("recording", recordings()[::7], ids=str)
def test_mutated_recorded_streams_never_raise(recording: Recording) -> None:
    body = recording.body.read_bytes()[:6000]
    for at in range(0, len(body), max(1, len(body) // 25)):
        for broken in (body[:at] + body[at + 3 :], body[:at] + b"\xff\x00" + body[at:], body[:at]):
            decode(broken, 500, path=CHAT_PATH, content_type=SSE)


@pytest.mark.parametrize("recording", recordings()[::5], ids=str)
def test_splits_do_not_change_recorded_streams(recording: Recording) -> None:
    body = recording.body.read_bytes()[:30_000]
    whole, pieces = decode(body, 10**9, content_type=SSE), decode(body, 41, content_type=SSE)
    assert (whole.dialect, whole.text, whole.tool_calls) == (pieces.dialect, pieces.text, pieces.tool_calls)
    assert whole.events.kind == pieces.events.kind
    assert whole.events.chars == pieces.events.chars


def test_dialect_names_are_unique() -> None:
    names = [dialect.name for dialect in all_dialects()]
    assert len(names) == len(set(names)) >= 6


def test_dialect_does_not_depend_on_events_per_read() -> None:
    events = [b'data: {"level": 1}\n\n'] * 20 + [chat("a")]
    found = []
    for reads in ([b"".join(events)], events):
        decoder = StreamDecoder(ExchangeInfo(path="/anything", content_type=SSE))
        for at_ns, read in enumerate(reads):
            decoder.feed([(at_ns, read)])
        decoder.finish()
        found.append(decoder.dialect)
    assert found == ["unknown", "unknown"], "selection is settled after the first events"


def _chat_data(text: str, **more: Any) -> bytes:
    chunk = {"id": "c", "object": "chat.completion.chunk", "model": "m", **more}
    return json.dumps(
        chunk | {"choices": [{"index": 0, "delta": {"content": text}}]}, ensure_ascii=False
    ).encode()


READS = st.one_of(
    st.text(st.characters(codec="utf-8"), max_size=4).map(_chat_data),
    st.sampled_from(["\x7f", "a\x7fb", "\\", '"', "\n", "\U0001f600"]).map(_chat_data),
    st.text("ab", max_size=2).map(lambda text: _chat_data(text, usage={"completion_tokens": len(text)})),
    st.sampled_from([
        _chat_data("x")[:-1], b'{"choices": null}', b"[DONE]", b"\xff", _chat_data("\\").replace(b"\\\\", b"\\"),
        _chat_data("Q").replace(b"Q", b'","x":"'), _chat_data("Q").replace(b"Q", b"\xc3"), b"",
        _chat_data("Q").replace(b"Q", b"\\ud83d"), _chat_data("Q").replace(b'"Q"', b""),
    ]),
)  # fmt: skip
ENVELOPES = st.sampled_from(
    ["data: %s\n\n"] * 12
    + [
        "data:%s\n\n",
        "data: %s\r\n\r\n",
        "event: x\ndata: %s\n\n",
        ": c\n\ndata: %s\n\n",
        "id: 1\ndata: %s\n\n",
        "data: %s\n",
    ]
)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.tuples(READS, ENVELOPES), max_size=12).map(lambda sent: sent * 3),
    st.lists(st.integers(1, 40), min_size=1, max_size=4),
)
def test_matching_reads_decode_as_their_events_do(sent: list[tuple[bytes, str]], cuts: list[int]) -> None:
    plain = (_chat_data("on"), "data: %s\n\n")
    sent = [plain] * 9 + [one for pair in sent for one in (pair, plain, plain)] + [plain] * 20
    reads = [shape.encode().replace(b"%s", data) for data, shape in sent]
    frames = [(n * 1_000_000, read) for n, read in enumerate(reads)]
    decoder = StreamDecoder(ExchangeInfo(path=CHAT_PATH, content_type=SSE), keep_text=True)
    at = 0
    for size in itertools.cycle(cuts):
        decoder.feed(frames[at : at + size])
        at += size
        if at >= len(frames):
            break
    sse, reader, expected = SSEDecoder(), ChoicesReader(ExchangeInfo()), StreamAccumulator(keep_text=True)
    for at_ns, read in frames:
        events = sse.feed(read, at_ns)
        expected.add_events(events, [reader.read(event.name, event.data) for event in events])
    assert vars(decoder.events) == vars(expected.events)
    assert decoder.text == str(expected.first_choice.text)
    assert decoder.comment_count == sse.comment_count
    assert decoder.usage_reports == expected.usage_reports


@pytest.mark.parametrize("read_of", [lambda data: b"data: " + data + b"\n\n", lambda data: data + b"\n"])
def test_matching_reads_skip_the_framing(read_of: Callable[[bytes], bytes], monkeypatch: Any) -> None:
    """Of 1000 chunks that differ only in their text, the framer receives the first few."""
    seen = []
    feed_many = Framer.feed_many
    monkeypatch.setattr(Framer, "feed_many", lambda self, some: (seen.extend(some), feed_many(self, some))[1])
    frames = [(n, read_of(_chat_data(f"w{n}"))) for n in range(1000)]
    decoder = StreamDecoder(ExchangeInfo(path=CHAT_PATH, content_type=SSE))
    for at in range(0, 1000, 300):
        decoder.feed(frames[at : at + 300])
    assert (decoder.event_count, decoder.text_chars) == (1000, sum(len(f"w{n}") for n in range(1000)))
    assert decoder.events.read_seq == decoder.events.at_ns == list(range(1000))
    assert len(seen) < 20


@pytest.mark.parametrize("path", [CHAT_PATH, "/v1/messages", "/v1/responses", "/v2/chat", "/generate_stream"])
@pytest.mark.parametrize("step", [1, 10**6])
@pytest.mark.parametrize(
    ("sent", "error_type"),
    [
        ('data: {"detail": "Not enough memory"}\n\n', None),
        ('data: {"message": "boom", "code": "E7"}\n\ndata: [DONE]\n\n', "E7"),
        ('data: {"detail": "cut"}', None),
    ],
)
def test_flat_error_at_the_end_is_the_stream_error(
    path: str, step: int, sent: str, error_type: str | None
) -> None:
    found = decode(sent.encode(), step, path=path, content_type=SSE)
    assert found.error is not None
    assert (found.error.type, found.error.raw) == (
        error_type,
        json.loads(sent.partition("data: ")[2].partition("\n")[0]),
    )


@pytest.mark.parametrize(
    "sent",
    [
        chat("a", "stop") + b'data: {"detail": "x"}\n\n',  # after the terminal
        b'data: {"detail": "x"}\n\n' + chat("a"),  # not the last event
        chat("a") + b'data: {"message": "done", "status": "success"}\n\n',
        chat("a") + b'data: {"message": "m", "more": 1}\n\n',
    ],
)
def test_values_resembling_a_flat_error_are_not_errors(sent: bytes) -> None:
    assert decode(sent, path=CHAT_PATH, content_type=SSE).error is None


@pytest.mark.parametrize("end", [b"", b"event: ping\ndata: {}\n\n"])
@pytest.mark.parametrize("step", [1, 10**6])
def test_known_event_at_the_end_is_not_an_error(step: int, end: bytes) -> None:
    """`message_start` has a type and a message, as errors have."""
    start = MESSAGE.partition(b"event: content_block_start")[0]
    for body in (start + end, start.rstrip()):
        assert decode(body, step, path="/v1/messages", content_type=SSE).error is None


def candidate(text: str, finish: str | None = None) -> bytes:
    parts = [{"text": text}] if text else []
    found = {"index": 0, "content": {"parts": parts}, "finishReason": finish}
    return (
        f"data: {json.dumps({'candidates': [found], 'usageMetadata': {'totalTokenCount': 1}})}\n\n".encode()
    )


DONE = b"data: [DONE]\n\n"


@pytest.mark.parametrize("step", [1, 10**6])
@pytest.mark.parametrize(
    ("body", "finishes", "proves_nothing"),
    [
        (candidate("", "STOP") + candidate("One"), False, True),
        (candidate("", "STOP") * 2 + candidate("One") + candidate("", "STOP"), True, True),
        (candidate("One", "STOP") + candidate("two", "STOP"), True, True),
        (candidate("One", "STOP") + candidate(""), True, False),
        (chat("a", "stop") + chat("b") * 20, False, True),
        (chat("a", "stop") + chat("b") + DONE, False, True),
        (chat("a", "stop") + chat("b") + chat("", "stop") + DONE, True, False),
        (chat("a", "stop") + chat("", "stop"), True, False),
    ],
)  # fmt: skip
def test_finish_reason_that_output_follows_is_no_terminal(
    body: bytes, finishes: bool, proves_nothing: bool, step: int
) -> None:
    found = decode(body, step, path="", content_type=SSE)
    assert (found.terminal_ns is not None, found.output_after_finish) == (finishes, proves_nothing)


@pytest.mark.parametrize("step", [1, 10**6])
@pytest.mark.parametrize(
    ("texts", "text", "chars"),
    [
        (("ok ", "\ud83d", "\ude00", "!"), "ok 😀!", [3, 0, 1, 1]),
        (("a\ud83d", "\ude00b"), "a😀b", [1, 2]),
        (("a\ud83d", "b", "\ude00"), "a?b?", [1, 2, 1]),
        (("a\ud83d", *"bcdefghijk"), "a?bcdefghijk", [1, 2, *[1] * 9]),
        (("cut \ud83d",), "cut ", [4]),
    ],
)
def test_character_split_over_two_events_is_joined(
    texts: tuple[str, ...], text: str, chars: list[int], step: int
) -> None:
    body = b"".join(chat("x") for _ in range(3)) + b"".join(map(chat, texts))
    found = decode(body, step, path=CHAT_PATH, content_type=SSE)
    assert (found.text, found.events.chars) == ("xxx" + text, [1, 1, 1, *chars])
    assert found.text_chars == 3 + len(text)


def test_halves_of_a_character_belong_to_their_choice_and_channel() -> None:
    deltas = [
        {"index": 0, "delta": {"content": "\ud83d"}},
        {"index": 1, "delta": {"content": "b"}},
        {"index": 0, "delta": {"reasoning_content": "r"}},
        {"index": 0, "delta": {"content": "\ude00"}},
    ]
    body = b"".join(b"data: %b\n\n" % json.dumps({"choices": [delta]}).encode() for delta in deltas)
    found = decode(body, path=CHAT_PATH, content_type=SSE)
    assert (found.text, found.choices[1]["text"], found.reasoning) == ("😀", "b", "r")


@pytest.mark.parametrize("body", [b"", b"\n\n", b" \r\n", b": heartbeat\n\n", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("content_type", [SSE, "application/json", ""])
def test_response_without_an_event_lacks_the_stream_that_was_requested(
    body: bytes, content_type: str
) -> None:
    found = decode(body, path="/anything", content_type=content_type, stream_requested=True)
    assert (found.streamed, found.stream_is_missing) == (True, True)
    for other in (
        {"stream_requested": False},
        {"status": 204},
    ):
        asked = {"path": "/anything", "content_type": content_type, "stream_requested": True, **other}
        assert not decode(body, **asked).stream_is_missing


@pytest.mark.parametrize(
    "body", [b'{"choices": []}', b"<html>", b"plain text", b": x\n\ndata: {}\n\n", b": x\n\ndata: {}"]
)
def test_response_with_a_body_is_no_missing_stream(body: bytes) -> None:
    assert not decode(body, path="/anything", content_type="", stream_requested=True).stream_is_missing


@pytest.mark.parametrize("content_type", [SSE, "application/x-ndjson", ""])
@pytest.mark.parametrize("coding", ["gzip", ""])
def test_first_read_above_the_limit_of_a_body_is_decoded(
    coding: str, content_type: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Decompression can make one read of any size."""
    monkeypatch.setattr(framing, "MAX_BODY_BYTES", 1000)
    body = b"{}\n" * 400 if "ndjson" in content_type else b"data: {}\n\n" * 400
    headers = {"content-encoding": coding}
    exchange = ExchangeInfo(path=CHAT_PATH, content_type=content_type, response_headers=headers)
    decoder = StreamDecoder(exchange)
    decoder.feed([(1, gzip.compress(body) if coding else body)])
    decoder.finish()
    assert (decoder.event_count, decoder.malformed_events) == (400, 0)


@pytest.mark.parametrize("step", [100, 10**6])
def test_json_body_above_the_limit_is_reported(step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(framing, "MAX_BODY_BYTES", 1000)
    body = json.dumps({"choices": [{"message": {"content": "x" * 2000}}]}).encode()
    found = decode(body, step, path=CHAT_PATH, content_type="application/json")
    assert (found.malformed_events, found.text) == (1, "")


def test_common_event_name_does_not_outweigh_the_path() -> None:
    found = decode(b'event: error\ndata: {"code": "E", "message": "m"}\n\n', path=CHAT_PATH, content_type=SSE)
    assert (found.dialect, found.error and found.error.type) == ("openai_chat", "E")


def test_json_body_of_another_api_selects_its_dialect() -> None:
    """Some gateways answer OpenAI's shape at Anthropic's path."""
    exchange = ExchangeInfo(
        method="POST", path="/v1/messages", host="h", request_headers={"anthropic-version": "2023-06-01"}
    )
    selector = DialectSelector(exchange)
    selector.consider_body(
        b'{"id":"c","object":"chat.completion","choices":[{"message":{"role":"assistant","content":"x"}}]}'
    )
    assert selector.dialect is not None
    assert selector.dialect.name == "openai_chat"
