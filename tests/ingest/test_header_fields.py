"""Header fields that may be recorded: names by list, values by grammar, the rest hashed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamgauge.ingest.header_fields import MAX_VALUE_CHARS, recorded_value, request_field, response_field
from streamgauge.ingest.identifiers import MARKER, product
from streamgauge.ingest.keyed_ids import RECORDED

SECRET = "sk-plan7ed-s3cret"
PROSE = "Please summarise the secret merger of Foo and Bar"


def recorded(of, *pairs: tuple[str, str]):
    return [kept for n, v in pairs if (kept := of(n.lower().encode(), v.encode()))]


@pytest.mark.parametrize(
    "name",
    [
        "Authorization", "Proxy-Authorization", "X-Api-Key", "Api-Key", "X-Goog-Api-Key", "Cookie", "Set-Cookie",
        "X-Auth-Token", "X-Amz-Security-Token", "Ocp-Apim-Subscription-Key", "X-Anything-New", "OpenAI-Organization-Key",
        "X-Ratelimit-sk-abc", "Ratelimit-please-help", "Fireworks-merger-plan", "Via", "Alt-Svc", "Trailer", "X-Title",
        "x-ratelimit-" + "remaining-" * 20 + "tokens",
    ],
)  # fmt: skip
def test_unlisted_names_are_not_recorded(name: str):
    assert recorded(request_field, (name, SECRET)) == []
    assert recorded(response_field, (name, SECRET)) == []


def test_listed_fields_are_recorded_in_lower_case():
    assert recorded(
        request_field, ("Content-Type", "a/b"), ("X-Request-ID", "1"), ("Anthropic-Version", "v")
    ) == [
        ("content-type", "a/b"),
        ("x-request-id", "1"),
        ("anthropic-version", "v"),
    ]
    names = [
        "Content-Type", "Retry-After", "x-ratelimit-remaining-tokens", "anthropic-ratelimit-unified-5h-utilization", "request-id",
        "Server", "CF-RAY", "OpenAI-Processing-MS", "fireworks-prompt-tokens", "X-Xerotier-Worker-Id", "RateLimit",
        "fireworks-server-time-to-first-token", "fireworks-speculation-prompt-matched-tokens",
    ]  # fmt: skip
    assert [n for n, _ in recorded(response_field, *((n, "1") for n in names))] == [n.lower() for n in names]


def test_name_that_ends_like_a_listed_one_is_recorded_under_the_listed_name():
    assert response_field(b"x-acme-gpu-worker-id", b"w7") == ("x-worker-id", "w7")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("user-agent", "OpenAI/Python 1.109.1"),
        ("user-agent", "claude-cli/2.0.1 (external, cli)"),
        ("user-agent", "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/120.0.0.0 Safari/537.36"),
        ("user-agent", "opencode/1.18 ai-sdk/provider-utils/3.0 runtime/bun/1.3"),
        ("user-agent", "node"),
        ("server", "nginx/1.27 (Ubuntu)"),
        ("accept", "text/event-stream, */*;q=0.5"),
        ("accept-encoding", "gzip, deflate, br, zstd"),
        ("content-encoding", "zstd"),
        ("content-type", "text/event-stream; charset=utf-8"),
        ("anthropic-beta", "claude-code-20250219,oauth-2025-04-20,fine-grained-tool-streaming-2025-05-14"),
        ("openai-beta", "responses=experimental"),
        ("cache-control", "max-age=0, no-store"),
        ("x-cache", "Hit from cloudfront"),
        ("server-timing", 'total;dur=1.5, db;desc="primary";dur=53'),
        ("x-amzn-errortype", "ThrottlingException:http://internal.amazon.com/coral/com.amazon.bedrock/"),
        ("retry-after", "Wed, 21 Oct 2026 07:28:00 GMT"),
        ("x-ratelimit-reset-tokens", "1m6.5s"),
        ("x-ratelimit-limit", "100, 100;w=60"),
        ("anthropic-ratelimit-requests-reset", "2026-01-27T12:00:30Z"),
        ("anthropic-ratelimit-unified-status", "allowed_warning"),
        ("x-stainless-async", "async:asyncio"),
        ("x-request-id", "req_011CTabcdefghijklmnopqrst123456"),
        (RECORDED, "0123456789abcdef0123456789abcdef"),
    ],
)  # fmt: skip
def test_value_of_the_grammar_is_kept(name: str, value: str):
    assert recorded_value(name, value) == value


VALUES = (
    "user-agent", "accept", "accept-encoding", "content-encoding", "content-type", "openai-beta", "anthropic-beta",
    "anthropic-version", "server", "server-timing", "cache-control", "x-cache", "retry-after", "x-ratelimit-limit",
    "fireworks-prompt-tokens", "x-request-id", "x-served-by", "x-amzn-errortype",
)  # fmt: skip


@pytest.mark.parametrize("name", VALUES)
@pytest.mark.parametrize(
    "value", [PROSE, PROSE.replace(" ", "; "), PROSE.replace(" ", ", "), SECRET + "0" * 20, "Ä" * 9]
)
def test_prose_and_keys_are_hashed(name: str, value: str):
    kept = recorded_value(name, value)
    assert MARKER in kept
    assert not {*PROSE.split(), SECRET} & set(kept.replace(";", " ").replace(",", " ").split())


@pytest.mark.parametrize(
    ("name", "value", "kept"),
    [
        ("user-agent", f"app/1.0 (linux; x64) {PROSE}", "app/1.0 (linux; x64) "),
        ("user-agent", f"app/1.0 ({PROSE}) other/2.0", "app/1.0 "),
        ("content-type", "multipart/form-data; boundary=----WebKitFormBoundary7MA4YWxkTrZu0gW", "multipart/form-data; "),
        ("accept", f"*/*, {PROSE}", "*/*, "),
    ],
)  # fmt: skip
def test_part_outside_the_grammar_is_hashed(name: str, value: str, kept: str):
    found = recorded_value(name, value)
    assert found.startswith(kept + MARKER)
    assert len(found) == len(kept) + len(MARKER) + 12


@given(
    st.sampled_from(["user-agent", "accept", "openai-beta", "server-timing", "age"]), st.text(max_size=600)
)
def test_recorded_values_are_bounded_stable_and_without_a_key(name: str, value: str):
    kept = recorded_value(name, value)
    assert len(kept) <= MAX_VALUE_CHARS + len(MARKER) + 12
    assert product(kept) == kept
    assert recorded_value(name, kept) == kept
