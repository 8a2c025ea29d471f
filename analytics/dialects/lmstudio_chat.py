"""LM Studio's native chat (`/api/v1/chat`): 19 named events, from chat.start to chat.end.

- Output: `reasoning.delta`, `message.delta`, a tool's name (`tool_call.start`) and its arguments, sent whole as an object
  (`tool_call.arguments`). A tool's result (`tool_call.success`) is not output.
- `tool_call.failure` is not an error of the stream: it is counted, and the model continues.
- `error` is an error even though `chat.end` follows.
- `model_load.*` and `prompt_processing.*` are progress. Their numbers become server stats. The `stats` of `chat.end` become
  server stats and usage. There is no finish reason: chat.end is the terminal.
"""

from __future__ import annotations

from typing import Any

import msgspec

from streamgauge.analytics.dialects.dialect import Dialect, DialectReader, ExchangeInfo, by_path
from streamgauge.analytics.dialects.errors import error_event, failed_event
from streamgauge.analytics.dialects.events import (
    ChoiceDelta,
    DecodedEvent,
    TextDelta,
    ToolCallDelta,
    tool_call_event,
)
from streamgauge.analytics.dialects.server_stats import stats_of
from streamgauge.analytics.dialects.tolerant_json import arguments_of, compact, decode_or_none
from streamgauge.analytics.dialects.usage import usage_in

_PROGRESS = ("model_load.", "prompt_processing.")
_EVENT_NAMES = frozenset({
    "chat.start", "chat.end", "reasoning.start", "reasoning.delta", "reasoning.end", "message.start", "message.delta",
    "message.end", "tool_call.start", "tool_call.arguments", "tool_call.success", "tool_call.failure",
    "model_load.start", "model_load.progress", "model_load.end",
    "prompt_processing.start", "prompt_processing.progress", "prompt_processing.end",
})  # fmt: skip


class _Output(msgspec.Struct):
    type: str = ""
    content: str | None = None
    tool: str | None = None
    arguments: Any = None


class _EndResult(msgspec.Struct):
    """The result in chat.end, without the output, which was streamed."""

    model_instance_id: str | None = None
    response_id: str | None = None
    stats: Any = None


class _Result(_EndResult):
    output: list[_Output] | None = None
    error: Any = None


class _Event(msgspec.Struct):
    type: str | None = None
    content: str | None = None
    tool: str | None = None
    arguments: Any = None
    model_instance_id: str | None = None
    progress: Any = None
    load_time_seconds: Any = None
    result: _EndResult | None = None
    error: Any = None


class _EndEvent(msgspec.Struct):
    result: _Result | None = None


_event = msgspec.json.Decoder(_Event)
_end_event = msgspec.json.Decoder(_EndEvent)
_result = msgspec.json.Decoder(_Result)


def _recognises(name: str, data: bytes) -> int:
    if name in _EVENT_NAMES:
        return 8
    kind = data[:300].partition(b'"type"')[2].lstrip(b" :")[1:30].partition(b'"')[0]
    if kind.decode("ascii", "replace") in _EVENT_NAMES:
        return 7
    return 6 if b'"model_instance_id"' in data[:300] else 1 if name == "error" else 0


class LMStudioReader(DialectReader):
    """Decodes one stream; numbers its tool calls, which have no ids."""

    def __init__(self, exchange: ExchangeInfo) -> None:
        self._call_count = 0
        self._has_text = False
        self._open_call: str | None = None
        """Name of the tool whose arguments are expected next."""

    def read(self, name: str, data: bytes) -> DecodedEvent | TextDelta:
        event = decode_or_none(_event, data)
        if event is None:
            return failed_event(None, data, name)
        kind = event.type or name
        if kind in ("message.delta", "reasoning.delta"):
            if not event.content:
                return DecodedEvent(kind="annotation")
            self._has_text = True
            return TextDelta("text" if kind == "message.delta" else "reasoning", event.content)
        if kind[:10] == "tool_call.":
            return self._tool(kind[10:], event)
        if kind == "chat.end":
            decoded = _end(event.result or _EndResult())
            if not self._has_text and not self._call_count:
                _add_output(data, decoded)
            return decoded
        if kind == "error" or event.error:
            return error_event(data)
        if kind.startswith(_PROGRESS):
            return _progress(kind, event)
        if kind in ("message.end", "reasoning.end"):
            return DecodedEvent(kind="annotation")
        if kind in ("chat.start", "message.start", "reasoning.start"):
            return DecodedEvent(kind="start", model=event.model_instance_id)
        return DecodedEvent(kind="other")

    def read_body(self, body: bytes) -> list[DecodedEvent]:
        result = decode_or_none(_result, body)
        if result is None or result.error:
            return [failed_event(result, body)]
        if result.output is None and result.stats is None:
            return [DecodedEvent(kind="other")]
        return [DecodedEvent(kind="text", deltas=[_join_output(result.output or [])]), _end(result)]

    def _tool(self, step: str, event: _Event) -> DecodedEvent:
        tool = event.tool or ""
        if step == "start":
            self._open_call = tool
            self._call_count += 1
            return tool_call_event(ToolCallDelta(key=self._call_count, name=tool))
        if step == "arguments":
            tool_call = ToolCallDelta(key=self._call_count)
            if self._open_call is None or (tool and self._open_call and tool != self._open_call):
                self._call_count += 1  # there was no tool_call.start
                tool_call.key, tool_call.name = self._call_count, tool
            self._open_call = None
            tool_call.arguments = arguments_of({} if event.arguments is None else event.arguments)
            return tool_call_event(tool_call)
        self._open_call = None
        return DecodedEvent(kind="annotation", tool_failure=step == "failure")


def _join_output(parts: list[_Output]) -> ChoiceDelta:
    whole = ChoiceDelta(tool_calls=[])
    for part in parts:
        if part.type == "reasoning":
            whole.reasoning += part.content or ""
        elif part.type == "tool_call" and whole.tool_calls is not None:
            arguments = compact(part.arguments or {})
            whole.tool_calls.append(ToolCallDelta(len(whole.tool_calls), "", part.tool or "", arguments))
        else:
            whole.text += part.content or ""
    return whole


def _add_output(data: bytes, decoded: DecodedEvent) -> None:
    """Add the output in the result of chat.end, for a stream without earlier output."""
    event = decode_or_none(_end_event, data)
    whole = _join_output((event.result.output if event and event.result else None) or [])
    if whole.text or whole.reasoning or whole.tool_calls:
        decoded.deltas, decoded.not_streamed = [whole], True


def _progress(kind: str, event: _Event) -> DecodedEvent:
    phase = kind.partition(".")[0]
    numbers = {"progress": event.progress, "load_time_seconds": event.load_time_seconds}
    stats = stats_of(phase, numbers)
    return DecodedEvent(kind="progress", server_stats=stats or None, model=event.model_instance_id)


def _end(result: _EndResult) -> DecodedEvent:
    return DecodedEvent(
        kind="terminal",
        terminal=True,
        usage=usage_in(
            result.stats, "input_tokens", "total_output_tokens", reasoning_tokens="reasoning_output_tokens"
        ),
        server_stats=stats_of("stats", result.stats) or None,
        response_id=result.response_id,
        model=result.model_instance_id,
    )


DIALECT = Dialect("lmstudio_chat", "lmstudio", "chat", by_path(r"/api/v1/chat$"), _recognises, LMStudioReader)
