"""Agent2Agent protocol: which state ends an exchange and how, what is output, and which operation it is, in each version and binding."""

from __future__ import annotations

import json
from typing import Any

import pytest

from streamgauge.analytics.decoding.stream_decoder import StreamDecoder
from streamgauge.analytics.dialects import all_dialects
from streamgauge.analytics.dialects.a2a import ANSWERS, METHODS
from streamgauge.analytics.dialects.dialect import ExchangeInfo
from tests.analytics.dialects.test_mcp import MS, row
from tests.analytics.stream_records import head

BINDINGS = ("jsonrpc-1.0", "rest-1.0", "jsonrpc-0.3", "rest-0.3")
STREAM = {"jsonrpc-1.0": "SendStreamingMessage", "jsonrpc-0.3": "message/stream"}
PATHS = {
    "jsonrpc-1.0": "/",
    "rest-1.0": "/message:stream",
    "jsonrpc-0.3": "/",
    "rest-0.3": "/v1/message:stream",
}
IDS = {"taskId": "task-1", "contextId": "context-1"}


def status(state: str, text: str = "") -> dict[str, Any]:
    message = {"messageId": "m", "role": "ROLE_AGENT", "parts": [{"text": text}]}
    named = f"TASK_STATE_{state.upper().replace('-', '_')}"
    return {"statusUpdate": {**IDS, "status": {"state": named, **({"message": message} if text else {})}}}


def artifact(*parts: dict[str, Any], append: bool = False) -> dict[str, Any]:
    return {
        "artifactUpdate": {**IDS, "artifact": {"artifactId": "a", "parts": list(parts)}, "append": append}
    }


TASK = {"task": {"id": "task-1", "contextId": "context-1", "status": {"state": "TASK_STATE_SUBMITTED"}}}
MESSAGE = {"message": {"messageId": "m", "role": "ROLE_AGENT", "parts": [{"text": "hi"}]}}
WORK = [
    TASK,
    status("working", "looking"),
    artifact({"text": "one "}),
    artifact({"text": "two"}, append=True),
]


def as_of_0_3(value: Any, *, rest: bool) -> Any:
    """An event of 1.0 as the SDK writes it for version 0.3."""
    if isinstance(value, list):
        return [as_of_0_3(one, rest=rest) for one in value]
    if not isinstance(value, dict):
        return value
    made = {name: as_of_0_3(one, rest=rest) for name, one in value.items()}
    if rest:
        if "state" in made:
            made["state"] = made["state"].replace("CANCELED", "CANCELLED")
        if "messageId" in made:
            made["content"] = made.pop("parts")
        return made
    if "state" in made:
        made["state"] = made["state"].removeprefix("TASK_STATE_").lower().replace("_", "-")
    if "text" in made:
        made["kind"] = "text"
    for name in ("task", "message", "statusUpdate", "artifactUpdate"):
        if list(value) == [name]:
            kinds = {"statusUpdate": "status-update", "artifactUpdate": "artifact-update"}
            return {**made[name], "kind": kinds.get(name, name)}
    return made


def exchange(binding: str, *events: dict[str, Any], **more: Any) -> dict[str, Any]:
    """The row of a stream with these events at 10, 20 … ms."""
    sent = [
        as_of_0_3(event, rest=binding.startswith("rest"))
        if binding.endswith("0.3") and "error" not in event
        else event
        for event in events
    ]
    is_rpc = binding.startswith("jsonrpc")
    if is_rpc:
        sent = [{"jsonrpc": "2.0", "id": 7, **(e if "error" in e else {"result": e})} for e in sent]
    request: dict[str, Any] = {"message": {"messageId": "u", "role": "ROLE_USER", "parts": [{"text": "go"}]}}
    if is_rpc:
        request = {"jsonrpc": "2.0", "id": 7, "method": STREAM[binding], "params": request}
    return row(
        *(b"data: " + json.dumps(event).encode() + b"\n\n" for event in sent),
        **{
            "request": json.dumps(request).encode(), "path": PATHS[binding], "cause": "complete", "client_left_ns": None,
            "headers": ("a2a-version",) if binding.endswith("1.0") else (), **more,
        },
    )  # fmt: skip


