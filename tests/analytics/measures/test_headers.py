"""Stored header fields, request ids and server instances."""

from __future__ import annotations

import json
from itertools import permutations

import pytest

from streamgauge.analytics.measures.headers import (
    MAX_FIELDS,
    client_app_of,
    request_id_of,
    server_instance_of,
    stored_headers,
)


def test_known_fields_with_plain_values_are_kept() -> None:
    headers = [
        ("content-type", "application/json; charset=utf-8"),
        ("user-agent", "OpenAI/Python 1.109.1"),
        ("accept", "text/event-stream, */*;q=0.5"),
        ("anthropic-beta", "fine-grained-tool-streaming-2025-05-14"),
        ("x-request-id", "req-1"),
        ("authorization", "Bearer x"),
    ]
    assert json.loads(stored_headers(headers) or "") == dict(headers[:4])


def test_rate_limit_headers_are_kept() -> None:
    headers = [("x-ratelimit-remaining-tokens", "149984"), ("anthropic-ratelimit-requests-reset", "2026-01-27T12:00:30Z"),
               ("set-cookie", "a=b"), ("x-served-by", "cache-fra-etou8220158-FRA")]  # fmt: skip
    assert json.loads(stored_headers(headers) or "") == dict(headers[:2])


def test_prose_and_keys_are_hashed() -> None:
    kept = json.loads(
        stored_headers([("user-agent", "app/1.0 some words"), ("accept", "sk-proj-abcdefghijkl0123456789")])
        or ""
    )
    assert kept["user-agent"].startswith("app/1.0 hashed:")
    assert kept["accept"].startswith("hashed:")


def test_no_stored_fields_is_null() -> None:
    assert stored_headers([]) is None
    assert stored_headers([("x-request-id", "1")]) is None


def test_first_value_of_a_repeated_name_is_kept_and_fields_are_bounded() -> None:
    assert stored_headers([("server", "a"), ("server", "b")]) == '{"server":"a"}'
    many = [
        ("-".join(("x-ratelimit", *words)), "1")
        for words in permutations(("limit", "tokens", "requests", "day", "used"))
    ]
    assert len(json.loads(stored_headers(many) or "")) == MAX_FIELDS


def test_client_request_id_takes_precedence() -> None:
    assert request_id_of([("x-request-id", "c")], [("x-request-id", "s")]) == "c"
    assert request_id_of([("x-request-id", "")], [("request-id", "s")]) == "s"
    assert request_id_of([], []) is None


@pytest.mark.parametrize(
    "name", ["x-xerotier-worker-id", "x-worker-id", "x-worker", "x-replica-id", "x-served-by"]
)
def test_header_names_the_server_instance(name: str) -> None:
    assert server_instance_of([("content-type", "x"), (name, "w7")]) == "w7"


@pytest.mark.parametrize("name", ["x-request-id", "x-workers-total-count", "server"])
def test_other_headers_name_no_server_instance(name: str) -> None:
    assert server_instance_of([(name, "w7")]) is None


@pytest.mark.parametrize(
    ("headers", "app"),
    [
        ({"user-agent": "claude-cli/2.1.90 (external, cli)"}, "claude-cli/2.1.90"),
        ({"user-agent": "codex_exec/0.169.0 (Debian 12.0.0; x86_64) unknown", "originator": "codex_exec"}, "codex_exec/0.169.0"),
        ({"user-agent": "codex_cli_rs/0.160.0", "originator": "codex_vscode"}, "codex_vscode/0.160.0"),
        ({"user-agent": "codex_cli_rs/0.160.0", "originator": "words of a prompt"}, "codex_cli_rs/0.160.0"),
        ({"user-agent": "GeminiCLI-tui/0.61.0/gemini-2.5-pro (linux; x64; terminal)"}, "GeminiCLI-tui/0.61.0"),
        ({"user-agent": "opencode/1.18.25 ai-sdk/provider-utils/4.0.23 runtime/bun/1.3.14"}, "opencode/1.18.25"),
        ({"user-agent": "OpenAI/Python 2.8.0", "x-stainless-package-version": "2.8.0"}, "OpenAI/Python/2.8.0"),
        ({"user-agent": "Anthropic/JS", "x-stainless-package-version": "0.70.1"}, "Anthropic/JS/0.70.1"),
        ({"user-agent": "curl/8.5.0"}, "curl/8.5.0"),
        ({"user-agent": "node"}, "node"),
        ({"x-stainless-package-version": "2.8.0"}, None),
        ({"user-agent": ""}, None),
        ({}, None),
    ],
)  # fmt: skip
def test_app_of_the_client_has_a_name_and_a_version(headers: dict[str, str], app: str | None) -> None:
    assert client_app_of([*headers.items()]) == app


def test_app_that_is_no_name_is_hashed() -> None:
    assert (client_app_of([("user-agent", "sk-proj-abcdefghijkl0123456789/1.0")]) or "").startswith("hashed:")
