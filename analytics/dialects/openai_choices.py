"""Read events that carry `choices`: chat completion chunks and text completion chunks, whoever sends them.

Two ways lead through an event. The strict one is a single typed decode that knows the fields below; when one choice carries
one piece of text or reasoning and nothing else is said, the answer is a `Delta`. Whatever else is set, or of another type
than OpenAI's, goes the long way, which looks at every field and trusts none.

What a field means here: `delta` wins over `text` (Together sends both) and over `message` (Writer, Perplexity: the same
again, cumulative); "" is no id, no model and no finish reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from analytics.decoded.decoded_event import (
    ChoiceDelta,
    DecodedEvent,
    ErrorReport,
    EventKind,
    ServerStat,
    TextDelta,
    ToolCallDelta,
    Usage,
)
from analytics.decoded.raw_event import RawEvent
from analytics.decoded.tolerant_json import FAULTS, compact, json_or_none
from analytics.dialects.errors import error_from, error_in
from analytics.dialects.openai_chunk_types import Choice, Chunk, FirstChunk
from analytics.dialects.openai_delta import read_delta, token_count
from analytics.dialects.openai_tool_calls import Calls, text_of
from analytics.dialects.openai_usage import usage_of
from analytics.dialects.server_stats import stats_of

MAX_CHOICES = 4096
MAX_CHOICE_INDEX = 2**15


_decode_first = msgspec.json.Decoder(FirstChunk).decode
_decode_next = msgspec.json.Decoder(Chunk).decode

PROVIDER_FIELDS = {
    # a top-level member that only one vendor sends
    "x_groq": "groq",
    "timings": "llama.cpp",
    "perf_metrics": "fireworks",
    "prompt_filter_results": "azure.ai.openai",
    "time_info": "cerebras",
    "native_finish_reason": "openrouter",
    "search_results": "perplexity",
    "obfuscation": "openai",
}
_STATS_FIELDS = ("perf_metrics", "timings", "time_info", "metrics", "stats")
_USAGE_STATS = frozenset(
    {
        "queue_time", "prompt_time", "completion_time", "total_time",  # Groq
        "time_to_first_token", "time_to_first_token_ms", "time_per_output_token_ms", "total_latency",
        "tokens_per_second", "prompt_tokens_per_second", "completion_tokens_per_sec", "total_tokens_per_sec",
        "completion_tokens_after_first_per_sec", "avg_tok_per_sec", "avg_prompt_tok_per_sec", "avg_compl_tok_per_sec",
        "total_time_sec", "total_prompt_time_sec", "total_completion_time_sec",
    }
)  # fmt: skip


class ChoicesReader:
    """Reads one stream of chat or text completion chunks."""

    def __init__(self) -> None:
        self._id_known = self._model_known = False
        self._provider: str | None = None
        self._begun: set[int] = set()  # choices that have had output
        self._calls = Calls()
        self._any_event = False

    # -- one event -------------------------------------------------------------------------------------------------

    def read_many(self, events: Sequence[RawEvent]) -> list[DecodedEvent | TextDelta]:
        """The answers of `read`, for a batch."""
        return [self._quickly(event) or self.read(event.name, event.data) for event in events]

    def _quickly(self, event: RawEvent) -> DecodedEvent | TextDelta | None:
        """What an event says, if its fields are those of OpenAI and no vendor's. None: the long way must look."""
        if event.name:
            return None
        who_is_known = self._id_known and self._model_known
        try:
            chunk = _decode_next(event.data) if who_is_known else _decode_first(event.data)
        except FAULTS:
            return (
                DecodedEvent(kind="terminal", done_marker=True) if event.data.strip() == b"[DONE]" else None
            )
        if not who_is_known and isinstance(chunk, FirstChunk) and not self._tells_nothing_new(chunk):
            return None
        if not (
            chunk.error
            is chunk.timings
            is chunk.x_groq
            is chunk.perf_metrics
            is chunk.time_info
            is chunk.metrics
            is chunk.stats
            is chunk.base_resp
            is chunk.prompt_progress
            is None
        ):
            return None
        usage = None
        if chunk.usage is not None:
            usage = usage_of(chunk.usage)
            if usage is None or not _USAGE_STATS.isdisjoint(chunk.usage):
                return None
        choices = chunk.choices
        if not choices:
            return (
                DecodedEvent(kind="usage", usage=usage) if choices is not None and usage is not None else None
            )
        return self._one_choice(choices[0], usage) if len(choices) == 1 else None

    def _tells_nothing_new(self, chunk: FirstChunk) -> bool:
        return self._any_event and (self._id_known or not chunk.id) and (self._model_known or not chunk.model)

    def _one_choice(self, choice: Choice, usage: Usage | None) -> DecodedEvent | TextDelta | None:
        said = choice.delta
        piece = ""
        thought: str | None = ""
        tool_calls: list[ToolCallDelta] | None = None
        if choice.error is not None or choice.usage is not None or choice.message is not None:
            return None
        if said is None:
            if choice.text is None:
                return None
            piece = choice.text
        elif (
            said.refusal
            or said.audio is not None
            or said.function_call is not None
            or said.reasoning_text is not None
        ):
            return None
        else:
            piece = said.content or ""
            thought = said.reasoning_content or said.reasoning
            if (thought and piece) or (not thought and said.reasoning_details is not None):
                return None
            if said.tool_calls:
                tool_calls = self._calls.quick_pieces(choice.index, said.tool_calls)
                if tool_calls is None:
                    return None
        kind: EventKind = "reasoning" if thought else "text"
        piece = thought or piece
        reason = None if choice.finish_reason == "null" else choice.finish_reason or None
        if not piece and tool_calls is None and reason is None:
            return None
        index = choice.index
        if index not in self._begun:
            if not 0 <= index < MAX_CHOICE_INDEX:
                return None
            if piece or tool_calls:
                self._begun.add(index)
        tokens: int | None = None
        if choice.token_ids is not None:
            tokens = len(choice.token_ids) or None
        if tokens is None and (logprobs := choice.logprobs) is not None:
            found = [entries for entries in (logprobs.content, logprobs.refusal) if entries is not None]
            tokens = sum(map(len, found)) if found else len(logprobs.tokens or ())
            tokens = tokens or None
        if piece and tool_calls is None and reason is None:
            return TextDelta(kind, piece, index, tokens, usage)
        choice_delta = ChoiceDelta(index, tool_calls=tool_calls, finish_reason=reason, tokens=tokens)
        if piece:
            setattr(choice_delta, kind, piece)
        return DecodedEvent("finish" if reason else kind, [choice_delta], usage)

    def read(self, name: str, data: bytes) -> DecodedEvent | TextDelta:
        """One event, the long way."""
        value = json_or_none(data)
        if not isinstance(value, dict):
            return self._not_an_object(name, data, value)
        reading = DecodedEvent()
        self._head(value, reading)
        error = error_in(value)
        choices = value.get("choices")
        roles = False
        if isinstance(choices, list):
            deltas: list[ChoiceDelta] = []
            for place, choice in enumerate(choices[:MAX_CHOICES]):
                if isinstance(choice, dict):
                    choice_delta, role = self._choice(choice, place)
                    roles |= role
                    if choice_delta is not None:
                        deltas.append(choice_delta)
                    if error is None and choice.get("error"):
                        error = error_from(choice["error"], around=choice)
                    if reading.usage is None:
                        reading.usage = usage_of(choice.get("usage"))
            reading.deltas = deltas or None
        elif name == "error" and error is None:
            error = error_from(value)
        if error is None and "base_resp" in value:
            error = _minimax_error(value["base_resp"])
        reading.usage = self._usage(value) or reading.usage
        reading.server_stats = self._stats(value)
        reading.error = error
        reading.kind = self._kind(reading, value, roles)
        self._any_event = True
        return reading

    def read_body(self, body: bytes) -> list[DecodedEvent]:
        """A response that was not streamed: the same fields, with `message` in place of `delta`."""
        value = json_or_none(body)
        if isinstance(value, list) and value:
            value = value[0]
        if not isinstance(value, dict):
            return [DecodedEvent(kind="malformed")]
        answer = self.read("", compact(value).encode())
        return [answer] if isinstance(answer, DecodedEvent) else []

    def _not_an_object(self, name: str, data: bytes, value: Any) -> DecodedEvent:
        word = data.strip()
        if word == b"[DONE]":
            return DecodedEvent(kind="terminal", done_marker=True)
        if name == "error":
            said = value if isinstance(value, str) and value else word.decode("utf-8", "replace")[:4096]
            return DecodedEvent(kind="error", error=ErrorReport(None, said or None, said or None))
        if name in ("ping", "heartbeat", "keepalive", "keep-alive") or (
            value is None and word in (b"", b"null")
        ):
            return DecodedEvent(kind="ping" if name else "other")
        return DecodedEvent(kind="malformed" if value is None else "other")

    # -- its parts -------------------------------------------------------------------------------------------------

    def _head(self, value: dict[str, Any], reading: DecodedEvent) -> None:
        if not self._id_known:
            identity = value.get("id")
            if isinstance(identity, str) and identity:
                reading.response_id, self._id_known = identity, True
        if not self._model_known:
            model = value.get("model")
            if isinstance(model, str) and model:
                reading.model, self._model_known = model, True
        if self._provider is None:
            self._provider = _provider(value)
            reading.provider = self._provider

    def _choice(self, choice: dict[str, Any], place: int) -> tuple[ChoiceDelta | None, bool]:
        """(what it adds, whether it names a role). None: an annotation of the choice, nothing said."""
        index = choice.get("index")
        if not isinstance(index, int) or isinstance(index, bool) or not 0 <= index < MAX_CHOICE_INDEX:
            index = place
        choice_delta = ChoiceDelta(choice=index)
        said = choice.get("delta")
        role = isinstance(said, dict) and bool(said.get("role")) and index not in self._begun
        if isinstance(said, dict):
            read_delta(said, choice_delta, self._calls)
        elif isinstance(said, str):
            choice_delta.text = said
        elif isinstance(choice.get("text"), str):
            choice_delta.text = choice["text"]
        elif isinstance(choice.get("message"), dict) and index not in self._begun:
            read_delta(choice["message"], choice_delta, self._calls)
        elif isinstance(choice.get("messages"), list):
            _read_messages(choice["messages"], choice_delta, self._calls)
        reason = choice.get("finish_reason")
        if isinstance(reason, (str, int)) and reason not in ("", "null", False):
            choice_delta.finish_reason = str(reason)
        choice_delta.tokens = token_count(choice)
        spoken = choice_delta.audio_chars or choice_delta.audio_data_chars
        if (
            choice_delta.text
            or choice_delta.reasoning
            or choice_delta.refusal
            or choice_delta.tool_calls
            or spoken
        ):
            self._begun.add(index)
        elif (
            said is None
            and choice_delta.finish_reason is None
            and "text" not in choice
            and "message" not in choice
        ):
            return None, role
        return choice_delta, role

    def _usage(self, value: dict[str, Any]) -> Usage | None:
        found = usage_of(value.get("usage"))
        if found is None:
            groq = value.get("x_groq")
            found = usage_of(groq.get("usage")) if isinstance(groq, dict) else None
        return found

    def _stats(self, value: dict[str, Any]) -> list[ServerStat] | None:
        stats: list[ServerStat] = []
        for source in _STATS_FIELDS:
            if isinstance(value.get(source), dict):
                stats += stats_of(source, value[source])
        if "prompt_progress" in value:
            stats += stats_of("prompt_progress", value["prompt_progress"])
        groq = value.get("x_groq")
        if isinstance(groq, dict) and isinstance(groq.get("usage"), dict):
            stats += stats_of("x_groq", groq["usage"], only=_USAGE_STATS)
        elif isinstance(value.get("usage"), dict):
            stats += stats_of("usage", value["usage"], only=_USAGE_STATS)
        return stats or None

    def _kind(self, reading: DecodedEvent, value: dict[str, Any], roles: bool) -> EventKind:
        """Of an event without output; one with output is named by its channel."""
        if reading.error is not None:
            return "error"
        if any(f.finish_reason for f in reading.deltas or ()):
            return "finish"
        if reading.usage is not None:
            return "usage"
        if "prompt_progress" in value:
            return "progress"
        if reading.deltas and (roles or not self._any_event):
            return "start"
        if not reading.deltas and ("choices" in value or "prompt_filter_results" in value):
            return "annotation"
        return "other"


def _read_messages(messages: list[Any], choice_delta: ChoiceDelta, calls: Calls) -> None:
    """`messages` in place of `delta`: Azure's first way of answering on one's own data. Those of its tool are not generated."""
    for message in messages:
        said = message.get("delta") if isinstance(message, dict) else None
        if isinstance(said, dict) and said.get("role") != "tool":
            read_delta(said, choice_delta, calls)


def _minimax_error(told: Any) -> ErrorReport | None:
    """MiniMax says how it went in `base_resp`, under 200: a status code that is not 0 is an error."""
    if not isinstance(told, dict) or not told.get("status_code"):
        return None
    return ErrorReport(str(told["status_code"]), text_of(told.get("status_msg")) or None, told)


def _provider(value: dict[str, Any]) -> str | None:
    for member, vendor in PROVIDER_FIELDS.items():
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
