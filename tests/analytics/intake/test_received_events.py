"""Log records and metrics of agents become rows without text. The records are those that the agents send, shortened."""

from __future__ import annotations

import json
from typing import Any

import pytest

from streamgauge.analytics.intake.otlp_messages import AHEAD_NS, NotOtlp, Received
from streamgauge.analytics.intake.received_events import KINDS, parse_logs, parse_metrics
from streamgauge.analytics.schema.frames import frame_of_rows
from streamgauge.analytics.schema.tables import AGENT_EVENTS
from streamgauge.ingest.keyed_ids import session_hash
from tests.analytics.intake.test_received_spans import NOW, SECRET, attribute

KEY = b"k" * 32
SESSION = "78684063-cdf6-4bdb-aa81-15a7dc815e2d"
CLAUDE = {"session.id": SESSION, "user.id": SECRET, "event.sequence": 5, "prompt.id": "e60ff5ea"}
CODEX = {
    "conversation.id": SESSION,
    "event.timestamp": "2026-11-30T17:18:59.207Z",
    "originator": "codex_exec",
}
GEMINI = {"session.id": SESSION, "prompt_id": "bccb4b7d#0", "event.timestamp": "2026-11-30T17:19:15.623Z"}
CODEX_NS = 1_796_059_139_207_000_000


def record(body: str = "", *, at_ns: int = NOW, **attributes: Any) -> dict[str, Any]:
    values = [attribute(key, value) for key, value in attributes.items()]
    return {"timeUnixNano": str(at_ns), "body": {"stringValue": body}, "attributes": values}


def claude(name: str, **attributes: Any) -> dict[str, Any]:
    return record(f"claude_code.{name}", **{"event.name": name}, **CLAUDE, **attributes)


def read(*records: dict[str, Any], service: str = "claude-code", max_items: int = 100) -> Received:
    resource = {
        "attributes": [attribute("service.name", service), attribute("process.command_args", [SECRET])]
    }
    body = {"resourceLogs": [{"resource": resource, "scopeLogs": [{"logRecords": list(records)}]}]}
    return parse_logs(
        json.dumps(body).encode(), is_json=True, now_ns=CODEX_NS, max_items=max_items, session_key=KEY
    )


def rows(*records: dict[str, Any], service: str = "claude-code") -> list[dict[str, Any]]:
    """The rows without what is NULL, and without the columns that all have."""
    found = frame_of_rows(AGENT_EVENTS, read(*records, service=service).rows).to_dicts()
    assert {row["session_id"] for row in found} == {session_hash(SESSION, KEY)}
    common = ("event_id", "session_id", "occurred_at", "agent")
    return [{k: v for k, v in row.items() if v is not None and k not in common} for row in found]


def test_events_of_claude_code() -> None:
    found = rows(
        claude("tool_result", tool_name="Bash", tool_use_id="toolu_1", success="true", duration_ms="503", tool_parameters=SECRET),
        claude("tool_decision", tool_name="Bash", tool_use_id="toolu_1", decision="reject", source="user_reject"),
        claude(
            "api_request", model="claude-opus-4-8", input_tokens="14", cache_read_tokens="1000", cache_creation_tokens="7",
            output_tokens="26", cost_usd=0.00572, duration_ms="128", request_id="req_011",
        ),
        claude("api_error", model="claude-opus-4-8", status_code="529", error=SECRET, duration_ms="9"),
        claude("compaction", trigger="auto", success="true", duration_ms="2000", pre_tokens="160000", post_tokens="9000"),
    )  # fmt: skip
    prompt = {"prompt_id": "e60ff5ea"}
    assert found == [
        {"kind": "tool_result", "tool": "Bash", "call_id": "toolu_1", "success": True, "duration_ns": 503_000_000, **prompt},
        {"kind": "tool_decision", "tool": "Bash", "call_id": "toolu_1", "decision": "reject", "decision_source": "user_reject", **prompt},
        {
            "kind": "api_request", "model": "claude-opus-4-8", "input_tokens": 1021, "output_tokens": 26, "cost": 0.00572,
            "duration_ns": 128_000_000, "request_id": "req_011", **prompt,
        },
        {"kind": "api_error", "model": "claude-opus-4-8", "error_type": "529", "duration_ns": 9_000_000, **prompt},
        {"kind": "compaction", "success": True, "duration_ns": 2_000_000_000, "tokens_before": 160_000, "tokens_after": 9000, **prompt},
    ]  # fmt: skip


