"""The Responses API: delta families, output only in done events, and the final status."""

from __future__ import annotations

from typing import Any

import pytest

from streamgauge.analytics.dialects.dialect import ExchangeInfo
from streamgauge.analytics.dialects.openai_responses import DIALECT
from tests.analytics.dialects.transcript import decoded_events, events, read, read_body, tools, usage


def delta(family: str, piece: Any, **more: Any) -> dict[str, Any]:
    return {"type": f"response.{family}.delta", "delta": piece, "output_index": 0, "item_id": "i", **more}


def added(item: dict[str, Any], index: int = 0) -> dict[str, Any]:
    return {"type": "response.output_item.added", "output_index": index, "item": item}


def done(item: dict[str, Any], index: int = 0) -> dict[str, Any]:
    return {"type": "response.output_item.done", "output_index": index, "item": item}


def response(status: str, **more: Any) -> dict[str, Any]:
    return {
        "type": f"response.{status}",
        "response": {"id": "resp_1", "object": "response", "model": "m", "status": status, **more},
    }


CREATED = {
    "type": "response.created",
    "response": {"id": "resp_1", "model": "m", "status": "in_progress", "usage": None, "error": None},
}
USAGE = {
    "input_tokens": 43,
    "input_tokens_details": {"cached_tokens": 8},
    "output_tokens": 11,
    "output_tokens_details": {"reasoning_tokens": 5},
    "total_tokens": 54,
}


def test_text_stream() -> None:
    found = read(
        DIALECT,
        events(
            CREATED,
            {"type": "response.in_progress", "response": CREATED["response"]},
            added(
                {
                    "id": "msg_1",
                    "type": "message",
                    "status": "in_progress",
                    "content": [],
                    "role": "assistant",
                }
            ),
            {"type": "response.content_part.added", "part": {"type": "output_text", "text": ""}},
            delta("output_text", "Hel", logprobs=[], obfuscation="x8fK"),
            delta("output_text", "lo"),
            {"type": "response.output_text.done", "text": "Hello"},
            {"type": "response.content_part.done", "part": {"type": "output_text", "text": "Hello"}},
            done({"id": "msg_1", "type": "message", "content": [{"type": "output_text", "text": "Hello"}]}),
            response("completed", usage=USAGE),
        ),
    )
    assert str(found.first_choice.text) == "Hello"
    assert found.events.kind == [
        "start", "progress", "start", "start", "text", "text", "annotation", "annotation", "annotation", "finish",
    ]  # fmt: skip
    assert (found.finish_reason, found.response_id, found.response_model) == ("completed", "resp_1", "m")
    assert usage(found) == (43, 11, 5, 8)
    assert found.terminal_seen
    assert found.error is None


@pytest.mark.parametrize(
    ("family", "channel"),
    [
        ("output_text", "text"),
        ("refusal", "refusal"),
        ("reasoning_text", "reasoning"),
        ("reasoning_summary_text", "reasoning"),
        ("reasoning_summary", "reasoning"),
        ("reasoning", "reasoning"),
        ("function_call_arguments", "tool_call"),
        ("custom_tool_call_input", "tool_call"),
        ("mcp_call_arguments", "tool_call"),
        ("mcp_call.arguments", "tool_call"),
        ("code_interpreter_call_code", "tool_call"),
        ("code_interpreter_call.code", "tool_call"),
        ("shell_call_command", "tool_call"),
        ("apply_patch_call_operation_diff", "tool_call"),
        ("audio.transcript", "audio"),
        ("output_audio_transcript", "audio"),
        ("some_new_call_arguments", "tool_call"),
        ("some_new_reasoning_form", "reasoning"),
        ("some_new_text", "text"),
        ("program_code", "tool_call"),
    ],
)
def test_each_delta_family_is_output(family: str, channel: str) -> None:
    found = read(DIALECT, events(CREATED, delta(family, "abc")))
    assert found.events.kind[1] == channel
    assert (found.output_event_count, found.content_event_count) == (1, 1)
    assert found.events.chars[1] == 3


@pytest.mark.parametrize("family", ["audio", "output_audio"])
def test_encoded_audio_is_output_without_characters(family: str) -> None:
    found = read(DIALECT, events(CREATED, delta(family, "UklGRg==")))
    assert (found.events.kind[1], found.events.chars[1]) == ("audio", 0)
    assert (found.output_event_count, found.content_event_count) == (1, 0)


