"""The quirks of the OpenAI family that break naive readers, numbered as in the project's definitions.

Each test feeds bytes with arrival times to a `StreamDecoder` and checks its results.
"""

from __future__ import annotations

import gzip
import json
from typing import Any

import brotli
import pytest
import zstandard

from streamgauge.analytics.decoding.stream_decoder import StreamDecoder
from streamgauge.analytics.dialects.dialect import ExchangeInfo
from streamgauge.analytics.measures.stream_latency import (
    first_nonreasoning_output_ns,
    first_output_ns,
    last_output_ns,
)

MS = 1_000_000
CHAT = ExchangeInfo(path="/v1/chat/completions", content_type="text/event-stream")
USAGE = {"prompt_tokens": 10, "completion_tokens": 2, "total_tokens": 12}


def chunk(delta: Any = None, finish: Any = None, index: int = 0, **top: Any) -> dict[str, Any]:
    choice = {
        "index": index,
        "delta": {} if delta is None else delta,
        "finish_reason": finish,
        **top.pop("choice", {}),
    }
    return {"id": "c-1", "object": "chat.completion.chunk", "model": "m-1", "choices": [choice], **top}


def decode(*items: dict[str, Any] | str, exchange: ExchangeInfo = CHAT, done: bool = True) -> StreamDecoder:
    """Decode events that arrive at 0, 1, 2 … ms, each in its own read; strings are sent unchanged."""
    decoder = StreamDecoder(exchange, keep_text=True)
    sent = [item if isinstance(item, str) else f"data: {json.dumps(item)}\n\n" for item in items]
    for number, text in enumerate([*sent, "data: [DONE]\n\n"] if done else sent):
        decoder.feed([(number * MS, text.encode())])
    decoder.finish()
    return decoder


def test_quirk_1_usage_on_a_chunk_with_choices() -> None:
    found = decode(chunk({"content": "Hi"}), chunk({"content": "!"}, "stop", usage=USAGE))
    assert found.usage is not None
    assert (found.usage.input_tokens, found.usage.output_tokens, found.text) == (10, 2, "Hi!")
    assert found.usage.raw == USAGE
    assert found.usage_is_final
    assert found.events.tokens == [None, None, None], (
        "one report at the end does not give the tokens of events"
    )


def test_quirk_1_differences_of_continuous_usage_are_the_tokens_of_events() -> None:
    def at(count: int) -> dict[str, int]:
        return {"prompt_tokens": 10, "completion_tokens": count, "total_tokens": 10 + count}

    found = decode(
        chunk({"role": "assistant", "content": ""}, usage=at(0)),
        chunk({"content": "a"}, usage=at(1)),
        chunk({"content": "bcd"}, usage=at(4)),
        chunk({"content": "e"}, "stop", usage=at(5)),
        {"id": "c-1", "object": "chat.completion.chunk", "choices": [], "usage": at(5)},
    )
    assert found.events.tokens == [None, 1, 3, 1, None, None]
    assert found.usage is not None
    assert found.usage.output_tokens == 5
    assert [(seq, at_ns) for seq, at_ns, _ in found.usage_reports] == [(n, n * MS) for n in range(5)]


def test_quirk_1_usage_before_the_last_chunk_does_not_end_the_stream() -> None:
    found = decode(
        chunk({"content": "a"}),
        {"id": "c-1", "choices": [], "usage": USAGE},
        chunk({"content": "b"}),
        chunk({}, "stop"),
    )
    assert (found.text, found.finish_reason, found.terminal_ns) == ("ab", "stop", 3 * MS)
    assert found.events.kind == ["text", "usage", "text", "finish", "terminal"]


@pytest.mark.parametrize("choices", [None, []])
def test_quirk_1_choices_null_or_empty_with_usage(choices: Any) -> None:
    found = decode(chunk({"content": "a"}, "stop"), {"id": "c-1", "choices": choices, "usage": USAGE})
    assert found.usage is not None
    assert found.usage.raw == USAGE
    assert found.malformed_events == 0


def test_quirk_1_null_usage_does_not_overwrite_a_number() -> None:
    found = decode(
        chunk({"content": "a"}, usage=USAGE),
        chunk({}, "stop", usage={"prompt_tokens": None, "completion_tokens": None}),
        {"id": "c-1", "choices": [], "usage": None},
    )
    assert found.usage is not None
    assert (found.usage.input_tokens, found.usage.output_tokens) == (10, 2)


