"""Assign the pieces of tool calls in a stream of the OpenAI family to calls.

A call is identified by its index, or by its id where servers send no index (Mistral). Some servers reuse an index: a piece with
another id and a name starts a new call. Without ids (Gemini's OpenAI endpoint), a whole call after a whole call is a new call.
A piece that repeats the id or the name is not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from streamgauge.analytics.dialects.events import ToolCallDelta
from streamgauge.analytics.dialects.openai_chunk_types import Call
from streamgauge.analytics.dialects.tolerant_json import arguments_of


class ToolCallKeys:
    """The calls of one stream, in all choices."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, int | str], tuple[str, str]] = {}  # (choice, index) → (id, key)
        self._last_key: dict[int, str] = {}
        self._whole: set[str] = set()  # keys of calls that came in one piece without an id
        self._generated_keys = 0

    def decode(self, choice: int, calls: Any) -> list[ToolCallDelta] | None:
        """Decode a JSON `tool_calls` of any type."""
        if isinstance(calls, dict):
            calls = [calls]
        if not isinstance(calls, list):
            return None
        return [self._decode_call(choice, call) for call in calls if isinstance(call, dict)] or None

    def decode_arguments(self, choice: int, calls: Sequence[Call]) -> list[ToolCallDelta] | None:
        """Decode arguments of calls that are known by index; None if there is more."""
        deltas: list[ToolCallDelta] = []
        for call in calls:
            function = call.function
            if call.index is None or call.id or function is None or function.name:
                return None
            known = self._known.get((choice, call.index))
            if known is None:
                return None
            deltas.append(ToolCallDelta(known[1], "", "", function.arguments or ""))
            self._last_key[choice] = known[1]
        return deltas

    def _decode_call(self, choice: int, call: dict[str, Any]) -> ToolCallDelta:
        function = call.get("function")
        if not isinstance(function, dict):
            custom = call.get("custom")
            function = custom if isinstance(custom, dict) else call
        call_id, name = text_of(call.get("id")), text_of(function.get("name"))
        arguments = arguments_of(function.get("arguments", function.get("input")))
        index = call.get("index")
        if index is None:
            index = function.get("index")
        if not isinstance(index, (int, str)) or isinstance(index, bool):
            index = None
        whole = bool(name) and not call_id and (arguments[:1], arguments[-1:]) == ("{", "}")
        key = self._key(choice, index, call_id, name, whole=whole)
        self._last_key[choice] = key
        return ToolCallDelta(key, call_id, name, arguments)

    def _key(self, choice: int, index: int | str | None, call_id: str, name: str, *, whole: bool) -> str:
        if index is None:
            if call_id:
                return f"id:{call_id}"
            if not name and choice in self._last_key:
                return self._last_key[choice]
            self._generated_keys += 1
            return f"new:{self._generated_keys}"
        known = self._known.get((choice, index))
        if known is not None and whole and known[1] in self._whole:
            self._generated_keys += 1
            key = f"{index}+{self._generated_keys}"
            self._known[choice, index] = ("", key)
            self._whole.add(key)
            return key
        if known is not None and (not call_id or known[0] in ("", call_id) or not name):
            if call_id and not known[0]:
                self._known[choice, index] = (call_id, known[1])
            return known[1]
        key = f"{index}" if known is None else f"{index}:{call_id}"
        self._known[choice, index] = (call_id, key)
        if whole:
            self._whole.add(key)
        return key


def text_of(value: Any) -> str:
    """The value if it is a string, else ""."""
    return value if isinstance(value, str) else ""