def test_server_tool_results_are_not_output() -> None:
    found = read(DIALECT, events(delta("shell_call_output_content", {"stdout": "SKILL.md"}, command_index=0)))
    assert found.events.kind == ["annotation"]


@pytest.mark.parametrize("piece", ["", None, {}])
def test_empty_delta_is_not_output(piece: Any) -> None:
    assert read(DIALECT, events(delta("output_text", piece))).output_event_count == 0


def test_logprobs_count_the_tokens_of_an_event() -> None:
    entry = {"token": "a", "logprob": -0.1, "bytes": [97], "top_logprobs": []}
    found = read(
        DIALECT,
        events(delta("output_text", "ab", logprobs=[entry, entry]), delta("output_text", "c", logprobs=[])),
    )
    assert found.events.tokens == [2, None]


def function(item_id: str, call_id: str, name: str, arguments: str = "") -> dict[str, Any]:
    return {"id": item_id, "type": "function_call", "call_id": call_id, "name": name, "arguments": arguments}


def test_parallel_calls_interleave_by_item() -> None:
    found = read(
        DIALECT,
        events(
            added(function("fc_1", "call_1", "a"), 0),
            added(function("fc_2", "call_2", "b"), 1),
            delta("function_call_arguments", '{"x"', item_id="fc_1", output_index=0),
            delta("function_call_arguments", '{"y"', item_id="fc_2", output_index=1),
            delta("function_call_arguments", ":1}", item_id="fc_1", output_index=0),
            delta("function_call_arguments", ":2}", item_id="fc_2", output_index=1),
            done(function("fc_1", "call_1", "a", '{"x":1}'), 0),
            done(function("fc_2", "call_2", "b", '{"y":2}'), 1),
        ),
    )
    assert tools(found) == [("call_1", "a", '{"x":1}'), ("call_2", "b", '{"y":2}')]
    assert (found.output_event_count, found.content_event_count) == (6, 4)


def test_changing_item_ids_are_joined_by_output_index() -> None:
    found = read(
        DIALECT,
        events(
            added(function("zz1", "call_1", "a"), 1),
            delta("function_call_arguments", "{}", item_id="zz2", output_index=1),
            done(function("zz3", "call_1", "a", "{}"), 1),
        ),
    )
    assert tools(found) == [("call_1", "a", "{}")]


def test_calls_with_the_same_index_are_distinguished_by_item_id() -> None:
    found = read(
        DIALECT,
        events(
            added(function("fc_1", "call_1", "a")),
            added(function("fc_2", "call_2", "b")),
            delta("function_call_arguments", "1", item_id="fc_1"),
            delta("function_call_arguments", "2", item_id="fc_2"),
        ),
    )
    assert tools(found) == [("call_1", "a", "1"), ("call_2", "b", "2")]


def test_arguments_only_in_the_done_event_are_output_but_not_streamed_content() -> None:
    found = read(
        DIALECT,
        events(
            added(function("fc_1", "call_1", "weather")),
            {
                "type": "response.function_call_arguments.done",
                "item_id": "fc_1",
                "output_index": 0,
                "arguments": '{"a":1}',
            },
            done(function("fc_1", "call_1", "weather", '{"a":1}')),
        ),
    )
    assert tools(found) == [("call_1", "weather", '{"a":1}')]
    assert (found.output_event_count, found.content_event_count) == (2, 0)


def test_call_that_appears_only_as_a_done_item_is_decoded() -> None:
    found = read(DIALECT, events(done(function("fc_1", "call_1", "weather", "{}"))))
    assert tools(found) == [("call_1", "weather", "{}")]


def test_arguments_in_the_added_item_are_decoded_once() -> None:
    found = read(
        DIALECT,
        events(
            added(function("fc_1", "call_1", "f", '{"a":1}')),
            delta("function_call_arguments", '{"a":1}', item_id="fc_1"),
            done(function("fc_1", "call_1", "f", '{"a":1}')),
        ),
    )
    assert tools(found) == [("call_1", "f", '{"a":1}')]
    assert found.content_event_count == 1


def test_custom_tool_input_becomes_arguments() -> None:
    item = {"id": "ct_1", "type": "custom_tool_call", "call_id": "call_1", "name": "write_sql", "input": ""}
    found = read(
        DIALECT,
        events(
            added(item),
            delta("custom_tool_call_input", "SELECT 1", item_id="ct_1"),
            done({**item, "input": "SELECT 1"}),
        ),
    )
    assert tools(found) == [("call_1", "write_sql", "SELECT 1")]


