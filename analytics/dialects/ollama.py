"""Ollama's native API (`/api/chat`, `/api/generate`): JSON lines, the last with `done: true` and the server's times (ns).

`message.content` or `response` is text, `thinking` is reasoning. Tool calls are sent whole, with their arguments as an object.
The usage is in the counts and durations of the last line; `eval_count` includes thinking.
"""

from __future__ import annotations

from typing import Any

import msgspec

from streamgauge.analytics.dialects.dialect import Dialect, DialectReader, ExchangeInfo, by_path
from streamgauge.analytics.dialects.errors import failed_event
from streamgauge.analytics.dialects.events import (
    ChoiceDelta,
    DecodedEvent,
    ServerStat,
    TextDelta,
    ToolCallDelta,
    Usage,
)
from streamgauge.analytics.dialects.server_stats import stat_of
from streamgauge.analytics.dialects.tolerant_json import arguments_of, decode_or_none
from streamgauge.analytics.dialects.usage import usage_in

_COUNTS = (
    "total_duration", "load_duration", "prompt_eval_count", "prompt_eval_duration", "eval_count", "eval_duration",
)  # fmt: skip


class _Function(msgspec.Struct):
    name: str | None = None
    arguments: Any = None


class _Call(msgspec.Struct):
    id: str | None = None
    function: _Function | None = None


class _Message(msgspec.Struct):
    content: str | None = None
    thinking: str | None = None
    tool_calls: list[_Call] | None = None


class _Line(msgspec.Struct):
    model: str | None = None
    message: _Message | None = None
    response: str | None = None
    thinking: str | None = None
    done: bool | None = None
    done_reason: str | None = None
    logprobs: list[msgspec.Raw] | None = None
    error: Any = None
    total_duration: Any = None
    load_duration: Any = None
    prompt_eval_count: Any = None
    prompt_eval_duration: Any = None
    eval_count: Any = None
    eval_duration: Any = None


_line = msgspec.json.Decoder(_Line)


def _recognises(name: str, data: bytes) -> int:
    if b'"done"' not in data or b'"created_at"' not in data:
        return 0
    return 8 if b'"message"' in data or b'"response"' in data else 5


class OllamaReader(DialectReader):
    """Decodes one stream; numbers its tool calls."""

    def __init__(self, exchange: ExchangeInfo) -> None:
        self._call_count = 0
        self._model_known = False

    def read(self, name: str, data: bytes) -> DecodedEvent | TextDelta:
        line = decode_or_none(_line, data)
        if line is None or line.error:
            return failed_event(line, data, name)
        message = line.message
        if self._model_known and not line.done and (message is None or not message.tool_calls):
            text, thinking = _text_and_thinking(line)
            tokens = len(line.logprobs) if line.logprobs else None
            if text and not thinking:
                return TextDelta("text", text, 0, tokens)
            if thinking and not text:
                return TextDelta("reasoning", thinking, 0, tokens)
        return self._full(line)

    def _full(self, line: _Line) -> DecodedEvent:
        text, thinking = _text_and_thinking(line)
        delta = ChoiceDelta(
            text=text, reasoning=thinking, tokens=len(line.logprobs) if line.logprobs else None
        )
        calls = line.message.tool_calls if line.message else None
        if calls:
            delta.tool_calls = [self._tool_call(call) for call in calls]
        delta.finish_reason = (line.done_reason or None) if line.done else None
        self._model_known = True
        known = line.message is not None or line.model or line.response is not None
        decoded = DecodedEvent(kind="start" if known else "other", deltas=[delta], model=line.model)
        if line.done:
            decoded.kind = "finish" if line.done_reason else "terminal"
            decoded.terminal = True
            decoded.usage, decoded.server_stats = _usage_and_stats(line)
        return decoded

    def _tool_call(self, call: _Call) -> ToolCallDelta:
        self._call_count += 1
        function = call.function or _Function()
        arguments = {} if function.arguments is None else function.arguments
        return ToolCallDelta(self._call_count, call.id or "", function.name or "", arguments_of(arguments))


def _text_and_thinking(line: _Line) -> tuple[str, str]:
    """(text, thinking) of chat or generate."""
    message = line.message
    if message is None:
        return line.response or "", line.thinking or ""
    return message.content or "", message.thinking or line.thinking or ""


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
