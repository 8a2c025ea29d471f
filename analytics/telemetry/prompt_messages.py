"""Convert a captured request body to the conventions' input messages and system instructions. Pure; never raises.

Supported are requests of OpenAI (chat, completions, Responses), Anthropic, Gemini and compatible APIs. Non-text parts
(images, files) are reduced to their kind. A truncated or invalid body has no messages. Used only if text is captured and
content export is enabled (`streamgauge.analytics.telemetry.spans`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec

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
    converted = list(_messages(messages[:MAX_MESSAGES])) if isinstance(messages, list) else []
    return Prompt(_json(converted), _json(list(_parts(system))))


def _messages(messages: list[Any]) -> Iterator[dict[str, Any]]:
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