@pytest.mark.parametrize(
    ("item", "kind"),
    [
        ({"id": "ws_1", "type": "web_search_call", "status": "in_progress"}, "progress"),
        (
            {"id": "ws_1", "type": "web_search_call", "name": "web_search", "arguments": '{"query":"x"}'},
            "tool_call",
        ),
        ({"id": "ci_1", "type": "code_interpreter_call", "code": ""}, "progress"),
        ({"id": "ig_1", "type": "image_generation_call"}, "progress"),
        ({"id": "fs_1", "type": "file_search_call", "queries": []}, "progress"),
        (
            {"id": "mcp_1", "type": "mcp_call", "name": "echo", "server_label": "s", "arguments": ""},
            "tool_call",
        ),
        ({"id": "ts_1", "type": "tool_search_call", "arguments": {}, "execution": "server"}, "progress"),
    ],
)
def test_server_tool_is_not_a_client_tool_call(item: dict[str, Any], kind: str) -> None:
    found = read(DIALECT, events(added(item), done({**item, "status": "completed"})))
    assert found.events.kind == [kind, "annotation"]
    assert all(tool.server_side for tool in found.first_choice.tool_calls.values())
    assert (found.tool_call_count, found.content_event_count) == (0, 0)


@pytest.mark.parametrize(
    "event",
    [
        {"type": "response.web_search_call.searching", "item_id": "w"},
        {"type": "response.mcp_list_tools.in_progress"},
        {"type": "response.image_generation_call.generating"},
        {"type": "response.queued", "response": {"id": "resp_1", "status": "queued"}},
    ],
)
def test_server_tool_progress_is_not_output(event: dict[str, Any]) -> None:
    assert read(DIALECT, events(event)).events.kind == ["progress"]


@pytest.mark.parametrize(
    "event",
    [
        {"type": "response.output_text.annotation.added", "annotation": {"type": "url_citation"}},
        {"type": "response.reasoning_summary_part.done", "part": {"type": "summary_text", "text": "t"}},
        {"type": "response.content_part.done", "part": {"text": "t"}},
    ],
)
def test_annotations_are_not_output(event: dict[str, Any]) -> None:
    found = read(DIALECT, events(delta("output_text", "t"), event))
    assert found.events.kind == ["text", "annotation"]


def test_failed_mcp_call_is_counted_but_not_a_stream_error() -> None:
    found = read(DIALECT, events({"type": "response.mcp_call.failed", "item_id": "mcp_1"}))
    assert (found.tool_failure_count, found.error, found.events.kind) == (1, None, ["progress"])


def test_keepalive_is_a_ping() -> None:
    assert read(DIALECT, events({"type": "keepalive", "sequence_number": 7})).events.kind == ["ping"]


@pytest.mark.parametrize(
    ("family", "key"), [("output_text", "text"), ("reasoning_text", "text"), ("refusal", "refusal")]
)
def test_text_only_in_a_done_event_is_output_but_not_streamed(family: str, key: str) -> None:
    sent = {"type": f"response.{family}.done", key: "whole"}
    found = read(DIALECT, events(sent, sent))
    assert found.events.chars == [5, 0]
    assert (found.output_event_count, found.content_event_count) == (1, 0)


def test_incomplete_is_a_finish_not_an_error() -> None:
    found = read(
        DIALECT,
        events(response("incomplete", incomplete_details={"reason": "max_output_tokens"}, usage=USAGE)),
    )
    assert (found.finish_reason, found.error, found.terminal_seen) == ("incomplete", None, True)


def test_end_events_without_a_response_or_with_another_name() -> None:
    bare = read(DIALECT, events({"type": "response.completed"}))
    assert (bare.finish_reason, bare.terminal_seen) == ("completed", True)
    done = read(
        DIALECT,
        events({"type": "response.done", "response": {"id": "r", "status": "incomplete", "usage": USAGE}}),
    )
    assert (done.finish_reason, done.terminal_seen, usage(done)[1]) == ("incomplete", True, 11)


def test_output_only_in_the_final_response_is_not_streamed() -> None:
    output = [{"type": "message", "content": [{"type": "output_text", "text": "Hi"}]}]
    only = read(DIALECT, events(CREATED, response("completed", output=output)))
    assert (str(only.first_choice.text), only.output_event_count, only.content_event_count) == ("Hi", 1, 0)
    repeated = read(DIALECT, events(delta("output_text", "Hi"), response("completed", output=output)))
    assert str(repeated.first_choice.text) == "Hi"