def test_quirk_2_azure_first_chunk_without_choices_id_and_model() -> None:
    found = decode(
        {"choices": [], "created": 0, "id": "", "model": "", "object": "", "prompt_filter_results": [{"prompt_index": 0}]},
        chunk({"role": "assistant", "content": ""}, id="chatcmpl-7", model="gpt-4o"),
        chunk({"content": "Hi"}, id="", model=""),
        {
            "choices": [{"content_filter_offsets": {"check_offset": 44}, "content_filter_results": {}, "index": 0}],
            "id": "", "model": "", "object": "",
        },
        chunk({}, "stop", id="chatcmpl-7", model="gpt-4o"),
    )  # fmt: skip
    assert (found.response_id, found.response_model) == ("chatcmpl-7", "gpt-4o")
    assert (found.dialect, found.provider) == ("openai_chat", "azure.ai.openai")
    assert found.events.kind == ["annotation", "start", "text", "annotation", "finish", "terminal"]
    assert (found.output_event_count, found.choice_count) == (1, 1)


def test_quirk_3_empty_finish_reason_is_ignored() -> None:
    found = decode(chunk({"content": "a"}, ""), chunk({"content": "b"}, ""), done=False)
    assert (found.text, found.finish_reason, found.terminal_ns) == ("ab", None, None)


def test_quirk_3_finish_chunk_may_carry_content() -> None:
    found = decode(chunk({"content": "a"}), chunk({"content": "b"}, "length"))
    assert (found.text, found.finish_reason) == ("ab", "length")
    assert found.events.kind[1] == "text"
    assert found.events.finish_reason[1] == "length"
    assert last_output_ns(found.events) == found.terminal_ns == 1 * MS


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning", "reasoning_text"])
def test_quirk_4_reasoning_has_several_names(field: str) -> None:
    found = decode(
        chunk({"role": "assistant", field: "Let"}),
        chunk({field: " me"}),
        chunk({"content": "Ok"}),
        chunk({}, "stop"),
    )
    assert (found.reasoning, found.text) == ("Let me", "Ok")
    assert found.events.kind[:3] == ["reasoning", "reasoning", "text"]
    assert (first_output_ns(found.events), first_nonreasoning_output_ns(found.events)) == (0, 2 * MS)


def test_quirk_4_tool_call_next_to_reasoning_is_non_reasoning_output() -> None:
    call = {"index": 0, "id": "a", "function": {"name": "f", "arguments": ""}}
    found = decode(
        chunk({"reasoning": "r"}), chunk({"reasoning": "r", "tool_calls": [call]}), chunk({"content": "a"})
    )
    assert found.events.kind[:3] == ["reasoning", "reasoning", "text"]
    assert first_nonreasoning_output_ns(found.events) == 1 * MS


def test_quirk_4_reasoning_under_two_names_is_counted_once() -> None:
    detail = [{"type": "reasoning.text", "text": "Hm", "format": "x", "index": 0}]
    found = decode(
        chunk({"content": "", "reasoning": "Hm", "reasoning_details": detail}),
        chunk({"content": None, "reasoning": "Hm", "reasoning_content": "Hm"}),
        chunk({"reasoning_details": detail}),
        chunk({}, "stop"),
    )
    assert found.reasoning == "HmHmHm"


def test_quirk_5_openrouter_comments_are_counted_and_errors_come_with_status_200() -> None:
    error = {"code": 502, "message": "Provider disconnected"}
    found = decode(
        ": OPENROUTER PROCESSING\n\n",
        chunk(
            {"role": "assistant", "content": "Hi"}, provider="OpenAI", choice={"native_finish_reason": None}
        ),
        ": OPENROUTER PROCESSING\n\n",
        chunk(
            {"content": ""}, "error", error=error, provider="OpenAI", choice={"native_finish_reason": None}
        ),
    )
    assert found.comment_count == 2
    assert found.provider == "openrouter"
    assert found.error is not None
    assert (found.error.type, found.error.message, found.error.raw) == ("502", "Provider disconnected", error)
    assert (found.finish_reason, found.error_ns, found.text) == ("error", 3 * MS, "Hi")


