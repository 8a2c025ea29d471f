"""Fingerprints of output that arrives in different chunks and formats."""

import json
import random
from collections.abc import Sequence
from typing import Any

import pytest

from streamgauge.analytics.decoding.decoded_body import body_of
from streamgauge.analytics.decoding.stream_decoder import StreamDecoder
from streamgauge.analytics.decoding.stream_output import KEPT_CHARS, MAX_PARTS
from streamgauge.analytics.dialects.dialect import ExchangeInfo
from streamgauge.analytics.measures.fingerprints import fingerprints, malformed_tool_calls
from streamgauge.ingest.redaction import filler
from streamgauge.ingest.redaction.filler import is_filler

KEY = b"k" * 32
TEXT = "The river runs quietly past the old mill."


def chat(*deltas: dict[str, Any]) -> tuple[str | None, str | None]:
    """Fingerprints of a chat completion with these deltas."""
    data = [{"choices": [{"index": 0, "delta": delta}]} for delta in deltas]
    return of_events("/v1/chat/completions", [(None, event) for event in data])


def of_events(
    path: str, events: Sequence[tuple[str | None, object]], key: bytes = KEY
) -> tuple[str | None, str | None]:
    decoder = StreamDecoder(ExchangeInfo(path=path, content_type="text/event-stream"))
    for n, (name, event) in enumerate(events):
        head = b"event: %b\n" % name.encode() if name else b""
        decoder.feed([(n, head + b"data: " + json.dumps(event).encode() + b"\n\n")])
    decoder.finish()
    return fingerprints(body_of(decoder), key)


def in_parts(text: str, size: int) -> list[dict[str, Any]]:
    return [{"content": text[at : at + size]} for at in range(0, len(text), size)]


def anthropic(text: str) -> tuple[str | None, str | None]:
    start = {
        "message": {"id": "m", "model": "c", "role": "assistant", "content": []},
        "type": "message_start",
    }
    block = {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}
    events: list[tuple[str, object]] = [("message_start", start), ("content_block_start", block)]
    for at in range(0, len(text), 9):
        delta = {"type": "text_delta", "text": text[at : at + 9]}
        events.append(("content_block_delta", {"type": "content_block_delta", "index": 0, "delta": delta}))
    return of_events("/v1/messages", events)


@pytest.mark.parametrize("size", [1, 3, 7, 100])
def test_equal_text_in_other_chunks_has_the_same_fingerprint(size: int) -> None:
    found, tools = chat(*in_parts(TEXT * 30, size))
    assert found == chat({"content": TEXT * 30})[0]
    assert found is not None
    assert tools is None


def test_equal_text_in_another_format_has_the_same_fingerprint() -> None:
    assert anthropic(TEXT)[0] == chat({"content": TEXT})[0] is not None


def test_other_text_or_key_has_another_fingerprint() -> None:
    events = [(None, {"choices": [{"index": 0, "delta": {"content": TEXT}}]})]
    path = "/v1/chat/completions"
    assert of_events(path, events)[0] != of_events(path, events, b"another key")[0]
    assert chat({"content": TEXT})[0] != chat({"content": TEXT[:-1] + "!"})[0]


