"""The official SDKs work with the simulator, and their results agree with the ledger."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import anthropic
import openai
import pytest

from streamgauge.simulator.ledger import LedgerRow
from streamgauge.simulator.server import Simulator
from streamgauge.simulator.written_streams import WRITTEN_STREAMS
from tests.streamgauge.simulator.conftest import ended


class ScriptedRequest:
    """Headers of one request, and its ledger row."""

    _next = 0

    def __init__(self, simulator: Simulator, **forced: Any) -> None:
        ScriptedRequest._next += 1
        self._simulator = simulator
        self._id = f"sdk-{ScriptedRequest._next}"
        forced = {"ttft_ms": 1, "gap_ms": 0, "tokens": 12, "input_tokens": 40, "cached_tokens": 8, **forced}
        self.headers = {"x-request-id": self._id, "x-simulate": json.dumps(forced)}

    @property
    def row(self) -> LedgerRow:
        return ended(self._simulator, self._id)


@pytest.fixture
def chat(simulator: Simulator) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{simulator.url}/v1", api_key="sk-test", max_retries=0) as client:
        yield client


@pytest.fixture
def claude(simulator: Simulator) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=simulator.url, api_key="sk-test", max_retries=0) as client:
        yield client


MESSAGES: Any = [{"role": "user", "content": "How high is the water?"}]


@pytest.mark.parametrize(
    "speaker", [vendor for vendor, stream in WRITTEN_STREAMS.items() if stream.api == "chat"]
)
def test_openai_chat_stream(simulator: Simulator, chat: openai.OpenAI, speaker: str) -> None:
    request_ = ScriptedRequest(simulator, speaker=speaker, tool_calls=1)
    text, arguments, names, usage, chunks = "", "", [], None, 0
    with chat.chat.completions.create(
        model="gpt-sim-mini",
        messages=MESSAGES,
        stream=True,
        stream_options={"include_usage": True},
        extra_headers=request_.headers,
    ) as stream:
        for chunk in stream:
            chunks += 1
            usage = chunk.usage or usage
            for choice in chunk.choices:
                if getattr(choice, "delta", None) is None:  # Azure's late filter results
                    continue
                text += choice.delta.content or ""
                for call in choice.delta.tool_calls or []:
                    assert call.function is not None
                    arguments += call.function.arguments or ""
                    names += [call.function.name] if call.function.name else []
    row = request_.row
    assert row.expected_outcome == "ok"
    assert text == row.text
    assert len(names) == row.tool_calls == 1
    assert json.loads(arguments)
    if speaker == "groq":  # its usage is in `x_groq`
        assert usage is None
    else:
        assert usage is not None
        assert row.usage is not None
        assert (usage.prompt_tokens, usage.completion_tokens) == (40, row.usage.output_tokens)
    assert chunks == row.events - (0 if speaker == "endless" else 1)  # the SDK keeps [DONE] to itself


def test_openai_chat_not_streamed(simulator: Simulator, chat: openai.OpenAI) -> None:
    request_ = ScriptedRequest(simulator, tool_calls=1)
    answer = chat.chat.completions.create(
        model="gpt-sim-mini", messages=MESSAGES, extra_headers=request_.headers
    )
    assert answer.choices[0].message.content == request_.row.text
    assert answer.choices[0].finish_reason == "tool_calls"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == request_.row.output_tokens


def test_openai_legacy_completions(simulator: Simulator, chat: openai.OpenAI) -> None:
    request_ = ScriptedRequest(simulator)
    stream = chat.completions.create(
        model="gpt-sim-instruct", prompt="How high?", stream=True, extra_headers=request_.headers
    )
    assert "".join(chunk.choices[0].text for chunk in stream) == request_.row.text


@pytest.mark.parametrize(
    "forced",
    [
        {},
        {"tool_calls": 2},
        {"reasoning_tokens": 6},
        {"finish": "length"},
        {"reasoning": "hidden", "reasoning_tokens": 9},
    ],
)
def test_openai_responses_stream(simulator: Simulator, chat: openai.OpenAI, forced: dict[str, Any]) -> None:
    request_ = ScriptedRequest(simulator, **forced)
    text, reasoning, calls, last, numbers = "", "", 0, None, []
    for event in chat.responses.create(
        model="gpt-sim-responses", input="How high?", stream=True, extra_headers=request_.headers
    ):
        numbers.append(event.sequence_number)
        if event.type == "response.output_text.delta":
            text += event.delta
        elif event.type == "response.reasoning_summary_text.delta":
            reasoning += event.delta
        elif event.type == "response.function_call_arguments.done":
            calls += 1
            assert json.loads(event.arguments)
        elif event.type in ("response.completed", "response.incomplete"):
            last = event.response
    row = request_.row
    assert last is not None
    assert last.usage is not None
    assert last.output_text == text == row.text
    assert reasoning == row.reasoning
    assert calls == row.tool_calls
    assert last.status == row.finish_reason
    assert last.usage.output_tokens == row.output_tokens
    assert last.usage.output_tokens_details.reasoning_tokens == row.reasoning_tokens
    assert numbers == list(range(row.events))


def test_anthropic_stream(simulator: Simulator, claude: anthropic.Anthropic) -> None:
    request_ = ScriptedRequest(simulator, tool_calls=2, reasoning_tokens=7)
    with claude.messages.stream(
        model="claude-sim-thinker", max_tokens=1000, messages=MESSAGES, extra_headers=request_.headers
    ) as stream:
        message = stream.get_final_message()
    row = request_.row
    kinds = [block.type for block in message.content]
    assert kinds == ["thinking", "text", "tool_use", "tool_use"]
    assert next(block.thinking for block in message.content if block.type == "thinking") == row.reasoning
    assert next(block.text for block in message.content if block.type == "text") == row.text
    assert message.stop_reason == row.finish_reason == "tool_use"
    usage = message.usage
    cached = (usage.cache_creation_input_tokens or 0) + (usage.cache_read_input_tokens or 0)
    assert usage.input_tokens + cached == row.input_tokens == 40
    assert usage.output_tokens == row.output_tokens


def test_anthropic_not_streamed(simulator: Simulator, claude: anthropic.Anthropic) -> None:
    request_ = ScriptedRequest(simulator)
    message = claude.messages.create(
        model="claude-sim-large", max_tokens=1000, messages=MESSAGES, extra_headers=request_.headers
    )
    assert [block.text for block in message.content if block.type == "text"] == [request_.row.text]
    assert message.usage.output_tokens == 12


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (400, openai.BadRequestError),
        (401, openai.AuthenticationError),
        (429, openai.RateLimitError),
        (500, openai.InternalServerError),
    ],
)
def test_openai_sdk_raises_the_same_exceptions_as_for_the_real_service(
    simulator: Simulator, chat: openai.OpenAI, status: int, error: type[openai.APIStatusError]
) -> None:
    request_ = ScriptedRequest(simulator, fault=f"http_{status}")
    with pytest.raises(error) as raised:
        chat.chat.completions.create(model="gpt-sim-mini", messages=MESSAGES, extra_headers=request_.headers)
    assert raised.value.type == request_.row.error_type
    assert raised.value.request_id == request_.row.request_id


def test_sdks_raise_on_errors_inside_the_stream(
    simulator: Simulator, chat: openai.OpenAI, claude: anthropic.Anthropic
) -> None:
    first, second = (
        ScriptedRequest(simulator, fault="inband_error"),
        ScriptedRequest(simulator, fault="inband_error"),
    )
    with pytest.raises(openai.APIError):
        list(
            chat.chat.completions.create(
                model="gpt-sim-mini", messages=MESSAGES, stream=True, extra_headers=first.headers
            )
        )
    with (
        pytest.raises(anthropic.APIStatusError),
        claude.messages.stream(
            model="claude-sim-large", max_tokens=9, messages=MESSAGES, extra_headers=second.headers
        ) as stream,
    ):
        stream.get_final_message()
    assert (first.row.expected_outcome, second.row.expected_outcome) == ("inband_error", "inband_error")


def test_openai_lists_the_models(chat: openai.OpenAI) -> None:
    assert "claude-sim-large" in {model.id for model in chat.models.list()}
