"""OpenAI's Assistants (threads and runs, streamed): `thread.run.*`, `thread.run.step.*`, `thread.message.*`, `error`, `done`.

Output: text of thread.message.delta; names, arguments and generated code of thread.run.step.delta (code interpreter and file
search are server-side). The finish reason is the run's final status: `requires_action` and `incomplete` are finishes, `failed`,
`cancelled` and `expired` are errors. The usage is the run's, which includes that of its steps.

Systems:

| OpenAI Assistants | `openai` | `openai_assistants` | `/v1/threads/t/runs`, `/v1/threads/runs` | the run's | the run's final status |
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from streamgauge.analytics.dialects import kept
from streamgauge.analytics.dialects.dialect import Dialect, by_path
from streamgauge.analytics.dialects.error_bodies import add_final_status
from streamgauge.analytics.dialects.events import (
    ChoiceDelta,
    DecodedEvent,
    TextDelta,
    ToolCallDelta,
    tool_call_event,
)
from streamgauge.analytics.dialects.json_reader import Event, JSONReader
from streamgauge.analytics.dialects.openai_delta import Call
from streamgauge.analytics.dialects.usage import usage_of


class _Value(msgspec.Struct):
    value: str | None = None


class _Content(msgspec.Struct):
    type: kept.Title = None
    text: _Value | None = None
    refusal: str | None = None


class _Code(msgspec.Struct):
    input: Annotated[str | None, kept.CONTENT] = None


class _Call(Call):
    code_interpreter: _Code | None = None


class _Details(msgspec.Struct):
    tool_calls: list[_Call] | None = None


class _DeltaPart(msgspec.Struct):
    content: list[_Content] | None = None
    step_details: _Details | None = None


class _Object(Event):
    type: kept.Name = msgspec.field(default=None, name="event")
    """Clients that store events name them so. `type` is that of a step."""
    object: kept.Name = None
    id: kept.Word = None
    model: kept.Name = None
    status: kept.Name = None
    delta: _DeltaPart | None = None
    usage: kept.Report = None
    last_error: Any = None


def _recognises(name: str, data: bytes) -> int:
    return 8 if name.startswith("thread.") else 5 if b'"object":"thread.' in data[:200] else 0


class AssistantsReader(JSONReader, event=_Object):
    """Decodes one stream; identifies a call by its step and index."""

    def event(self, event: _Object, kind: str) -> DecodedEvent | TextDelta:
        name, kind = kind, event.object or kind
        if kind == "thread.message.delta":
            return _message(event.delta)
        if kind == "thread.run.step.delta":
            return _step(event)
        if kind == "thread.run":
            return _run(event)
        if name.endswith(".created"):
            return DecodedEvent(kind="start")
        if not kind.startswith("thread."):
            return DecodedEvent()
        return DecodedEvent(kind="annotation" if name.endswith((".completed", ".incomplete")) else "progress")


def _message(delta: _DeltaPart | None) -> DecodedEvent | TextDelta:
    text = refusal = ""
    for part in (delta.content if delta else None) or ():
        text += (part.text and part.text.value) or ""
        refusal += part.refusal or ""
    if text and not refusal:
        return TextDelta("text", text)
    if refusal:
        return DecodedEvent(kind="refusal", deltas=[ChoiceDelta(text=text, refusal=refusal)])
    return DecodedEvent(kind="annotation")


def _step(event: _Object) -> DecodedEvent:
    details = event.delta.step_details if event.delta else None
    calls: list[ToolCallDelta] = []
    for item in (details.tool_calls if details else None) or ():
        key = f"{event.id}/{item.index or 0}"
        function = item.function
        if function is not None:
            calls.append(ToolCallDelta(key, item.id or "", function.name or "", function.arguments or ""))
        else:
            code = (item.code_interpreter and item.code_interpreter.input) or ""
            calls.append(ToolCallDelta(key, item.id or "", "", code, server_side=True))
    return tool_call_event(*calls)


def _run(run: _Object) -> DecodedEvent:
    event = DecodedEvent(kind="progress", usage=usage_of(run.usage), response_id=run.id, model=run.model)
    add_final_status(event, run.status, run.last_error)
    return event


_claims = by_path(r"/threads(/[^/]+)?/runs(/[^/]+(/submit_tool_outputs)?)?/?$")
DIALECT = Dialect("openai_assistants", "openai", "invoke_agent", _claims, _recognises, AssistantsReader)
