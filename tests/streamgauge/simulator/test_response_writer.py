"""The ledger's counts match each vendor's body, parsed by an independent SSE parser."""

from __future__ import annotations

import json
from typing import Any

import pytest

from streamgauge.analytics.decoding.stream_decoder import StreamDecoder
from streamgauge.analytics.dialects.dialect import ExchangeInfo
from streamgauge.simulator.profiles import HTTP_MODELS, PROFILES
from streamgauge.simulator.response_writer import PLACEHOLDERS
from streamgauge.simulator.server import Simulator
from streamgauge.simulator.written_streams import WRITTEN_STREAMS
from tests.analytics.redacted_streams import assert_same, exchange, measured
from tests.streamgauge.simulator.conftest import Script

MODELS = sorted(HTTP_MODELS)


def events(body: bytes) -> tuple[list[tuple[str, str]], int]:
    """(name, data) of each event, and the number of comments. Only for streams of the simulator."""
    found, comments = [], 0
    for block in body.replace(b"\r\n", b"\n").decode().split("\n\n"):
        name, data = "", []
        for line in block.split("\n"):
            if line.startswith(":"):
                comments += 1
            elif line.startswith("event: "):
                name = line.removeprefix("event: ")
            elif line.startswith("data: "):
                data.append(line.removeprefix("data: "))
        if data:
            found.append((name, "\n".join(data)))
    return found, comments


@pytest.mark.parametrize("model", MODELS)
def test_ledger_counts_match_the_body(script: Script, model: str) -> None:
    response, body, row = script(model, PROFILES[model].path, tokens=12, reasoning_tokens=6, tool_calls=2)
    found, comments = events(body)
    assert response.status_code == 200
    assert row.expected_outcome == "ok"
    assert (row.events, row.comments, row.body_bytes) == (len(found), comments, len(body))
    for _, data in found:
        assert data == "[DONE]" or json.loads(data)


@pytest.mark.parametrize("model", MODELS)
def test_body_contains_the_generated_text_in_order(script: Script, model: str) -> None:
    _, body, row = script(model, PROFILES[model].path, tokens=12)
    texts: list[str] = []
    for _, data in events(body)[0]:
        if data != "[DONE]":
            texts += fragments(json.loads(data))
    assert "".join(texts) == row.text
    assert len(row.text or "") == row.text_chars
    assert len(texts) == row.output_events


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("stream", [True, False])
def test_refusal_is_text_where_the_format_has_none(script: Script, model: str, stream: bool) -> None:
    path = PROFILES[model].path
    path = path if stream else path.replace(":streamGenerateContent?alt=sse", ":generateContent")
    response, body, _ = script(model, path, {"stream": stream}, tokens=12, refusal=True)
    [decoded] = measured(
        exchange(body.splitlines(keepends=True), path=path, headers=[*response.headers.items()])
    )["streams"]
    assert decoded["refusal_chars"] or decoded["text_chars"], body


@pytest.mark.parametrize("model", MODELS)
def test_answers_have_the_same_measures_after_redaction(script: Script, model: str) -> None:
    path = PROFILES[model].path
    for more in ({"tool_calls": 2}, {"refusal": True}, {"reasoning_tokens": 6}):
        response, body, _ = script(model, path, tokens=12, **more)
        headers = [("content-type", response.headers["content-type"])]
        assert_same(exchange(body.splitlines(keepends=True), path=path, headers=headers))


@pytest.mark.parametrize("vendor", WRITTEN_STREAMS)
def test_every_placeholder_of_a_written_stream_has_a_value(vendor: str) -> None:
    stream = WRITTEN_STREAMS[vendor]
    failures = set(stream.error_values(500, ""))
    failures.add("is_refusal")
    used = stream.id.names
    others = ("request", "session")  # their values are not those of a response
    for block in (block for name, blocks in stream.blocks.items() if name not in others for block in blocks):
        used |= block.template.names | block.template.conditions | {*block.wanted, *block.unwanted}
    assert used <= set(PLACEHOLDERS) | failures


WORDS = {"each_choice", "usage", "terminal", "finish", "output", "apart", "unframed", "whole"}


@pytest.mark.parametrize("vendor", WRITTEN_STREAMS)
def test_every_word_of_a_written_stream_is_known(vendor: str) -> None:
    for name, blocks in WRITTEN_STREAMS[vendor].blocks.items():
        for block in blocks:
            words = {word for word in block.words if not word.startswith(("if=", "unless="))}
            assert words - ({block.argument} if name in ("start", "error") else set()) <= WORDS, name


KNOWN_VIOLATIONS = {
    # Azure's filter sends choices without a delta. The API without [DONE] calls its chunks chat.completion and names no role.
    "gpt-sim-azure": ["missing_delta"],
    "edge-sim": ["missing_role", "wrong_object"],
}
"""Model → the rules of strict clients that its real API breaks."""


@pytest.mark.parametrize("model", MODELS)
def test_answers_break_no_rule_of_strict_clients_but_those_that_the_api_breaks(
    script: Script, model: str
) -> None:
    path = PROFILES[model].path
    for more in ({"tool_calls": 2}, {"refusal": True}, {"reasoning_tokens": 6}):
        response, body, _ = script(model, path, tokens=12, **more)
        decoder = StreamDecoder(
            ExchangeInfo(path=path, content_type=response.headers["content-type"], has_prompt=True)
        )
        decoder.feed([(1, body)])
        decoder.finish()
        assert (decoder.violations(ended=True) or []) == KNOWN_VIOLATIONS.get(model, [])


