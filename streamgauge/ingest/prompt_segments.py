"""Puts the segments of a prompt in the order in which the model reads them. Pure; the state is bounded.

The order is: model, settings by name, tools, system text, messages. Within a message: reasoning, content, calls. A result has the tool
name of its call.
"""

from __future__ import annotations

import msgspec

from streamgauge.ingest.identifiers import name as name_of
from streamgauge.ingest.prompt_formats import KINDS_BY_TYPE
from streamgauge.ingest.records import Segment

MAX_SEGMENTS = 2048
"""Maximum number of each of settings, tools, system texts and segments of messages, and of all together."""
MAX_NAME_BYTES = 256
MAX_OPEN_CALLS = 256
"""Calls whose names are kept for their results. The oldest is evicted."""
_RANKS = {"reasoning": 0, "tool_call": 2, "item": 3}
"""Order of the segments of a message. Content has rank 1."""
_SETTING_KINDS = frozenset({"model", "settings"})
_SYSTEM_ROLES, _TOOL_ROLES = frozenset({"system", "developer"}), frozenset({"tool", "function"})
# Typed in the .pxd. Compiled code reads other globals from the module's dict.
_MOST, _MOST_NAME, _MOST_OPEN = MAX_SEGMENTS, MAX_NAME_BYTES, MAX_OPEN_CALLS
_known_names: dict[bytes, str] = {}
"""Names that are stored unhashed. Others may be secrets, and are not cached."""


def _named(raw: bytes) -> str | None:
    found = _known_names.get(raw)
    if found is None and raw:
        text = raw[:_MOST_NAME].decode("utf-8", "replace")
        found = name_of(text)
        if found == text and len(_known_names) < _MOST:
            _known_names[raw] = found
    return found


class PromptSegments:
    """The segments of one body. Names, types, ids and marks are bytes of the body, b"" if there is none."""

    def __init__(self) -> None:
        self.messages_begun = 0
        self.in_message = False
        self._pending: list[tuple[int, str, bytes, int, bytes, bytes]] = []
        """Segments of the open message: rank, kind, name, size, hash, mark."""
        self._last: list[Segment] = []
        """The list that has the last segment."""
        self._calls: dict[bytes, bytes] = {}
        """Id of a call without a result → tool name."""
        self._settings: list[Segment] = []
        self._tools: list[Segment] = []
        self._system: list[Segment] = []
        self._messages: list[Segment] = []
        self._current: list[Segment] = []
        """Cohere's current message."""
        self._left_out = 0

    def all(self, body_mark: bytes) -> tuple[list[Segment], int]:
        """The segments so far, and the number of segments omitted at the end. `body_mark`: the cache mark of the whole body."""
        settings = sorted(self._settings, key=_order_of_settings)
        current = [msgspec.structs.replace(one, message=self.messages_begun) for one in self._current]
        found = [*settings, *self._tools, *self._system, *self._messages, *current]
        left_out = self._left_out + max(0, len(found) - _MOST)
        del found[_MOST:]
        if body_mark and found and found[-1].mark is None:
            found[-1] = msgspec.structs.replace(found[-1], mark=_named(body_mark))
        return found, left_out

    def kind_of(self, type_: bytes) -> str:
        """The kind of a part with this `type`."""
        found = KINDS_BY_TYPE.get(type_)
        if found is None:
            is_call = type_.endswith((b"_call", b"tool_use"))
            is_result = type_.endswith((b"_output", b"tool_result"))
            found = "tool_call" if is_call else "tool_result" if is_result else "other"
        return found

    def add(
        self, place: str, kind: str, name: bytes, call_id: bytes, size: int, digest: bytes, mark: bytes, is_current: bool
    ) -> None:  # fmt: skip
        """`place`: the kind by its position in the body, else "". `is_current`: it is Cohere's current message."""
        if kind == "tool_call":
            if call_id and name:
                if len(self._calls) >= _MOST_OPEN:
                    del self._calls[next(iter(self._calls))]
                self._calls[call_id] = name
        elif kind == "tool_result":
            name = self._calls.pop(call_id, name)
        if self.in_message:
            rank = _RANKS.get(place, 1)
            if len(self._pending) < _MOST:
                self._pending.append((rank, kind, name, size, digest, mark))
            else:
                self._left_out += 1
            return
        target = (
            self._settings if kind in _SETTING_KINDS
            else self._tools if kind == "tool"
            else self._system if kind == "system"
            else self._current if is_current
            else self._messages
        )  # fmt: skip
        message = self.messages_begun - 1 if target is self._messages else -1
        self._store(target, kind, _named(name), message, size, digest, None, _named(mark))

    def _store(
        self, target: list[Segment], kind: str, name: str | None, message: int, size: int, digest: bytes, role: str | None, mark: str | None
    ) -> None:  # fmt: skip
        if len(target) < _MOST:
            target.append(Segment(kind, name, message, size, digest, role, mark))  # type: ignore[arg-type]
            self._last = target
        else:
            self._left_out += 1

    def mark_last(self, mark: bytes) -> None:
        """Set the cache mark of the last segment."""
        if self.in_message and self._pending:
            self._pending[-1] = (*self._pending[-1][:5], mark)
        elif self._last:
            self._last[-1] = msgspec.structs.replace(self._last[-1], mark=_named(mark))

    def message_begins(self) -> None:
        self.messages_begun += 1
        self.in_message = True
        self._pending = []

    def message_ends(
        self, role_name: bytes, type_: bytes, name: bytes, call_id: bytes, mark: bytes, size: int, digest: bytes
    ) -> None:  # fmt: skip
        """`size`, `digest`: size and hash of the message without its segments."""
        role, message = _named(role_name), self.messages_begun - 1
        is_result = role in _TOOL_ROLES
        if type_ and (not self._pending or self.kind_of(type_) in ("reasoning", "tool_call", "tool_result")):
            self.add("item", self.kind_of(type_), name, call_id, size, digest, b"", False)
        elif is_result:
            name = self._calls.pop(call_id, name)
        self.in_message = False
        pending = self._pending
        pending.sort(key=_rank)
        if mark and pending:
            pending[-1] = (*pending[-1][:5], mark)
        for _, kind, its_name, its_size, its_digest, its_mark in pending:
            if is_result and kind in ("text", "file", "other"):
                kind, its_name = "tool_result", name
            elif kind == "text" and role in _SYSTEM_ROLES:
                kind = "system"
            self._store(
                self._messages, kind, _named(its_name), message, its_size, its_digest, role, _named(its_mark)
            )


def _rank(one: tuple[int, str, bytes, int, bytes, bytes]) -> int:
    return one[0]


def _order_of_settings(one: Segment) -> tuple[bool, str]:
    return one.kind != "model", one.name or ""
