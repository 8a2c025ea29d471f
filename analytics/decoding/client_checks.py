"""Find the rules of strict clients that a stream breaks (`streamgauge.analytics.schema.strict_clients`). No I/O, no clock.

Input: the events of one stream with their kinds. Nearly all of them are output, and alike. So only the first
`OUTPUTS_AFTER_OTHERS` after each other event, or after the start of a tool call, are checked, and all other events, up to
`MAX_CHECKED`. Errors inside a stream break no rule, because every client reports them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Literal

import msgspec

from streamgauge.analytics.dialects.events import OUTPUT_KINDS, RawEvent
from streamgauge.analytics.dialects.tolerant_json import FAULTS, json_or_none, member_of
from streamgauge.analytics.schema.strict_clients import CHAT, MESSAGES, RESPONSES, RULES

OUTPUTS_AFTER_OTHERS = 2
MAX_CHECKED = 256

_decode = msgspec.json.Decoder().decode
_NUMBER = (int, float, type(None))
_STRING = (str, type(None))


class ClientChecks:
    """The checks of one stream. A subclass has the rules of one dialect."""

    dialect = ""
    lacks: str | None = None
    """Code of the rule that the stream breaks if it ends now."""
    outputs_left = OUTPUTS_AFTER_OTHERS
    """Output events that are checked before the next other event."""
    _checked = 0
    _done_seen = False  # `[DONE]` was seen

    def __init__(self) -> None:
        self._found: set[str] = set()

    def check(self, events: Sequence[RawEvent], kinds: Sequence[str], chars: Sequence[int]) -> None:
        """Check the next events. `kinds` and `chars`: those of their rows in `events`."""
        left, checked, accepts = self.outputs_left, self._checked, self.accepts
        for event, kind, size in zip(events, kinds, chars, strict=True):
            if kind in OUTPUT_KINDS and (size or kind != "tool_call"):
                if not left:
                    continue
                left -= 1
            else:  # among them a tool call without characters, which begins
                left = OUTPUTS_AFTER_OTHERS
            if kind != "error" and checked <= MAX_CHECKED:
                checked += 1
                if event.data[:1] == b"[" or not accepts(event.data):
                    self._check(event.name, event.data)
        self.outputs_left, self._checked = left, checked

    def violations(self, *, ended: bool, framing: Iterable[str]) -> list[str]:
        """Codes of the broken rules, sorted. `framing`: those that the lines and the usage show. `ended`: the stream is complete."""
        found = self._found.union(framing)
        if ended and self.lacks and self._checked <= MAX_CHECKED:
            found.add(self.lacks)
        return sorted(code for code in found if self.dialect in RULES[code].clients) if found else []

    def accepts(self, data: bytes) -> bool:
        """Whether an event breaks no rule, if that shows without `event`, which costs three times as much."""
        return False

    def add(self, code: str) -> None:
        self._found.add(code)

    def _check(self, name: str, data: bytes) -> None:
        if data[:6] == b"[DONE]":
            self._done_seen = True
            if name:
                self.add("named_done")
            return
        try:
            value = _decode(data)
        except FAULTS:
            if not data.strip():
                self.add("empty_data")
                return
            value = json_or_none(data)
            if value is None and self.dialect == MESSAGES and name in ("", "ping"):
                return  # these clients skip events without a name, and pings
            if value is not None and not _is_utf8(data):
                self.add("invalid_utf8")
        if isinstance(value, dict):
            self.event(name, value)
        else:
            self.add("invalid_json")

    def event(self, name: str, value: dict[str, Any]) -> None:
        """Check one event that is a JSON object."""
        raise NotImplementedError


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


class _Delta(msgspec.Struct, gc=False):
    role: Literal["assistant"] | None = None
    content: str | None = None
    tool_calls: None = None


class _Choice(msgspec.Struct, gc=False):
    index: int
    delta: _Delta


class _Usage(msgspec.Struct, gc=False):
    prompt_tokens: int | float | None = None
    completion_tokens: int | float | None = None
    total_tokens: int | float | None = None


class _Chunk(msgspec.Struct, gc=False):
    """A chunk that breaks no rule."""

    id: Annotated[str, msgspec.Meta(min_length=1)]
    object: Literal["chat.completion.chunk"]
    choices: list[_Choice]
    created: int | float | None = None
    model: str | None = None
    usage: _Usage | None = None
    error: Any = msgspec.UNSET


_decode_chunk = msgspec.json.Decoder(_Chunk).decode


class _Chat(ClientChecks):
    """Chunks of chat completions."""

    dialect = CHAT
    _has_role = False

    def __init__(self) -> None:
        super().__init__()
        self._calls: dict[tuple[int | None, int], tuple[Any, bool]] = {}
        """(choice, index) → id of the call, and whether it has a name."""

    def accepts(self, data: bytes) -> bool:
        # In skipped members, the decoder does not check UTF-8.
        if self._done_seen or not data.isascii():
            return False
        try:
            chunk = _decode_chunk(data)
        except FAULTS:
            return False
        if chunk.error is not msgspec.UNSET:
            return False
        for choice in chunk.choices:
            self._see_role(choice.delta.role)
        return True

    def _see_role(self, role: Any) -> None:
        if role is not None:
            self._has_role, self.lacks = True, None
        elif not self._has_role:
            self.lacks = "missing_role"

    def event(self, name: str, value: dict[str, Any]) -> None:
        choices, usage, chunk_id = value.get("choices"), value.get("usage"), value.get("id")
        is_chunk = value.get("object") == "chat.completion.chunk"
        if not isinstance(choices, list):
            if not self._done_seen:
                self.add("missing_choices" if is_chunk else "foreign_event")
            return
        if self._done_seen:
            self.add("usage_after_done")
        if choices or usage:
            if not is_chunk:
                self.add("wrong_object")
            if not chunk_id:
                self.add("missing_id")
        if "error" in value:
            self.add("null_error")
        if not (
            isinstance(value.get("created"), _NUMBER)
            and isinstance(chunk_id, _STRING)
            and isinstance(value.get("model"), _STRING)
            and (not isinstance(usage, dict) or _are(_NUMBER, usage, _CHAT_COUNTS))
        ):
            self.add("wrong_type")
        for choice in choices:
            if isinstance(choice, dict):
                self._choice(choice)

    def _choice(self, choice: dict[str, Any]) -> None:
        index, delta = choice.get("index"), choice.get("delta")
        if not isinstance(index, int):
            self.add("missing_index" if index is None else "wrong_type")
            index = None
        role = member_of(delta, "role")
        self._see_role(role)
        if not isinstance(delta, dict):
            self.add("missing_delta")
            if choice.get("text"):
                self.add("text_not_string")
            return
        if role not in (None, "assistant"):
            self.add("wrong_role")
        if not isinstance(delta.get("content"), _STRING):
            self.add("text_not_string")
        calls = delta.get("tool_calls")
        for call in calls if isinstance(calls, list) else ():
            if isinstance(call, dict):
                self._tool_call(index, call)

    def _tool_call(self, choice: int | None, call: dict[str, Any]) -> None:
        index, function = call.get("index"), call.get("function")
        if not isinstance(function, dict):
            self.add("tool_call_without_function")
            return
        if not isinstance(function.get("arguments"), _STRING):
            self.add("text_not_string")
        if not isinstance(index, int):
            self.add("tool_call_without_index")
            return
        call_id, name, known = call.get("id") or "", function.get("name"), self._calls.get((choice, index))
        kind = call.get("type")
        if kind not in (None, "function"):
            self.add("wrong_type")
        if known is None:
            if index != sum(of == choice for of, _ in self._calls):
                self.add("tool_index_gap")
            if kind is None:
                self.add("tool_call_without_type")
            if not name:
                self.add("tool_call_without_name")
        elif name and known[1]:
            self.add("tool_index_reused" if call_id not in ("", known[0]) else "repeated_tool_name")
        if known is None or name:
            self._calls[choice, index] = call_id, bool(name)


_CHAT_COUNTS = ("prompt_tokens", "completion_tokens", "total_tokens")


def _are(kinds: tuple[type, ...] | type, value: dict[str, Any], members: Sequence[str]) -> bool:
    """Whether these members are of these types. One that is missing is None."""
    return all(isinstance(value.get(member), kinds) for member in members)


class _Messages(ClientChecks):
    """Events of Anthropic's Messages."""

    dialect = MESSAGES
    lacks: str | None = "missing_message_stop"
    _started = False

    def __init__(self) -> None:
        super().__init__()
        self._open: dict[int, bool] = {}  # block → it has not stopped

    def event(self, name: str, value: dict[str, Any]) -> None:
        kind = value.get("type")
        if not isinstance(kind, str):
            self.add("missing_type")
            return
        if kind == "ping":
            return
        if not name:
            self.add("missing_event_name")
        if kind == "message_start":
            self._start(value.get("message"))
        elif not self._started:
            self.add("missing_message_start")
        self._started = True
        if kind[:13] == "content_block":
            self._block(kind, value)
        elif kind == "message_delta":
            if member_of(value.get("usage"), "output_tokens") is None:
                self.add("delta_without_usage")
        elif kind == "message_stop":
            self.lacks = None
            if any(self._open.values()):
                self.add("unstopped_block")
        elif kind != "message_start":
            self.add("foreign_event")

    def _start(self, message: Any) -> None:
        if self._started:
            self.add("repeated_message_start")
        count = member_of(member_of(message, "usage"), "input_tokens")
        if count is None:
            self.add("start_without_usage")
        elif not isinstance(count, _NUMBER):
            self.add("wrong_type")
        if isinstance(message, dict) and not isinstance(message.get("content"), list):
            self.add("start_without_content")

    def _block(self, kind: str, value: dict[str, Any]) -> None:
        index = value.get("index")
        if not isinstance(index, int):
            self._found |= {"block_index_gap", "wrong_type"}
        elif kind == "content_block_start":
            if index not in self._open and index != len(self._open):
                self.add("block_index_gap")
            self._open[index] = True
            block: Any = value.get("content_block")
            block_type = member_of(block, "type")
            if not isinstance(block_type, str):
                self.add("missing_type")
            elif block_type == "text" and not isinstance(block.get("text"), str):
                self.add("block_without_text")
            elif block_type == "tool_use" and not (
                isinstance(block.get("id"), str) and isinstance(block.get("input", {}), dict)
            ):
                self.add("wrong_type")
        elif kind == "content_block_delta":
            if not self._open.get(index):
                self.add("delta_after_block" if index in self._open else "delta_without_block")
            delta: Any = value.get("delta")
            delta_type = member_of(delta, "type")
            if not isinstance(delta_type, str):
                self.add("missing_type")
            elif delta_type == "text_delta" and not isinstance(delta.get("text"), str):
                self.add("text_not_string")
        elif index in self._open:
            self._open[index] = False