def fragments(event: dict[str, Any]) -> list[str]:
    """Text of one event in any dialect."""
    kind = event.get("type")
    if kind in ("response.output_text.delta", "message.delta"):
        return [event["content"] if kind == "message.delta" else event["delta"]]
    if kind == "content_block_delta":
        return [event["delta"]["text"]]
    if kind == "content-delta":
        return [event["delta"]["message"]["content"]["text"]]
    if kind is not None:
        return []
    if "candidates" in event:
        return [p["text"] for p in event["candidates"][0]["content"]["parts"] if p["text"]]
    found = []
    for choice in event["choices"]:
        text = choice["delta"].get("content") if "delta" in choice else choice.get("text")
        if text:
            found.append(text)
    return found


@pytest.mark.parametrize("model", MODELS)
def test_response_without_streaming_has_the_same_text_and_usage(
    script: Script, simulator: Simulator, model: str
) -> None:
    path = PROFILES[model].path.replace(":streamGenerateContent?alt=sse", ":generateContent")
    response, body, row = script(model, path, {"stream": False}, tokens=12)
    assert response.headers["content-type"] == "application/json"
    assert json.dumps(row.text)[1:-1] in json.dumps(json.loads(body))
    assert not row.streamed
    assert row.expected_outcome == "ok"
    assert row.usage is not None
    assert row.usage.output_tokens == 12


def test_every_vendor_has_a_model_or_a_path(script: Script) -> None:
    offered = {profile.vendor for profile in PROFILES.values()}
    by_path = {
        "fireworks_completions": "/inference/v1/completions",
        "fireworks_messages": "/inference/v1/messages",
    }
    assert offered | set(by_path) | {"gemini_live", "openai_live"} == set(WRITTEN_STREAMS)
    for vendor, path in by_path.items():
        _, _, row = script("kimi-sim", path)
        assert row.speaker == vendor


def test_path_decides_the_vendor_of_an_unknown_model(script: Script) -> None:
    for path, vendor in (
        ("/v1/chat/completions", "openai"),
        ("/proxy/v1/messages", "anthropic"),
        ("/v1/responses", "responses"),
        ("/v2/chat", "cohere"),
        ("/v1beta/models/whatever:streamGenerateContent?alt=sse", "gemini"),
    ):
        _, _, row = script("no-such-model", path)
        assert (row.speaker, row.expected_outcome) == (vendor, "ok")


def test_choices_are_interleaved_and_each_finishes(script: Script) -> None:
    _, body, row = script(body={"n": 3}, tokens=4)
    chunks = [json.loads(data) for _, data in events(body)[0] if data != "[DONE]"]
    order = [c["index"] for chunk in chunks for c in chunk["choices"] if c["delta"].get("content")]
    assert order == [0, 1, 2] * 4
    finished = [c["index"] for chunk in chunks for c in chunk["choices"] if c["finish_reason"]]
    assert finished == [0, 1, 2]
    assert row.output_events == 12
    assert row.output_tokens == 12


def test_logprobs_list_every_token_if_requested(script: Script) -> None:
    _, body, row = script(
        "kimi-sim", "/inference/v1/chat/completions", {"logprobs": True}, tokens=11, chunk_tokens=3
    )
    listed: list[list[dict[str, Any]]] = []
    for _, data in events(body)[0]:
        for choice in [] if data == "[DONE]" else json.loads(data)["choices"]:
            listed += [choice["logprobs"]["content"]] if choice.get("logprobs") else []
    assert [len(tokens) for tokens in listed] == [3, 3, 3, 2]
    assert "".join(token["token"] for tokens in listed for token in tokens) == row.text


def test_continuous_usage_grows_by_the_tokens_of_each_chunk(script: Script) -> None:
    options = {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}
    _, body, row = script("mixtral-sim", "/v1/chat/completions", options, tokens=6)
    chunks = [json.loads(data) for _, data in events(body)[0] if data != "[DONE]"]
    counts = [
        c["usage"]["completion_tokens"]
        for c in chunks
        if c["choices"] and c["choices"][0]["delta"].get("content")
    ]
    assert counts == [1, 2, 3, 4, 5, 6]
    assert row.usage_reports == len(chunks)


def test_lm_studio_events_follow_the_documented_order(script: Script) -> None:
    _, body, _ = script("oss-sim-20b", "/api/v1/chat", tokens=3, reasoning_tokens=2, tool_calls=1)
    names = [name for name, _ in events(body)[0]]
    assert names[0] == "chat.start"
    assert names[-1] == "chat.end"
    order = [
        "prompt_processing.start",
        "prompt_processing.end",
        "reasoning.start",
        "reasoning.end",
        "message.start",
    ]
    assert [name for name in names if name in order] == order
    assert names.index("tool_call.start") < names.index("tool_call.arguments")


def test_azure_begins_with_filter_results_without_id(script: Script) -> None:
    model = PROFILES["gpt-sim-azure"]
    _, body, row = script(model.model, model.path)
    first = json.loads(events(body)[0][0][1])
    assert (first["id"], first["model"], first["choices"]) == ("", "", [])
    assert "prompt_filter_results" in first
    assert row.response_id != ""


def test_keepalives_are_sent_during_a_long_silence(script: Script) -> None:
    _, body, row = script("llama-sim-8b", fault="stall", fault_after=3, stall_ms=300)
    assert b": heartbeat\n\n" in body
    assert row.comments >= 3
    assert row.expected_outcome == "ok"
