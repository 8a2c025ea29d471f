"""Gemini's Interactions API: interaction.created · (step.start · step.delta… · step.stop)… · interaction.completed.

Output: text, thought summaries, function names and arguments, audio, images. Not output: signatures, annotations, server-side calls
(Google search) and their results. The finish reason is the interaction's final status: `requires_action` and `incomplete` are
finishes, `failed` and `cancelled` errors. Output tokens = output + thoughts, input tokens = input + tool use.

The first preview used the names interaction.start, content.start, content.delta and interaction.complete.

Systems:

| Gemini Interactions | `gcp.gemini` | `gemini_interactions` | `/v1beta/interactions` | interaction.completed | final status |
"""

from __future__ import annotations

from itertools import count
from typing import Any

import msgspec

from streamgauge.analytics.dialects import kept
from streamgauge.analytics.dialects.dialect import Dialect, ExchangeInfo, by_path
from streamgauge.analytics.dialects.error_bodies import add_final_status, failed_event
from streamgauge.analytics.dialects.events import (
    ChoiceDelta,
    DecodedEvent,
    TextDelta,
    ToolCallDelta,
    Usage,
    joined,
    text_event,
    tool_call_event,
)
from streamgauge.analytics.dialects.json_reader import Event, JSONReader
from streamgauge.analytics.dialects.tolerant_json import (
    arguments_of,
    compact,
    decode_or_none,
    member_of,
    string_of,
    whole_number,
)
from streamgauge.analytics.dialects.usage import term, usage_in

_NAMES = ("interaction.", "step.", "content.")


class _DeltaPart(msgspec.Struct):
    type: kept.Title = None
    text: str | None = None
    content: Any = None
    id: kept.Word = None
    name: kept.Name = None
    arguments: kept.Content = None
    data: str | None = None


class _Step(msgspec.Struct):
    type: kept.Title = None
    id: kept.Word = None
    name: kept.Name = None
    text: str | None = None
    arguments: kept.Content = None


class _WholeStep(_Step):
    content: Any = None
    summary: Any = None


class _Interaction(msgspec.Struct):
    id: kept.Word = None
    model: kept.Name = None
    status: kept.Name = None
    usage: kept.Report = None
    error: Any = None
    service_tier: kept.Term = None


class _Whole(_Interaction):
    outputs: list[_WholeStep] | None = None
    steps: list[_WholeStep] | None = None


class _Event(Event):
    type: kept.Name = msgspec.field(default=None, name="event_type")
    index: int | None = None
    step: _Step | None = None
    content: _Step | None = None
    delta: _DeltaPart | None = None
    interaction: _Interaction | None = None


_whole = msgspec.json.Decoder(_Whole)


def _recognises(name: str, data: bytes) -> int:
    if name.startswith("interaction.") or name in ("step.start", "step.delta", "step.stop"):
        return 8
    if b'"event_type"' in data and b'"interaction.' in data:
        return 7
    return 6 if b'"object":"interaction"' in data or b'"object": "interaction"' in data else 0


class InteractionsReader(JSONReader, event=_Event):
    """Decodes one stream; keeps the steps that are calls without arguments so far."""

    def __init__(self, exchange: ExchangeInfo) -> None:
        self._bare_calls: set[int] = set()

    def event(self, event: _Event, kind: str) -> DecodedEvent | TextDelta:
        if kind in ("step.delta", "content.delta"):
            return self._delta(event.delta or _DeltaPart(), event.index or 0)
        if kind in ("step.start", "content.start"):
            return self._start(event.step or event.content or _Step(), event.index or 0)
        if kind in ("step.stop", "content.stop"):
            return self._stop(event.index or 0)
        if event.interaction is not None:
            return _interaction(
                event.interaction, created=kind in ("interaction.created", "interaction.start")
            )
        return DecodedEvent(kind="progress" if kind.startswith(_NAMES) else "other")

    def read_body(self, body: bytes) -> list[DecodedEvent]:
        whole = decode_or_none(_whole, body)
        if whole is None or (whole.error and not whole.status):
            return [failed_event("", body)]
        delta = joined(map(_whole_step, whole.steps or whole.outputs or (), count()))
        return [DecodedEvent(kind="text", deltas=[delta]), _interaction(whole)]

    def _delta(self, delta: _DeltaPart, index: int) -> DecodedEvent | TextDelta:
        if delta.type == "text" and delta.text:
            return TextDelta("text", delta.text)
        if delta.type in ("thought_summary", "thought"):
            thought = delta.content.get("text") if isinstance(delta.content, dict) else delta.text
            return text_event(string_of(thought), "reasoning")
        if delta.type in ("arguments_delta", "function_call"):
            arguments = arguments_of(delta.arguments or "")
            tool_call = ToolCallDelta(index, delta.id or "", delta.name or "", arguments)
            if arguments:
                self._bare_calls.discard(index)
            return tool_call_event(tool_call)
        if delta.type == "audio" and delta.data:
            return DecodedEvent(kind="audio", deltas=[ChoiceDelta(audio_data_chars=len(delta.data))])
        if delta.type == "image" and delta.data:
            return DecodedEvent(kind="image", deltas=[ChoiceDelta(images=1)])
        return DecodedEvent(kind="annotation")

    def _start(self, step: _Step, index: int) -> DecodedEvent:
        if step.type != "function_call":
            return DecodedEvent(kind="start")
        arguments = arguments_of(step.arguments or "")
        if not arguments:
            self._bare_calls.add(index)
        return tool_call_event(ToolCallDelta(index, step.id or "", step.name or "", arguments))

    def _stop(self, index: int) -> DecodedEvent:
        if index not in self._bare_calls:
            return DecodedEvent(kind="annotation")
        self._bare_calls.discard(index)
        return tool_call_event(ToolCallDelta(index, inserted_json="{}"))


def _whole_step(step: _WholeStep, key: int) -> ChoiceDelta:
    if step.type in ("text", "model_output"):
        return ChoiceDelta(text=(step.text or "") + _joined(step.content))
    if step.type == "thought":
        return ChoiceDelta(reasoning=_joined(step.summary))
    if step.type == "function_call":
        arguments = compact(step.arguments or {})
        return ChoiceDelta(tool_calls=[ToolCallDelta(key, step.id or "", step.name or "", arguments)])
    return ChoiceDelta()


def _usage(raw: Any) -> Usage | None:
    usage = usage_in(
        raw,
        "total_input_tokens",
        "total_output_tokens",
        reasoning_tokens="total_thought_tokens",
        cached_input_tokens="total_cached_tokens",
    )
    if usage is None:
        return None
    if usage.reasoning_tokens is not None:
        usage.output_tokens = (usage.output_tokens or 0) + usage.reasoning_tokens
    tool_use = whole_number(raw.get("total_tool_use_tokens"))
    if tool_use is not None:
        usage.input_tokens = (usage.input_tokens or 0) + tool_use
    return usage


def _joined(parts: Any) -> str:
    """The text of all parts of a step."""
    return "".join(string_of(member_of(part, "text")) for part in parts) if isinstance(parts, list) else ""


def _interaction(interaction: _Interaction, *, created: bool = False) -> DecodedEvent:
    event = DecodedEvent(
        kind="start" if created else "progress",
        usage=_usage(interaction.usage),
        response_id=interaction.id,
        model=interaction.model,
        billing={"service_tier": term(interaction.service_tier)},
    )
    if not created:
        add_final_status(event, interaction.status, interaction.error)
    return event


_claims = by_path(r"/interactions(/|$)")
DIALECT = Dialect("gemini_interactions", "gcp.gemini", "chat", _claims, _recognises, InteractionsReader)
