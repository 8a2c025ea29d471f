"""The LiteLLM proxy behind the tap, with its mock responses and with the simulator as upstream.

LiteLLM reaches the models `both-*` and `hop-*` through the same tap: each request then has a row on both sides of LiteLLM.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import anthropic
import httpx
import openai
import pytest

from tests.deadline import DEADLINE_S, until
from tests.e2e.identical_answers import WORDS, ModelServer, model_server
from tests.e2e.running import ROOT, Litellm, Up, litellm, litellm_answers, simulator, up
from tests.ports import free_port

pytestmark = pytest.mark.litellm

MOCK = "The river runs quietly past the old mill and nobody measures it."


def config(upstream: str, tap: str, without_trace: str) -> str:
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
  - model_name: hop-openai-traced
    litellm_params: {{model: openai/answers, api_base: "{tap}/model/v1", api_key: none}}
  - model_name: hop-openai
    litellm_params: {{model: openai/answers, api_base: "{without_trace}/model/v1", api_key: none}}
  - model_name: hop-anthropic-traced
    litellm_params: {{model: anthropic/answers, api_base: "{tap}/model", api_key: none}}
  - model_name: hop-anthropic
    litellm_params: {{model: anthropic/answers, api_base: "{without_trace}/model", api_key: none}}
  - model_name: hop-fails
    litellm_params: {{model: openai/fails, api_base: "{tap}/model/v1", api_key: none}}
router_settings:
  fallbacks: [{{"hop-fails": ["hop-openai-traced"]}}]
  disable_cooldowns: true
general_settings: {{master_key: sk-test}}
litellm_settings:
  telemetry: false
  num_retries: 0
  callbacks: [otel]
  forward_traceparent_to_llm_provider: true
"""


@pytest.fixture(scope="module")
def processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Up, ModelServer, Litellm]]:
    folder = tmp_path_factory.mktemp("litellm")
    port = free_port()
    with (
        model_server() as answers,
        simulator("--seed", "3", "--rate-faults", "0") as upstream,
        up(
            [
                f"litellm=http://127.0.0.1:{port}",
                f"openai={upstream}",
                f"model=http://127.0.0.1:{answers.port}",
            ],
            folder / "data",
            "--otlp-listen",
            "127.0.0.1:0",
        ) as instance,
    ):
        spans = f"{instance.part('analyze')['otlp']}/v1/traces"
        exporter = {"OTEL_EXPORTER": "otlp_http", "OTEL_ENDPOINT": spans}
        url = urlsplit(instance.tap)
        assert url.hostname is not None
        assert url.port is not None
        answers.tap = url.hostname, url.port
        without_trace = f"http://127.0.0.1:{answers.without_trace_port}"
        with litellm(config(upstream, instance.tap, without_trace), folder, port, **exporter) as gateway:
            yield instance, answers, gateway


@pytest.fixture
def running(processes: tuple[Up, ModelServer, Litellm]) -> Up:
    return processes[0]


@pytest.fixture
def answers(processes: tuple[Up, ModelServer, Litellm]) -> ModelServer:
    return processes[1]


@pytest.fixture
def gateway(processes: tuple[Up, ModelServer, Litellm]) -> Litellm:
    return processes[2]


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


# -- hops --------------------------------------------------------------------------------------------------------------

NUMBER = "x-stainless-retry-count"
"""A header that the tap stores and LiteLLM does not forward."""
IDENTICAL = 50
"""Concurrent requests with the same prompt and the same answer."""


def ask(running: Up, gateway: Litellm, model: str, numbers: range) -> range:
    """Send identical requests, apart from the number that only the model server and this test read.

    Returns the numbers that were answered: others if LiteLLM crashed under the first ones.
    """
    crashes = gateway.crashes
    try:
        asyncio.run(send(running, model, numbers))
    except (AssertionError, httpx.HTTPError):
        time.sleep(1)
        if gateway.crashes == crashes:
            raise
        litellm_answers(gateway.url)
        numbers = range(numbers.stop, numbers.stop + len(numbers))
        asyncio.run(send(running, model, numbers))
    return numbers


async def send(running: Up, model: str, numbers: range) -> None:
    body = {
        "model": model,
        "stream": True,
        "max_tokens": 99,
        "messages": [{"role": "user", "content": "Flow?"}],
    }

    async def one(number: int) -> None:
        if "anthropic" in model:
            path, who = "/v1/messages", {"metadata": {"user_id": f"{number}"}}
        else:
            path, who = "/v1/chat/completions", {"seed": number}
        headers = {NUMBER: f"{number}", "authorization": "Bearer sk-test"}
        async with client.stream(
            "POST", f"{running.tap}{path}", json={**body, **who}, headers=headers
        ) as answer:
            received = "".join([part async for part in answer.aiter_text()])
        assert answer.status_code == 200, received
        assert WORDS[-1] in received

    async with httpx.AsyncClient(
        timeout=DEADLINE_S, limits=httpx.Limits(max_connections=len(numbers))
    ) as client:
        await asyncio.gather(*map(one, numbers))