def test_long_text_is_told_apart_by_its_length() -> None:
    long = TEXT * (KEPT_CHARS // len(TEXT) + 5)
    assert chat({"content": long})[0] == chat(*in_parts(long, 2))[0] != chat({"content": long + "x"})[0]


def test_kept_output_is_bounded() -> None:
    decoder = StreamDecoder(ExchangeInfo(path="/v1/chat/completions", content_type="text/event-stream"))
    for n in range(50):
        call = {"index": n, "function": {"name": "f", "arguments": "a" * 1000}}
        for delta in (*in_parts(TEXT * 20, 2), {"reasoning_content": TEXT * 9}, {"tool_calls": [call]}):
            event = json.dumps({"choices": [{"index": 0, "delta": delta}]}).encode()
            decoder.feed([(n, b"data: " + event + b"\n\n")])
    start = decoder.output_start
    for parts in (start.text, start.reasoning, *start.arguments.values()):
        assert len(parts) <= MAX_PARTS + 1
        assert sum(map(len, parts)) <= 2 * KEPT_CHARS
    assert sum(len("".join(parts)) for parts in start.arguments.values()) <= 2 * KEPT_CHARS


def test_a_long_event_is_kept_up_to_the_limit() -> None:
    decoder = StreamDecoder(ExchangeInfo(path="/v1/chat/completions", content_type="text/event-stream"))
    long = "a" * 10 * KEPT_CHARS
    call = {"index": 0, "function": {"name": "f", "arguments": long}}
    delta = {"content": long, "reasoning_content": long, "tool_calls": [call]}
    event = json.dumps({"choices": [{"index": 0, "delta": delta}]}).encode()
    decoder.feed([(0, b"data: " + event + b"\n\n")])
    start = decoder.output_start
    assert [sum(map(len, parts)) for parts in (start.text, start.reasoning, *start.arguments.values())] == [
        KEPT_CHARS
    ] * 3


def test_reasoning_counts_without_text_only() -> None:
    reasoning = chat({"reasoning_content": TEXT})[0]
    assert reasoning is not None
    assert (
        chat({"reasoning_content": TEXT}, {"content": "An answer."})[0] == chat({"content": "An answer."})[0]
    )


def test_equal_tool_arguments_have_the_same_fingerprint() -> None:
    def called(*fragments: str) -> str | None:
        calls = [{"index": 0, "function": {"name": "f", "arguments": text}} for text in fragments]
        return chat(*({"tool_calls": [call]} for call in calls))[1]

    assert called('{"a": 1,', ' "b": [2]}') == called('{"b":[2],"a":1}') is not None
    assert called('{"a": 1}') != called('{"a": 2}')
    assert called('{"a": ') is not None, "not JSON"
    assert called() is None


def test_output_without_a_usable_fingerprint() -> None:
    assert chat({"role": "assistant"}) == (None, None)
    two = [{"choices": [{"index": n, "delta": {"content": TEXT}}]} for n in (0, 1)]
    assert of_events("/v1/chat/completions", [(None, event) for event in two]) == (None, None)


def test_redacted_output_has_no_fingerprint() -> None:
    random.seed(1)
    letters = [chr(n) for n in (*range(0x80), 0xE9, 0x7FF, 0x800, 0xD7FF, 0xFFFF, 0x10000, 0x10FFFF)]
    for ascii_only in (True, False):
        for _ in range(200):
            text = json.dumps("".join(random.choices(letters, k=9)), ensure_ascii=ascii_only)
            redacted = json.loads(b'"' + filler.string(text[1:-1].encode()) + b'"')
            assert is_filler(redacted), redacted
            assert chat({"content": redacted}) == (None, None)
    assert not is_filler(TEXT)


@pytest.mark.parametrize(
    ("arguments", "malformed"),
    [
        (['{"city":"Ulm"}'], 0),
        (['{"ci', 'ty":"Ulm"}'], 0),
        (['{"city":"Ulm"'], 1),
        (["{city: Ulm}"], 1),
        (["free text of a custom tool"], 0),
        ([""], 0),
        (["{}"], 0),
        (["{xxxxxxx}"], None),  # redacted
        (['{"text":"' + "y" * KEPT_CHARS + '"}'], None),
    ],
)
def test_arguments_that_are_no_json_count_as_malformed(arguments: list[str], malformed: int | None) -> None:
    decoder = StreamDecoder(ExchangeInfo(path="/v1/chat/completions", content_type="text/event-stream"))
    for n, part in enumerate(arguments):
        call = {"index": 0, "function": {"name": "weather", "arguments": part}}
        event = {"choices": [{"index": 0, "delta": {"tool_calls": [call]}}]}
        decoder.feed([(n, b"data: " + json.dumps(event).encode() + b"\n\n")])
    decoder.finish()
    assert malformed_tool_calls(decoder.output_start) == malformed
