"""Bedrock's binary event streams: what ends them, what is an error, output and usage."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from streamgauge.analytics.assembly.assembler import Assembler
from streamgauge.analytics.measures.measure import measure
from streamgauge.ingest.recording.body_capture import UNLIMITED, response_limit
from streamgauge.ingest.records import Frames, Request, ResponseHeaders
from tests.analytics.amazon_event_stream import CONVERSE, chunk, event, exception, message
from tests.analytics.stream_records import closed, head, opened, stream_id

A = stream_id(1)
MS = 1_000_000
TYPE = "application/vnd.amazon.eventstream"
CONVERSE_PATH = "/model/eu.anthropic.claude-3-7-sonnet-20250219-v1%3A0/converse-stream"
INVOKE_PATH = "/model/meta.llama3-1-8b/invoke-with-response-stream"


def row(
    reads: Sequence[bytes],
    path: str = CONVERSE_PATH,
    content_type: str = TYPE,
    response: ResponseHeaders | None = None,
    **end: Any,
) -> dict[str, Any]:
    """The row of a stream with these reads at 10, 20 … ms."""
    records = [
        opened(A, path=path, headers=[]),
        Request(A, 1, b"{}", False),
        Frames(
            A,
            2,
            [(10 * MS * i, data) for i, data in enumerate(reads, 1)],
            response or head(content_type=content_type),
        ),
        closed(A, 3, end_ns=10 * MS * (len(reads) + 1), **end),
    ]
    assembler = Assembler(capture=("*",))
    for offset, record in enumerate(records):
        assembler.feed("w0", offset, [record])
    (found,) = measure(assembler.take_finished())["streams"].to_dicts()
    return dict(found)


def test_tap_records_the_whole_stream() -> None:
    assert response_limit(TYPE.encode()) == (UNLIMITED, False)


@pytest.mark.parametrize("size", [1, 7, 1000, 10**6])
def test_converse_stream_is_measured_for_any_division_into_reads(size: int) -> None:
    body = b"".join(CONVERSE)
    found = row([body[at : at + size] for at in range(0, len(body), size)])
    assert (found["dialect"], found["provider"], found["outcome"]) == (
        "bedrock_converse",
        "aws.bedrock",
        "ok",
    )
    assert (found["output_text"], found["reasoning_text"], found["finish_reason"]) == (
        "The river rises",
        "hm",
        "tool_use",
    )
    assert (found["input_tokens"], found["output_tokens"], found["cached_input_tokens"]) == (25, 9, 5)
    assert (found["event_count"], found["tool_call_count"], found["malformed_events"]) == (12, 1, 0)
    assert found["request_model"] == "eu.anthropic.claude-3-7-sonnet-20250219-v1:0"


def test_converse_stream_has_output_times() -> None:
    found = row(CONVERSE)
    assert (found["ttft_ns"], found["ttfo_ns"], found["last_output_ns"]) == (20 * MS, 50 * MS, 90 * MS)
    assert found["streamed"] is True


@pytest.mark.parametrize("path", [CONVERSE_PATH, INVOKE_PATH, "/elsewhere"])
@pytest.mark.parametrize("before", [(), CONVERSE[:6]])
def test_exception_is_an_error_of_the_stream(path: str, before: tuple[bytes, ...]) -> None:
    found = row([*before, exception("throttlingException")], path)
    assert (found["outcome"], found["error_type"]) == ("inband_error", "throttlingException")
    assert found["error_phase"] == ("mid_stream" if before else "pre_first_output")
    assert found["error_message"] == "slow down"


@pytest.mark.parametrize("body", [b'{"message":"slow down"}', b'{"message":"slow down","type":"x"}', b""])
def test_type_of_an_http_error_is_in_its_header(body: bytes) -> None:
    fields = [("x-amzn-errortype", "ThrottlingException:http://internal.amazon.com/coral/")]
    found = row([body] if body else [], response=ResponseHeaders(429, fields, 50))
    assert (found["outcome"], found["error_type"]) == ("http_error", "ThrottlingException")
    assert found["error_message"] == ("slow down" if body else None)


def test_unmodelled_error_is_an_error_of_the_stream() -> None:
    error = message(b"", error_code="InternalError", error_message="gone", message_type="error")
    found = row([*CONVERSE[:5], error])
    assert (found["outcome"], found["error_type"], found["error_message"]) == (
        "inband_error",
        "InternalError",
        "gone",
    )


@pytest.mark.parametrize("cut", [0, 1, 20])
def test_stream_that_ends_before_its_terminal_is_truncated(cut: int) -> None:
    body = b"".join(CONVERSE[:-2])
    assert row([body[: len(body) - cut]])["outcome"] == "truncated"
    assert row([])["outcome"] == "truncated"


def test_client_that_leaves_after_the_terminal_is_no_abort() -> None:
    assert row(CONVERSE[:-1], cause="client_left", client_left_ns=500 * MS)["outcome"] == "ok"
    assert row(CONVERSE[:-2], cause="client_left", client_left_ns=500 * MS)["outcome"] == "client_abort"


@pytest.mark.parametrize("at", [0, 9, 40, -2])
def test_damaged_message_is_malformed(at: int) -> None:
    damaged = bytearray(CONVERSE[4])
    damaged[at] ^= 1
    found = row([*CONVERSE[:4], bytes(damaged), *CONVERSE[5:]])
    assert (found["outcome"], found["malformed_events"], found["event_count"]) == ("malformed", 1, 4)


def test_events_of_anthropic_inside_chunks_have_their_own_dialect() -> None:
    found = row(
        [
            chunk(
                type="message_start", message={"id": "msg_1", "model": "claude", "usage": {"input_tokens": 7}}
            ),
            chunk(type="content_block_delta", index=0, delta={"type": "text_delta", "text": "The river"}),
            chunk(type="message_delta", delta={"stop_reason": "end_turn"}, usage={"output_tokens": 3}),
            chunk(type="message_stop", **{"amazon-bedrock-invocationMetrics": {"outputTokenCount": 3}}),
        ],
        INVOKE_PATH,
    )
    assert (found["dialect"], found["outcome"], found["output_text"]) == (
        "anthropic_messages",
        "ok",
        "The river",
    )
    assert (found["input_tokens"], found["output_tokens"], found["ttft_ns"]) == (7, 3, 20 * MS)


@pytest.mark.parametrize(
    ("member", "reason"), [("generation", "stop_reason"), ("outputText", "completionReason")]
)
def test_events_of_other_models_end_with_the_metrics_of_bedrock(member: str, reason: str) -> None:
    metrics = {"amazon-bedrock-invocationMetrics": {"inputTokenCount": 7, "outputTokenCount": 3}}
    events = [
        chunk(**{member: "The"}),
        chunk(**{member: " river"}),
        chunk(**{member: "", reason: "stop", **metrics}),
    ]
    found = row(events, INVOKE_PATH)
    assert (found["dialect"], found["outcome"], found["output_text"]) == ("bedrock_invoke", "ok", "The river")
    assert (found["input_tokens"], found["output_tokens"], found["finish_reason"]) == (7, 3, "stop")
    assert row(events[:2], INVOKE_PATH)["outcome"] == "truncated"
    assert row([chunk(vector=[1]), chunk(vector=[2], **metrics)], INVOKE_PATH)["outcome"] == "ok"


def test_converse_body_that_was_not_streamed() -> None:
    body = {
        "output": {"message": {"role": "assistant", "content": [{"text": "The river"}]}},
        "stopReason": "end_turn",
        "usage": {"inputTokens": 20, "outputTokens": 9, "totalTokens": 29},
        "metrics": {"latencyMs": 10},
    }
    for path in ("/model/m/converse", "/elsewhere"):
        found = row([json.dumps(body).encode()], path, "application/json")
        assert (found["dialect"], found["outcome"], found["streamed"]) == ("bedrock_converse", "ok", False)
        assert (found["output_text"], found["output_tokens"], found["input_tokens"]) == ("The river", 9, 20)


def test_payload_that_is_not_an_object_is_malformed() -> None:
    found = row([CONVERSE[0], message(b"river", event_type="contentBlockDelta", message_type="event")])
    assert (found["outcome"], found["malformed_events"]) == ("malformed", 1)
    assert row([event("chunk", bytes="%"), *CONVERSE])["outcome"] == "malformed"
