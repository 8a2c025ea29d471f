"""Received spans become rows with names, times and numbers, without prompt or response text."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from streamgauge.analytics.intake.otlp_messages import AHEAD_NS, NotOtlp, Received
from streamgauge.analytics.intake.received_spans import KEYS, parse_spans
from streamgauge.analytics.schema.frames import frame_of_rows
from streamgauge.analytics.schema.tables import SPANS
from streamgauge.ingest.identifiers import MAX_CHARS, hashed

NOW = 1_790_000_000_000_000_000
SECRET = "the river is 4 m high"


def attribute(key: str, value: Any) -> dict[str, Any]:
    kind = {str: "stringValue", bool: "boolValue", int: "intValue", float: "doubleValue"}
    if isinstance(value, list):
        return {
            "key": key,
            "value": {"arrayValue": {"values": [attribute("", one)["value"] for one in value]}},
        }
    return {"key": key, "value": {kind[type(value)]: value}}


def span(**more: Any) -> dict[str, Any]:
    return {
        "traceId": "0af7651916cd43dd8448eb211c80319c", "spanId": "b7ad6b7169203331", "parentSpanId": "00f067aa0ba902b7",
        "name": "chat gpt-5", "kind": 3, "startTimeUnixNano": str(NOW), "endTimeUnixNano": str(NOW + 1500), **more,
    }  # fmt: skip


def request(*spans: dict[str, Any], service: str = "app", scope: str = "litellm") -> dict[str, Any]:
    resource = {"attributes": [attribute("service.name", service), attribute("host.name", SECRET)]}
    return {
        "resourceSpans": [
            {"resource": resource, "scopeSpans": [{"scope": {"name": scope}, "spans": list(spans)}]}
        ]
    }


def read(*spans: dict[str, Any], max_items: int = 100, **more: Any) -> Received:
    return parse_spans(
        json.dumps(request(*spans, **more)).encode(), is_json=True, now_ns=NOW, max_items=max_items
    )


def row(*spans: dict[str, Any], **more: Any) -> dict[str, Any]:
    (found,) = frame_of_rows(SPANS, read(*spans, **more).rows).to_dicts()
    return found


def protobuf(*spans: dict[str, Any]) -> bytes:
    """The same request as protobuf."""
    made = ExportTraceServiceRequest()
    resource = made.resource_spans.add()
    resource.resource.attributes.add(key="service.name").value.string_value = "app"
    scope = resource.scope_spans.add()
    scope.scope.name = "litellm"
    for one in spans:
        scope.spans.add(
            trace_id=bytes.fromhex(one["traceId"]), span_id=bytes.fromhex(one["spanId"]),
            parent_span_id=bytes.fromhex(one["parentSpanId"]), name=one["name"], kind=one["kind"],
            start_time_unix_nano=int(one["startTimeUnixNano"]), end_time_unix_nano=int(one["endTimeUnixNano"]),
        )  # fmt: skip
    return bytes(made.SerializeToString())


def test_span_becomes_a_row_with_its_service() -> None:
    found = row(
        span(
            attributes=[
                attribute("gen_ai.request.model", "gpt-5"),
                attribute("gen_ai.usage.input_tokens", 12),
            ]
        )
    )
    assert list(found) == list(SPANS.types)
    attributes = json.loads(found.pop("attributes"))
    assert attributes == {
        "service.name": "app",
        "otel.scope.name": "litellm",
        "gen_ai.request.model": "gpt-5",
        "gen_ai.usage.input_tokens": 12,
    }
    assert found.pop("started_at").timestamp() == NOW / 1e9
    assert found == {
        "trace_id": "0af7651916cd43dd8448eb211c80319c", "span_id": "b7ad6b7169203331", "parent_span_id": "00f067aa0ba902b7",
        "stream_id": None, "name": "chat gpt-5", "kind": "client", "start_ns": 0, "duration_ns": 1500, "status": "unset",
        "status_message": None, "events": "[]",
    }  # fmt: skip


def test_json_and_protobuf_give_the_same_rows() -> None:
    spans = [span(), span(spanId="ABCDEF0123456789", parentSpanId="", kind=0)]
    parsed = read(*spans)
    assert parse_spans(protobuf(*spans), is_json=False, now_ns=NOW, max_items=100) == parsed
    assert [r[1:3] for r in parsed.rows] == [
        ("b7ad6b7169203331", "00f067aa0ba902b7"),
        ("abcdef0123456789", None),
    ]


def test_no_prompt_or_response_text_is_kept() -> None:
    """Text in every field that a sender can set. Only names remain, cut at a question mark."""
    secret_attributes = [
        *(attribute(key, SECRET) for key in KEYS),
        *(attribute(key, [SECRET, "stop"]) for key in KEYS),
        *(
            attribute(key, SECRET.replace(" ", "_"))
            for key in (
                "gen_ai.input.messages", "gen_ai.output.messages", "gen_ai.prompt", "gen_ai.completion",
                "gen_ai.system_instructions", "gen_ai.tool.call.arguments", "llm.prompts", "input.value",
                "gen_ai.prompt.0.content", "exception.message", "http.url", "url.full",
                "url.query", "http.request.header.authorization",
            )
        ),
        attribute("url.path", f"/v1/chat?{SECRET.replace(' ', '_')}"),
    ]  # fmt: skip
    found = read(
        span(
            attributes=secret_attributes,
            status={"code": 2, "message": SECRET},
            traceState=SECRET,
            events=[{"name": SECRET, "timeUnixNano": str(NOW), "attributes": secret_attributes}],
            links=[{"traceId": "aa" * 16, "spanId": "bb" * 8, "attributes": secret_attributes}],
            name=f"GET /v1/models?{SECRET}",
        )
    )
    text = str(found.rows)
    assert "river" not in text
    assert found.rows[0][4] == "GET /v1/models"
    assert found.rows[0][9] == "error"
    assert '"url.path":"/v1/chat"' in text


def test_long_words_are_hashed() -> None:
    attributes = [
        attribute("gen_ai.request.model", "m" * (MAX_CHARS + 1)),
        attribute("server.port", 443),
    ]
    found = row(span(attributes=attributes, name="n" * 5000))
    kept = json.loads(found["attributes"])
    model = hashed("m" * (MAX_CHARS + 1))
    assert kept == {
        "service.name": "app",
        "otel.scope.name": "litellm",
        "gen_ai.request.model": model,
        "server.port": 443,
    }
    assert found["name"] == hashed("n" * 5000)


@pytest.mark.parametrize(
    "wrong",
    [
        {"traceId": "0" * 32},
        {"traceId": "abcd"},
        {"spanId": ""},
        {"spanId": "zzzz" * 4},
        {"startTimeUnixNano": "0"},
        {"startTimeUnixNano": str(NOW + AHEAD_NS + 1)},
        {"endTimeUnixNano": str(2**64 - 1)},
    ],
)
def test_invalid_span_is_rejected_and_others_are_kept(wrong: dict[str, Any]) -> None:
    found = read(span(**wrong), span())
    assert len(found.rows) == found.rejected.total() == 1


def test_spans_per_request_are_bounded() -> None:
    found = read(span(), span(), span(), max_items=2)
    assert (len(found.rows), found.rejected.total()) == (2, 1)


def test_end_before_start_has_duration_zero() -> None:
    assert row(span(endTimeUnixNano=str(NOW - 5)))["duration_ns"] == 0


@pytest.mark.parametrize("body", [b"{", b"[]", b"[" * 100_000, b'{"resourceSpans": 3}', b"\xff\xfe"])
def test_invalid_body_raises_not_otlp(body: bytes) -> None:
    with pytest.raises(NotOtlp):
        parse_spans(body, is_json=True, now_ns=NOW, max_items=10)


@given(st.binary(max_size=200), st.booleans(), st.integers(0, 400))
def test_arbitrary_bytes_give_rows_or_not_otlp(noise: bytes, is_json: bool, cut: int) -> None:
    whole = json.dumps(request(span())).encode() if is_json else protobuf(span())
    for body in (noise, whole[:cut] + noise, whole[:cut] + noise + whole[cut:]):
        try:
            found = parse_spans(body, is_json=is_json, now_ns=NOW, max_items=10)
        except NotOtlp:
            continue
        assert frame_of_rows(SPANS, found.rows).height == len(found.rows)
