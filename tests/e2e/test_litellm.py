"""The LiteLLM proxy behind the tap, with its mock responses and with the simulator as upstream."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import anthropic
import openai
import pytest

from tests.e2e.running import Up, litellm, simulator, up

pytestmark = pytest.mark.litellm

MOCK = "The river runs quietly past the old mill and nobody measures it."


def config(upstream: str) -> str:
    return f"""
model_list:
  - model_name: mock
    litellm_params: {{model: openai/mock, api_key: none, mock_response: "{MOCK}"}}
  - model_name: atlas-large
    litellm_params: {{model: openai/atlas-large, api_base: "{upstream}/v1", api_key: none}}
  - model_name: claude-sim
    litellm_params: {{model: anthropic/claude-sim, api_base: "{upstream}", api_key: none}}
general_settings: {{master_key: sk-test}}
litellm_settings: {{telemetry: false, num_retries: 0}}
"""


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    folder = tmp_path_factory.mktemp("litellm")
    with (
        simulator("--seed", "3", "--rate-faults", "0") as upstream,
        litellm(config(upstream), folder) as gateway,
        up(f"litellm={gateway}", folder / "data") as instance,
    ):
        yield instance


@pytest.mark.parametrize("model", ["mock", "atlas-large", "claude-sim"])
def test_row_agrees_with_the_openai_sdk_through_litellm(running: Up, model: str) -> None:
    client = openai.OpenAI(base_url=f"{running.tap}/v1", api_key="sk-test", max_retries=0)
    name = f"litellm-openai-{model}"
    text, finish, usage, events = "", None, None, 0
    for chunk in client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": "What does a stream gauge measure?"}],
        stream=True,
        stream_options={"include_usage": True},
        extra_headers={"x-request-id": name},
    ):
        events += 1
        usage = chunk.usage or usage
        for choice in chunk.choices:
            text += choice.delta.content or ""
            finish = choice.finish_reason or finish
    assert text
    assert usage
    (row,) = running.rows(1, f"request_id = '{name}'")
    assert row["gateway"] == "litellm"
    assert row["outcome"] == "ok"
    assert row["streamed"] is True
    assert row["request_model"] == model
    assert row["text_chars"] == len(text)
    assert row["finish_reason"] == finish
    assert row["input_tokens"] == usage.prompt_tokens
    assert row["output_tokens"] == usage.completion_tokens
    assert row["event_count"] == events + 1, "the SDK swallows [DONE]"
    assert 0 < row["headers_ns"] <= row["ttfb_ns"] <= row["ttft_ns"] <= row["last_output_ns"] <= row["end_ns"]


@pytest.mark.parametrize("model", ["atlas-large", "claude-sim"])
def test_row_agrees_with_the_anthropic_sdk_through_litellm(running: Up, model: str) -> None:
    client = anthropic.Anthropic(base_url=running.tap, api_key="sk-test", max_retries=0)
    name = f"litellm-anthropic-{model}"
    text, stop, output_tokens, events = "", None, None, 0
    for event in client.messages.create(
        model=model,
        max_tokens=300,
        messages=[{"role": "user", "content": "What does a stream gauge measure?"}],
        stream=True,
        extra_headers={"x-request-id": name},
    ):
        events += 1
        if event.type == "content_block_delta" and event.delta.type == "text_delta":
            text += event.delta.text
        if event.type == "message_delta":
            stop, output_tokens = event.delta.stop_reason, event.usage.output_tokens
    assert text
    (row,) = running.rows(1, f"request_id = '{name}'")
    assert row["dialect"] == "anthropic_messages"
    assert row["outcome"] == "ok"
    assert row["text_chars"] == len(text)
    assert row["finish_reason"] == stop
    assert row["output_tokens"] == output_tokens
    assert row["event_count"] >= events


def test_litellm_error_is_measured(running: Up) -> None:
    client = openai.OpenAI(base_url=f"{running.tap}/v1", api_key="sk-wrong", max_retries=0)
    with pytest.raises(openai.APIStatusError) as error:
        client.chat.completions.create(
            model="mock",
            messages=[{"role": "user", "content": "x"}],
            stream=True,
            extra_headers={"x-request-id": "wrong-key"},
        )
    (row,) = running.rows(1, "request_id = 'wrong-key'")
    assert row["outcome"] == "http_error"
    assert row["http_status"] == error.value.status_code
    assert row["error_phase"] == "pre_headers"


def test_response_without_streaming_is_measured(running: Up, tmp_path: Path) -> None:
    client = openai.OpenAI(base_url=f"{running.tap}/v1", api_key="sk-test", max_retries=0)
    answer = client.chat.completions.create(
        model="mock",
        messages=[{"role": "user", "content": "x"}],
        extra_headers={"x-request-id": "whole"},
    )
    assert answer.usage
    (row,) = running.rows(1, "request_id = 'whole'")
    assert row["streamed"] is False
    assert row["outcome"] == "ok"
    assert row["output_tokens"] == answer.usage.completion_tokens
    assert row["ttft_ns"] is None