def test_failed_is_an_error() -> None:
    error = {"code": "server_error", "message": "The model failed"}
    found = read(DIALECT, events(response("failed", error=error, usage=None)))
    assert found.error is not None
    assert (found.error.type, found.error.message, found.error.raw) == (
        "server_error",
        "The model failed",
        error,
    )
    assert found.finish_reason == "failed"


def test_cancelled_is_an_error_without_message() -> None:
    found = read(DIALECT, events(response("cancelled")))
    assert found.error is not None
    assert (found.error.type, found.error.raw, found.finish_reason) == ("cancelled", None, "cancelled")


def test_flat_error_event() -> None:
    sent = {"type": "error", "code": "ERR_X", "message": "m", "param": None, "sequence_number": 1}
    found = read(DIALECT, events(sent))
    assert found.error is not None
    assert (found.error.type, found.error.message, found.error.raw) == ("ERR_X", "m", sent)


def test_error_event_then_failed_keeps_the_first_error() -> None:
    nested = {"type": "tokens", "code": "rate_limit_exceeded", "message": "m", "param": None}
    found = read(
        DIALECT, events({"type": "error", "error": nested}, response("failed", error={"code": "other"}))
    )
    assert found.error is not None
    assert (found.error.type, found.error.raw) == ("tokens", nested)


def test_reasoning_missing_from_output_tokens_is_added() -> None:
    sent = {**USAGE, "output_tokens": 6, "total_tokens": 54}
    assert usage(read(DIALECT, events(response("completed", usage=sent)))) == (43, 11, 5, 8)


def test_unnamed_events_with_sorted_keys() -> None:
    body = b'data: {"delta":"Hi","item_id":"i","output_index":0,"type":"response.output_text.delta"}\n\n'
    assert DIALECT.recognises("", body[6:]) >= 5
    assert str(read(DIALECT, body).first_choice.text) == "Hi"


def test_bare_response_objects_in_place_of_events() -> None:
    found = read(
        DIALECT,
        events(
            {
                "id": "resp_1",
                "object": "response",
                "model": "m",
                "status": "in_progress",
                "output": [],
                "text": {"format": {"type": "text"}},
            },
            {
                "id": "resp_1",
                "object": "response",
                "status": "completed",
                "usage": USAGE,
                "output": [{"type": "message", "content": [{"type": "output_text", "text": "Hi"}]}],
            },
        ),
    )
    assert (str(found.first_choice.text), found.finish_reason) == ("Hi", "completed")


def test_non_streamed_body() -> None:
    found = read_body(
        DIALECT,
        {
            "id": "resp_1",
            "object": "response",
            "model": "m",
            "status": "completed",
            "error": None,
            "output": [
                {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]},
                {
                    "type": "message",
                    "content": [{"type": "output_text", "text": "Hi"}, {"type": "refusal", "refusal": "no"}],
                },
                function("fc", "call_1", "f", "{}"),
                {"type": "web_search_call", "id": "ws"},
            ],
            "usage": USAGE,
        },
    )
    choice = found.first_choice
    assert (str(choice.text), str(choice.reasoning), str(choice.refusal)) == ("Hi", "hm", "no")
    assert tools(found) == [("call_1", "f", "{}")]
    assert (found.finish_reason, usage(found)) == ("completed", (43, 11, 5, 8))


def test_non_streamed_failure() -> None:
    found = read_body(
        DIALECT, {"id": "r", "object": "response", "status": "failed", "error": {"code": "c"}, "output": []}
    )
    assert found.error is not None
    assert found.error.type == "c"


MESSAGE = {"type": "message", "content": [{"type": "output_text", "text": "Hi"}]}


@pytest.mark.parametrize(
    "output",
    [1, {}, [MESSAGE, 5], [{**MESSAGE, "content": [*MESSAGE["content"], 5]}], [{**MESSAGE, "content": 5}],
     [{**MESSAGE, "summary": {}}], [{"type": 5}]],
)  # fmt: skip
def test_output_of_another_form_is_malformed_in_a_body_only(output: Any) -> None:
    response = {"object": "response", "status": "completed", "output": output}
    body = read_body(DIALECT, response)
    assert (body.malformed_events, body.terminal_seen) == (1, False)
    found = read(DIALECT, events({"type": "response.completed", "response": response}))
    assert (found.malformed_events, found.terminal_seen, found.output_event_count) == (0, True, 0)


