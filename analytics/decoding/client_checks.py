"""Find the rules of strict clients that a stream breaks (`streamgauge.analytics.schema.strict_clients`). No I/O, no clock.

Input: the events of one stream with their kinds. Nearly all of them are output, and alike. So only the first
`OUTPUTS_AFTER_OTHERS` after each other event, or after the start of a tool call, are checked, and all other events, up to
`MAX_CHECKED`. This costs less than 3 % of the work of a stream (`bench decode`).
Errors inside a stream break no rule, because every client reports them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import msgspec

from streamgauge.analytics.dialects.events import OUTPUT_KINDS, RawEvent
from streamgauge.analytics.dialects.tolerant_json import FAULTS, json_or_none
from streamgauge.analytics.schema.strict_clients import CHAT, MESSAGES, RESPONSES, RULES

OUTPUTS_AFTER_OTHERS = 2
MAX_CHECKED = 256

_decode = msgspec.json.Decoder().decode
_NUMBER = (int, float, type(None))
_STRING = (str, type(None))
_SKIPPED = object()


class ClientChecks:
    """The checks of one stream of one dialect."""

    def __init__(self, dialect: str) -> None:
        self._dialect = dialect
        self._found: set[str] = set()
        rules = _RULES_OF_DIALECT.get(dialect)
        self.active = rules is not None
        """The dialect has rules."""
        self._rules: _Chat | _Messages | _Responses | None = None if rules is None else rules(self._found.add)
        self._outputs_left = OUTPUTS_AFTER_OTHERS
        self._checked = 0

    def check(self, events: Sequence[RawEvent], kinds: Sequence[str], chars: Sequence[int]) -> None:
        """Check the next events. `kinds` and `chars`: those of their rows in `events`."""
        others = [n for n, kind in enumerate(kinds) if kind not in OUTPUT_KINDS]
        if "tool_call" in kinds:  # without characters: a call begins
            begins = (n for n, size in enumerate(chars) if not size and kinds[n] == "tool_call")
            others = sorted([*others, *begins])
        before = 0
        for n in (*others, len(kinds)):
            outputs = min(self._outputs_left, n - before)
            self._outputs_left -= outputs
            for event in events[before : before + outputs]:
                self._check(event)
            before = n + 1
            if n < len(kinds):
                self._outputs_left = OUTPUTS_AFTER_OTHERS
                if kinds[n] != "error":
                    self._check(events[n])

    def violations(self, *, ended: bool, framing: Collection[str]) -> list[str]:
        """Codes of the broken rules, sorted. `framing`: those that the lines and the usage show. `ended`: the stream is complete."""
        if self._rules is not None and ended:
            self._rules.end()
        found = self._found.union(framing)
        return sorted(code for code in found if self._dialect in RULES[code].clients) if found else []

    def _check(self, event: RawEvent) -> None:
        rules, data = self._rules, event.data
        self._checked += 1
        if rules is None or self._checked > MAX_CHECKED:
            return
        try:
            value = self._invalid(event) if data[:6] == b"[DONE]" else _decode(data)
        except FAULTS:
            value = self._invalid(event)
        if isinstance(value, dict):
            rules.event(event.name, value)
        elif value is not _SKIPPED:
            self._found.add("invalid_json")

    def _invalid(self, event: RawEvent) -> Any:
        """The value of JSON that the strict parser rejects, `_SKIPPED` if it is none."""
        data = event.data
        if not data.strip():
            self._found.add("empty_data")
        elif data.startswith(b"[DONE]"):
            if event.name:
                self._found.add("named_done")
            if isinstance(self._rules, _Chat):
                self._rules.done = True
        elif (value := json_or_none(data)) is None:
            # Clients of Messages skip events without a name, and pings.
            if self._dialect != MESSAGES or event.name not in ("", "ping"):
                self._found.add("invalid_json")
        else:
            try:
                data.decode()
            except UnicodeDecodeError:
                self._found.add("invalid_utf8")
            return value
        return _SKIPPED


Add = Callable[[str], None]


class _Chat:
    """Chunks of chat completions."""

    def __init__(self, add: Add) -> None:
        self._add = add
        self.done = False
        """`[DONE]` was seen."""
        self._has_role = self._has_choice = False
        self._calls: dict[tuple[Any, int], tuple[str, bool]] = {}
        """(choice, index) → id of the call, and whether it has a name."""

    def event(self, name: str, value: dict[str, Any]) -> None:
        add, choices = self._add, value.get("choices")
        is_chunk = value.get("object") == "chat.completion.chunk"
        if not isinstance(choices, list):
            if not self.done:
                add("missing_choices" if is_chunk else "foreign_event")
            return
        if self.done:
            add("usage_after_done")
        if choices or value.get("usage"):
            if not is_chunk:
                add("wrong_object")
            if not value.get("id"):
                add("missing_id")
        if "error" in value:
            add("null_error")
        if not (
            isinstance(value.get("created"), _NUMBER)
            and isinstance(value.get("id"), _STRING)
            and isinstance(value.get("model"), _STRING)
        ):
            add("wrong_type")
        usage = value.get("usage")
        if isinstance(usage, dict) and not all(isinstance(usage.get(k), _NUMBER) for k in _CHAT_COUNTS):
            add("wrong_type")
        for choice in choices:
            if isinstance(choice, dict):
                self._choice(choice)

    def end(self) -> None:
        if self._has_choice and not self._has_role:
            self._add("missing_role")

    def _choice(self, choice: dict[str, Any]) -> None:
        add, index, delta = self._add, choice.get("index"), choice.get("delta")
        self._has_choice = True
        if index is None:
            add("missing_index")
        elif not isinstance(index, int):
            add("wrong_type")
        if not isinstance(delta, dict):
            add("missing_delta")
            if choice.get("text"):
                add("text_not_string")
            return
        role = delta.get("role")
        if role is not None:
            self._has_role = True
            if role != "assistant":
                add("wrong_role")
        if not isinstance(delta.get("content"), _STRING):
            add("text_not_string")
        for call in delta.get("tool_calls") or ():
            if isinstance(call, dict):
                self._tool_call(index, call)

    def _tool_call(self, choice: Any, call: dict[str, Any]) -> None:
        add, index, function = self._add, call.get("index"), call.get("function")
        if not isinstance(function, dict):
            add("tool_call_without_function")
            return
        if not isinstance(function.get("arguments"), _STRING):
            add("text_not_string")
        if not isinstance(index, int):
            add("tool_call_without_index")
            return
        call_id, name, known = call.get("id") or "", function.get("name"), self._calls.get((choice, index))
        kind = call.get("type")
        if kind not in (None, "function"):
            add("wrong_type")
        if known is None:
            if index != sum(of == choice for of, _ in self._calls):
                add("tool_index_gap")
            if kind is None:
                add("tool_call_without_type")
            if not name:
                add("tool_call_without_name")
        elif name and known[1]:
            add("tool_index_reused" if call_id not in ("", known[0]) else "repeated_tool_name")
        if known is None or name:
            self._calls[choice, index] = call_id, bool(name)


_CHAT_COUNTS = ("prompt_tokens", "completion_tokens", "total_tokens")


class _Messages:
    """Events of Anthropic's Messages."""

    def __init__(self, add: Add) -> None:
        self._add = add
        self._started = self._stopped = False
        self._open: dict[int, bool] = {}  # block → it has not stopped

    def event(self, name: str, value: dict[str, Any]) -> None:
        add, kind = self._add, value.get("type")
        if not isinstance(kind, str):
            add("missing_type")
            return
        if kind == "ping":
            return
        if not name:
            add("missing_event_name")
        if kind == "message_start":
            self._start(value.get("message"))
        elif not self._started:
            self._started = True
            add("missing_message_start")
        if kind[:13] == "content_block":
            self._block(kind, value)
        elif kind == "message_delta":
            usage = value.get("usage")
            if not isinstance(usage, dict) or usage.get("output_tokens") is None:
                add("delta_without_usage")
        elif kind == "message_stop":
            self._stopped = True
            if any(self._open.values()):
                add("unstopped_block")
        elif kind != "message_start":
            add("foreign_event")

    def end(self) -> None:
        if not self._stopped:
            self._add("missing_message_stop")

    def _start(self, message: Any) -> None:
        add = self._add
        if self._started:
            add("repeated_message_start")
        self._started = True
        usage = message.get("usage") if isinstance(message, dict) else None
        count = usage.get("input_tokens") if isinstance(usage, dict) else None
        if count is None:
            add("start_without_usage")
        elif not isinstance(count, _NUMBER):
            add("wrong_type")
        if isinstance(message, dict) and not isinstance(message.get("content"), list):
            add("start_without_content")

    def _block(self, kind: str, value: dict[str, Any]) -> None:
        add, index = self._add, value.get("index")
        block, delta = value.get("content_block"), value.get("delta")
        if not isinstance(index, int):
            add("block_index_gap")
            add("wrong_type")
            return
        if kind == "content_block_start":
            if index not in self._open and index != len(self._open):
                add("block_index_gap")
            self._open[index] = True
            if not isinstance(block, dict) or not isinstance(block.get("type"), str):
                add("missing_type")
            elif block["type"] == "text" and not isinstance(block.get("text"), str):
                add("block_without_text")
            elif block["type"] == "tool_use" and not (
                isinstance(block.get("id"), str) and isinstance(block.get("input", {}), dict)
            ):
                add("wrong_type")
        elif kind == "content_block_delta":
            if index not in self._open:
                add("delta_without_block")
            elif not self._open[index]:
                add("delta_after_block")
            if not isinstance(delta, dict) or not isinstance(delta.get("type"), str):
                add("missing_type")
            elif delta["type"] == "text_delta" and not isinstance(delta.get("text"), str):
                add("text_not_string")
        elif index in self._open:
            self._open[index] = False


