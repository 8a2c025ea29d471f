"""Type, message and raw value of errors, by vendor."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamgauge.analytics.dialects.error_bodies import error_from, error_in, error_in_body, failed_event

BODIES: dict[str, tuple[Any, str | None, str, Any]] = {
    # name: (body, type, message, raw: a key of the body, or ... for the whole body)
    "anthropic": (
        {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}, "request_id": "req_1"},
        "overloaded_error", "Overloaded", "error",
    ),
    "openai": (
        {"error": {"message": "No such model", "type": "invalid_request_error", "param": "model", "code": "model_not_found"}},
        "invalid_request_error", "No such model", "error",
    ),
    "openai with a null type": (
        {"error": {"message": "m", "type": None, "code": "context_length_exceeded"}}, "context_length_exceeded", "m", "error",
    ),
    "azure": ({"error": {"code": "DeploymentNotFound", "message": "m"}}, "DeploymentNotFound", "m", "error"),
    "azure api management": ({"statusCode": 401, "message": "Access denied"}, None, "Access denied", ...),
    "google": (
        {"error": {"code": 429, "message": "Quota", "status": "RESOURCE_EXHAUSTED", "details": [{"@type": "x"}]}},
        "RESOURCE_EXHAUSTED", "Quota", "error",
    ),
    "cohere": ({"id": "x", "message": "invalid api token"}, None, "invalid api token", ...),
    "lm studio": (
        {"error": {"type": "invalid_request", "message": "no model", "code": "missing_required_parameter", "param": "model"}},
        "invalid_request", "no model", "error",
    ),
    "mistral": (
        {"object": "error", "message": "Invalid model: x", "type": "invalid_model", "param": None, "code": "1500"},
        "invalid_model", "Invalid model: x", ...,
    ),
    "mistral's detail list": (
        {"object": "error", "message": {"detail": [{"type": "extra_forbidden", "loc": ["body", "q"], "msg": "Extra inputs"}]},
         "type": "invalid_request_error", "param": None, "code": None},
        "invalid_request_error", "body.q: Extra inputs", ...,
    ),
    "fastapi validation": (
        {"detail": [{"loc": ["body", "messages", 0], "msg": "field required", "type": "value_error.missing"},
                    {"loc": ["body", "n"], "msg": "not an integer", "type": "type_error"}]},
        "value_error.missing", "body.messages.0: field required; body.n: not an integer", ...,
    ),
    "fastapi": ({"detail": "Not Found"}, None, "Not Found", ...),
    "fastapi around openai": ({"detail": {"error": {"message": "m", "type": "t"}}}, "t", "m", ...),
    "old vllm": (
        {"object": "error", "message": "too long", "type": "BadRequestError", "param": None, "code": 400},
        "BadRequestError", "too long", ...,
    ),
    "flat": ({"code": 400, "message": "Temperature", "type": "Bad Request"}, "Bad Request", "Temperature", ...),
    "xai": ({"code": "Client specified an invalid argument", "error": "Model not found: x"},
            "Client specified an invalid argument", "Model not found: x", "error"),
    "text under error": ({"error": "model 'x' not found"}, None, "model 'x' not found", "error"),
    "tgi": ({"error": "Input validation error", "error_type": "validation"}, "validation", "Input validation error", "error"),
    "hugging face": ({"error": ["Error in `inputs`", "second"], "warnings": []}, None, "Error in `inputs`; second", "error"),
    "litellm, whose null is a word": (
        {"error": {"message": "m", "type": "None", "param": "None", "code": "429"}}, "429", "m", "error",
    ),
    "openrouter": ({"error": {"code": 429, "message": "Provider returned error", "metadata": {"raw": "x"}}},
                   "429", "Provider returned error", "error"),
    "bedrock": ({"message": "denied", "__type": "AccessDeniedException"}, "AccessDeniedException", "denied", ...),
    "cloudflare": ({"success": False, "errors": [{"code": 10000, "message": "Authentication error"}], "result": None},
                   "10000", "Authentication error", ...),
    "problem details": ({"type": "about:blank", "title": "Unauthenticated", "detail": "No token", "status": 401},
                        "Unauthenticated", "No token", ...),
    "apigee": ({"fault": {"faultstring": "Rate limit", "detail": {"errorcode": "policies.ratelimit.Quota"}}},
               "policies.ratelimit.Quota", "Rate limit", "fault"),
    "writer": ({"tpe": "BadRequest", "errors": [{"description": "d", "extras": {}}], "extras": {}}, "BadRequest", "d", ...),
    "databricks": ({"error_code": "INVALID_PARAMETER_VALUE", "message": "m"}, "INVALID_PARAMETER_VALUE", "m", ...),
    "json-rpc": ({"jsonrpc": "2.0", "id": 1, "error": {"code": -32600, "message": "Invalid"}}, "-32600", "Invalid", "error"),
    "doubly wrapped": ({"error": {"error": {"type": "t", "message": "m"}}}, "t", "m", "error"),
}  # fmt: skip


@pytest.mark.parametrize("vendor", BODIES)
def test_error_body_of_vendor(vendor: str) -> None:
    body, kind, message, raw = BODIES[vendor]
    seen = error_in_body(json.dumps(body).encode())
    assert seen is not None
    assert (seen.type, seen.message) == (kind, message)
    assert seen.raw == (body if raw is ... else body[raw])


def test_error_in_a_json_array() -> None:
    seen = error_in_body(b'[{"error": {"code": 400, "message": "m", "status": "INVALID_ARGUMENT"}}\n]')
    assert seen is not None
    assert (seen.type, seen.message) == ("INVALID_ARGUMENT", "m")
    assert seen.raw == {"code": 400, "message": "m", "status": "INVALID_ARGUMENT"}


def test_html_body_yields_its_title_or_text() -> None:
    page = b"<!doctype html><html><head><title>502 Bad&nbsp;Gateway</title></head><body><h1>nginx</h1></body></html>"
    seen = error_in_body(page)
    assert seen is not None
    assert seen.type is None
    assert seen.message == "502 Bad Gateway"
    seen = error_in_body(b"<h1>Service\n Unavailable</h1><script>var a</script>")
    assert seen is not None
    assert seen.message == "Service Unavailable"


def test_plain_text_is_the_message() -> None:
    seen = error_in_body(b"upstream connect error or disconnect/reset before headers\n")
    assert seen is not None
    assert seen.message == "upstream connect error or disconnect/reset before headers"
    assert seen.raw == seen.message


def test_empty_body_has_no_error() -> None:
    assert error_in_body(b"") is None
    assert error_in_body(b" \r\n") is None


def test_error_body_in_sse_framing_is_decoded() -> None:
    seen = error_in_body(
        b'event: error\r\ndata: {"type":"error","error":{"type":"api_error","message":"m"}}\r\n\r\n'
    )
    assert seen is not None
    assert (seen.type, seen.message) == ("api_error", "m")


def test_long_page_is_cut() -> None:
    seen = error_in_body(b"x" * 10_000_000)
    assert seen is not None
    assert len(str(seen.raw)) == 4096
    assert len(seen.message or "") == 4096


@pytest.mark.parametrize(
    ("arguments", "kind"),
    [
        (("", b'{"a":1}'), "malformed"),
        (("error", b'{"a":1}'), "error"),
        (("", b'{"error":1}'), "error"),
        ((None, b'{"a":1}'), "malformed"),
        ((None, b'{"a":1}', "word"), "malformed"),
        ((None, b'{"a":1}', "error"), "error"),
        ((object(), b'{"a":1}', "word"), "error"),
    ],
)
def test_failed_event_takes_a_name_or_the_event_and_its_name(arguments: Any, kind: str) -> None:
    assert failed_event(*arguments).kind == kind


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 100_000,
        b'{"error":' * 500 + b"1" + b"}" * 500,
        b"\xff\xfe{}",
        b"null",
        b"[]",
        b"5",
        b'{"error":true}',
    ],
)
def test_invalid_body_never_raises(body: bytes) -> None:
    assert error_in_body(body) is not None


@settings(max_examples=50)
@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(), lambda c: st.lists(c) | st.dictionaries(
    st.sampled_from(["error", "errors", "detail", "message", "type", "code", "status", "loc"]) | st.text(), c)))  # fmt: skip
def test_any_json_body_never_raises(value: Any) -> None:
    seen = error_in_body(json.dumps(value).encode())
    assert seen is None or (isinstance(seen.type, str | None) and isinstance(seen.message, str | None))


@pytest.mark.parametrize(
    "event",
    [
        {"error": {"type": "t", "message": "m"}},
        {"type": "error", "error": {"type": "t", "message": "m"}},
        {"object": "error", "type": "t", "message": "m"},
        {"type": "error", "code": "t", "message": "m", "param": None},
        {"choices": [], "error": "m", "code": "t"},
    ],
)
def test_labelled_errors_are_recognised(event: dict[str, Any]) -> None:
    seen = error_in(event)
    assert seen is not None
    assert (seen.type, seen.message) == ("t", "m")


@pytest.mark.parametrize(
    "event", [{"error": None}, {"error": {}}, {"error": ""}, {"message": "hello"}, [], "error", None]
)
def test_unlabelled_values_are_not_errors(event: Any) -> None:
    assert error_in(event) is None


def test_numeric_code_is_the_type_only_without_a_textual_one() -> None:
    assert error_from({"code": 404, "status": "NOT_FOUND"}).type == "NOT_FOUND"
    assert error_from({"code": 404, "status": 404}).type == "404"
