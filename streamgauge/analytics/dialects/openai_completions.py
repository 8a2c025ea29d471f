"""OpenAI's chat completions and text completions, and compatible servers: `data: {"choices": …}` up to `[DONE]`.

A finish reason ends the stream too: some servers name their chunks `chat.completion` and send no `[DONE]`. The vendors' additions
are decoded here.

There are two paths. The fast path is one typed decode; it returns a `TextDelta` when one choice carries one piece of text or
reasoning. The slow path (`read`) decodes events with other members or types than OpenAI's, and checks every type. With the slow
path alone the decoder handles 40 % of the events per second, and less than 10 % where a template applies (`bench decode`,
"openai_chat, padded" and "openai_chat").

`delta` takes precedence over `text` (Together sends both) and over `message` (Writer and Perplexity repeat the content there,
cumulatively). An id, model or finish reason of "" is ignored.

Systems:

| OpenAI chat | `openai` | `openai_chat` | `/v1/chat/completions` | any chunk | finish reason of every choice |
| Azure OpenAI | `azure.ai.openai` | `openai_chat` | `/openai/deployments/x/chat/completions`, `/openai/v1/chat/completions` | last chunk
    | finish reason |
| Azure AI Foundry | `azure.ai.inference` | `openai_chat` | `/models/chat/completions` | last chunk | finish reason |
| Xerotier | `xerotier` | `openai_chat` | `/proj_x/y/v1/chat/completions` | finish chunk | finish reason; `event: error`, then `[DONE]` |
| OpenAI-like, no `[DONE]` | `openai` | `openai_chat` | `/v1/chat/completions` | any chunk, if at all | finish reason; a close without one
    is `truncated` |
| Fireworks | `fireworks` | `openai_chat` | `/inference/v1/chat/completions` | last chunk | finish reason |
| Fireworks | `fireworks` | `openai_completions` | `/inference/v1/completions` | last chunk | finish reason |
| vLLM, SGLang | `openai` | `openai_chat` | `/v1/chat/completions` | last chunk, or every chunk | finish reason |
| llama.cpp | `llama.cpp` | `openai_chat` | `/v1/chat/completions` | finish chunk | finish reason |
| Ollama, OpenAI API | `ollama` | `openai_chat` | `/v1/chat/completions` | last chunk | finish reason |
| OpenRouter | `openrouter` | `openai_chat` | `/api/v1/chat/completions` | last chunk | finish reason; `error` under 200 |
| DeepSeek | `deepseek` | `openai_chat` | `/chat/completions` | finish chunk | finish reason |
| Qwen | `alibaba` | `openai_chat` | `/compatible-mode/v1/chat/completions` | last chunk | finish reason |
| Groq | `groq` | `openai_chat` | `/openai/v1/chat/completions` | `x_groq.usage` | finish reason |
| Mistral | `mistral_ai` | `openai_chat` | `/v1/chat/completions` | finish chunk | finish reason |
| xAI | `x_ai` | `openai_chat` | `/v1/chat/completions` | any chunk; reasoning added to output | finish reason |
| Together | `together` | `openai_chat` | `/v1/chat/completions` | finish chunk | finish reason |
| Perplexity | `perplexity` | `openai_chat` | `/chat/completions` | every chunk | finish reason |
| Writer | `writer` | `openai_chat` | `/v1/chat` | last chunk | finish reason |
| Databricks | `databricks` | `openai_chat` | `/serving-endpoints/chat/completions` | last chunk | finish reason |
| Snowflake Cortex | `snowflake` | `openai_chat` | `/api/v2/cortex/v1/chat/completions` | last chunk | finish reason |
| MiniMax | `minimax` | `openai_chat` | `/v1/chat/completions` | last chunk | finish reason; `base_resp` |
| LiteLLM proxy | `litellm` | `openai_chat` | `/chat/completions` | last chunk | finish reason |
| OpenAI completions, vLLM, … | `openai` | `openai_completions` | `/v1/completions` | last chunk | finish reason |
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Any

import msgspec

from streamgauge.analytics.dialects import kept
from streamgauge.analytics.dialects.anthropic import BEDROCK_METRICS
from streamgauge.analytics.dialects.dialect import Dialect, DialectReader, ExchangeInfo
from streamgauge.analytics.dialects.error_bodies import error_from, error_in
from streamgauge.analytics.dialects.events import (
    ChoiceDelta,
    DecodedEvent,
    ErrorReport,
    EventKind,
    RawEvent,
    ServerStat,
    TextDelta,
    ToolCallDelta,
    Usage,
)
from streamgauge.analytics.dialects.openai_delta import Call, ToolCallKeys, read_delta, token_count
from streamgauge.analytics.dialects.server_stats import server_timing_stats, stats_of
from streamgauge.analytics.dialects.tolerant_json import FAULTS, compact, json_or_none, member_of, string_of
from streamgauge.analytics.dialects.usage import bedrock_metrics, cost_in, term, usage_in, usage_of
from streamgauge.analytics.dialects.vendors import MEMBERS

MAX_CHOICES = 4096
MAX_CHOICE_INDEX = 2**15


# -- chunks as OpenAI sends them, with the members that other servers add ---------------------------------------------
#
# Only members that are read are declared: msgspec skips the others, which is most of its speed. A chunk that does not match
# these types takes the slow path.


class Entry(msgspec.Struct, gc=False):
    """A token in `logprobs`, only counted."""


class LogProbs(msgspec.Struct, gc=False):
    content: list[Entry] | None = None
    refusal: list[Entry] | None = None
    tokens: list[str] | None = None


class ChunkDelta(msgspec.Struct, gc=False):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    reasoning_text: Any = None
    reasoning_details: Any = None
    refusal: str | None = None
    tool_calls: list[Call] | None = None
    function_call: Any = None
    audio: Any = None
    images: Any = None


class Choice(msgspec.Struct, gc=False):
    index: int = 0
    delta: ChunkDelta | None = None
    text: str | None = None
    finish_reason: kept.Name = None
    logprobs: LogProbs | None = None
    token_ids: list[int] | None = None
    message: Any = None
    error: Any = None
    usage: kept.Report = None


class NvExt(msgspec.Struct, gc=False):
    """NVIDIA Dynamo's extension."""

    timing: kept.Report = None