@pytest.mark.parametrize("more", [{}, {"content": None}, {"summary": None}, {"content": "Hi"}])
def test_members_of_an_item_may_be_null_or_text(more: dict[str, Any]) -> None:
    body = read_body(DIALECT, {"status": "completed", "output": [{**MESSAGE, **more}]})
    assert (body.malformed_events, body.terminal_seen) == (0, True)
    assert str(body.first_choice.text) == ("" if more == {"content": None} else "Hi")
    [empty] = DIALECT.reader(ExchangeInfo()).read_body(b'{"object":"response","output":null}')
    assert empty.kind == "other"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[]",
        b"\xff",
        b'{"type":5}',
        b'{"type":"response.output_text.delta","delta":[1]}',
        b"[" * 99_999,
    ],
)
def test_invalid_data_is_malformed(data: bytes) -> None:
    reader = DIALECT.reader(ExchangeInfo())
    assert reader.read("response.output_text.delta", data).kind == "malformed"
    reader.read_body(data)


@pytest.mark.parametrize(
    "sent",
    [
        {},
        {"type": "response.output_item.added"},
        {"type": "response.output_item.done", "item": None},
        {"type": "x"},
    ],
)
def test_missing_members_yield_no_output(sent: dict[str, Any]) -> None:
    assert [r.deltas for r in decoded_events(DIALECT, events(sent))] == [None]


@pytest.mark.parametrize(
    ("path", "score"),
    [
        ("/v1/responses", 5),
        ("/openai/v1/responses", 5),
        ("/backend-api/codex/responses", 5),
        ("/inference/v1/responses", 5),
        ("/v1/responses/resp_1", 5),
        ("/v1/responses/resp_1/cancel", 5),
        ("/v1/responses/input_tokens", 0),
        ("/v1/responses/resp_1/input_items", 0),
        ("/v1/chat/completions", 0),
    ],
)
def test_claims_by_path(path: str, score: int) -> None:
    assert DIALECT.claims(ExchangeInfo(path=path)) == score


def test_every_text_only_in_done_events_is_decoded() -> None:
    sent = [
        {
            "type": "response.output_text.done",
            "output_index": n,
            "item_id": f"m{n}",
            "content_index": c,
            "text": f"{n}{c}",
        }
        for n, c in [(0, 0), (0, 1), (1, 0), (1, 0)]
    ]
    assert [f.text for r in decoded_events(DIALECT, events(*sent)) for f in r.deltas or ()] == [
        "00",
        "01",
        "10",
    ]


def test_done_text_of_an_item_with_deltas_is_ignored() -> None:
    sent = [
        {"type": "response.output_text.delta", "output_index": 0, "item_id": "m0", "delta": "a"},
        {"type": "response.output_text.done", "output_index": 0, "item_id": "other", "text": "a"},
        {"type": "response.output_text.done", "output_index": 1, "item_id": "m1", "text": "b"},
        {"type": "response.output_text.done", "text": "a"},
    ]
    read = decoded_events(DIALECT, events(*sent))
    assert [[f.text for f in r.deltas or ()] for r in read] == [["a"], [], ["b"], []]
    assert [r.not_streamed for r in read] == [False, False, True, False]


def test_reasoning_only_at_the_end_of_its_item_is_decoded_once() -> None:
    item = {"type": "reasoning", "id": "rs", "summary": [{"type": "summary_text", "text": "Hm."}]}
    done = {"type": "response.output_item.done", "output_index": 0, "item": item}
    text = {"type": "response.output_text.delta", "output_index": 1, "item_id": "m", "delta": "Two"}
    last = {"type": "response.completed", "response": {"id": "r", "status": "completed", "output": [item]}}
    found = read(DIALECT, events(done, done, text, last))
    assert (str(found.first_choice.reasoning), str(found.first_choice.text)) == ("Hm.", "Two")
    assert found.content_event_count == 1


def test_text_only_in_the_last_event_is_decoded_after_streamed_reasoning() -> None:
    thought = {"type": "response.reasoning_text.delta", "output_index": 0, "item_id": "rs", "delta": "Hm."}
    output = [
        {"type": "reasoning", "id": "rs", "content": [{"type": "reasoning_text", "text": "Hm."}]},
        {"type": "message", "id": "m", "content": [{"type": "output_text", "text": "Two"}]},
    ]
    last = {"type": "response.completed", "response": {"id": "r", "status": "completed", "output": output}}
    found = read(DIALECT, events(thought, last))
    assert (str(found.first_choice.reasoning), str(found.first_choice.text)) == ("Hm.", "Two")
