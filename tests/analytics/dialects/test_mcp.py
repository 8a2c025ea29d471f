"""MCP over streamable HTTP: what ends a stream, what is an error, which operation it is."""

from __future__ import annotations

import json
from typing import Any

import pytest

from streamgauge.analytics.assembly.assembler import Assembler
from streamgauge.analytics.decoding.stream_decoder import StreamDecoder
from streamgauge.analytics.dialects.dialect import ExchangeInfo
from streamgauge.analytics.dialects.mcp import METHODS
from streamgauge.analytics.measures.measure import measure
from streamgauge.ingest.records import AnyRecord, Frames, Request, ResponseHeaders
from tests.analytics.stream_records import closed, head, opened, stream_id

A = stream_id(1)
MS = 1_000_000
RESULT: dict[str, Any] = {
    "id": 7,
    "result": {"content": [{"type": "text", "text": "2.31 m"}], "isError": False},
}
ERROR: dict[str, Any] = {"id": 7, "error": {"code": -32602, "message": "no such river"}}
PROGRESS: dict[str, Any] = {"method": "notifications/progress", "params": {"progressToken": 7, "progress": 1}}
SAMPLING: dict[str, Any] = {"id": 0, "method": "sampling/createMessage", "params": {"messages": []}}


def message(**members: Any) -> bytes:
    return json.dumps({"jsonrpc": "2.0", **members}).encode()


def sse(**members: Any) -> bytes:
    return b"event: message\ndata: " + message(**members) + b"\n\n"


def row(
    *reads: bytes,
    request: bytes = message(id=7, method="tools/call", params={"name": "level"}),
    response: ResponseHeaders | None = None,
    path: str = "/mcp",
    method: str = "POST",
    headers: tuple[str, ...] = ("mcp-protocol-version",),
    **end: Any,
) -> dict[str, Any]:
    """The row of a stream with these reads at 10, 20 … ms; by default the client leaves at the end."""
    records: list[AnyRecord] = [
        opened(A, path=path, method=method, headers=[(name, "x") for name in headers]),
        Request(A, 1, request, False),
        Frames(A, 2, [(10 * MS * i, data) for i, data in enumerate(reads, 1)], response or head()),
    ]
    end_ns = 10 * MS * (len(reads) + 1)
    records.append(closed(A, 3, **({"cause": "client_left", "client_left_ns": end_ns} | end), end_ns=end_ns))
    assembler = Assembler()
    for offset, record in enumerate(records):
        assembler.feed("w0", offset, [record])
    (found,) = measure(assembler.take_finished())["streams"].to_dicts()
    return dict(found)


def test_client_that_leaves_after_the_result_is_no_abort() -> None:
    found = row(sse(**PROGRESS), sse(**SAMPLING), sse(**RESULT))
    assert (found["dialect"], found["operation"], found["outcome"]) == ("mcp", "tools/call", "ok")
    assert (found["event_count"], found["terminator_ns"], found["aborted_after_terminal"]) == (
        3,
        30 * MS,
        True,
    )
    assert (found["ttft_ns"], found["output_event_count"], found["tool_failure_count"]) == (None, 0, 0)


@pytest.mark.parametrize(
    "sent", [(), (PROGRESS,), (SAMPLING,), ({**RESULT, "id": 8},), ({**ERROR, "id": "7"},)]
)
def test_client_that_leaves_before_the_answer_is_an_abort(sent: tuple[dict[str, Any], ...]) -> None:
    """Notifications, requests of the server and answers to other requests are not the answer."""
    assert row(*(sse(**members) for members in sent))["outcome"] == "client_abort"


def test_stream_that_ends_without_the_answer_is_truncated() -> None:
    assert row(sse(**PROGRESS), cause="complete", client_left_ns=None)["outcome"] == "truncated"


@pytest.mark.parametrize("request_id", [7, None])
def test_error_is_an_error_of_the_stream(request_id: int | None) -> None:
    found = row(sse(**ERROR | {"id": request_id}))
    assert (found["outcome"], found["error_type"], found["error_phase"]) == (
        "inband_error",
        "-32602",
        "pre_first_output",
    )
    json_type = head(content_type="application/json")
    found = row(message(**ERROR), response=json_type, cause="complete", client_left_ns=None)
    assert (found["outcome"], found["error_type"], found["streamed"]) == ("inband_error", "-32602", False)


def test_failed_tool_is_counted_but_no_error() -> None:
    found = row(sse(id=7, result={"content": [], "isError": True}))
    assert (found["outcome"], found["tool_failure_count"]) == ("ok", 1)