class Chunk(msgspec.Struct, gc=False):
    choices: list[Choice] | None = None
    usage: kept.Report = None
    error: Any = None
    perf_metrics: kept.Report = None
    timings: kept.Report = None
    x_groq: Any = None
    time_info: kept.Report = None
    metrics: kept.Report = None
    stats: kept.Report = None
    base_resp: Any = None
    prompt_progress: kept.Report = None
    meta_info: kept.Report = None
    cost: kept.Report = None
    service_tier: kept.Term = None
    nvext: NvExt | None = None
    bedrock: kept.Report = msgspec.field(default=None, name=BEDROCK_METRICS)


class FirstChunk(Chunk, gc=False):
    """A chunk with id and model, read until they are known."""

    id: Annotated[Any, kept.WORD] = None
    model: kept.Term = None


_decode_first = msgspec.json.Decoder(FirstChunk).decode
_decode_next = msgspec.json.Decoder(Chunk).decode

_STATS = ("perf_metrics", "timings", "time_info", "metrics", "stats", "meta_info", "prompt_progress")
"""Objects with statistics: their names are the source."""
LOOKED_UP = kept.members(
    name="native_finish_reason provider status_code",
    word="system_fingerprint backend-host",
    text="messages base_resp status_msg obfuscation",
    content="search_results prompt_filter_results content_filter_results",
    durations="Server-Timing",
)
_TRTLLM_EVENT = "trtllm.perf_metrics"
_USAGE_STATS = frozenset(
    {
        "queue_time", "prompt_time", "completion_time", "total_time",  # Groq
        "time_to_first_token", "time_to_first_token_ms", "time_per_output_token_ms", "total_latency",
        "tokens_per_second", "prompt_tokens_per_second", "completion_tokens_per_sec", "total_tokens_per_sec",
        "completion_tokens_after_first_per_sec", "avg_tok_per_sec", "avg_prompt_tok_per_sec", "avg_compl_tok_per_sec",
        "total_time_sec", "total_prompt_time_sec", "total_completion_time_sec",
    }
)  # fmt: skip


