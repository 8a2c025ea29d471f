"""Stored header fields: known names with plain values and nothing that could be a key. Request ids and server instances."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analytics.measures.headers import (
    MAX_FIELDS,
    harmless,
    request_id_of,
    server_instance_of,
    stored_request_headers,
    stored_response_headers,
)
from ingest.identifiers import product


def test_known_fields_with_plain_values_are_kept() -> None:
    headers = [
        ("content-type", "application/json; charset=utf-8"),
        ("user-agent", "OpenAI/Python 1.109.1"),
        ("accept", "text/event-stream, */*;q=0.5"),
        ("anthropic-beta", "fine-grained-tool-streaming-2025-05-14"),
        ("x-request-id", "req-1"),
        ("authorization", "Bearer x"),
    ]
    assert json.loads(stored_request_headers(headers) or "") == dict(headers[:4])


def test_rate_limit_headers_are_kept_by_prefix() -> None:
    headers = [("x-ratelimit-remaining-tokens", "149984"), ("anthropic-ratelimit-requests-reset", "2026-01-27T12:00:30Z"),
               ("set-cookie", "a=b"), ("x-served-by", "cache-fra-etou8220158-FRA")]  # fmt: skip
    assert json.loads(stored_response_headers(headers) or "") == dict(headers[:2])


@pytest.mark.parametrize(
    "value",
    [
        "sk-proj-abcdefghijkl0123456789",
        "app/1.0 (key=AKIAIOSFODNN7EXAMPLE1)",
        "x" * 129,
        "",
        "ann@example.com",
        "naïve",
        "a\r\nb",
    ],
)
def test_possible_secret_is_omitted(value: str) -> None:
    assert stored_request_headers([("user-agent", value)]) is None


def test_no_stored_fields_is_null() -> None:
    assert stored_request_headers([]) is None
    assert stored_response_headers([("x-request-id", "1")]) is None


def test_first_value_of_a_repeated_name_is_kept_and_fields_are_bounded() -> None:
    assert stored_response_headers([("server", "a"), ("server", "b")]) == '{"server":"a"}'
    many = [(f"x-ratelimit-{i}", "1") for i in range(100)]
    assert len(json.loads(stored_response_headers(many) or "")) == MAX_FIELDS


@given(st.text(max_size=200))
def test_value_without_a_possible_key_is_kept(value: str) -> None:
    if harmless(value):
        assert len(value) <= 128
        assert value.isascii()
        assert product(value) == value


def test_client_request_id_takes_precedence() -> None:
    assert request_id_of([("x-request-id", "c")], [("x-request-id", "s")]) == "c"
    assert request_id_of([("x-request-id", "")], [("request-id", "s")]) == "s"
    assert request_id_of([], []) is None


@pytest.mark.parametrize(
    "name", ["x-xerotier-worker-id", "x-acme-gpu-worker-id", "x-worker", "x-replica-id", "x-served-by"]
)
def test_header_names_the_server_instance(name: str) -> None:
    assert server_instance_of([("content-type", "x"), (name, "w7")]) == "w7"


@pytest.mark.parametrize("name", ["x-request-id", "x-workers-total-count", "server"])
def test_other_headers_name_no_server_instance(name: str) -> None:
    assert server_instance_of([(name, "w7")]) is None
