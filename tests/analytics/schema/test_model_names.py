"""Names of models as gateways write them, and the names that stand for the same model."""

from __future__ import annotations

import duckdb
import pytest

from streamgauge.analytics.schema.model_names import spellings

ARN = "arn:aws:bedrock:us-east-1:123456789012:inference-profile/"
VERTEX = "projects/p/locations/us-east5/publishers/anthropic/models/"


def names(name: str | None) -> list[str | None]:
    """Its spellings in their order, each once."""
    sql = f"SELECT {spellings('name')} FROM (SELECT ?::VARCHAR AS name)"
    [(found,)] = duckdb.execute(sql, [name]).fetchall()
    return [*dict.fromkeys(found)]


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("openai/gpt-5", "gpt-5"),
        ("OpenAI/gpt-5", "gpt-5"),
        ("@openai/gpt-5", "gpt-5"),
        ("openrouter/openai/gpt-5-mini", "gpt-5-mini"),
        ("openrouter/anthropic/claude-sonnet-4.5", "claude-sonnet-4-5"),
        ("anthropic/claude-3.5-sonnet", "claude-3-5-sonnet"),
        ("anthropic/claude-3.7-sonnet:thinking", "claude-3-7-sonnet"),
        ("meta-llama/llama-3.3-70b-instruct:nitro", "llama-3.3-70b-instruct"),
        ("x-ai/grok-4:floor", "grok-4"),
        ("litellm_proxy/azure/eu/gpt-5-2025-08-07", "gpt-5"),
        ("azure_ai/gpt-4o", "gpt-4o"),
        ("models/gemini-2.5-pro", "gemini-2.5-pro"),
        ("vertex_ai/gemini-2.5-pro", "gemini-2.5-pro"),
        ("google/gemini-2.5-flash", "gemini-2.5-flash"),
        ("publishers/google/models/gemini-2.5-pro", "gemini-2.5-pro"),
        (VERTEX + "claude-sonnet-4-5@20250929", "claude-sonnet-4-5"),
        ("claude-opus-5@default", "claude-opus-5"),
        ("claude-haiku-4-5-20251001", "claude-haiku-4-5"),
        ("gpt-5-2025-08-07", "gpt-5"),
        ("us.anthropic.claude-sonnet-4-5-20250929-v1:0", "claude-sonnet-4-5"),
        ("eu.anthropic.claude-sonnet-4-5-20250929-v1:0", "claude-sonnet-4-5"),
        ("apac.anthropic.claude-3-haiku-20240307-v1:0", "claude-3-haiku"),
        ("global.anthropic.claude-opus-4-6-v1", "claude-opus-4-6"),
        ("anthropic.claude-3-sonnet-20240229-v1:0:28k", "claude-3-sonnet"),
        ("bedrock/us-east-1/anthropic.claude-3-haiku-20240307-v1:0", "claude-3-haiku"),
        ("bedrock/converse/us.amazon.nova-lite-v1:0", "amazon.nova-lite-v1:0"),
        (ARN + "us.anthropic.claude-sonnet-4-5-20250929-v1:0", "claude-sonnet-4-5"),
        ("accounts/fireworks/models/deepseek-v3", "deepseek-v3"),
        ("ft:gpt-4o-mini-2024-07-18:my-org::a1b2", "ft:gpt-4o-mini-2024-07-18"),
        ("deepseek/deepseek-r1:free", "deepseek-r1:free"),
    ],
)
def test_name_of_a_gateway_stands_for_the_model(name: str, model: str) -> None:
    found = names(name)
    assert found[0] == name
    assert model in found


@pytest.mark.parametrize(
    "name",
    [
        "gpt-5-mini", "gpt-5-pro", "gpt-4-0613", "gpt-4-1106-preview", "gpt-4o-latest", "chatgpt-4o-latest", "claude-sonnet-latest",
        "claude-instant-v1", "claude-v2", "mistral-large-2411", "gemini-2.5-flash-preview-09-2025", "gemini-2.5-pro-preview-03-25",
        "acme/gpt-5", "gpt-5-turbo-2025-99-99", "o3", "gpt-4.1", "llama3:8b", "qwen3:latest", "gpt-4o:extended", "command-r-v1",
        "deepseek-v3", "us.acme-large", "gpt-5@team",
    ],
)  # fmt: skip
def test_name_that_could_be_of_another_model_stands_for_itself_only(name: str) -> None:
    assert names(name) == [name]


def test_dated_version_is_tried_before_the_model_without_its_date() -> None:
    found = names("openrouter/openai/gpt-4o-2024-05-13")
    assert found.index("gpt-4o-2024-05-13") < found.index("openrouter/openai/gpt-4o") < found.index("gpt-4o")


def test_unknown_name_has_none() -> None:
    assert names(None) == [None]
