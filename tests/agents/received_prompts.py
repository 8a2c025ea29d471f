"""The parts of a prompt and their bytes, from a request body as a provider received it. Shares no code with Streamgauge."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

_value_at = json.JSONDecoder().raw_decode
_blank = re.compile(r"[\s,:]*").match


class Part(NamedTuple):
    """`message`: its number, −1 before the messages. `size`: bytes as they stand in the body; of a text, without its quotes."""

    kind: str
    name: str | None
    message: int
    size: int


def received(entry: Mapping[str, Any], log: Mapping[str, Mapping[str, Any]]) -> list[Part]:
    """The parts in the order in which a model reads them, without the parameters: tools, system text, messages. Where the provider keeps
    the earlier messages (`log`: entries by the id of the request), also these and its answer to them."""
    read = next(read for end, read in _DIALECTS.items() if end in entry["path"])
    own = list(read(_members(entry["body"])))
    continued = json.loads(entry["body"]).get("previous_response_id")
    if continued is None:
        return own
    before = log[continued.removeprefix("resp_")]
    kept = [part for part in received(before, log) if part.message >= 0]
    if not before["warm_up"]:
        kept.append(Part("other", None, message_count(kept), before["output_chars"]))
    first = message_count(kept)
    return (
        [part for part in own if part.message < 0]
        + kept
        + [part._replace(message=part.message + first) for part in own if part.message >= 0]
    )


def message_count(parts: Sequence[Part]) -> int:
    return parts[-1].message + 1 if parts else 0


def _members(text: str) -> dict[str, str]:
    """Name → value of an object, as it stands in the body. {} for another value."""
    found, at = dict[str, str](), _after(text, 1)
    while text.startswith("{") and text[at] != "}":
        name, at = _value_at(text, at)
        at = _after(text, at)
        end = _value_at(text, at)[1]
        found[name] = text[at:end]
        at = _after(text, end)
    return found


def _elements(text: str) -> list[str]:
    """Values of an array, as they stand in the body. [] for another value."""
    found, at = list[str](), _after(text, 1)
    while text.startswith("[") and text[at] != "]":
        end = _value_at(text, at)[1]
        found.append(text[at:end])
        at = _after(text, end)
    return found


def _after(text: str, at: int) -> int:
    blank = _blank(text, at)
    return blank.end() if blank else at


def _bytes(text: str) -> int:
    """Size of a value. A string and a block that has only a text count as the text."""
    has = _members(text)
    if "text" in has and has.keys() <= {"type", "text", "cache_control"} and has["text"] != '""':
        text = has["text"]
    return len(text.encode()) - (2 if text.startswith('"') else 0)


def _of(text: str, *names: str) -> Any:
    """A value in nested objects, or None."""
    value = json.loads(text)
    for name in names:
        value = value.get(name) if isinstance(value, dict) else None
    return value


def _blocks(text: str) -> list[str]:
    return _elements(text) if text.startswith("[") else [text]


def _tools(tools: Iterable[str], *place: str, message: int = -1) -> Iterator[Part]:
    for tool in tools:
        yield Part("tool", _of(tool, *place, "name") or _of(tool, "type"), message, _bytes(tool))


def _anthropic(body: dict[str, str]) -> Iterator[Part]:
    yield from _tools(_elements(body.get("tools", "[]")))
    yield from (Part("system", None, -1, _bytes(one)) for one in _blocks(body.get("system", "[]")))
    called = dict[str, str]()
    for number, message in enumerate(_elements(body["messages"])):
        for block in _blocks(_members(message)["content"]):
            kind, name = _of(block, "type") or "text", None
            if kind == "tool_use":
                kind, name = "tool_call", _of(block, "name")
                called[_of(block, "id")] = name
            elif kind == "tool_result":
                name = called[_of(block, "tool_use_id")]
            elif kind == "text" and _of(message, "role") == "system":
                kind = "system"
            yield Part(kind, name, number, _bytes(block))


def _chat(body: dict[str, str]) -> Iterator[Part]:
    yield from _tools(_elements(body.get("tools", "[]")), "function")
    called = dict[str, str]()
    for number, message in enumerate(_elements(body["messages"])):
        has, role = _members(message), _of(message, "role")
        kind = {"system": "system", "developer": "system", "tool": "tool_result"}.get(role, "text")
        name = called[_of(message, "tool_call_id")] if role == "tool" else None
        content = has.get("content", "null")
        yield from (Part(kind, name, number, _bytes(one)) for one in _blocks(content) if one != "null")
        for call in _elements(has.get("tool_calls", "[]")):
            called[_of(call, "id")] = _of(call, "function", "name")
            yield Part("tool_call", _of(call, "function", "name"), number, _bytes(call))


def _responses(body: dict[str, str]) -> Iterator[Part]:
    yield from _tools(_elements(body.get("tools", "[]")))
    if _of(body.get("instructions", "null")):
        yield Part("system", None, -1, _bytes(body["instructions"]))
    called = dict[str, str]()
    for number, item in enumerate(_blocks(body.get("input", "[]"))):
        has, kind = _members(item), _of(item, "type") if item.startswith("{") else None
        if kind == "additional_tools":
            yield from _tools(_elements(has["tools"]), message=number)
        elif kind in (None, "message", "agent_message"):
            is_system = item.startswith("{") and _of(item, "role") in ("system", "developer")
            for block in _blocks(has.get("content", item)):
                is_text = block.startswith('"') or "text" in str(_of(block, "type"))
                yield Part(
                    "system" if is_system else "text" if is_text else "other", None, number, _bytes(block)
                )
        elif kind.endswith("_call"):
            called[_of(item, "call_id")] = _of(item, "name")
            yield Part("tool_call", _of(item, "name"), number, _bytes(item))
        else:
            yield Part("tool_result", called.get(_of(item, "call_id")), number, _bytes(item))


def _gemini(body: dict[str, str]) -> Iterator[Part]:
    for group in _elements(body.get("tools", "[]")):
        yield from _tools(_elements(_members(group)["functionDeclarations"]))
    for part in _elements(_members(body.get("systemInstruction", "{}")).get("parts", "[]")):
        yield Part("system", None, -1, _bytes(part))
    for number, content in enumerate(_elements(body["contents"])):
        for part in _elements(_members(content)["parts"]):
            call = _of(part, "functionCall") or _of(part, "functionResponse")
            kind = "text" if not call else "tool_call" if "functionCall" in _members(part) else "tool_result"
            yield Part(kind, call and call["name"], number, _bytes(part))


_DIALECTS = {
    "/messages": _anthropic,
    "/chat/completions": _chat,
    "/responses": _responses,
    "enerateContent": _gemini,
}
"""Part of a path → what reads its bodies."""
