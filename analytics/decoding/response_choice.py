"""The accumulated content of one choice: text by channel, tool calls, finish reason."""

from __future__ import annotations

from streamgauge.analytics.decoded.event import ToolCallDelta
from streamgauge.ingest.identifiers import identifier, name

MAX_KEPT_CHARS = 8 * 2**20
"""Limit of the text kept for each channel of a choice."""


class ToolCall:
    """One tool call, accumulated."""

    __slots__ = ("_arguments", "began_ns", "id", "last_ns", "name", "server_side")

    def __init__(self, *, server_side: bool) -> None:
        self.id = ""
        self.name = ""
        self.server_side = server_side
        """The provider runs it, not the client."""
        self.began_ns: int | None = None
        """Time of its first delta; None when no dispatched event carried one."""
        self.last_ns: int | None = None
        self._arguments: list[str] = []

    @property
    def arguments(self) -> str:
        return "".join(self._arguments)

    def add(self, delta: ToolCallDelta, at_ns: int | None, *, keep_text: bool) -> None:
        if delta.id and not self.id:
            self.id = identifier(delta.id) or ""
        if delta.name and not self.name:
            self.name = name(delta.name) or ""
        if at_ns is not None:
            if self.began_ns is None:
                self.began_ns = at_ns
            self.last_ns = at_ns
        if keep_text:
            if delta.inserted_json:
                self._arguments.append(delta.inserted_json)
            if delta.arguments:
                self._arguments.append(delta.arguments)


class Channel:
    """The text of one output channel, kept up to `MAX_KEPT_CHARS`."""

    __slots__ = ("_chars", "_parts")

    def __init__(self) -> None:
        self._parts: list[str] = []
        self._chars = 0

    def add(self, text: str) -> None:
        if self._chars < MAX_KEPT_CHARS:
            self._chars += len(text)
            self._parts.append(text)

    def __str__(self) -> str:
        return "".join(self._parts)


class Choice:
    __slots__ = ("finish_reason", "finished", "reasoning", "refusal", "text", "tool_calls")

    def __init__(self) -> None:
        self.finish_reason: str | None = None
        """The last one, also if output followed it."""
        self.finished = False
        """A finish reason arrived, and no output after it."""
        self.text = Channel()
        self.reasoning = Channel()
        self.refusal = Channel()
        self.tool_calls: dict[str | int, ToolCall] = {}