@pytest.mark.parametrize(
    ("sent", "error_type", "raw"),
    [
        ('data: {"error": {"type": "overloaded", "message": "m"}}\n\n', "overloaded", {"type": "overloaded", "message": "m"}),
        ('data: {"error": "no more memory"}\n\n', None, "no more memory"),
        ('data: {"object": "error", "message": "m", "type": "BadRequestError", "code": 400}\n\n', "BadRequestError", ...),
        ('event: error\ndata: {"error": {"code": "cancelled"}}\n\n', "cancelled", {"code": "cancelled"}),
        ('event: error\ndata: {"message": "m", "code": "timeout"}\n\n', "timeout", ...),
        ("event: error\ndata: upstream is gone\n\n", None, "upstream is gone"),
        ('error: {"code": 500, "message": "m"}\n\n', "500", {"code": 500, "message": "m"}),
        ('{\n  "error": {\n    "code": 503,\n    "status": "UNAVAILABLE"\n  }\n}\n', "UNAVAILABLE", ...),
        ('{"error": {"code": "x"}}\n\n', "x", {"code": "x"}),
        ('{"error": {"code": "x"}}', "x", {"code": "x"}),
    ],
)  # fmt: skip
def test_quirk_6_in_band_error_shapes(sent: str, error_type: str | None, raw: Any) -> None:
    found = decode(chunk({"content": "Hi"}), sent, done=False)
    assert found.text == "Hi"
    assert found.error is not None
    assert found.error.type == error_type
    assert raw is ... or found.error.raw == raw
    assert found.error_ns == 1 * MS
    assert found.malformed_events == 0


def test_quirk_6_null_error_is_ignored() -> None:
    found = decode(chunk({"content": "Hi"}, error=None), chunk({}, "stop", error=None))
    assert found.error is None


def test_quirk_8_fireworks_perf_metrics_are_normalised() -> None:
    perf = {
        "prompt-tokens": "9",
        "server-time-to-first-token": "0.35",
        "server-processing-time": 1.5,
        "backend-host": "p1",
    }
    exchange = ExchangeInfo(
        path="/inference/v1/chat/completions",
        content_type="text/event-stream",
        response_headers={"fireworks-server-processing-time": "1.25", "fireworks-prompt-tokens": "9"},
    )
    found = decode(chunk({"content": "a"}), chunk({}, "stop", perf_metrics=perf), exchange=exchange)
    stats = {
        (stat.source, stat.name): (seq, stat.value, stat.unit, stat.raw) for seq, stat in found.server_stats
    }
    assert stats == {
        ("fireworks_headers", "server-processing-time"): (None, 1.25e9, "ns", "1.25"),
        ("fireworks_headers", "prompt-tokens"): (None, 9, "tokens", "9"),
        ("perf_metrics", "prompt-tokens"): (1, 9, "tokens", "9"),
        ("perf_metrics", "server-time-to-first-token"): (1, 0.35e9, "ns", "0.35"),
        ("perf_metrics", "server-processing-time"): (1, 1.5e9, "ns", "1.5"),
        ("perf_metrics", "backend-host"): (1, None, "1", "p1"),
    }
    assert found.provider == "fireworks"


def test_quirk_9_obfuscation_padding_is_not_output() -> None:
    found = decode(
        chunk({"role": "assistant", "content": ""}, obfuscation="aXk3"),
        chunk({"content": "Hi"}, obfuscation="l4Jq9P0aa"),
        chunk({}, "stop", obfuscation="k"),
    )
    assert (found.events.chars, found.text_chars, found.output_event_count) == ([0, 2, 0, 0], 2, 1)


def test_quirk_9_groq_puts_usage_in_x_groq() -> None:
    usage = {**USAGE, "queue_time": 0.02, "prompt_time": 0.001, "completion_time": 0.3, "total_time": 0.301}
    found = decode(
        chunk({"role": "assistant", "content": "Hi"}, x_groq={"id": "req_1"}),
        chunk({}, "stop", x_groq={"id": "req_1", "usage": usage}),
    )
    assert found.usage is not None
    assert found.usage.raw == usage
    assert found.provider == "groq"
    assert ("x_groq", "queue_time", 0.02e9, "ns") in [
        (s.source, s.name, s.value, s.unit) for _, s in found.server_stats
    ]


