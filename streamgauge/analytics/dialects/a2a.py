"""Agent2Agent protocol, 0.3 and 1.0: JSON-RPC and REST, as SSE or as one JSON body. Both versions have the operations of 1.0.

Each event is a task, a message, a change of a task's status, or a part of an artifact. The texts and data of artifacts and messages are
output. The message of a status that is not final reports progress: it counts as reasoning, and not in `reasoning_chars`.

A stream ends with a message, or with a state in which the agent does not work: the finish reason. `failed` and `rejected` are errors.
`canceled` is none, and neither is a state in which the task waits for input or authentication. A stream that ends in another state is
truncated: the agent hung up. The state of a task that is only read or cancelled is no result of that request.

Systems:

| A2A, JSON-RPC and REST | `a2a` | `a2a` | `/message:stream`, `/v1/message:stream`, `/v1/message:send`, `/tasks/7:subscribe` | none |
    a message, or a final or interrupted state; failed and rejected are errors |
"""

from __future__ import annotations

import re
from typing import Annotated, Any

import msgspec

from streamgauge.analytics.dialects import kept
from streamgauge.analytics.dialects.dialect import Dialect, ExchangeInfo
from streamgauge.analytics.dialects.events import ChoiceDelta, DecodedEvent, ErrorReport, EventKind
from streamgauge.analytics.dialects.json_reader import JSONReader
from streamgauge.analytics.dialects.tolerant_json import compact

ANSWERS = ("SendMessage", "SendStreamingMessage", "SubscribeToTask")
"""Operations whose response is the agent's answer."""
_METHODS = {
    # of 0.3 → of 1.0
    "message/send": "SendMessage", "message/stream": "SendStreamingMessage", "tasks/resubscribe": "SubscribeToTask",
    "tasks/get": "GetTask", "tasks/list": "ListTasks", "tasks/cancel": "CancelTask",
    **{f"tasks/pushNotificationConfig/{verb}": f"{name}TaskPushNotificationConfig{end}" for verb, name, end in (
        ("set", "Create", ""), ("get", "Get", ""), ("list", "List", "s"), ("delete", "Delete", ""))},
    "agent/getAuthenticatedExtendedCard": "GetExtendedAgentCard",
}  # fmt: skip
METHODS = frozenset(_METHODS.values())
_SHARED_METHODS = frozenset(("tasks/get", "tasks/list", "tasks/cancel"))
"""Of MCP, too."""
_PATH = re.compile(r"/(message:send|message:stream|tasks/[^/]+?(:subscribe|:cancel|))$")
_BY_PATH = {
    "message:send": "SendMessage", "message:stream": "SendStreamingMessage", ":subscribe": "SubscribeToTask", ":cancel": "CancelTask",
    "": "GetTask",
}  # fmt: skip
_VERSION = "a2a-version"
_FAILURES = ("failed", "rejected")
_ENDS = frozenset((*_FAILURES, "completed", "canceled", "input-required", "auth-required"))


class _File(msgspec.Struct):
    bytes: str | None = None
    mimeType: Annotated[str | None, kept.MEDIA_TYPE] = None


class _Part(msgspec.Struct):
    text: str | None = None
    data: Any = None
    raw: str | None = None
    mediaType: Annotated[str | None, kept.MEDIA_TYPE] = None
    file: _File | None = None


class _Parts(msgspec.Struct):
    """A message or an artifact."""

    parts: list[_Part] | None = None
    content: list[_Part] | None = None
    """Those of a message of REST in 0.3."""


class _Status(msgspec.Struct):
    state: kept.Name = None
    message: _Parts | None = None


class _Update(_Parts):
    """An event. That of 0.3 over JSON-RPC has a `kind`, others are in the member of their kind."""

    id: Annotated[Any, kept.WORD] = None
    """Of a task, or of a message of JSON-RPC."""
    taskId: kept.Id = None
    kind: kept.Name = None
    status: Annotated[_Status | None, kept.NAME] = None
    artifacts: list[_Parts] | None = None
    artifact: _Parts | None = None
    task: _Update | None = None
    message: _Update | None = None
    statusUpdate: _Update | None = None
    artifactUpdate: _Update | None = None


class _Event(_Update):
    type: kept.Title = None
    error: None = None
    result: _Update | None = None


def _operation(exchange: ExchangeInfo) -> str | None:
    if method := exchange.rpc_method:
        return method if method in METHODS else _METHODS.get(method)
    found = _PATH.search(exchange.route)
    operation = _BY_PATH[found[1] if found[2] is None else found[2]] if found else None
    # Other APIs have tasks, too.
    return operation if operation != "GetTask" or _VERSION in exchange.request_headers else None


def _claims(exchange: ExchangeInfo) -> int:
    has_version = _VERSION in exchange.request_headers
    if exchange.rpc_method in _SHARED_METHODS and not has_version:
        return 3
    return 10 if has_version or _operation(exchange) else 0


def _recognises(name: str, data: bytes) -> int:
    head = data[:400].replace(b" ", b"")
    marks = (
        b'{"statusUpdate":{',
        b'{"artifactUpdate":{',
        b'"kind":"status-update"',
        b'"kind":"artifact-update"',
    )
    return 8 if any(mark in head for mark in marks) else 0


class A2AReader(JSONReader, event=_Event):
    """Decodes one response."""

    def __init__(self, exchange: ExchangeInfo) -> None:
        self.operation = _operation(exchange)
        self._is_answer = self.operation in ANSWERS or (self.operation is None and exchange.method == "POST")

    def event(self, event: _Event, kind: str) -> DecodedEvent:
        found = event.result or event
        message = found.message or (found if found.kind == "message" else None)
        update = message or found.task or found.statusUpdate or found.artifactUpdate or found
        task_id = update.taskId or (update.id if isinstance(update.id, str) else None)
        if not self._is_answer:
            return DecodedEvent(response_id=task_id)
        status = update.status or _Status()
        state = (status.state or "").lower().removeprefix("task_state_").replace("_", "-")
        state = "canceled" if state == "cancelled" else state  # as REST of 0.3 spells it
        ends = state in _ENDS or message is not None
        delta = ChoiceDelta(finish_reason=state if state in _ENDS else None)
        for said in (update, *(update.artifacts or ()), update.artifact, status.message if ends else None):
            for part in _parts(said):
                _add(part, delta)
        told = "".join(part.text or "" for part in _parts(status.message))
        delta.tool_plan = "" if ends else told
        error = ErrorReport(state, told or None) if state in _FAILURES else None
        decoded: EventKind = (
            "terminal" if ends else "progress" if found.kind or update is not found else "other"
        )
        return DecodedEvent(decoded, [delta], error=error, terminal=ends, response_id=task_id)


def _parts(of: _Parts | None) -> list[_Part]:
    return [] if of is None else [*(of.parts or ()), *(of.content or ())]


def _add(part: _Part, delta: ChoiceDelta) -> None:
    delta.text += part.text or ""
    if part.data is not None:
        delta.text += compact(part.data)
    file = part.file or _File(part.raw, part.mediaType)
    media = (file.mimeType or "").partition("/")[0]
    delta.images += media == "image"
    delta.audio_data_chars += len(file.bytes or "") if media == "audio" else 0


DIALECT = Dialect("a2a", "a2a", "a2a", _claims, _recognises, A2AReader)