class ChoicesReader(DialectReader):
    """Decodes one stream of chat or text completion chunks."""

    def __init__(self, exchange: ExchangeInfo) -> None:
        self._id_known = self._model_known = self._tier_known = False
        self._provider: str | None = None
        self._started: set[int] = set()  # choices with output so far
        self._calls = ToolCallKeys()
        self._any_event = False

    def read_many(self, events: Sequence[RawEvent]) -> list[DecodedEvent | TextDelta]:
        """Decode a batch, each event on the fast path if possible."""
        return [self._read_fast(event) or self.read(event.name, event.data) for event in events]

    def _read_fast(self, event: RawEvent) -> DecodedEvent | TextDelta | None:
        """Decode an event with OpenAI's members only; None if it needs the slow path."""
        if event.name:
            return None
        # Id and model are on every chunk. Without them in the type msgspec skips both, which makes the decode faster.
        identified = self._id_known and self._model_known
        try:
            chunk = _decode_next(event.data) if identified else _decode_first(event.data)
        except FAULTS:
            done = event.data.strip() == b"[DONE]"
            return DecodedEvent(kind="terminal", done_marker=True) if done else None
        if not identified and isinstance(chunk, FirstChunk) and self._identifies(chunk):
            return None
        if not (
            # One chained comparison is faster than a test of each member. The slow path reads these members.
            chunk.error is chunk.timings is chunk.x_groq is chunk.perf_metrics is chunk.time_info
            is chunk.metrics is chunk.stats is chunk.base_resp is chunk.prompt_progress is chunk.meta_info is chunk.cost
            is chunk.bedrock is None
        ) or (chunk.nvext is not None and chunk.nvext.timing is not None):  # fmt: skip
            return None
        usage = None
        if chunk.usage is not None:
            usage = usage_of(chunk.usage)
            if usage is None or not _USAGE_STATS.isdisjoint(chunk.usage):
                return None
            if chunk.service_tier and not self._tier_known:
                return None
        choices = chunk.choices
        if choices:
            return self._read_choice_fast(choices[0], usage) if len(choices) == 1 else None
        return None if choices is None or usage is None else DecodedEvent(kind="usage", usage=usage)

    def _identifies(self, chunk: FirstChunk) -> bool:
        """Whether the chunk may hold a new id, model or provider."""
        new_id, new_model = chunk.id and not self._id_known, chunk.model and not self._model_known
        return bool(not self._any_event or new_id or new_model)

    def _read_choice_fast(self, choice: Choice, usage: Usage | None) -> DecodedEvent | TextDelta | None:
        delta = choice.delta
        reasoning: str | None = ""
        tool_calls: list[ToolCallDelta] | None = None
        if choice.error is not None or choice.usage is not None or choice.message is not None:
            return None
        if delta is None:
            if choice.text is None:
                return None
            text = choice.text
        elif (
            delta.refusal
            or delta.audio is not None
            or delta.images is not None
            or delta.function_call is not None
            or delta.reasoning_text is not None
        ):
            return None
        else:
            text = delta.content or ""
            reasoning = delta.reasoning_content or delta.reasoning
            if (reasoning and text) or (not reasoning and delta.reasoning_details is not None):
                return None
            if delta.tool_calls:
                tool_calls = self._calls.decode_arguments(choice.index, delta.tool_calls)
                if tool_calls is None:
                    return None
        kind: EventKind = "reasoning" if reasoning else "text"
        text = reasoning or text
        reason = None if choice.finish_reason == "null" else choice.finish_reason or None
        if not text and tool_calls is None and reason is None:
            return None
        index = choice.index
        # The slow path replaces an index out of range by the position.
        if index not in self._started:
            if not 0 <= index < MAX_CHOICE_INDEX:
                return None
            if text or tool_calls:
                self._started.add(index)
        listed = choice.token_ids is not None or choice.logprobs is not None
        tokens = _listed_tokens(choice) if listed else None
        if text and tool_calls is None and reason is None:
            return TextDelta(kind, text, index, tokens, usage)
        content = ChoiceDelta(index, tool_calls=tool_calls, finish_reason=reason, tokens=tokens)
        if text:
            setattr(content, kind, text)
        return DecodedEvent("finish" if reason else kind, [content], usage)

    def read(self, name: str, data: bytes) -> DecodedEvent | TextDelta:
        """Decode one event on the slow path."""
        value = json_or_none(data)
        if not isinstance(value, dict):
            return self._not_an_object(name, data, value)
        event = DecodedEvent()
        self._identify(value, event)
        event.billing = self._billing(value)
        error = error_in(value)
        choices = value.get("choices")
        roles = False
        if isinstance(choices, list):
            deltas: list[ChoiceDelta] = []
            for position, choice in enumerate(choices[:MAX_CHOICES]):
                if isinstance(choice, dict):
                    content, role = self._choice(choice, position)
                    roles |= role
                    if content is not None:
                        deltas.append(content)
                    if error is None and choice.get("error"):
                        error = error_from(choice["error"], around=choice)
                    if event.usage is None:
                        event.usage = usage_of(choice.get("usage"))
            event.deltas = deltas or None
        elif name == "error" and error is None:
            error = error_from(value)
        if error is None and "base_resp" in value:
            error = _minimax_error(value["base_resp"])
        of_event = usage_of(value.get("usage")) or usage_of(member_of(value, "x_groq", "usage"))
        event.usage = of_event or event.usage or bedrock_metrics(value.get(BEDROCK_METRICS))
        if (of_timings := _llamacpp_usage(value.get("timings"))) is not None:
            event.usage = event.usage or of_timings
            if event.usage.cached_input_tokens is None:
                event.usage.cached_input_tokens = of_timings.cached_input_tokens
        event.server_stats = _trtllm_stats(value) if name == _TRTLLM_EVENT else self._stats(value)
        event.error = error
        event.kind = self._kind(event, value, roles)
        self._any_event = True
        return event

    def read_body(self, body: bytes) -> list[DecodedEvent]:
        """Decode a response that was not streamed: the same members, with `message` in place of `delta`."""
        value = json_or_none(body)
        if isinstance(value, list) and value:
            value = value[0]
        if not isinstance(value, dict):
            return [DecodedEvent(kind="malformed")]
        answer = self.read("", compact(value).encode())
        return [answer] if isinstance(answer, DecodedEvent) else []

    def _not_an_object(self, name: str, data: bytes, value: Any) -> DecodedEvent:
        text = data.strip()
        if text == b"[DONE]":
            return DecodedEvent(kind="terminal", done_marker=True)
        if name == "error":
            message = value if isinstance(value, str) and value else text.decode("utf-8", "replace")[:4096]
            return DecodedEvent(kind="error", error=ErrorReport(None, message or None, message or None))
        if name in ("ping", "heartbeat", "keepalive", "keep-alive") or (
            value is None and text in (b"", b"null")
        ):
            return DecodedEvent(kind="ping" if name else "other")
        return DecodedEvent(kind="malformed" if value is None else "other")

    def _identify(self, value: dict[str, Any], event: DecodedEvent) -> None:
        if not self._id_known:
            response_id = value.get("id")
            if isinstance(response_id, str) and response_id:
                event.response_id, self._id_known = response_id, True
        if not self._model_known:
            model = value.get("model")
            if isinstance(model, str) and model:
                event.model, self._model_known = model, True
        if self._provider is None:
            self._provider = _provider(value)
            event.provider = self._provider

    def _billing(self, value: dict[str, Any]) -> dict[str, Any] | None:
        """The tier, which is on every chunk: read on the first, else on those with usage. Venice adds the cost to the last."""
        found: dict[str, Any] = {}
        if not self._tier_known and (not self._any_event or value.get("usage")):
            tier = term(value.get("service_tier"))
            if tier is not None:
                found["service_tier"], self._tier_known = tier, True
        if (cost := cost_in(value)) is not None:
            found["reported_cost"] = cost
        return found or None

    def _choice(self, choice: dict[str, Any], position: int) -> tuple[ChoiceDelta | None, bool]:
        """Return (content, whether it names a role). The content is None if the choice has only annotations."""
        index = choice.get("index")
        if not isinstance(index, int) or isinstance(index, bool) or not 0 <= index < MAX_CHOICE_INDEX:
            index = position
        content = ChoiceDelta(choice=index)
        delta = choice.get("delta")
        role = isinstance(delta, dict) and bool(delta.get("role")) and index not in self._started
        if isinstance(delta, dict):
            read_delta(delta, content, self._calls)
        elif isinstance(delta, str):
            content.text = delta
        elif isinstance(choice.get("text"), str):
            content.text = choice["text"]
        elif isinstance(choice.get("message"), dict) and index not in self._started:
            read_delta(choice["message"], content, self._calls)
        elif isinstance(choice.get("messages"), list):
            _read_messages(choice["messages"], content, self._calls)
        reason = choice.get("finish_reason")
        if isinstance(reason, (str, int)) and reason not in ("", "null", False):
            content.finish_reason = str(reason)
        content.tokens = token_count(choice)
        media = content.audio_chars or content.audio_data_chars or content.images
        empty = delta is None and content.finish_reason is None and not {"text", "message"} & choice.keys()
        if content.text or content.reasoning or content.refusal or content.tool_calls or media:
            self._started.add(index)
        elif empty:
            return None, role
        return content, role

    def _stats(self, value: dict[str, Any]) -> list[ServerStat] | None:
        stats: list[ServerStat] = []
        for source in _STATS:
            if source in value:
                stats += stats_of(source, value[source])
        stats += stats_of("nvext.timing", member_of(value, "nvext", "timing"))
        by_groq = member_of(value, "x_groq", "usage")
        if isinstance(by_groq, dict):
            stats += stats_of("x_groq", by_groq, only=_USAGE_STATS)
        else:
            stats += stats_of("usage", value.get("usage"), only=_USAGE_STATS)
        return stats or None

    def _kind(self, event: DecodedEvent, value: dict[str, Any], roles: bool) -> EventKind:
        """The kind of an event without output; with output, the channel decides."""
        if event.error is not None:
            return "error"
        if any(f.finish_reason for f in event.deltas or ()):
            return "finish"
        if event.usage is not None:
            return "usage"
        if "prompt_progress" in value:
            return "progress"
        if event.deltas and (roles or not self._any_event):
            return "start"
        if not event.deltas and ("choices" in value or "prompt_filter_results" in value):
            return "annotation"
        return "other"