@pytest.mark.parametrize("binding", BINDINGS)
def test_artifacts_are_output_and_the_first_word_may_be_a_status(binding: str) -> None:
    found = exchange(binding, *WORK, status("completed"))
    assert (found["dialect"], found["provider"], found["operation"]) == ("a2a", "a2a", "SendStreamingMessage")
    assert (found["ttfc_ns"], found["ttft_ns"], found["ttfo_ns"]) == (10 * MS, 20 * MS, 30 * MS)
    assert (found["last_output_ns"], found["terminator_ns"]) == (40 * MS, 50 * MS)
    assert (found["text_chars"], found["output_event_count"], found["event_count"]) == (7, 3, 5)
    assert (found["outcome"], found["finish_reason"], found["response_id"]) == ("ok", "completed", "task-1")


ERROR = {"error": {"code": -32603, "message": "boom"}}


@pytest.mark.parametrize("binding", BINDINGS)
@pytest.mark.parametrize(
    ("last", "outcome", "error_type", "finish"),
    [
        (status("completed"), "ok", None, "completed"),
        (status("failed", "no"), "inband_error", "failed", "failed"),
        (status("rejected"), "inband_error", "rejected", "rejected"),
        (status("canceled"), "ok", None, "canceled"),
        (status("input-required", "which?"), "ok", None, "input-required"),
        (status("auth-required"), "ok", None, "auth-required"),
        (ERROR, "inband_error", "-32603", None),
        (status("working"), "truncated", "stream_truncated", None),
    ],
)
def test_state_decides_how_a_stream_ended(
    binding: str, last: dict[str, Any], outcome: str, error_type: str | None, finish: str | None
) -> None:
    found = exchange(binding, *WORK, last)
    assert (found["outcome"], found["error_type"], found["finish_reason"]) == (outcome, error_type, finish)


@pytest.mark.parametrize("binding", BINDINGS)
def test_message_is_a_whole_answer_and_a_question_is_part_of_it(binding: str) -> None:
    answer = exchange(binding, MESSAGE)
    assert (answer["outcome"], answer["text_chars"], answer["ttfo_ns"]) == ("ok", 2, 10 * MS)
    asked = exchange(binding, TASK, status("input-required", "which?"))
    assert (asked["text_chars"], asked["finish_reason"], asked["ttfo_ns"]) == (6, "input-required", 20 * MS)


@pytest.mark.parametrize("binding", BINDINGS)
def test_hang_ups_of_both_sides_are_told_apart(binding: str) -> None:
    assert exchange(binding, *WORK)["outcome"] == "truncated"
    assert exchange(binding, *WORK, cause="upstream_reset")["outcome"] == "upstream_reset"
    left = exchange(binding, *WORK, cause="client_left", client_left_ns=45 * MS)
    assert (left["outcome"], left["error_phase"]) == ("client_abort", "mid_stream")
    late = exchange(binding, *WORK, status("completed"), cause="client_left", client_left_ns=55 * MS)
    assert (late["outcome"], late["aborted_after_terminal"]) == ("ok", True)


def test_structured_data_is_text_and_files_are_images_or_sound() -> None:
    found = exchange("rest-1.0", artifact({"data": {"m": 2}}), status("completed"))
    assert found["text_chars"] == len('{"m":2}')
    for part, count in (
        ({"raw": "AAAA", "mediaType": "image/png"}, 1),
        ({"file": {"bytes": "AAAA", "mimeType": "image/png"}}, 1),
        ({"raw": "AAAA", "mediaType": "audio/wav"}, 1),
        ({"url": "https://x/y.pdf", "mediaType": "application/pdf"}, 0),
    ):
        found = exchange("rest-1.0", artifact(part), status("completed"))
        assert (found["output_event_count"], found["text_chars"]) == (count, 0)


