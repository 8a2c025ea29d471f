"""Ollama's native API (`/api/chat`, `/api/generate`): JSON lines, the last with `done: true` and the server's times (ns).

`message.content` or `response` is text, `thinking` is reasoning. Tool calls are sent whole, with their arguments as an object.
The usage is in the counts and durations of the last line; `eval_count` includes thinking.

Systems:

| Ollama | `ollama` | `ollama` | `/api/chat`, `/api/generate` | last line | `done: true` |
"""

from __future__ import annotations

import msgspec

from streamgauge.analytics.dialects import kept
from streamgauge.analytics.dialects.dialect import Dialect, ExchangeInfo, by_path
from streamgauge.analytics.dialects.events import (
    ChoiceDelta,
    DecodedEvent,
    ServerStat,
    TextDelta,
    ToolCallDelta,
    Usage,
)
from streamgauge.analytics.dialects.json_reader import Event, JSONReader
from streamgauge.analytics.dialects.server_stats import stat_of
from streamgauge.analytics.dialects.tolerant_json import arguments_of
from streamgauge.analytics.dialects.usage import usage_in

LOOKED_UP = kept.members(count="created_at")
_COUNTS = (
    "total_duration", "load_duration", "prompt_eval_count", "prompt_eval_duration", "eval_count", "eval_duration",
)  # fmt: skip


class _Function(msgspec.Struct):
    name: kept.Name = None
    arguments: kept.Content = None


class _Call(msgspec.Struct):
    id: kept.Word = None
    function: _Function | None = None


class _Message(msgspec.Struct):
    content: str | None = None
    thinking: str | None = None
    tool_calls: list[_Call] | None = None


class _Line(Event):
    model: kept.Name = None
    message: _Message | None = None
    response: str | None = None
    thinking: str | None = None
    done: bool | None = None
    done_reason: kept.Name = None
    logprobs: list[msgspec.Raw] | None = None
    total_duration: kept.Count = None
    load_duration: kept.Count = None
    prompt_eval_count: kept.Count = None
    prompt_eval_duration: kept.Count = None
    eval_count: kept.Count = None
    eval_duration: kept.Count = None


def _recognises(name: str, data: bytes) -> int:
    if b'"done"' not in data or b'"created_at"' not in data:
        return 0
    return 8 if b'"message"' in data or b'"response"' in data else 5


class OllamaReader(JSONReader, event=_Line):
    """Decodes one stream; numbers its tool calls."""

    def __init__(self, exchange: ExchangeInfo) -> None:
        self._call_count = 0
        self._model_known = False

    def event(self, event: _Line, kind: str) -> DecodedEvent | TextDelta:
        message = event.message
        text = (event.response if message is None else message.content) or ""
        thinking = (message.thinking if message else None) or event.thinking or ""
        tokens = len(event.logprobs) if event.logprobs else None
        calls = message.tool_calls if message else None
        if self._model_known and not event.done and not calls:
            if text and not thinking:
                return TextDelta("text", text, 0, tokens)
            if thinking and not text:
                return TextDelta("reasoning", thinking, 0, tokens)
        self._model_known = True
        delta = ChoiceDelta(text=text, reasoning=thinking, tokens=tokens)
        delta.tool_calls = [self._tool_call(call) for call in calls] if calls else None
        known = message is not None or event.model or event.response is not None
        decoded = DecodedEvent(kind="start" if known else "other", deltas=[delta], model=event.model)
        if event.done:
            delta.finish_reason = event.done_reason or None
            decoded.kind = "finish" if event.done_reason else "terminal"
            decoded.terminal = True
            decoded.usage, decoded.server_stats = _usage_and_stats(event)
        return decoded

    def _tool_call(self, call: _Call) -> ToolCallDelta:
        self._call_count += 1
        function = call.function or _Function()
        arguments = {} if function.arguments is None else function.arguments
        return ToolCallDelta(self._call_count, call.id or "", function.name or "", arguments_of(arguments))


def _usage_and_stats(line: _Line) -> tuple[Usage | None, list[ServerStat] | None]:
    raw = {name: value for name in _COUNTS if (value := getattr(line, name)) is not None}
    if not raw:
        return None, None
    stats = [
        stat_of("ollama", name, value, "ns" if name.endswith("_duration") else "tokens")
        for name, value in raw.items()
    ]
    return usage_in(raw, "prompt_eval_count", "eval_count"), stats


DIALECT = Dialect("ollama", "ollama", "chat", by_path(r"/api/(chat|generate)$"), _recognises, OllamaReader)