def _llamacpp_usage(timings: Any) -> Usage | None:
    """The counts in the timings of llama.cpp. `prompt_n` leaves out the cache. Before `cache_n`, that part was unknown."""
    usage = usage_in(timings, "prompt_n", "predicted_n", cached_input_tokens="cache_n")
    if usage is None or usage.cached_input_tokens is None:
        return None
    if usage.input_tokens is not None:
        usage.input_tokens += usage.cached_input_tokens
    return usage


def _trtllm_stats(value: dict[str, Any]) -> list[ServerStat] | None:
    """The event that TensorRT-LLM sends after `[DONE]`: response headers, by name."""
    timing = value.get("Server-Timing")
    return server_timing_stats(timing) if isinstance(timing, str) else None


def _listed_tokens(choice: Choice) -> int | None:
    if choice.token_ids:
        return len(choice.token_ids)
    logprobs = choice.logprobs
    if logprobs is None:
        return None
    found = [entries for entries in (logprobs.content, logprobs.refusal) if entries is not None]
    return (sum(map(len, found)) if found else len(logprobs.tokens or ())) or None


def _read_messages(messages: list[Any], content: ChoiceDelta, calls: ToolCallKeys) -> None:
    """Decode `messages`, in place of `delta` (Azure's first API for own data). Messages of role `tool` are not output."""
    for message in messages:
        delta = message.get("delta") if isinstance(message, dict) else None
        if isinstance(delta, dict) and delta.get("role") != "tool":
            read_delta(delta, content, calls)