def test_quirk_10_choices_interleave_and_each_has_its_own_finish() -> None:
    found = decode(
        chunk({"content": "a"}, index=0),
        chunk({"content": "x"}, index=1),
        chunk({}, "stop", index=0),
        chunk({"content": "y"}, index=1),
        chunk({}, "length", index=1),
    )
    assert [(c["index"], c["text"], c["finish_reason"]) for c in found.choices] == [
        (0, "a", "stop"),
        (1, "xy", "length"),
    ]
    assert (found.finish_reason, found.finish_ns, found.terminal_ns) == ("stop", 2 * MS, 4 * MS)
    assert found.events.choice == [0, 1, 0, 1, 1, None]


def test_quirk_10_choice_starting_after_another_finished_moves_the_terminal() -> None:
    found = decode(
        chunk({"content": "a"}, "stop", index=0), chunk({"content": "b"}, index=1), chunk({}, "stop", index=1)
    )
    assert found.terminal_ns == 2 * MS


def test_quirk_10_done_ends_choices_without_a_finish_reason() -> None:
    sent = [chunk({"content": "a"}, index=0), chunk({"content": "b"}, index=1), chunk({}, "stop", index=0)]
    assert decode(*sent).terminal_ns == 3 * MS
    assert decode(*sent, done=False).terminal_ns is None
    assert decode(*sent[:2]).terminal_ns is None, "[DONE] alone is not a terminal"


def test_quirk_10_several_choices_in_one_event() -> None:
    both = {**chunk(), "choices": [{"index": n, "delta": {"content": "ab"[: n + 1]}} for n in range(2)]}
    found = decode(both, chunk({}, "stop", index=0), chunk({}, "stop", index=1))
    assert (found.events.choice[0], found.events.chars[0], found.events.more_choices) == (0, 3, [(0, 1)])
    assert (found.output_event_count, found.choice_count) == (1, 2)


def test_quirk_10_n_of_128_choices() -> None:
    steps = [
        {**chunk(), "choices": [{"index": n, "delta": {"content": "x"}} for n in range(128)]}
        for _ in range(3)
    ]
    ends = [chunk({}, "stop", index=n) for n in range(128)]
    found = decode(*steps, *ends)
    assert (found.choice_count, found.text_chars, len(found.events.more_choices)) == (128, 384, 381)
    assert found.terminal_ns == 130 * MS


def test_quirk_10_tool_calls_interleave_by_index() -> None:
    def call(index: int, arguments: str = "", **more: str) -> dict[str, Any]:
        function = {"arguments": arguments} | ({"name": more["name"]} if "name" in more else {})
        return {
            "tool_calls": [
                {"index": index, "function": function} | ({"id": more["id"]} if "id" in more else {})
            ]
        }

    found = decode(
        chunk(call(0, id="a", name="f")),
        chunk(call(1, id="b", name="g")),
        chunk(call(0, '{"x":')),
        chunk(call(1, "{}")),
        chunk(call(0, "1}", id="a")),
        chunk({}, "tool_calls"),
    )
    assert found.tool_calls == [
        {"id": "a", "name": "f", "arguments": '{"x":1}'},
        {"id": "b", "name": "g", "arguments": "{}"},
    ]
    assert (found.tool_call_count, found.output_event_count, found.content_event_count) == (2, 5, 3)


def test_quirk_12_terminal_ends_a_stream_held_open() -> None:
    found = decode(
        chunk({"content": "a"}), chunk({}, "stop"), ": still here\n\n", ": still here\n\n", done=False
    )
    assert found.terminal_ns == 1 * MS
    assert found.comment_count == 2


@pytest.mark.parametrize("coding", ["gzip", "br", "zstd"])
def test_quirk_13_compressed_body_is_decoded(coding: str) -> None:
    compress = {
        "gzip": gzip.compress,
        "br": brotli.compress,
        "zstd": lambda data: zstandard.ZstdCompressor().compress(data),
    }[coding]
    body = b"".join(f"data: {json.dumps(chunk({'content': 'x'}))}\n\n".encode() for _ in range(50))
    sent = compress(body)
    exchange = ExchangeInfo(
        path="/v1/chat/completions",
        content_type="text/event-stream",
        response_headers={"content-encoding": coding},
    )
    found = StreamDecoder(exchange, keep_text=True)
    found.feed([(n, sent[n : n + 1]) for n in range(len(sent))])
    found.finish()
    assert (found.text, found.body_bytes, found.malformed_events) == ("x" * 50, len(sent), 0)
