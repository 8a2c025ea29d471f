"""The rules of clients that read events of Anthropic's Messages."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from streamgauge.analytics.decoding.client_checks.base import (
    DECODE_JSON,
    ClientChecks,
    is_true,
    is_whole,
    list_of,
)
from streamgauge.analytics.dialects.tolerant_json import FAULTS, member_of, string_of
from streamgauge.analytics.schema.strict_clients import MESSAGES

_TEXT_OF = {
    "text_delta": ("text", "text"), "thinking_delta": ("thinking", "thinking"), "compaction_delta": ("compaction", "content"),
}  # fmt: skip
"""Delta → the type of its block, and its member."""
_TOOLS = ("tool_use", "server_tool_use")
_OF_TEXT = ("text", "compaction")
_OPENS = {"text": _OF_TEXT, "compaction": _OF_TEXT, "thinking": ("thinking", "redacted_thinking")}
"""Text of a type → the blocks that the AI SDK adds it to."""


class MessagesChecks(ClientChecks):
    """Events of Anthropic's Messages."""

    dialect = MESSAGES
    _message_id: Any = None
    _started = _open = _stopped = _finished = _early_finish = False
    _content = False
    """`content` of `message_start` is a list."""

    def __init__(self) -> None:
        super().__init__()
        self._blocks: list[Any] = []
        """Types of the blocks in the order of their starts, which is the index of the SDKs."""
        self._places: dict[int, int] = {}  # index → place in `_blocks`
        self._without_text: set[int] = set()  # places of blocks that started without a text
        self._active: dict[int, Any] = {}
        """Index of a block that has not stopped → its type, as the AI SDK keeps it."""
        self._early: set[int] = set()  # blocks that started before the message
        self._with_input: set[int] = set()  # indices with a part of an input
        self._reused: set[int] = set()  # of them, those of another block since
        self._skipped: defaultdict[int, list[str]] = defaultdict(list)
        """Index → parts of the input that the SDKs skip."""
        self._late: set[int] = set()  # blocks that stopped before a part of their input
        self._after_stop: set[str] = set()  # kinds of events after the last `message_stop`

    def lacks(self, arguments: Mapping[Any, str]) -> dict[str, Any]:
        faults = [_json_fault(self._read_input(*of)) for of in arguments.items() if self._is_tool(of[0])]
        return {
            "missing_message_stop": not self._stopped,
            "missing_message_start": not self._started or (self._early_finish and not self._finished),
            "unstopped_tool": "tool_use" in self._active.values(),
            "delta_after_block": any(not _json_fault(arguments.get(index, "]")) for index in self._late),
            "finish_after_stop": "message_delta" in self._after_stop,
            "content_after_stop": "content_block_delta" in self._after_stop,
            "malformed_input": any(faults),
            "unparsable_input": any(of and "trailing" not in of and "','" not in of for of in faults),
        }

    def _read_input(self, index: int, text: str) -> str:
        """The input of a tool call without the parts that the SDKs skip."""
        for part in self._skipped[index]:
            text = text.replace(part, "", 1)
        return text

    def _is_tool(self, index: Any) -> bool:
        """Whether the SDKs add deltas of this index to a tool call."""
        return self._places.get(index) == index and self._blocks[index] in _TOOLS

    def _accepts(self, name: str, event: Any) -> bool:
        """Accept a message in the order that the API documents: each block at the next index, and its deltas while it is open."""
        kind = event.__struct_config__.tag
        if self._stopped or self._started == (kind == "message_start") or not name:
            return False
        if kind == "message_start":
            return self._accepts_start(event.message)
        if kind == "message_delta":
            self._finished |= bool(event.delta.stop_reason)
            return bool(event.delta.stop_reason) and not isinstance(event.usage.input_tokens, float)
        if kind == "message_stop":
            self._stopped, self._open = not self._active, bool(self._active)
            return self._stopped
        return kind != "ping" and self._accepts_block(kind, event)

    def _accepts_start(self, message: Any) -> bool:
        if message.content or self._places:
            return False
        self._started = self._open = True
        self._content = message.content == []
        self._message_id = message.id or None
        return True

    def _accepts_block(self, kind: str, event: Any) -> bool:
        index = int(event.index)
        if index != event.index:
            return False
        if kind == "content_block_start":
            if index != len(self._blocks):
                return False
            self.add_if(start_without_content=not self._content)
            self._places[index], self._active[index] = index, event.content_block.__struct_config__.tag
            self._blocks.append(self._active[index])
            return True
        if index not in self._active or self._places.get(index) != index or index in self._without_text:
            return False
        of = self._active[index]
        if kind == "content_block_stop":
            del self._active[index]
            return True
        delta = event.delta.__struct_config__.tag
        if delta == "input_json_delta":
            self._with_input.add(index)
            return of in _TOOLS
        return delta in _TEXT_OF and _TEXT_OF[delta][0] == of

    def event(self, name: str, value: dict[str, Any]) -> None:
        kind = value.get("type")
        self.add_if(wrong_type=self._typed is None and isinstance(kind, str))
        if not isinstance(kind, str):
            self.add("missing_type")
            self._skip(value.get("index"), value.get("delta"))
            return
        if kind == "ping":
            return
        if self._stopped and not (kind == "message_delta" and self._finished):
            self._after_stop.add(kind)
        self.add_if(missing_event_name=not name)
        if kind == "message_start":
            self._start(value.get("message"))
        elif kind[:13] == "content_block":
            self._block(kind, value)
        elif kind == "message_delta":
            self._message_delta(value.get("delta"), value.get("usage"))
        elif kind == "message_stop":
            self._stopped, self._open = True, False
            self._after_stop.clear()
            self.add_if(unstopped_block=any(of != "tool_use" for of in self._active.values()))
        else:
            self.add("foreign_event")

    def _start(self, message: Any) -> None:
        message_id, usage = member_of(message, "id"), member_of(message, "usage")
        self.add_if(
            repeated_message_start=self._started,
            second_message=self._open and message_id != self._message_id,
            message_without_usage=not isinstance(usage, dict),
            start_without_usage=member_of(usage, "input_tokens") is None,
        )
        if not self._started:
            content = member_of(message, "content")
            self._blocks = [member_of(block, "type") for block in list_of(content)]
            self._content = isinstance(content, list)
            self._early, self._places = set(self._places), {}
        self._started = self._open = True
        self._message_id = message_id

    def _message_delta(self, delta: Any, usage: Any) -> None:
        reason, count = member_of(delta, "stop_reason"), member_of(usage, "input_tokens")
        if not self._started:
            self._early_finish = True
            return
        self.add_if(
            missing_delta=not isinstance(delta, dict),
            null_delta=delta is None or usage is None,
            delta_without_usage=not isinstance(usage, dict),
            uncounted_delta=isinstance(usage, dict) and usage.get("output_tokens") is None,
            finish_overwritten=self._finished and not reason,
            wrong_count=count is not None and type(count) is not int,
        )
        self._finished = bool(reason)

    def _block(self, kind: str, value: dict[str, Any]) -> None:
        index = value.get("index")
        if kind == "content_block_start":
            self._block_start(index if is_whole(index) else None, value.get("content_block"))
        elif not is_whole(index):
            self.add("block_without_index")
            self._skip(0, value.get("delta"))
        elif kind == "content_block_delta":
            self._delta(index, value.get("delta"))
        else:
            self.add_if(
                stop_without_block=self._started and not -len(self._blocks) <= index < len(self._blocks)
            )
            self._active.pop(index, None)

    def _block_start(self, index: int | None, block: Any) -> None:
        kind = member_of(block, "type")
        self.add_if(
            start_without_content=self._started and not self._content,
            start_without_block=not isinstance(block, dict),
            missing_message_start=not self._started and kind == "tool_use",
            reopened_tool=index is not None and self._active.get(index) == "tool_use",
        )
        if kind in ("text", "thinking") and not isinstance(text := block.get(kind), str):
            self.add_if(block_without_text=True, block_without_thinking=is_true(text) and text != [])
            self._without_text.add(len(self._blocks))
        if index is not None:
            if index in self._with_input:
                self._reused.add(index)
            self._places[index] = len(self._blocks)
            self._active[index] = kind
        self._blocks.append(kind)

    def _delta(self, index: int, delta: Any) -> None:
        kind, place = member_of(delta, "type"), self._places.get(index)
        count = len(self._blocks)
        read_from = self._blocks[index] if -count <= index < count else None
        self.add_if(
            missing_delta=not isinstance(delta, dict),
            null_delta=delta is None,
            delta_without_type=isinstance(delta, dict) and not isinstance(kind, str),
            delta_without_block=self._started and not -count <= index < count,
            delta_before_blocks=self._started and not count,
            missing_message_start=(place is None and index in self._early)
            if self._started
            else place is not None,
        )
        text: Any = ""
        of: tuple[str, ...] = ()
        if kind == "input_json_delta":
            text, of = delta.get("partial_json"), _TOOLS
            if place is not None and index not in self._active:
                self._late.add(index)
        elif isinstance(kind, str) and kind in _TEXT_OF:
            block, member = _TEXT_OF[kind]
            text, of = delta.get(member), (block,)
            if self._active.get(index) not in _OPENS[block]:  # the AI SDK has no open block for it
                was_open = place is not None and index not in self._active and self._blocks[place] == block
                self.add("delta_after_block" if was_open else "inactive_block")
        elif kind == "signature_delta":
            self.add_if(inactive_block=self._active.get(index) not in _OPENS["thinking"])
        if not self._started or of != _TOOLS:
            self._skip(index, delta)
        carried = place is not None and self._blocks[place] in of
        reads = read_from in of
        self.add_if(
            text_not_string=reads and of != _TOOLS and not isinstance(text, str) and text != [],
            unjoined_text=reads and not isinstance(text, str),
            block_index_gap=carried and place != index and (not reads or index in self._reused),
            block_without_thinking=reads and read_from == "thinking" and index in self._without_text,
        )
        if of == _TOOLS:
            self._with_input.add(index)

    def _skip(self, index: Any, delta: Any) -> None:
        """See a part of an input that the SDKs skip. Without an index, the accumulator takes it for the first block."""
        self._skipped[index if is_whole(index) else 0].append(string_of(member_of(delta, "partial_json")))


def _json_fault(text: str) -> str:
    """What makes a text neither JSON nor the start of it; "" if it is."""
    try:
        DECODE_JSON(text or "{}")
    except (*FAULTS, UnicodeEncodeError) as e:
        return "" if "truncated" in str(e) else str(e)
    return ""
