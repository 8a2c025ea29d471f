"""LM Studio's native chat (`/api/v1/chat`): 19 named events, from chat.start to chat.end.

- Output: `reasoning.delta`, `message.delta`, a tool's name (`tool_call.start`) and its arguments, sent whole as an object
  (`tool_call.arguments`). A tool's result (`tool_call.success`) is not output.
- `tool_call.failure` is not an error of the stream: it is counted, and the model continues.
- `error` is an error even though `chat.end` follows.
- `model_load.*` and `prompt_processing.*` are progress. Their numbers become server stats. The `stats` of `chat.end` become
  server stats and usage. There is no finish reason: chat.end is the terminal.

Systems:

| LM Studio | `lmstudio` | `lmstudio_chat` | `/api/v1/chat` | `chat.end` stats | chat.end; an `error` before it remains an error |
"""

from __future__ import annotations

from itertools import count
from typing import Annotated

import msgspec

from streamgauge.analytics.dialects import kept
from streamgauge.analytics.dialects.dialect import Dialect, ExchangeInfo, by_path
from streamgauge.analytics.dialects.events import (
    ChoiceDelta,
    DecodedEvent,
    EventKind,
    TextDelta,
    ToolCallDelta,
    joined,
    text_event,
    tool_call_event,
)
from streamgauge.analytics.dialects.json_reader import Event, JSONReader
from streamgauge.analytics.dialects.server_stats import stats_of
from streamgauge.analytics.dialects.tolerant_json import arguments_of, compact, decode_or_none
from streamgauge.analytics.dialects.usage import usage_in

_KINDS: dict[str, EventKind] = {
    "chat.start": "start", "chat.end": "terminal", "reasoning.start": "start", "reasoning.delta": "annotation",
    "reasoning.end": "annotation", "message.start": "start", "message.delta": "annotation", "message.end": "annotation",
    "tool_call.start": "annotation", "tool_call.arguments": "annotation", "tool_call.success": "annotation",
    "tool_call.failure": "annotation", "model_load.start": "progress", "model_load.progress": "progress",
    "model_load.end": "progress", "prompt_processing.start": "progress", "prompt_processing.progress": "progress",
    "prompt_processing.end": "progress",
}  # fmt: skip
"""Event → its kind without output."""


class _Output(msgspec.Struct):
    type: Annotated[str, kept.TITLE] = ""
    content: str | None = None
    tool: kept.Name = None
    arguments: kept.Content = None


class _Ending(msgspec.Struct):
    model_instance_id: kept.Name = None
    response_id: kept.Id = None
    stats: kept.Report = None


class _Result(_Ending):
    output: Annotated[msgspec.Raw, kept.OUTPUT] = msgspec.Raw()
    """Nearly always streamed before."""


class _Body(_Ending):
    type: kept.Title = None
    error: None = None
    output: Annotated[list[_Output] | None, kept.OUTPUT] = None


class _Event(Event):
    content: str | None = None
    tool: kept.Name = None
    arguments: kept.Content = None
    model_instance_id: kept.Name = None
    progress: kept.Count = None
    load_time_seconds: kept.Count = None
    result: _Result | None = None


_outputs = msgspec.json.Decoder(list[_Output])


def _recognises(name: str, data: bytes) -> int:
    if name in _KINDS:
        return 8
    kind = data[:300].partition(b'"type"')[2].lstrip(b" :")[1:30].partition(b'"')[0]
    if kind.decode("ascii", "replace") in _KINDS:
        return 7
    return 6 if b'"model_instance_id"' in data[:300] else 1 if name == "error" else 0


class LMStudioReader(JSONReader, event=_Event, body=_Body):
    """Decodes one stream; numbers its tool calls, which have no ids."""

    def __init__(self, exchange: ExchangeInfo) -> None:
        self._call_count = 0
        self._has_text = False
        self._open_call: str | None = None
        """Name of the tool whose arguments are expected next."""

    def event(self, event: _Event, kind: str) -> DecodedEvent | TextDelta:
        if kind in ("message.delta", "reasoning.delta"):
            self._has_text |= bool(event.content)
            return text_event(event.content, "text" if kind == "message.delta" else "reasoning")
        if kind[:10] == "tool_call.":
            return self._tool(kind[10:], event)
        if kind == "chat.end":
            result = event.result or _Result()
            decoded = _end(result)
            if not self._has_text and not self._call_count:
                whole = _of_output(decode_or_none(_outputs, bytes(result.output)))
                if whole is not None:
                    decoded.deltas, decoded.not_streamed = [whole], True
            return decoded
        decoded = DecodedEvent(_KINDS.get(kind, "other"), model=event.model_instance_id)
        if decoded.kind == "progress":
            numbers = {"progress": event.progress, "load_time_seconds": event.load_time_seconds}
            decoded.server_stats = stats_of(kind.partition(".")[0], numbers) or None
        return decoded

    def body(self, whole: _Body) -> list[DecodedEvent]:
        if whole.output is None and whole.stats is None:
            return [DecodedEvent(kind="other")]
        return [DecodedEvent(kind="text", deltas=[_of_output(whole.output) or ChoiceDelta()]), _end(whole)]

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


def _of_output(parts: list[_Output] | None) -> ChoiceDelta | None:
    whole = joined(map(_output, parts or (), count()))
    return whole if whole.text or whole.reasoning or whole.tool_calls else None


def _output(part: _Output, key: int) -> ChoiceDelta:
    if part.type == "reasoning":
        return ChoiceDelta(reasoning=part.content or "")
    if part.type == "tool_call":
        return ChoiceDelta(
            tool_calls=[ToolCallDelta(key, "", part.tool or "", compact(part.arguments or {}))]
        )
    return ChoiceDelta(text=part.content or "")


def _end(result: _Ending) -> DecodedEvent:
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
