"""Tell the tool calls of a stream apart, piece by piece.

A call is known by its index. Some servers send none (Mistral): then by its id. Some use an index again for another call: a
piece with another id and a name begins one, and where there are no ids (Gemini's OpenAI endpoint) a whole call after a whole
call does. Some repeat the id, or the name, on every piece: that begins none.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from analytics.decoded.decoded_event import ToolCallDelta
from analytics.decoded.tolerant_json import arguments_of
from analytics.dialects.openai_chunk_types import Call


class Calls:
    """The calls of one stream, all choices."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, int | str], tuple[str, str]] = {}  # (choice, index) → (id, key)
        self._last_key: dict[int, str] = {}
        self._whole: set[str] = set()  # keys of calls that came in one piece and without an id
        self._nameless = 0

    def pieces(self, choice: int, calls: Any) -> list[ToolCallDelta] | None:
        """`tool_calls`, whatever it holds."""
        if isinstance(calls, dict):
            calls = [calls]
        if not isinstance(calls, list):
            return None
        return [self._piece(choice, call) for call in calls if isinstance(call, dict)] or None

    def quick_pieces(self, choice: int, calls: Sequence[Call]) -> list[ToolCallDelta] | None:
        """Arguments of calls that are known by their index already; None where there is more to it."""
        pieces: list[ToolCallDelta] = []
        for call in calls:
            function = call.function
            if call.index is None or call.id or function is None or function.name:
                return None
            known = self._known.get((choice, call.index))
            if known is None:
                return None
            pieces.append(ToolCallDelta(known[1], "", "", function.arguments or ""))
            self._last_key[choice] = known[1]
        return pieces

    def _piece(self, choice: int, call: dict[str, Any]) -> ToolCallDelta:
        function = call.get("function")
        if not isinstance(function, dict):
            custom = call.get("custom")
            function = custom if isinstance(custom, dict) else call
        identity, name = text_of(call.get("id")), text_of(function.get("name"))
        arguments = arguments_of(function.get("arguments", function.get("input")))
        index = call.get("index")
        if index is None:
            index = function.get("index")
        if not isinstance(index, (int, str)) or isinstance(index, bool):
            index = None
        whole = bool(name) and not identity and (arguments[:1], arguments[-1:]) == ("{", "}")
        key = self._key(choice, index, identity, name, whole=whole)
        self._last_key[choice] = key
        return ToolCallDelta(key, identity, name, arguments)

    def _key(self, choice: int, index: int | str | None, identity: str, name: str, *, whole: bool) -> str:
        if index is None:
            if identity:
                return f"id:{identity}"
            if not name and choice in self._last_key:
                return self._last_key[choice]
            self._nameless += 1
            return f"new:{self._nameless}"
        known = self._known.get((choice, index))
        if known is not None and whole and known[1] in self._whole:
            self._nameless += 1
            key = f"{index}+{self._nameless}"
            self._known[choice, index] = ("", key)
            self._whole.add(key)
            return key
        if known is not None and (not identity or known[0] in ("", identity) or not name):
            if identity and not known[0]:
                self._known[choice, index] = (identity, known[1])
            return known[1]
        key = f"{index}" if known is None else f"{index}:{identity}"
        self._known[choice, index] = (identity, key)
        if whole:
            self._whole.add(key)
        return key


def text_of(value: Any) -> str:
    """The string, "" for anything else."""
    return value if isinstance(value, str) else ""