@pytest.mark.parametrize(
    ("method", "path", "rpc_method", "headers", "operation"),
    [
        ("POST", "/", "SendMessage", {}, "SendMessage"),
        ("POST", "/", "message/send", {}, "SendMessage"),
        ("POST", "/", "tasks/resubscribe", {}, "SubscribeToTask"),
        ("POST", "/", "tasks/get", {"a2a-version": "0.3"}, "GetTask"),
        ("POST", "/agents/7", "tasks/cancel", {}, "CancelTask"),
        ("POST", "/", "tasks/pushNotificationConfig/list", {}, "ListTaskPushNotificationConfigs"),
        ("POST", "/", "GetExtendedAgentCard", {}, "GetExtendedAgentCard"),
        ("POST", "/tenant/message:send", "", {}, "SendMessage"),
        ("GET", "/v1/tasks/hashed:0123456789ab:subscribe", "", {}, "SubscribeToTask"),
        ("POST", "/tasks/7:cancel", "", {}, "CancelTask"),
        ("GET", "/tasks/7", "", {"a2a-version": "1.0"}, "GetTask"),
        ("GET", "/tasks", "", {"a2a-version": "1.0"}, "a2a"),
    ],
)
def test_both_versions_and_bindings_have_the_same_operations(
    method: str, path: str, rpc_method: str, headers: dict[str, str], operation: str
) -> None:
    info = ExchangeInfo(method=method, path=path, rpc_method=rpc_method, request_headers=headers)
    decoder = StreamDecoder(info)
    assert (decoder.dialect, decoder.operation) == ("a2a", operation)
    assert operation in (*METHODS, "a2a")


@pytest.mark.parametrize(
    ("method", "path", "rpc_method", "headers"),
    [
        ("POST", "/mcp", "tasks/get", {"mcp-protocol-version": "2026-07-28"}),
        ("POST", "/servers/7", "tools/call", {}),
        ("GET", "/v1/tasks/7", "", {}),
        ("POST", "/v1/responses/7/cancel", "", {}),
    ],
)
def test_requests_of_others_are_not_of_a2a(
    method: str, path: str, rpc_method: str, headers: dict[str, str]
) -> None:
    info = ExchangeInfo(method=method, path=path, rpc_method=rpc_method, request_headers=headers)
    assert StreamDecoder(info).dialect != "a2a"


def test_body_has_the_answer_and_a_poll_does_not_fail_with_its_task() -> None:
    done = {
        "id": "task-1",
        "status": {"state": "TASK_STATE_FAILED"},
        "artifacts": [{"parts": [{"text": "part"}]}],
    }
    for name, result, outcome, chars in (
        ("SendMessage", {"task": done}, "inband_error", 4),
        ("GetTask", done, "ok", 0),
        ("CancelTask", done, "ok", 0),
    ):
        request = json.dumps({"jsonrpc": "2.0", "id": "a", "method": name, "params": {}}).encode()
        body = json.dumps({"jsonrpc": "2.0", "id": "a", "result": result}).encode()
        found = json_row(body, request)
        assert (found["operation"], found["outcome"], found["text_chars"]) == (name, outcome, chars)
        assert found["response_id"] == "task-1"
    error = {"code": -32001, "message": "Task not found", "data": [{"reason": "TASK_NOT_FOUND"}]}
    found = json_row(json.dumps({"jsonrpc": "2.0", "id": "a", "error": error}).encode(), request)
    assert (found["outcome"], found["error_type"]) == ("inband_error", "-32001")


def json_row(body: bytes, request: bytes) -> dict[str, Any]:
    return row(
        body, request=request, path="/", headers=(), response=head(content_type="application/json"), cause="complete",
        client_left_ns=None,
    )  # fmt: skip


def test_events_are_recognised_without_the_request() -> None:
    a2a = next(dialect for dialect in all_dialects() if dialect.name == "a2a")
    for event in (status("working"), artifact({"text": "a"})):
        assert a2a.recognises("", json.dumps(event).encode()) >= 5
        old = {"jsonrpc": "2.0", "id": 1, "result": as_of_0_3(event, rest=False)}
        assert a2a.recognises("", json.dumps(old).encode()) >= 5
    assert not a2a.recognises("", b'{"jsonrpc":"2.0","id":1,"result":{"content":[]}}')
    assert set(ANSWERS) < METHODS
