"""Chat and text completion chunks: the meaning of their members, and that fast and slow path agree."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamgauge.analytics.decoding.template import EventTemplate
from streamgauge.analytics.dialects.dialect import ExchangeInfo
from streamgauge.analytics.dialects.events import (
    DecodedEvent,
    DeltaRun,
    RawEvent,
    TextDelta,
    ToolCallDelta,
    as_decoded_event,
)
from streamgauge.analytics.dialects.openai_completions import CHAT, COMPLETIONS, ChoicesReader
from streamgauge.analytics.dialects.server_stats import server_timing_stats
from tests.analytics.corpus import recordings
from tests.analytics.dialects.transcript import decoded_events, events, read, read_body, split, tools


def chunk(delta: Any = None, finish: Any = None, index: Any = 0, **top: Any) -> dict[str, Any]:
    choice = {"index": index, "delta": delta, "finish_reason": finish, **top.pop("choice", {})}
    return {"id": "c-1", "object": "chat.completion.chunk", "model": "m-1", "choices": [choice], **top}


def test_content_may_be_a_list_of_typed_parts() -> None:
    found = read(
        CHAT,
        events(
            chunk(
                {
                    "content": [
                        {"type": "thinking", "thinking": [{"type": "text", "text": "Hm"}], "closed": True}
                    ]
                }
            ),
            chunk({"content": [{"type": "text", "text": "A"}, {"type": "reference", "reference_ids": [1]}]}),
            chunk({"content": [{"type": "reasoning", "summary": [{"type": "summary_text", "text": "."}]}]}),
            chunk({"content": "B"}, "stop"),
        ),
    )
    assert (str(found.first_choice.text), str(found.first_choice.reasoning)) == ("AB", "Hm.")
    assert found.events.kind == ["reasoning", "text", "reasoning", "text"]


def test_tool_calls_without_an_index_are_distinguished_by_id() -> None:
    calls = [{"id": n, "function": {"name": f"f{n}", "arguments": "{}"}} for n in ("a", "b")]
    assert tools(read(CHAT, events(chunk({"tool_calls": calls}, "tool_calls")))) == [
        ("a", "fa", "{}"),
        ("b", "fb", "{}"),
    ]


def test_tool_call_pieces_without_index_and_id_belong_to_the_last_call() -> None:
    found = read(
        CHAT,
        events(
            chunk({"tool_calls": [{"id": "a", "function": {"name": "f", "arguments": ""}}]}),
            chunk({"tool_calls": [{"function": {"arguments": '{"x"'}}]}),
            chunk({"tool_calls": [{"id": None, "function": {"name": None, "arguments": ":1}"}}]}),
        ),
    )
    assert tools(found) == [("a", "f", '{"x":1}')]


def test_whole_calls_without_index_and_id_are_separate() -> None:
    calls = [{"function": {"name": "f", "arguments": {"n": n}}} for n in range(2)]
    assert tools(read(CHAT, events(chunk({"tool_calls": calls}, "tool_calls")))) == [
        ("", "f", '{"n":0}'),
        ("", "f", '{"n":1}'),
    ]


def test_reused_index_with_another_id_and_name_starts_another_call() -> None:
    found = read(
        CHAT,
        events(
            chunk({"tool_calls": [{"index": 0, "id": "a", "function": {"name": "f", "arguments": "{}"}}]}),
            chunk({"tool_calls": [{"index": 0, "id": "b", "function": {"name": "f", "arguments": "{"}}]}),
            chunk({"tool_calls": [{"index": 0, "id": "", "function": {"arguments": "}"}}]}),
        ),
    )
    assert tools(found) == [("a", "f", "{}"), ("b", "f", "{}")]


@pytest.mark.parametrize("name", ["f", "g"])
def test_whole_calls_with_the_same_index_and_no_id_are_separate(name: str) -> None:
    first = {"index": 0, "id": "", "function": {"name": "f", "arguments": '{"x":1}'}}
    second = {"index": 0, "id": "", "function": {"name": name, "arguments": '{"x":2}'}}
    together = read(CHAT, events(chunk({"tool_calls": [first, second]})))
    apart = read(CHAT, events(chunk({"tool_calls": [first]}), chunk({"tool_calls": [second]})))
    assert tools(together) == tools(apart) == [("", "f", '{"x":1}'), ("", name, '{"x":2}')]


def test_id_repeated_on_every_piece_is_one_call() -> None:
    piece = {"index": 0, "id": "a", "type": "function"}
    found = read(
        CHAT,
        events(
            chunk({"tool_calls": [{**piece, "function": {"name": "f", "arguments": ""}}]}),
            chunk({"tool_calls": [{**piece, "function": {"name": "f", "arguments": "{"}}]}),
            chunk({"tool_calls": [{**piece, "function": {"name": "", "arguments": "}"}}]}),
        ),
    )
    assert tools(found) == [("a", "f", "{}")]
    assert (found.output_event_count, found.content_event_count) == (3, 2)


def test_arguments_object_becomes_json_text() -> None:
    answer = decoded_events(
        CHAT, events(chunk({"tool_calls": [{"function": {"name": "f", "arguments": {"x": 1}}}]}))
    )[0]
    assert answer.deltas is not None
    assert answer.deltas[0].tool_calls == [ToolCallDelta("new:1", "", "f", '{"x":1}')]


def test_custom_tool_and_legacy_function_call() -> None:
    custom = chunk(
        {"tool_calls": [{"index": 0, "id": "a", "type": "custom", "custom": {"name": "sh", "input": "ls"}}]}
    )
    assert tools(read(CHAT, events(custom))) == [("a", "sh", "ls")]
    found = read(
        CHAT,
        events(
            chunk({"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": ""}}),
            chunk({"function_call": {"arguments": "{}"}}),
            chunk({}, "function_call"),
        ),
    )
    assert tools(found) == [("", "f", "{}")]


def test_audio_is_output() -> None:
    found = read(
        CHAT,
        events(
            chunk({"audio": {"id": "audio_1", "transcript": "Hello"}}),
            chunk({"audio": {"data": "UklGRg=="}}),
            chunk({"audio": {"expires_at": 1}}, "stop"),
        ),
    )
    assert found.events.kind == ["audio", "audio", "finish"]
    assert found.events.chars == [5, 0, 0]
    assert (found.output_event_count, found.content_event_count) == (2, 1), (
        "encoded audio is output without readable content"
    )


def test_logprobs_and_token_ids_give_the_tokens_of_an_event() -> None:
    def entries(count: int) -> list[dict[str, Any]]:
        return [{"token": "x", "logprob": -1, "bytes": None, "top_logprobs": []}] * count

    found = read(
        CHAT,
        events(
            chunk({"content": "a"}, choice={"logprobs": {"content": entries(3), "refusal": None}}),
            chunk({"refusal": "b"}, choice={"logprobs": {"content": None, "refusal": entries(2)}}),
            chunk({"content": "c"}, choice={"token_ids": [1, 2, 3, 4], "logprobs": None}),
            chunk({"content": "d"}, choice={"logprobs": {"content": [], "refusal": []}}),
        ),
    )
    assert found.events.tokens == [3, 2, 4, None]
    assert found.refusal_chars == 1


def test_text_next_to_delta_is_ignored() -> None:
    found = read(
        CHAT,
        events(chunk({"content": "a"}, choice={"text": "a"}), chunk({"content": "b"}, choice={"text": "b"})),
    )
    assert str(found.first_choice.text) == "ab"


def test_message_next_to_delta_is_ignored() -> None:
    found = read(
        CHAT,
        events(
            chunk({"content": "a"}, choice={"message": {"content": "a"}}),
            chunk({"content": "b"}, choice={"message": {"content": "ab"}}),
            chunk(None, "stop", choice={"message": {"content": "ab"}}),
        ),
    )
    assert (str(found.first_choice.text), found.content_event_count) == ("ab", 2)


def test_message_without_delta_is_decoded() -> None:
    found = read(
        CHAT,
        events(
            {
                "object": "chat.completion",
                "choices": [{"message": {"content": "ab"}, "finish_reason": "stop"}],
            }
        ),
    )
    assert (str(found.first_choice.text), found.finish_reason) == ("ab", "stop")


def test_usage_inside_a_choice() -> None:
    found = read(
        CHAT, events(chunk({}, "stop", choice={"usage": {"prompt_tokens": 3, "completion_tokens": 4}}))
    )
    assert found.usage is not None
    assert (found.usage.input_tokens, found.usage.output_tokens) == (3, 4)


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        ({"prompt_tokens": 1, "completion_tokens": 2}, (1, 2, None, None)),
        ({"prompt_tokens": 1, "completion_tokens": 2, "completion_tokens_details": {"reasoning_tokens": 1}}, (1, 2, 1, None)),
        ({"prompt_tokens": 5, "completion_tokens": 2, "prompt_cache_hit_tokens": 4}, (5, 2, None, 4)),
        ({"prompt_tokens": 5, "completion_tokens": 2, "cached_tokens": 3}, (5, 2, None, 3)),
        ({"prompt_tokens": 5, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 0}}, (5, 2, None, 0)),
        ({"prompt_tokens": "5", "completion_tokens": 2.0, "prompt_tokens_details": None}, (5, 2, None, None)),
        ({"prompt_tokens": 5, "completion_tokens": None, "total_tokens": 5}, (5, None, None, None)),
        ({"input_tokens": 5, "output_tokens": 6, "output_tokens_details": {"reasoning_tokens": 4}}, (5, 6, 4, None)),
        # xAI's completion tokens exclude reasoning, as the total shows
        (
            {"prompt_tokens": 5, "completion_tokens": 6, "total_tokens": 31, "completion_tokens_details": {"reasoning_tokens": 20}},
            (5, 26, 20, None),
        ),
    ],
)  # fmt: skip
def test_usage_is_normalised(raw: dict[str, Any], expected: tuple[int | None, ...]) -> None:
    found = read(CHAT, events(chunk({}, "stop", usage=raw))).usage
    assert found is not None
    assert (
        found.input_tokens,
        found.output_tokens,
        found.reasoning_tokens,
        found.cached_input_tokens,
    ) == expected
    assert found.raw == raw


def test_llama_cpp_timings_are_server_stats() -> None:
    timings = {
        "prompt_n": 7,
        "prompt_ms": 20.5,
        "predicted_per_second": 125.9,
        "predicted_n": 8,
        "cache_n": 27,
    }
    found = read(CHAT, events(chunk({}, "stop", timings=timings)))
    assert [(s.name, s.value, s.unit) for _, s in found.server_stats] == [
        ("prompt_n", 7, "tokens"),
        ("prompt_ms", 20.5e6, "ns"),
        ("predicted_per_second", 125.9, "tok/s"),
        ("predicted_n", 8, "tokens"),
        ("cache_n", 27, "tokens"),
    ]
    assert found.provider == "llama.cpp"


def test_vllm_metrics_and_cerebras_time_info_are_server_stats() -> None:
    found = read(
        CHAT,
        events(
            chunk(
                {},
                "stop",
                metrics={"time_to_first_token_ms": 12.5, "queue_time_ms": 1},
                time_info={"queue_time": 0.5},
            )
        ),
    )
    assert {(s.source, s.name, s.value, s.unit) for _, s in found.server_stats} == {
        ("metrics", "time_to_first_token_ms", 12.5e6, "ns"),
        ("metrics", "queue_time_ms", 1e6, "ns"),
        ("time_info", "queue_time", 0.5e9, "ns"),
    }


def test_nested_statistics_are_named_by_their_path_and_bounded_in_depth() -> None:
    deep = {"a": {"b_ms": 1, "c": {"d": {"e": 2}}, "list": [3]}, "rest": 4}
    found = read(CHAT, events(chunk({}, "stop", metrics=deep)))
    assert [(s.name, s.value, s.unit) for _, s in found.server_stats] == [
        ("a.b_ms", 1e6, "ns"),
        ("rest", 4, "1"),
    ]


def test_dynamo_chunks_without_timing_take_the_fast_path() -> None:
    reader = ChoicesReader(ExchangeInfo())
    first, *later = split(events(*(chunk({"content": "a"}, nvext={"token_ids": [1]}) for _ in range(3))))
    assert isinstance(reader.read_many([first])[0], DecodedEvent)
    assert reader.read_many(later) == [TextDelta("text", "a")] * 2


def test_server_timing_names_durations_only() -> None:
    found = server_timing_stats('cache;desc="HIT", queue;dur=1.5, db;desc="a";dur="2", bad;dur=1.2.3')
    assert [(s.name, s.value, s.unit, s.raw) for s in found] == [
        ("queue", 1.5e6, "ns", "1.5"),
        ("db", 2e6, "ns", "2"),
    ]


def test_lm_studio_stats_are_server_stats() -> None:
    stats = {
        "tokens_per_second": 51.4,
        "time_to_first_token": 0.111,
        "generation_time": 0.95,
        "stop_reason": "eosFound",
    }
    found = read(CHAT, events(chunk({}, "stop", stats=stats)))
    assert [(s.name, s.value, s.unit) for _, s in found.server_stats] == [
        ("tokens_per_second", 51.4, "tok/s"),
        ("time_to_first_token", 0.111e9, "ns"),
        ("generation_time", 0.95e9, "ns"),
        ("stop_reason", None, "1"),
    ]


def test_llama_cpp_prompt_progress_is_progress() -> None:
    progress = {"total": 900, "cache": 0, "processed": 512, "time_ms": 120}
    found = read(
        CHAT,
        events(
            chunk({"role": "assistant", "content": None}, prompt_progress=progress), chunk({"content": "a"})
        ),
    )
    assert found.events.kind == ["progress", "text"]
    assert ("time_ms", 120e6, "ns") in [(s.name, s.value, s.unit) for _, s in found.server_stats]


def test_minimax_base_resp_reports_errors() -> None:
    bad = {"status_code": 1008, "status_msg": "insufficient balance"}
    found = read(CHAT, events({"choices": None, "base_resp": bad}))
    assert found.error is not None
    assert (found.error.type, found.error.message, found.error.raw) == ("1008", "insufficient balance", bad)
    assert (
        read(CHAT, events(chunk({"content": "a"}, base_resp={"status_code": 0, "status_msg": ""}))).error
        is None
    )


def test_first_response_id_is_kept() -> None:
    found = read(
        CHAT,
        events(chunk({"content": "a"}, id="", model=None), chunk({}, id="x"), chunk({}, id="y", model="z")),
    )
    assert (found.response_id, found.response_model) == ("x", "m-1")


def test_text_completion_chunks() -> None:
    def piece(text: str, finish: str | None = None, **more: Any) -> dict[str, Any]:
        return {
            "id": "cmpl",
            "object": "text_completion",
            "model": "m",
            "choices": [{"text": text, "index": 0, "finish_reason": finish, **more}],
        }

    body = events(
        piece("One"),
        piece(" two", logprobs={"tokens": ["t", "wo"], "token_logprobs": [-1, -2]}),
        piece("", "stop"),
        "[DONE]",
    )
    found = read(COMPLETIONS, body)
    assert (str(found.first_choice.text), found.finish_reason, found.events.tokens) == (
        "One two",
        "stop",
        [None, 2, None, None],
    )
    assert [COMPLETIONS.recognises("", event.data) for event in split(body)][:2] == [8, 8]
    assert CHAT.recognises("", split(body)[0].data) < 5


def test_non_streamed_response() -> None:
    found = read_body(
        CHAT,
        {
            "id": "c-9", "object": "chat.completion", "model": "m",
            "choices": [
                {"index": 0, "finish_reason": "tool_calls", "message": {
                    "role": "assistant", "content": "Hi", "reasoning_content": "Hm", "refusal": None,
                    "tool_calls": [{"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
                }},
            ],
            "usage": {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3},
        },
    )  # fmt: skip
    assert (found.response_id, found.response_model, found.finish_reason) == ("c-9", "m", "tool_calls")
    assert (str(found.first_choice.text), str(found.first_choice.reasoning)) == ("Hi", "Hm")
    assert tools(found) == [("a", "f", "{}")]
    assert found.usage is not None
    assert found.usage.output_tokens == 2
    assert len(found.events) == 0


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"[1]",
        b"nonsense",
        b'{"choices": 1}',
        b'{"choices": [null, 1, []]}',
        b'"x"',
        b"null",
    ],
)
def test_invalid_data_never_raises(body: bytes) -> None:
    read_body(CHAT, body)
    read(CHAT, b"data: " + body + b"\n\n")


@pytest.mark.parametrize("data", [b'{"choices": [', b"{'a': 1}", b"oops", b'{"a": 1} {"b": 2}'])
def test_invalid_json_is_malformed(data: bytes) -> None:
    assert decoded_events(CHAT, b"data: " + data + b"\n\n")[0].kind == "malformed"


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b'{"choices":[{"index":0,"delta":{"content":"a\xffb"}}]}', "a\ufffdb"),
        (b'{"choices":[{"index":0,"delta":{"content":"a\\ud83db"}}]}', "a?b"),
        (b'{"choices":[{"index":0,"delta":{"content":"a\\ud83d\\ude00"}}]}', "a\U0001f600"),
        (b'{"choices":[{"index":0,"delta":{"content":"ab"},"logprobs":NaN}]}', "ab"),
        (b'{"choices":[{"index":"0","delta":{"content":"ab"}}]}', "ab"),
        (b'{"choices":[{"index":0,"delta":{"content":"ab","role":7,"tool_calls":"x","refusal":[]}}]}', "ab"),
        (b'{"choices":[{"delta":{"content":"ab"}}],"usage":"none"}', "ab"),
        (b'{"choices":[{"delta":"ab"}]}', "ab"),
        (b'\xef\xbb\xbf{"choices":[{"delta":{"content":"ab"}}]}', "ab"),
    ],
)
def test_invalid_text_and_types_are_decoded_as_far_as_possible(data: bytes, text: str) -> None:
    answer = decoded_events(CHAT, b"data: " + data + b"\n\n")[0]
    assert answer.deltas is not None
    assert answer.deltas[0].text == text


# -- fast path and slow path ----------------------------------------------------------------------------------------

json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 5) | st.sampled_from(["", "a", "stop", '"quoted"', "é", "\\", "\n"]),
    lambda inner: st.lists(inner, max_size=2)
    | st.dictionaries(st.sampled_from(["type", "text", "content", "index", "id", "function", "arguments"]), inner, max_size=3),
    max_leaves=4,
)  # fmt: skip
texts = st.sampled_from([None, "", "a", "bc", 'say "x"', "\u00e9\u2028", "tab\t", "{}"])
deltas = st.one_of(
    st.fixed_dictionaries({"content": texts}),
    st.fixed_dictionaries(
        {},
        optional={
            "role": st.just("assistant"), "content": texts | json_values, "reasoning_content": texts, "reasoning": texts,
            "refusal": texts, "tool_calls": json_values, "audio": json_values, "function_call": json_values,
            "reasoning_details": json_values, "reasoning_text": texts | json_values,
        },
    ),
)  # fmt: skip
plain = st.builds(lambda text: chunk({"content": text}), texts)
odd = st.builds(
    lambda delta, finish, index, more, top: chunk(delta, finish, index, choice=more, **top),
    deltas | json_values,
    st.sampled_from([None, "", "stop"]) | json_values,
    st.sampled_from([0, 0, 0, 1, None, "1", -1, True, 10**9]),
    st.dictionaries(st.sampled_from(["logprobs", "message", "text", "token_ids", "error", "usage"]), json_values, max_size=2),
    st.dictionaries(
        st.sampled_from(["usage", "error", "id", "model", "timings", "x_groq", "perf_metrics", "metrics", "choices", "object"]),
        json_values,
        max_size=2,
    ),
)  # fmt: skip


def _expanded(answers: list[DecodedEvent | TextDelta | DeltaRun]) -> list[DecodedEvent | TextDelta]:
    found: list[DecodedEvent | TextDelta] = []
    for answer in answers:
        if isinstance(answer, DeltaRun):
            found += [TextDelta(answer.kind, text, answer.choice) for text in answer.texts]
        else:
            found.append(answer)
    return found


def _plain(answer: DecodedEvent | TextDelta) -> Any:
    """The answer as plain values; the kind of an event with output is not compared."""
    reading = as_decoded_event(answer)
    if any(f.text or f.reasoning or f.refusal or f.tool_calls or f.audio_chars for f in reading.deltas or ()):
        reading.kind = "text"
    return msgspec.to_builtins(reading)


def test_null_member_does_not_identify_a_vendor() -> None:
    assert read(CHAT, events(chunk({"content": "Hi"}, timings=None))).provider is None


@settings(max_examples=100)
@given(sent=st.lists(plain | plain | odd, max_size=12), split_at=st.integers(0, 12))
def test_fast_and_slow_path_agree(sent: list[dict[str, Any]], split_at: int) -> None:
    batch = [RawEvent("", json.dumps(item).encode(), n, n) for n, item in enumerate(sent)]
    slow, fast, template = (
        ChoicesReader(ExchangeInfo()),
        ChoicesReader(ExchangeInfo()),
        EventTemplate(ChoicesReader(ExchangeInfo())),
    )
    expected = [_plain(slow.read(event.name, event.data)) for event in batch]
    assert [
        _plain(a) for part in (batch[:split_at], batch[split_at:]) for a in fast.read_many(part)
    ] == expected
    assert [
        _plain(a)
        for part in (batch[:split_at], batch[split_at:])
        for a in _expanded(template.read_many(part))
    ] == expected


@pytest.mark.parametrize(
    "recording", [r for r in recordings() if r.folder.endswith(("_chat", "_completions"))], ids=str
)
def test_fast_and_slow_path_agree_on_recorded_streams(recording: Any) -> None:
    batch = split(recording.body.read_bytes())
    slow, template = ChoicesReader(ExchangeInfo()), EventTemplate(ChoicesReader(ExchangeInfo()))
    assert [_plain(a) for a in _expanded(template.read_many(batch))] == [
        _plain(slow.read(e.name, e.data)) for e in batch
    ]


@pytest.mark.parametrize(
    ("path", "chat", "completions"),
    [
        ("/v1/chat/completions", 5, 0),
        ("/openai/deployments/x/chat/completions?api-version=1", 5, 0),
        ("/v1/completions", 0, 5),
        ("/inference/v1/completions/", 0, 5),
        ("/v1/messages", 0, 0),
    ],
)
def test_claims_by_path(path: str, chat: int, completions: int) -> None:
    assert (CHAT.claims(ExchangeInfo(path=path)), COMPLETIONS.claims(ExchangeInfo(path=path))) == (
        chat,
        completions,
    )