def _minimax_error(base_resp: Any) -> ErrorReport | None:
    """MiniMax reports errors in `base_resp`, under status 200, by a status code other than 0."""
    if not isinstance(base_resp, dict) or not base_resp.get("status_code"):
        return None
    return ErrorReport(
        str(base_resp["status_code"]), string_of(base_resp.get("status_msg")) or None, base_resp
    )


def _provider(value: dict[str, Any]) -> str | None:
    for member, vendor in MEMBERS.items():
        if value.get(member) is not None:
            return vendor
    choices = value.get("choices")
    if isinstance(choices, list) and choices and isinstance(choices[0], dict):
        if "native_finish_reason" in choices[0] and isinstance(value.get("provider"), str):
            return "openrouter"
        if "content_filter_results" in choices[0]:
            return "azure.ai.openai"
    if value.get("system_fingerprint") == "fp_ollama":
        return "ollama"
    return None


_OBJECT = re.compile(rb'"object"\s*:\s*"chat\.completion')
_CHOICES = re.compile(rb'"choices"\s*:\s*(\[\s*\{|\[\s*\]|null)')


def _claims(exchange: ExchangeInfo) -> int:
    path = exchange.route
    if path.endswith("/chat/completions"):
        return 5
    return 1 if path.endswith("/chat") or "/serving-endpoints/" in path else 0


def _recognises(name: str, data: bytes) -> int:
    if name not in ("", "message", "error", "completion", "chunk"):
        return 0
    if _OBJECT.search(data):
        return 8
    choices = _CHOICES.search(data)
    if choices is None:
        return 0
    return 6 if b'"delta"' in data or b'"message"' in data else 2


CHAT = Dialect("openai_chat", "openai", "chat", _claims, _recognises, ChoicesReader)


_COMPLETION_OBJECT = re.compile(rb'"object"\s*:\s*"text_completion')
_TEXT = re.compile(rb'"choices"\s*:\s*\[\s*\{[^\[{]*"text"\s*:')


def _claims_text(exchange: ExchangeInfo) -> int:
    path = exchange.route
    return 5 if path.endswith("/completions") and not path.endswith("/chat/completions") else 0


def _recognises_text(name: str, data: bytes) -> int:
    if name not in ("", "message", "error"):
        return 0
    if _COMPLETION_OBJECT.search(data):
        return 8
    return 5 if b'"delta"' not in data and _TEXT.search(data) else 0


COMPLETIONS = Dialect(
    "openai_completions", "openai", "text_completion", _claims_text, _recognises_text, ChoicesReader
)
