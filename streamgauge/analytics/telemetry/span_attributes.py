"""Attributes of the operation span, from a stream's row and request. Pure.

A column that is NULL has no attribute. Names are the conventions' (`streamgauge.analytics.telemetry.semconv`) or `streamgauge.*`. Text is
included only if it was captured and content export is enabled.

`prompt_of` converts a captured request body to the conventions' input messages and system instructions, and never raises. It
reads requests of OpenAI (chat, completions, Responses), Anthropic, Gemini and compatible APIs. Non-text parts (images, files)
are reduced to their kind. A truncated or invalid body has no messages.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, cast

import msgspec

from streamgauge.analytics.assembly.finished_stream import FinishedStream
from streamgauge.analytics.decoding.decoded_body import DecodedBody
from streamgauge.analytics.dialects.mcp import METHODS as MCP_METHODS
from streamgauge.analytics.measures.outcome import LOST
from streamgauge.analytics.schema.dimensions import WEBSOCKET
from streamgauge.analytics.schema.outcomes import NOT_ERRORS, OK
from streamgauge.analytics.schema.stream_columns import (
    ATTRIBUTE,
    CONVENTION,
    Attribute,
    StreamRow,
    values_of,
    with_hint,
)
from streamgauge.analytics.telemetry import semconv

MAX_CHOICES = 32

Row = StreamRow
Attributes = dict[str, Any]

_OWN = {
    **{name: attribute.name for name, attribute in values_of(Attribute).items()},
    **{c: semconv.NAMESPACE + c.removesuffix("_ns").replace("icl_p", "icl.p") for c in with_hint(ATTRIBUTE)},
}
"""Column → attribute that is the same in all profiles."""


def failed(row: Row) -> bool:
    """Whether the upstream failed. A client abort or a lost stream is not an error of the operation."""
    outcome = row["outcome"]
    return outcome not in NOT_ERRORS


class SpanAttributes:
    """Builds the attributes of operations."""

    def __init__(self, names: semconv.Names, *, content: bool = False) -> None:
        self._names, self._content = names, content
        named = [(column, name) for column in with_hint(CONVENTION) for name in names.every(column)]
        self._columns = [(*one, one[0].endswith("_ns")) for one in (*named, *_OWN.items())]

    def of(self, stream: FinishedStream, row: Row) -> Attributes:
        names, get = self._names, cast("Mapping[str, Any]", row).get
        found: Attributes = {
            names.operation: semconv.operation_name(row["operation"]),
            names.provider: row["provider"] or "unknown",
            semconv.NAMESPACE + "stream_id": stream.stream_id,
        }
        for column, attribute, is_time in self._columns:
            value = get(column)
            if value is not None:
                found[attribute] = value / 1e9 if is_time else value
        ttfc_ns = row["ttfc_ns"]
        if ttfc_ns is not None and row["streamed"] is not False:
            found[names.time_to_first_chunk] = ttfc_ns / 1e9
        if api_type := semconv.openai_api_type(row["dialect"], row["path"]):
            found[names.openai_api_type] = api_type
        if row["transport"] == WEBSOCKET:
            found["network.protocol.name"] = WEBSOCKET
        if row["operation"] in MCP_METHODS:
            found["mcp.method.name"] = row["operation"]
            if stream.conversation is not None and stream.conversation.tool:
                found[names.tool_name] = stream.conversation.tool
        if row["parent_session_id"]:
            found[names.agent_id] = row["session_id"]
        if failed(row):
            found["error.type"] = row["error_type"] or row["outcome"]
        if row["aborted_after_terminal"]:
            found[semconv.NAMESPACE + "aborted_after_terminal"] = True
        if row["malformed_events"]:
            found[semconv.NAMESPACE + "malformed_events"] = row["malformed_events"]
        body = stream.body
        if (
            body is not None
            and row["outcome"] != LOST.outcome
            and (reasons := self._finish_reasons(body, row))
        ):
            found[names.finish_reasons] = reasons
        self._add_request(found, stream)
        if self._content and stream.capture_content:
            self._add_content(found, stream)
        return found

    def _finish_reasons(self, body: DecodedBody, row: Row) -> list[str] | None:
        """One per choice. A missing reason is omitted or replaced by the profile's value."""
        missing = self._names.missing_finish_reason if row["outcome"] != OK else None
        found = [reason for choice in body.choices if (reason := choice["finish_reason"] or missing)]
        return found[:MAX_CHOICES] or ([missing] if missing else None)

    def _add_request(self, found: Attributes, stream: FinishedStream) -> None:
        request, names = stream.request, self._names
        for name, attribute in semconv.REQUEST_PARAMETERS.items():
            value = getattr(request, name)
            if value is not None:
                found[attribute] = value
        if request.n is not None and request.n != 1:
            found[names.choice_count] = request.n
        top_k = semconv.REQUEST_PARAMETERS["top_k"]
        if names.whole_top_k and top_k in found:
            if found[top_k] == int(found[top_k]):
                found[top_k] = int(found[top_k])
            else:
                del found[top_k]
        if request.output_type is not None:
            found[names.output_type] = request.output_type
        previous = stream.conversation.previous_response_id if stream.conversation is not None else None
        for field, value in (
            ("reasoning_level", request.reasoning_effort),
            ("previous_response_id", previous),
        ):
            if value is not None:
                found |= dict.fromkeys(names.every(field), value)
        if request.service_tier not in (None, "auto") and names.openai_api_type in found:
            found[names.openai_service_tier] = request.service_tier

    def _add_content(self, found: Attributes, stream: FinishedStream) -> None:
        names, prompt = self._names, prompt_of(stream.request_body or b"")
        if prompt.messages is not None:
            found[names.input_messages] = prompt.messages
        if prompt.system_instructions is not None:
            found[names.system_instructions] = prompt.system_instructions
        if stream.body is not None:
            found[names.output_messages] = _output_messages(stream.body.choices)


