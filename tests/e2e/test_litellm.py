"""The LiteLLM proxy behind the tap, with its mock responses and with the simulator as upstream.

LiteLLM reaches the models `both-*` through the same tap: each request then has a row on both sides of LiteLLM.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import anthropic
import openai
import pytest

from tests.e2e.running import ROOT, Up, litellm, simulator, until, up
from tests.ports import free_port

pytestmark = pytest.mark.litellm

MOCK = "The river runs quietly past the old mill and nobody measures it."


def config(upstream: str, tap: str) -> str:
    return f"""
model_list:
  - model_name: mock
    litellm_params: {{model: openai/mock, api_key: none, mock_response: "{MOCK}"}}
  - model_name: atlas-large
    litellm_params: {{model: openai/atlas-large, api_base: "{upstream}/v1", api_key: none}}
  - model_name: claude-sim
    litellm_params: {{model: anthropic/claude-sim, api_base: "{upstream}", api_key: none}}
  - model_name: both-atlas
    litellm_params: {{model: openai/atlas-large, api_base: "{tap}/openai/v1", api_key: none}}
  - model_name: both-claude
    litellm_params: {{model: anthropic/claude-sim, api_base: "{tap}/openai", api_key: none}}
general_settings: {{master_key: sk-test}}
litellm_settings:
  telemetry: false
  num_retries: 0
  callbacks: [otel]
  forward_traceparent_to_llm_provider: true
"""


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    folder = tmp_path_factory.mktemp("litellm")
    port = free_port()
    with (
        simulator("--seed", "3", "--rate-faults", "0") as upstream,
        up(
            [f"litellm=http://127.0.0.1:{port}", f"openai={upstream}"],
            folder / "data",
            "--otlp-listen",
            "127.0.0.1:0",
        ) as instance,
    ):
        spans = f"{instance.part('analyze')['otlp']}/v1/traces"
        exporter = {"OTEL_EXPORTER": "otlp_http", "OTEL_ENDPOINT": spans}
        with litellm(config(upstream, instance.tap), folder, port, **exporter):
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


RECIPE = (ROOT / "docs" / "how-to" / "litellm.md").read_text()
QUERIES = dict(re.findall(r"```sql\n-- name: (\w+)\n(.*?)```", RECIPE, re.DOTALL))


def test_rows_of_both_sides_of_litellm_join(running: Up) -> None:
    """By trace with the settings of the recipe, and by request id, which needs none."""
    client = openai.OpenAI(base_url=f"{running.tap}/v1", api_key="sk-test", max_retries=0)
    for model in ("both-atlas", "both-claude"):
        for stream in (True, False):
            answer = client.chat.completions.create(
                model=model, messages=[{"role": "user", "content": "How high is it?"}], stream=stream
            )
            for _ in answer if stream else ():
                pass
    proxied = "gateway = 'litellm' AND request_model LIKE 'both-%'"
    rows = running.rows(4, proxied)
    until(
        lambda: running.sql("SELECT 1 FROM streams WHERE gateway = 'openai' AND method = 'POST' OFFSET 3"),
        "the rows on the provider's side",
    )
    for name, query in QUERIES.items():
        found = {row["stream_id"]: row["added_ttft_ms"] for row in running.sql(query)}
        assert found.keys() == {row["stream_id"] for row in rows}, name
        assert sorted(value is None for value in found.values()) == [False, False, True, True]
        assert all(value > 0 for value in found.values() if value is not None)
    linked = f"SELECT 1 FROM spans JOIN streams USING (trace_id) WHERE {proxied} AND spans.stream_id IS NULL"
    until(lambda: running.sql(linked), "LiteLLM's own spans in these traces")