_LIFECYCLE = frozenset({
    "response.created", "response.queued", "response.in_progress", "response.completed", "response.incomplete", "response.failed",
})  # fmt: skip
_CALL = ("id", "call_id", "name", "arguments", "status")
"""Members of a function call that is done."""


class _Responses:
    """Events of the Responses API."""

    def __init__(self, add: Add) -> None:
        self._add = add
        self._began = self._has_deltas = False
        self._response_id: Any = None
        self._items: dict[Any, Any] = {}  # output index → id of the item
        self._parts: dict[Any, int] = {}  # output index → content parts that were added
        self._undone: set[Any] = set()  # output indices with output and without `response.output_item.done`

    def event(self, name: str, value: dict[str, Any]) -> None:
        add, kind, index = self._add, value.get("type"), value.get("output_index")
        if not isinstance(kind, str):
            add("missing_type")
            return
        if kind[:9] != "response.":
            if kind not in ("keepalive", "error"):
                add("foreign_event")
            return
        if not self._began:
            if kind != "response.created":
                add("missing_response_created")
            response = value.get("response")
            self._response_id = response.get("id") if isinstance(response, dict) else None
            self._began = True
        if kind in _LIFECYCLE:
            self._lifecycle(kind, value.get("response"))
        elif kind == "response.output_item.added":
            self._added(index, value.get("item"))
        elif kind == "response.output_item.done":
            self._undone.discard(index)
            self._done(index, value.get("item"))
        elif kind == "response.content_part.added":
            self._parts[index] = self._parts.get(index, 0) + (
                value.get("content_index") == self._parts.get(index, 0)
            )
        elif kind[-6:] == ".delta":
            self._delta(kind, index, value)
        elif kind == "response.done":
            add("missing_response_completed")

    def end(self) -> None:
        """All rules of the end are those of an event."""

    def _lifecycle(self, kind: str, response: Any) -> None:
        add = self._add
        if not isinstance(response, dict):
            add("incomplete_event")
            response = {}
        response_id, output = response.get("id"), response.get("output")
        if kind == "response.created":
            numbers, texts = response.get("created_at"), (response_id, response.get("model"))
            if not isinstance(numbers, (int, float)) or not all(isinstance(t, str) for t in texts):
                add("incomplete_event")
        if kind == "response.completed" and not response_id:
            add("completed_without_id")
        elif response_id != self._response_id:
            add("response_id_changes")
        if not isinstance(output, list):
            add("missing_output")
            output = [{}]
        if kind != "response.completed":
            return
        if self._undone:
            add("missing_item_done")
        if self._items and not output:
            add("empty_final_output")
        if not self._has_deltas and any(map(_has_text, output)):
            add("text_without_delta")
        self._usage(response.get("usage"))

    def _usage(self, usage: Any) -> None:
        add = self._add
        if not isinstance(usage, dict):
            add("missing_usage")
            return
        if usage.get("input_tokens") is None:
            add("missing_usage")
        counts = [usage.get(k) for k in ("input_tokens", "output_tokens", "total_tokens")]
        for details, k in (("input_tokens_details", "cached_tokens"), ("output_tokens_details", "reasoning_tokens")):  # fmt: skip
            found = usage.get(details)
            counts.append(0 if found is None else found.get(k) if isinstance(found, dict) else None)
        if not all(isinstance(count, int) for count in counts):
            add("incomplete_usage")
        if not all(isinstance(count, (int, float)) for count in counts[:2]):
            add("incomplete_event")

    def _added(self, index: Any, item: Any) -> None:
        add = self._add
        if index != len(self._items):
            add("output_index_gap")
        if not isinstance(item, dict) or not isinstance(index, int):
            add("incomplete_event")
            return
        self._items[index] = item.get("id")
        self._undone.add(index)
        kind = item.get("type")
        required = _CALL[:-1] if kind == "function_call" else ("id",)
        if not all(isinstance(item.get(k), str) for k in required):
            add("incomplete_event")
        if kind == "message" and not isinstance(item.get("content"), list):
            add("item_without_content")

    def _done(self, index: Any, item: Any) -> None:
        if not isinstance(item, dict):
            self._add("incomplete_event")
        elif item.get("type") == "message" and index in self._items and self._items[index] != item.get("id"):
            self._add("item_id_changes")
        elif item.get("type") == "function_call":
            if not all(isinstance(item.get(k), str) for k in _CALL):
                self._add("incomplete_event")
            if not isinstance(item.get("call_id"), str):
                self._add("call_without_id")

    def _delta(self, kind: str, index: Any, value: dict[str, Any]) -> None:
        add = self._add
        is_text = kind == "response.output_text.delta"
        if index not in self._items:
            add("item_not_added")
            self._undone.add(index)
        if not is_text:
            return
        self._has_deltas = True
        part, count = value.get("content_index"), self._parts.get(index, 0)
        if index in self._items and not (isinstance(part, int) and 0 <= part < count):
            add("part_not_added")
        if not isinstance(value.get("delta"), str):
            add("text_not_string")
        item_id = value.get("item_id")
        if not isinstance(item_id, str):
            add("incomplete_event")
        elif index not in self._items or self._items[index] not in (None, item_id):
            add("delta_of_other_item")


def _has_text(item: Any) -> bool:
    """Whether an output item is a message with text."""
    parts = item.get("content") if isinstance(item, dict) and item.get("type") == "message" else None
    return isinstance(parts, list) and any(isinstance(part, dict) and part.get("text") for part in parts)


_RULES_OF_DIALECT: dict[str, Callable[[Add], _Chat | _Messages | _Responses]] = {
    CHAT: _Chat,
    MESSAGES: _Messages,
    RESPONSES: _Responses,
}
