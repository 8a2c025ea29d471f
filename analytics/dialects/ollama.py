"""Ollama's native API (`/api/chat`, `/api/generate`): JSON lines, the last with `done: true` and the server's times (ns).

`message.content` or `response` is text, `thinking` reasoning; tool calls come whole, with their arguments as an object. The
usage is the counts and durations of the last line; `eval_count` includes thinking.
"""

from __future__ import annotations

from typing import Any

import msgspec

from analytics.dialects.errors import error_event, unreadable
from analytics.dialects.numbers import count, measure
from analytics.dialects.payload import arguments_of, compact, decode_or_none
from analytics.dialects.shape import Delta, Exchange, Fragment, Reading, ServerStat, ToolFragment, Usage

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


class Ollama:
    """The dialect; see `shape.Dialect`."""

    name = "ollama"
    provider = "ollama"
    operation = "chat"

    def claims(self, exchange: Exchange) -> int:
        return (
            5 if exchange.path.partition("?")[0].rstrip("/").endswith(("/api/chat", "/api/generate")) else 0
        )

    def recognises(self, name: str, data: bytes) -> int:
        if b'"done"' not in data or b'"created_at"' not in data:
            return 0
        return 8 if b'"message"' in data or b'"response"' in data else 5

    def reader(self, exchange: Exchange) -> OllamaReader:
        return OllamaReader()


class OllamaReader:
    """Reads one stream; numbers its tool calls."""

    def __init__(self) -> None:
        self._call_count = 0
        self._model_told = False

    def read(self, name: str, data: bytes) -> Reading | Delta:
        line = decode_or_none(_line, data)
        if line is None:
            return unreadable(name, data)
        if line.error:
            return Reading(kind="error", error=error_event(data))
        message = line.message
        if self._model_told and not line.done and (message is None or not message.tool_calls):
            text, thinking = _pieces(line)
            tokens = len(line.logprobs) if line.logprobs else None
            if text and not thinking:
                return Delta("text", text, 0, tokens)
            if thinking and not text:
                return Delta("reasoning", thinking, 0, tokens)
        return self._full(line)

    def read_body(self, body: bytes) -> list[Reading]:
        line = decode_or_none(_line, body)
        if line is None:
            return [Reading(kind="malformed")]
        if line.error:
            return [Reading(kind="error", error=error_event(body))]
        return [self._full(line)]

    def _full(self, line: _Line) -> Reading:
        text, thinking = _pieces(line)
        fragment = Fragment(
            text=text, reasoning=thinking, tokens=len(line.logprobs) if line.logprobs else None
        )
        calls = line.message.tool_calls if line.message else None
        if calls:
            fragment.tools = [self._piece(call) for call in calls]
        fragment.finish_reason = (line.done_reason or None) if line.done else None
        self._model_told = True
        reading = Reading(
            kind="text" if text else "reasoning" if thinking else "tool_call" if calls else "start",
            fragments=[fragment],
            model=line.model or None,
        )
        if line.done:
            if reading.kind == "start":
                reading.kind = "finish" if line.done_reason else "terminal"
            reading.terminal = True
            reading.usage, reading.server_stats = _reported(line)
        return reading

    def _piece(self, call: _Call) -> ToolFragment:
        self._call_count += 1
        function = call.function or _Function()
        arguments = {} if function.arguments is None else function.arguments
        return ToolFragment(self._call_count, call.id or "", function.name or "", arguments_of(arguments))


def _pieces(line: _Line) -> tuple[str, str]:
    """(text, thinking) of chat or generate."""
    message = line.message
    if message is None:
        return line.response or "", line.thinking or ""
    return message.content or "", message.thinking or line.thinking or ""


def _reported(line: _Line) -> tuple[Usage | None, list[ServerStat] | None]:
    raw = {name: value for name in _COUNTS if (value := getattr(line, name)) is not None}
    if not raw:
        return None, None
    stats = []
    for name, value in raw.items():
        unit = "ns" if name.endswith("_duration") else "tokens"
        stats.append(ServerStat("ollama", name, measure(value), unit, compact(value)[:200]))
    return Usage(
        input_tokens=count(line.prompt_eval_count), output_tokens=count(line.eval_count), raw=raw
    ), stats


DIALECT = Ollama()