def test_events_of_codex_have_the_time_in_an_attribute() -> None:
    def codex(name: str, **attributes: Any) -> dict[str, Any]:
        return record(at_ns=0, **{"event.name": f"codex.{name}"}, **CODEX, model="gpt-6.2-sol", **attributes)

    sent = [
        codex(
            "tool_result",
            tool_name="exec",
            call_id="call_3",
            success="false",
            duration_ms="490",
            arguments=SECRET,
            output=SECRET,
        ),
        codex(
            "sse_event",
            **{"event.kind": "response.completed"},
            input_token_count="1028",
            output_token_count="32",
        ),
        codex("sse_event", **{"event.kind": "response.created"}),
        codex("user_prompt", prompt=SECRET),
    ]
    found = rows(*sent, service="codex_exec")
    assert found == [
        {
            "kind": "tool_result",
            "tool": "exec",
            "call_id": "call_3",
            "success": False,
            "duration_ns": 490_000_000,
        },
        {"kind": "api_request", "model": "gpt-6.2-sol", "input_tokens": 1028, "output_tokens": 32},
    ]
    received = read(*sent)
    assert received.ignored == 2
    assert {row[1] for row in received.rows} == {CODEX_NS // 1000}


def test_events_of_gemini_cli_have_the_id_of_the_response() -> None:
    def gemini(name: str, **attributes: Any) -> dict[str, Any]:
        return record(SECRET, **{"event.name": name}, **(GEMINI | attributes))

    details = "gen_ai.client.inference.operation.details"
    found = rows(
        gemini(
            "gemini_cli.tool_call", function_name="run_shell_command", function_args=SECRET, success=True, duration_ms=464,
            decision="accept",
        ),
        gemini("gemini_cli.api_response", model="g", input_token_count=10, output_token_count=3, thoughts_token_count=4, duration_ms=88),
        gemini(details, **{"gen_ai.response.id": "r4", "gen_ai.output.messages": SECRET}),
        gemini(details, **{"gen_ai.response.id": "of another", "event.timestamp": "2026-11-30T17:19:16.000Z"}),
        service="gemini-cli",
    )  # fmt: skip
    assert found == [
        {
            "kind": "tool_result", "tool": "run_shell_command", "success": True, "duration_ns": 464_000_000, "decision": "accept",
            "prompt_id": "bccb4b7d#0",
        },
        {
            "kind": "api_request", "model": "g", "input_tokens": 10, "output_tokens": 7, "duration_ns": 88_000_000, "response_id": "r4",
            "prompt_id": "bccb4b7d#0",
        },
    ]  # fmt: skip


@pytest.mark.parametrize("name", KINDS)
def test_no_text_is_kept(name: str) -> None:
    """In no attribute that an agent can send, also if it is one that is stored."""
    keys = ("tool_name", "function_name", "call_id", "decision", "source", "model", "request_id", "error_type", "success",
            "prompt_id", "session.id", "duration_ms", "prompt", "arguments", "output", "error", "event.kind")  # fmt: skip
    attributes = dict.fromkeys(keys, SECRET) | {"event.name": name, "event.kind": "response.completed"}
    received = read(record(SECRET, **attributes), service=SECRET)
    assert len(received.rows) == 1
    assert not [word for word in SECRET.split() if len(word) > 3 and word in repr(received.rows)]


def test_same_record_has_the_same_id_and_another_one_not() -> None:
    one = claude("tool_result", tool_name="Bash", duration_ms="1")
    ids = [row[0] for row in read(one, one, claude("tool_result", tool_name="Bash", duration_ms="2")).rows]
    assert ids[0] == ids[1] != ids[2]


def test_invalid_records_are_rejected_and_counted() -> None:
    future = claude("tool_result") | {"timeUnixNano": str(CODEX_NS + AHEAD_NS + 1)}
    without = claude("tool_result") | {"timeUnixNano": "0"}
    found = read(future, without, *[claude("tool_result")] * 3, max_items=2)
    assert len(found.rows) == 2
    assert found.rejected == {"with invalid or future times": 2, "more than 2 events in one request": 1}
    with pytest.raises(NotOtlp):
        parse_logs(b"\xff\xff", is_json=False, now_ns=NOW, max_items=1, session_key=KEY)


def metric(name: str, temporality: int, *points: tuple[str, float]) -> dict[str, Any]:
    data = [
        {"timeUnixNano": str(NOW), "asDouble": value, "attributes": [attribute("session.id", SESSION), attribute("type", kind)]}
        for kind, value in points
    ]  # fmt: skip
    return {"name": name, "sum": {"aggregationTemporality": temporality, "dataPoints": data}}


def test_lines_of_edits_are_stored_and_other_metrics_are_not() -> None:
    metrics = [
        metric("claude_code.lines_of_code.count", 1, ("added", 12.0), ("removed", 3.0)),
        metric("claude_code.lines_of_code.count", 2, ("added", 12.0)),
        metric("claude_code.cost.usage", 1, ("input", 0.5)),
        metric("claude_code.token.usage", 1, ("input", 1014.0)),
    ]
    body = json.dumps({"resourceMetrics": [{"scopeMetrics": [{"metrics": metrics}]}]}).encode()
    found = parse_metrics(body, is_json=True, now_ns=NOW, max_items=10, session_key=KEY)
    stored = frame_of_rows(AGENT_EVENTS, found.rows)
    assert stored.select("kind", "lines_added", "lines_removed", "cost", "input_tokens").rows() == [
        ("edit", 12, None, None, None), ("edit", None, 3, None, None),
    ]  # fmt: skip
    assert found.ignored == 3