def test_event_without_data_lets_the_client_resume() -> None:
    found = row(b"id: 1\ndata: \n\n", sse(**RESULT))
    assert (found["outcome"], found["event_count"], found["malformed_events"]) == ("ok", 2, 0)


@pytest.mark.parametrize("end", [{}, {"cause": "complete", "client_left_ns": None}])
@pytest.mark.parametrize("reads", [(), (sse(**PROGRESS),), (sse(id=3, result={}),)])
def test_standing_get_may_end_by_either_side(reads: tuple[bytes, ...], end: dict[str, Any]) -> None:
    found = row(*reads, request=b"", method="GET", **end)
    assert (found["operation"], found["outcome"], found["aborted_after_terminal"]) == ("listen", "ok", False)


def test_standing_get_that_is_reset_is_an_upstream_reset() -> None:
    found = row(request=b"", method="GET", cause="upstream_reset", client_left_ns=None)
    assert (found["operation"], found["outcome"]) == ("listen", "upstream_reset")


def test_subscription_may_be_ended_by_the_client() -> None:
    request = message(id=7, method="subscriptions/listen", params={})
    assert row(sse(**PROGRESS), request=request)["outcome"] == "ok"


@pytest.mark.parametrize(
    ("method", "body", "operation"),
    [
        ("POST", message(id=1, method="initialize", params={}), "initialize"),
        ("POST", message(method="notifications/initialized"), "notifications/initialized"),
        ("POST", message(id=1, method="river of my customer"), "mcp"),
        ("POST", message(id=0, result={}), "mcp"),
        ("DELETE", b"", "end_session"),
    ],
)
def test_operation_is_a_known_method(method: str, body: bytes, operation: str) -> None:
    accepted = ResponseHeaders(202, [], 50)
    found = row(request=body, method=method, response=accepted, cause="complete", client_left_ns=None)
    assert (found["operation"], found["outcome"]) == (operation, "ok")


@pytest.mark.parametrize(
    ("path", "headers", "request_body", "dialect"),
    [
        ("/servers/1", ("mcp-protocol-version",), message(id=7, result={}), "mcp"),
        ("/servers/1", (), message(id=7, method="tools/call"), "mcp"),
        ("/mcp/", (), b"", "mcp"),
        ("/servers/1", (), message(id=7, method="message/stream"), "a2a"),
        ("/servers/1", (), b"", "unknown"),
    ],
)
def test_request_identifies_the_dialect(
    path: str, headers: tuple[str, ...], request_body: bytes, dialect: str
) -> None:
    assert row(sse(**RESULT), path=path, headers=headers, request=request_body)["dialect"] == dialect


def test_messages_of_a_server_identify_the_dialect() -> None:
    decoder = StreamDecoder(ExchangeInfo(path="/anything", content_type="text/event-stream"))
    decoder.feed([(1, sse(**PROGRESS))])
    assert decoder.dialect == "mcp"


def test_result_with_the_response_of_another_dialect_remains_a_result() -> None:
    inner = {
        "object": "chat.completion",
        "choices": [{"index": 0, "message": {"content": "hi"}, "finish_reason": "stop"}],
    }
    json_type = head(content_type="application/json")
    body = json.dumps({"id": 7, "result": {"structuredContent": inner}, "jsonrpc": "2.0"}).encode()
    found = row(body, response=json_type, cause="complete", client_left_ns=None)
    assert (found["dialect"], found["output_event_count"]) == ("mcp", 0)


def test_methods_are_short_words() -> None:
    assert all(method.isascii() and len(method) < 40 and " " not in method for method in METHODS)


def test_error_code_may_be_a_text() -> None:
    found = row(sse(id=7, error={"code": "rate_limited", "message": "wait"}))
    assert (found["outcome"], found["error_type"]) == ("inband_error", "rate_limited")


@pytest.mark.parametrize("result", [[], None, "text", 0, {"isError": "no"}])
def test_result_may_be_any_json(result: object) -> None:
    assert row(sse(id=7, result=result))["outcome"] == "ok"


@pytest.mark.parametrize(
    ("answers", "outcome"),
    [([RESULT], "ok"), ([PROGRESS, ERROR], "inband_error"), ([PROGRESS], "client_abort")],
)
def test_first_answer_in_a_batch_is_the_terminal(answers: list[dict[str, Any]], outcome: str) -> None:
    request = b"[" + message(id=7, method="tools/call", params={"name": "level"}) + b"]"
    batch = b"[" + b",".join(message(**members) for members in answers) + b"]"
    found = row(b"data: " + batch + b"\n\n", request=request)
    assert (found["dialect"], found["outcome"], found["malformed_events"]) == ("mcp", outcome, 0)