def _output_messages(choices: Sequence[Mapping[str, Any]]) -> str:
    """Captured output as JSON in the format of `gen_ai.output.messages`."""
    messages = []
    for choice in choices:
        parts: list[dict[str, Any]] = []
        if choice["reasoning"]:
            parts.append({"type": "reasoning", "content": choice["reasoning"]})
        if choice["text"] or choice["refusal"]:
            parts.append({"type": "text", "content": choice["text"] or choice["refusal"]})
        parts += [
            {"type": "tool_call", "id": t["id"], "name": t["name"], "arguments": t["arguments"]}
            for t in choice["tool_calls"]
        ]
        messages.append({"role": "assistant", "parts": parts, "finish_reason": choice["finish_reason"] or ""})
    return json.dumps(messages, ensure_ascii=False)


MAX_MESSAGES = 1_000
_ROLES = {"model": "assistant", "developer": "system", "function": "tool"}

Part = dict[str, Any]


class Prompt(NamedTuple):
    """Messages and instructions as JSON. None: there are none."""

    messages: str | None = None
    system_instructions: str | None = None


def prompt_of(body: bytes) -> Prompt:
    """The prompt in a complete request body."""
    try:
        request = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return Prompt()
    if not isinstance(request, dict):
        return Prompt()
    system = (
        request.get("system") or request.get("instructions") or _get(request, "systemInstruction", "parts")
    )
    messages = next(
        (request[name] for name in ("messages", "contents", "input", "prompt") if request.get(name)), None
    )
    if isinstance(messages, str) or (
        isinstance(messages, list) and all(isinstance(one, str) for one in messages)
    ):
        messages = [{"role": "user", "content": messages}]
    converted = list(_input_messages(messages[:MAX_MESSAGES])) if isinstance(messages, list) else []
    return Prompt(_json(converted), _json(list(_parts(system))))


def _input_messages(messages: list[Any]) -> Iterator[dict[str, Any]]:
    for one in messages:
        if not isinstance(one, dict):
            continue
        kind, role = one.get("type"), one.get("role")
        if kind == "function_call":  # the Responses API lists calls and results among its messages
            yield {
                "role": "assistant",
                "parts": [_call(one.get("call_id"), one.get("name"), one.get("arguments"))],
            }
        elif kind == "function_call_output":
            yield {"role": "tool", "parts": [_answer(one.get("call_id"), one.get("output"))]}
        elif role == "tool":
            yield {"role": "tool", "parts": [_answer(one.get("tool_call_id"), one.get("content"))]}
        else:
            parts = list(_parts(one.get("content", one.get("parts"))))
            calls = one.get("tool_calls")
            parts += [_function_call(call) for call in calls] if isinstance(calls, list) else []
            role = role if isinstance(role, str) else "user"
            yield {"role": _ROLES.get(role, role), "parts": parts}


def _parts(content: Any) -> Iterator[Part]:
    if isinstance(content, str):
        yield _text(content)
    elif isinstance(content, list):
        for one in content:
            if isinstance(one, str):
                yield _text(one)
            elif isinstance(one, dict):
                yield _part(one)


def _part(one: dict[str, Any]) -> Part:
    kind = one.get("type")
    if kind == "tool_use":
        return _call(one.get("id"), one.get("name"), one.get("input"))
    if kind == "tool_result":
        return _answer(one.get("tool_use_id"), one.get("content"))
    if kind == "thinking" and isinstance(one.get("thinking"), str):
        return {"type": "reasoning", "content": one["thinking"]}
    if isinstance(one.get("text"), str):
        return _text(one["text"])
    if isinstance(call := one.get("functionCall"), dict):
        return _call(None, call.get("name"), call.get("args"))
    if isinstance(answer := one.get("functionResponse"), dict):
        return _answer(None, answer.get("response"))
    return {"type": kind if isinstance(kind, str) else next(iter(one), "unknown")}


def _text(text: str) -> Part:
    return {"type": "text", "content": text}


def _call(call_id: Any, name: Any, arguments: Any) -> Part:
    return {"type": "tool_call", "id": call_id, "name": name, "arguments": arguments}


def _function_call(call: Any) -> Part:
    return _call(_get(call, "id"), _get(call, "function", "name"), _get(call, "function", "arguments"))


def _answer(call_id: Any, response: Any) -> Part:
    return {"type": "tool_call_response", "id": call_id, "response": response}


def _get(value: Any, *path: str) -> Any:
    for name in path:
        value = value.get(name) if isinstance(value, dict) else None
    return value


def _json(found: list[Any]) -> str | None:
    try:
        return msgspec.json.encode(found).decode() if found else None
    except (UnicodeError, RecursionError):
        return None