def outer_streams(running: Up, numbers: range) -> dict[str, int]:
    """Number by outer stream id."""
    number = f"(request_headers->>'$.{NUMBER}')::INT"
    rows = running.rows(
        len(numbers), f"gateway = 'litellm' AND {number} BETWEEN {numbers[0]} AND {numbers[-1]}"
    )
    return {row["stream_id"]: int(json.loads(row["request_headers"])[NUMBER]) for row in rows}


def inner_streams(running: Up, answers: ModelServer, numbers: range) -> dict[str, tuple[int, int]]:
    """(number, attempt) by inner stream id."""
    attempts = {
        span: (number, i)
        for number in numbers
        for i, span in enumerate(answers.spans.get(number, ()), start=1)
    }
    spans = ", ".join(f"'{span}'" for span in attempts)
    rows = running.rows(len(attempts), f"gateway = 'model' AND span_id IN ({spans})")
    return {row["stream_id"]: attempts[row["span_id"]] for row in rows}


MODELS = ("hop-openai-traced", "hop-openai", "hop-anthropic-traced", "hop-anthropic")


@pytest.mark.parametrize(
    "model",
    [
        pytest.param(model, marks=pytest.mark.slow)
        if model in ("hop-openai", "hop-anthropic-traced")
        else model
        for model in MODELS
    ],
)
def test_hops_of_concurrent_identical_requests_are_right(
    running: Up, answers: ModelServer, gateway: Litellm, model: str
) -> None:
    start = 1000 * (1 + MODELS.index(model))
    numbers = ask(running, gateway, model, range(start, start + IDENTICAL))
    outer = outer_streams(running, numbers)
    inner = inner_streams(running, answers, numbers)
    found = hops(running, outer, IDENTICAL)
    wrong = [hop for hop in found if outer[hop["outer_stream_id"]] != inner[hop["inner_stream_id"]][0]]
    assert wrong == []
    assert len(found) >= 0.99 * IDENTICAL
    assert {hop["attempt"] for hop in found} == {1}
    assert ({hop["matched_by"] for hop in found} == {"span"}) == ("traced" in model)
    for hop in found:
        assert hop["clock_error_ns"] == 0
        assert hop["gateway_before_ns"] > 0
        assert hop["added_ttft_ns"] >= hop["gateway_before_ns"]
        assert hop["aligned_event_count"] > 0
        assert 0 < hop["added_event_p50_ns"] <= hop["added_event_p95_ns"] <= hop["added_event_max_ns"]


def test_fallback_after_a_failed_attempt_is_two_attempts(
    running: Up, answers: ModelServer, gateway: Litellm
) -> None:
    numbers = ask(running, gateway, "hop-fails", range(9000, 9005))
    outer = outer_streams(running, numbers)
    found = hops(running, outer, 2 * len(numbers))
    inner = inner_streams(running, answers, numbers)
    for stream, number in outer.items():
        first, second = sorted(
            (hop for hop in found if hop["outer_stream_id"] == stream), key=lambda hop: hop["attempt"]
        )
        assert [inner[hop["inner_stream_id"]] for hop in (first, second)] == [(number, 1), (number, 2)]
        assert (first["attempt"], first["inner_outcome"], first["inner_error_type"]) == (
            1,
            "http_error",
            "rate_limit_error",
        )
        assert (second["attempt"], second["inner_outcome"], second["inner_error_type"]) == (2, "ok", None)
        assert first["lost_ns"] == second["gateway_before_ns"] - first["gateway_before_ns"] > 0
        assert first["added_ttft_ns"] is first["added_tail_ns"] is second["lost_ns"] is None
        assert second["added_ttft_ns"] > second["gateway_before_ns"]


def hops(running: Up, outer: dict[str, int], count: int) -> list[dict[str, Any]]:
    """The hops of these streams, as soon as there are `count`, or no further ones for some seconds."""
    ids = ", ".join(f"'{stream}'" for stream in outer)
    seen: list[int] = []

    def all_of_them() -> list[dict[str, Any]] | None:
        time.sleep(0.2)
        found = running.sql(f"SELECT * FROM hops WHERE outer_stream_id IN ({ids})")
        seen.append(len(found))
        return found if len(found) >= count or (len(seen) > 100 and len({*seen[-50:]}) == 1) else None

    return until(all_of_them, "hops")
