"""Properties of every registered dialect: bad data is a value, never an exception."""

from __future__ import annotations

import json
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamgauge.analytics.decoding.accumulator import StreamAccumulator
from streamgauge.analytics.decoding.stream_decoder import StreamDecoder
from streamgauge.analytics.dialects import all_dialects
from streamgauge.analytics.dialects.dialect import Dialect, ExchangeInfo
from streamgauge.analytics.dialects.events import (
    OUTPUT_KINDS,
    DecodedEvent,
    EventKind,
    TextDelta,
    as_decoded_event,
)

DIALECTS = all_dialects()
SOME_KEYS = """
    type event_type object delta message content text thinking reasoning reasoning_content refusal tool_calls tool_call
    function name arguments input output item response choices index finish_reason stop_reason usage error code id model
    candidates parts functionCall partialArgs jsonPath willContinue usageMetadata done details token generated_text value
    audio data status step interaction result stats content_block partial_json logprobs metadata arguments_delta
"""
SOME_NAMES = """
    message_start content_block_start content_block_delta message_delta message_stop error ping response.created
    response.output_item.added response.output_text.delta response.function_call_arguments.delta response.completed
    chat.start message.delta tool_call.arguments chat.end content-delta tool-call-delta message-end step.delta output
    thread.message.delta text_delta input_json_delta transcript.text.delta interaction.completed
"""
WORDS = st.sampled_from(SOME_KEYS.split())
NAMES = st.sampled_from(SOME_NAMES.split())
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | NAMES
JSON = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=5),
    max_leaves=20,
)


def by_name(dialect: Dialect) -> str:
    return dialect.name


@pytest.mark.parametrize("dialect", DIALECTS, ids=by_name)
@settings(max_examples=25)
@given(sent=st.lists(st.tuples(st.just("") | NAMES, JSON), max_size=4))
def test_any_json_never_raises(dialect: Dialect, sent: list[tuple[str, Any]]) -> None:
    reader, found = dialect.reader(ExchangeInfo()), StreamAccumulator(keep_text=True)
    for name, value in sent:
        data = json.dumps(value).encode()
        assert 0 <= dialect.recognises(name, data) <= 9
        answer = reader.read(name, data)
        found.add_event(as_decoded_event(answer), 1)
        if isinstance(answer, TextDelta):
            assert answer.text
        else:
            assert answer.kind in get_args(EventKind)
    for _, value in sent:
        for event in dialect.reader(ExchangeInfo()).read_body(json.dumps(value).encode()):
            assert isinstance(event, DecodedEvent)
            found.add_event(event, None, row=False)


@pytest.mark.parametrize("dialect", DIALECTS, ids=by_name)
@pytest.mark.parametrize(
    "data", [b'{"detail": "Not enough memory"}', b'{"type": "overloaded", "message": "m"}']
)
def test_event_of_no_dialect_is_not_taken_for_a_known_one(dialect: Dialect, data: bytes) -> None:
    """The decoder looks for an error without a label only in such an event."""
    assert as_decoded_event(dialect.reader(ExchangeInfo()).read("", data)).kind in ("other", "malformed")


@pytest.mark.parametrize("dialect", DIALECTS, ids=by_name)
@settings(max_examples=20)
@given(name=st.just("") | NAMES, data=st.binary(max_size=60) | st.text().map(str.encode))
def test_any_bytes_never_raise(dialect: Dialect, name: str, data: bytes) -> None:
    dialect.recognises(name, data)
    dialect.reader(ExchangeInfo()).read(name, data)
    dialect.reader(ExchangeInfo()).read_body(data)


@pytest.mark.parametrize("dialect", DIALECTS, ids=by_name)
@pytest.mark.parametrize(
    "data", [b"[" * 200_000, b'{"a":' * 50_000, b'{"delta":"' + b"x" * 1_000_000 + b'"}', b""]
)
def test_hostile_data_never_raises(dialect: Dialect, data: bytes) -> None:
    dialect.recognises("", data)
    dialect.reader(ExchangeInfo()).read("", data)
    dialect.reader(ExchangeInfo()).read_body(data)


@pytest.mark.parametrize("dialect", DIALECTS, ids=by_name)
def test_empty_object_yields_no_output(dialect: Dialect) -> None:
    reader = dialect.reader(ExchangeInfo())
    assert as_decoded_event(reader.read("", b"{}")).kind not in OUTPUT_KINDS


def test_names_are_unique_and_provider_and_operation_are_set() -> None:
    names = [dialect.name for dialect in DIALECTS]
    assert len(set(names)) == len(names)
    assert all(dialect.provider and dialect.operation for dialect in DIALECTS)


@pytest.mark.parametrize("path", ["/", "/healthz", "/v1/models", "/v1/embeddings"])
def test_paths_without_generation_are_not_claimed(path: str) -> None:
    claimed = {d.name for d in DIALECTS if d.claims(ExchangeInfo(path=path)) >= 5}
    assert not claimed - {"embeddings"}


def test_json_rpc_alone_identifies_no_dialect() -> None:
    """Several protocols use JSON-RPC; in some a request has many results."""
    data = (
        b'{"jsonrpc":"2.0","id":2,"result":{"content":[{"type":"text","text":"2024-01-01"}],"isError":false}}'
    )
    assert all(dialect.recognises("message", data) == 0 for dialect in DIALECTS)


BODIES: dict[str, dict[str, Any]] = {
    "anthropic_messages": {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "content": [{"type": "text", "text": "Hi"}],
        "stop_reason": "end_turn",
    },
    "anthropic_complete": {
        "type": "completion",
        "id": "c",
        "completion": "Hi",
        "stop_reason": "stop_sequence",
    },
    "openai_responses": {
        "id": "resp_1",
        "object": "response",
        "status": "completed",
        "output": [{"type": "message", "content": [{"type": "output_text", "text": "Hi"}]}],
    },
    "lmstudio_chat": {
        "model_instance_id": "m",
        "output": [{"type": "message", "content": "Hi"}],
        "stats": {},
    },
    "cohere_v2": {
        "id": "c",
        "finish_reason": "COMPLETE",
        "message": {"role": "assistant", "content": [{"type": "text", "text": "Hi"}]},
        "usage": {"billed_units": {"input_tokens": 1, "output_tokens": 1}},
    },
    "cohere_v1": {
        "generation_id": "g",
        "text": "Hi",
        "finish_reason": "COMPLETE",
        "meta": {"api_version": {}},
    },
    "gemini": {"candidates": [{"content": {"parts": [{"text": "Hi"}]}, "finishReason": "STOP"}]},
    "gemini_interactions": {
        "object": "interaction",
        "status": "completed",
        "outputs": [{"type": "text", "text": "Hi"}],
    },
    "ollama": {
        "model": "m",
        "created_at": "t",
        "message": {"content": "Hi"},
        "done": True,
        "done_reason": "stop",
    },
    "llamacpp_completion": {"content": "Hi", "stop": True, "stop_type": "eos", "tokens_predicted": 1},
    "sglang_generate": {"text": "Hi", "meta_info": {"finish_reason": {"type": "stop"}}},
}


@pytest.mark.parametrize("dialect", BODIES)
@pytest.mark.parametrize("indent", [None, 2])
def test_whole_body_identifies_its_dialect_without_a_path(dialect: str, indent: int | None) -> None:
    decoder = StreamDecoder(ExchangeInfo(content_type="application/json"), keep_text=True)
    decoder.feed([(1, json.dumps(BODIES[dialect], indent=indent).encode())])
    decoder.finish()
    assert (decoder.dialect, decoder.text, decoder.streamed) == (dialect, "Hi", False)
