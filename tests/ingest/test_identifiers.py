"""One rule decides which values from the network are stored as they are, and which are hashed."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from streamgauge.ingest.identifiers import (
    MAX_CHARS,
    MAX_PATH_CHARS,
    error_type,
    hashed,
    identifier,
    name,
    path,
    product,
    query_model,
    title,
)

HASH = re.compile(r"hashed:[0-9a-f]{12}")
MODELS = [
    "gpt-4o",
    "o4-mini-2025-04-16",
    "minimax/minimax-m2:free",
    "models/gemini-2.5-pro",
    "gemma3:1b",
    "claude-sonnet-4-5[1m]",
    "@cf/meta/llama-3.3-70b-instruct-fp8-fast",
    "us.anthropic.claude-3-7-sonnet-20250219-v1:0",
    "arn:aws:bedrock:us-east-1:123456789012:application-inference-profile/9xkp3b2zz0cd",
    "arn:aws:bedrock:eu-west-1:123456789012:inference-profile/eu.anthropic.claude-3-7-sonnet-20250219-v1:0",
    "accounts/fireworks/models/llama-v3p3-70b-instruct#accounts/a/deployments/ab12cd34",
    "/models/Qwen3-1.7B-Q4_K_M.gguf",
    "hf.co/bartowski/Llama-3.2-3B-Instruct-GGUF:Q4_K_M",
    "ft:gpt-4o-mini-2024-07-18:org::AbC123xy",
    "claude-3-7-sonnet@20250219",
    "stability-ai/sdxl:39ed52f2a78e934b3ba6e2a89f5b1c712de7dfea535525255b1aa35c5565e08b",
    "azure/my_deployment-01",
    "gpt-4o~latest",
    "projects/123/locations/us-central1/endpoints/456",
    "0b1e5fd6-9f4c-4e21-8f6f-0d8a1fb0a3a2",
    "sk-learn",
    "org/token-classification-model-x",
    "sk-learn-random-forest-classifier",
    "xai/grok-4-fast-reasoning",
    "hf-internal-testing/tiny-random-LlamaForCausalLM",
    "accounts/fireworks/models/qwen3-coder-480b-a35b-instruct",
    "/models/blobs/sha256-" + "0a" * 32,
    "/hub/snapshots/" + "0a" * 20,
]
NAMES = [
    "token_limit_exceeded_error", "api_key_invalid_or_expired", "API_KEY_SERVICE_BLOCKED", "key_value_store_lookup_table",
    "metrics.token_generation_throughput", "invalid_api_key", "context_length_exceeded", "rate_limit_exceeded", "RESOURCE_EXHAUSTED",
    "insufficient_quota", "token-count-2025-04-16-preview", "secret_manager_read_version_2", "password_reset_request_v2",
    "getWeatherForecastForTheNextTenDaysV2", "mcp__github__create_pull_request_review", "overloaded_error", "ThrottlingException",
]  # fmt: skip
IDS = [
    "chatcmpl-BxTz8Xl2m0J5nqzYtCq6sVnN0aB1c", "resp_0bac52ec5f239d30016a6146034ee08192889c75b6ef1d0922",
    "v1_ChdVbXNIYXVEUkVacmpxdHNQb3JQeXlBRRIXVW1zSGF1RFJFWnJqcXRzUG9yUHl5QUU", "msg_01XFDUDYJgAACzvnptvVoYEL",
    "4f6d2a9e7b0c4d1e8a3f5b6c7d8e9f00", "call_1|fc_2", "gen-1749", "toolu_01A09q90qw90lq917835lq9",
]  # fmt: skip
KEYS = [
    "sk-proj-Zm9vYmFyYmF6cXV4", "sk-ant-api03-abcdefghij0123456789", "ghp_abcdefghijklmnopqrstuvwxyz0123456789", "AKIAIOSFODNN7EXAMPLE",
    "AIzaSyD-abcdefghijklmnopqrstuvwxyz01234", "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.c2lnbmF0dXJl", "xoxb-123456789012-abcdef",
    "hf_abcdefghijklmnopqrstuvwxyz", "openai/sk-abcdefghijklmnopqrst", "api_key=abcdefghijklmnop", "token:abcdefghijklmnop",
    "x_sk-proj-Zm9vYmFyYmF6cXV4", "my-sk-proj-Zm9vYmFyYmF6cXV4", "OPENAI_API_KEY=abcdefghijklmnop", "Bearer:abcdefghijklmnop",
    "SK-PROJ-ABCDEFGH01234567", "vendor/sk-abcdefghijklmnopqrstuvwxyz",
]  # fmt: skip
PROSE = [
    "the river is 4 m high",
    "a\tb",
    "a\nb",
    "naïve",
    "модель",
    "a b",
    "a\x00b",
    "<b>x</b>",
    "x" * (MAX_CHARS + 1),
    "\ud800",
]


@pytest.mark.parametrize("model", MODELS + NAMES)
def test_real_models_error_codes_and_tools_are_unchanged(model: str) -> None:
    assert name(model) == model


@pytest.mark.parametrize("value", IDS)
def test_real_ids_are_unchanged(value: str) -> None:
    assert identifier(value) == value


@pytest.mark.parametrize("value", KEYS + PROSE)
def test_keys_and_text_are_hashed(value: str) -> None:
    assert identifier(value) == name(value) == error_type(value) == hashed(value)
    assert HASH.fullmatch(hashed(value))


@pytest.mark.parametrize(
    "value", ["0123456789abcdef" * 2, "0a" * 20, "0123456789abcdef" * 4, "x/Zm9vYmFyYmF6cXV4Zm9vYmFyYmF6cXV4"]
)
def test_a_long_random_word_is_an_id_but_no_name(value: str) -> None:
    assert identifier(value) == value
    assert name(value) == hashed(value)


def test_no_value_stays_none() -> None:
    assert {identifier(v) for v in (None, "", " ")} == {name(v) for v in (None, "", " \n")} == {None}
    assert name(" gpt-4o\n") == "gpt-4o"


def test_http_reason_phrases_are_error_types() -> None:
    assert error_type("Bad Request") == "Bad Request"
    for both in (
        "Content Too Large",
        "Payload Too Large",
        "Unprocessable Content",
        "Unprocessable Entity",
        "URI Too Long",
    ):
        assert error_type(both) == both  # Python's list has one of them, depending on its version
    assert error_type("Bad Requests") == hashed("Bad Requests")


def test_the_hash_is_the_same_in_every_process() -> None:
    code = "from streamgauge.ingest.identifiers import name; print(name('a prompt'), end='')"
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert other.stdout == name("a prompt")


@pytest.mark.parametrize(
    ("target", "stored"),
    [
        ("/v1/chat/completions", "/v1/chat/completions"),
        ("/v1beta/models/g:streamGenerateContent?key=zq&alt=sse", "/v1beta/models/g:streamGenerateContent?alt=sse"),
        ("/v1/responses/resp_0bac52ec5f239d30016a6146034ee08192889c75b6ef1d0922", ...),
        ("/v1/threads/thread_abc123def456ghi789jkl012mn/runs", ...),
        ("/model/us.anthropic.claude-3-7-sonnet-20250219-v1%3A0/converse-stream", ...),
        ("/model/arn%3Aaws%3Abedrock%3Aus-east-1%3A123456789012%3Ainference-profile%2Fus.anthropic.claude/converse", ...),
        ("/v1/a;key=zq/b", "/v1/a/b"),
        ("/v1/a%3Bkey=zq/b", "/v1/a/b"),
        ("/v1/a%3Fkey=zq/b", "/v1/a"),
        ("/v1/a%253Fkey%253Dzq", "/v1/a"),
        ("/v1/a%2523zq", "/v1/a"),
        ("/v1/a#zq", "/v1/a"),
        ("/v1/a%23zq/b", "/v1/a"),
        ("/v1/;zq", "/v1/"),
        ("/v1/zq%20zq/b", f"/v1/{hashed('zq zq')}/b"),
        ("/v1/key=zq/b", f"/v1/{hashed('key=zq')}/b"),
        ("/v1/%2525252525253Fzq", f"/v1/{hashed('%2525252525253Fzq')}"),
        ("/v1/%ff/%00", f"/v1/{hashed(chr(0xFFFD))}/{hashed(chr(0))}"),
        ("/v1/sk-proj-Zm9vYmFyYmF6", f"/v1/{hashed('sk-proj-Zm9vYmFyYmF6')}"),
        ("/accounts/0123456789abcdef0123456789abcdef/ai", f"/accounts/{hashed('0123456789abcdef0123456789abcdef')}/ai"),
        ("/v1/models/{model_id}", ...),
        ("/users/<int:id>/{path:path}", ...),
        ("/v1/models/{model}:generateContent", ...),
        ("/v1/{zq zq}/<b", f"/v1/{hashed('{zq zq}')}/{hashed('<b')}"),
        ("/v1/{sk_abcdefghijklmnopqrst}", f"/v1/{hashed('{sk_abcdefghijklmnopqrst}')}"),
        ("/models/zq zq:streamGenerateContent", f"/models/{hashed('zq zq')}:streamGenerateContent"),
        ("*", "*"),
        ("//a//", "//a//"),
        ("", ""),
    ],
)  # fmt: skip
def test_a_stored_path_has_no_parameters_and_no_text(target: str, stored: str | None) -> None:
    assert path(target) == (target if stored is ... else stored)


def test_a_long_path_is_bounded() -> None:
    assert len(path("/abc" * 5000)) <= MAX_PATH_CHARS + 30


def test_names_of_spans_are_a_few_names_and_paths() -> None:
    assert title("Received Proxy Server Request") == "Received Proxy Server Request"
    assert title("GET /v1/a;key=zq?zq") == "GET /v1/a"
    assert title("chat models/ключ") == f"chat {hashed('models/ключ')}"
    assert title("") == ""
    assert title("GET /v1/models/{model_id}") == "GET /v1/models/{model_id}"
    agent = "Customer Support Triage Agent"
    assert title(f"invoke_agent {agent}") == f"invoke_agent {hashed(agent)}"


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("nginx/1.18.0 (Ubuntu)", ...),
        ("Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko)", ...),
        ("application/json; charset=utf-8", ...),
        ("*/*;q=0.5", ...),
        ("sk-proj-Zm9vYmFyYmF6cXV4", hashed("sk-proj-Zm9vYmFyYmF6cXV4")),
        ("app/1.0 (key=abcdefghijklmnop)", f"app/1.0 ({hashed('key=abcdefghijklmnop')})"),
        ("app/модель", hashed("app/модель")),
    ],
)
def test_header_values_keep_products_and_no_keys(text: str, kept: str) -> None:
    assert product(text) == (text if kept is ... else kept)


ANY = st.one_of(st.text(), st.text("/;?#%2F53abAB0 =-_.:", max_size=60), st.sampled_from(MODELS + IDS + KEYS))


@given(ANY)
@example("hashed:0123456789ab")
def test_a_second_application_changes_nothing(text: str) -> None:
    for rule in (identifier, name, error_type, path, title, product):
        once = rule(text)
        assert once is None or rule(once) == once


@given(ANY)
def test_results_have_no_blank_or_control_character(text: str) -> None:
    for found in (identifier(text), name(text), path(text)):
        assert found is None or re.fullmatch(r"[!-~]*", found)
        assert found is None or len(found) <= max(MAX_CHARS, len(text))


@pytest.mark.parametrize(
    ("target", "model"),
    [
        ("/v1/realtime?model=gpt-realtime&api_key=sk-1", "gpt-realtime"),
        ("/openai/realtime?api-version=1&deployment=my%2Dgpt", "my-gpt"),
        ("/v1/realtime?models=a&xmodel=b", None),
        ("/v1/realtime?model=", None),
        ("/v1/realtime", None),
        ("/v1/realtime?model=tell%20me%20a%20secret", hashed("tell me a secret")),
    ],
)
def test_model_in_a_query_is_a_name(target: str, model: str | None) -> None:
    assert query_model(target) == model