_LIFECYCLE = frozenset({
    "response.created", "response.queued", "response.in_progress", "response.completed", "response.incomplete", "response.failed",
})  # fmt: skip
_CALL = ("id", "call_id", "name", "arguments", "status")
"""Members of a function call that is done."""
_COUNTS = ("input_tokens", "output_tokens", "total_tokens")
_DETAILS = (("input_tokens_details", "cached_tokens"), ("output_tokens_details", "reasoning_tokens"))


class _Responses(ClientChecks):
    """Events of the Responses API."""

    dialect = RESPONSES
    _began = _has_deltas = False
    _response_id: Any = None

    def __init__(self) -> None:
        super().__init__()
        self._items: dict[int, Any] = {}  # output index → id of the item
        self._parts: dict[int | None, int] = {}  # output index → content parts that were added
        # output indices with output and without `response.output_item.done`
        self._undone: set[int | None] = set()

    def event(self, name: str, value: dict[str, Any]) -> None:
        kind, index = value.get("type"), value.get("output_index")
        if not isinstance(kind, str):
            self.add("missing_type")
            return
        if kind[:9] != "response.":
            if kind not in ("keepalive", "error"):
                self.add("foreign_event")
            return
        if not isinstance(index, int):
            index = None
        if not self._began:
            if kind != "response.created":
                self.add("missing_response_created")
            self._response_id = member_of(value.get("response"), "id")
            self._began = True
        if kind in _LIFECYCLE:
            self._lifecycle(kind, value.get("response"))
        elif kind == "response.output_item.added":
            self._added(index, value.get("item"))
        elif kind == "response.output_item.done":
            self._undone.discard(index)
            self._done(index, value.get("item"))
        elif kind == "response.content_part.added":
            count = self._parts.get(index, 0)
            self._parts[index] = count + (value.get("content_index") == count)
        elif kind[-6:] == ".delta":
            self._delta(kind, index, value)
        elif kind == "response.done":
            self.add("missing_response_completed")

    def _lifecycle(self, kind: str, response: Any) -> None:
        if not isinstance(response, dict):
            self.add("incomplete_event")
            response = {}
        response_id, output = response.get("id"), response.get("output")
        if kind == "response.created" and not (
            isinstance(response.get("created_at"), (int, float)) and _are(str, response, ("id", "model"))
        ):
            self.add("incomplete_event")
        if kind == "response.completed" and not response_id:
            self.add("completed_without_id")
        elif response_id != self._response_id:
            self.add("response_id_changes")
        if not isinstance(output, list):
            self.add("missing_output")
            output = [{}]
        if kind != "response.completed":
            return
        if self._undone:
            self.add("missing_item_done")
        if self._items and not output:
            self.add("empty_final_output")
        if not self._has_deltas and any(map(_has_text, output)):
            self.add("text_without_delta")
        self._usage(response.get("usage"))

    def _usage(self, usage: Any) -> None:
        if member_of(usage, "input_tokens") is None:
            self.add("missing_usage")
        if not isinstance(usage, dict):
            return
        details = (member_of(usage[of], k) for of, k in _DETAILS if usage.get(of) is not None)
        if not (_are(int, usage, _COUNTS) and all(isinstance(count, int) for count in details)):
            self.add("incomplete_usage")
        if not _are((int, float), usage, _COUNTS[:2]):
            self.add("incomplete_event")

    def _added(self, index: int | None, item: Any) -> None:
        if index != len(self._items):
            self.add("output_index_gap")
        if not isinstance(item, dict) or index is None:
            self.add("incomplete_event")
            return
        self._items[index] = item.get("id")
        self._undone.add(index)
        kind = item.get("type")
        if not _are(str, item, _CALL[:-1] if kind == "function_call" else ("id",)):
            self.add("incomplete_event")
        if kind == "message" and not isinstance(item.get("content"), list):
            self.add("item_without_content")

    def _done(self, index: int | None, item: Any) -> None:
        if not isinstance(item, dict):
            self.add("incomplete_event")
        elif item.get("type") == "message" and index in self._items and self._items[index] != item.get("id"):
            self.add("item_id_changes")
        elif item.get("type") == "function_call":
            if not _are(str, item, _CALL):
                self.add("incomplete_event")
            if not isinstance(item.get("call_id"), str):
                self.add("call_without_id")

    def _delta(self, kind: str, index: int | None, value: dict[str, Any]) -> None:
        if index not in self._items:
            self.add("item_not_added")
            self._undone.add(index)
        if kind != "response.output_text.delta":
            return
        self._has_deltas = True
        part = value.get("content_index")
        if index in self._items and not (isinstance(part, int) and 0 <= part < self._parts.get(index, 0)):
            self.add("part_not_added")
        if not isinstance(value.get("delta"), str):
            self.add("text_not_string")
        item_id = value.get("item_id")
        if not isinstance(item_id, str):
            self.add("incomplete_event")
        elif index not in self._items or self._items[index] not in (None, item_id):
            self.add("delta_of_other_item")


def _has_text(item: Any) -> bool:
    """Whether an output item is a message with text."""
    parts = member_of(item, "content") if member_of(item, "type") == "message" else None
    return isinstance(parts, list) and any(member_of(part, "text") for part in parts)


CHECKS: dict[str, type[ClientChecks]] = {of.dialect: of for of in (_Chat, _Messages, _Responses)}
"""Dialect → its checks."""
