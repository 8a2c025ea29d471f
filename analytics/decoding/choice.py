"""One choice of an answer as it grows: its text by channel, its tool calls, how it finished."""

from __future__ import annotations

from analytics.dialects.shape import ToolFragment

MAX_KEPT_CHARS = 8 * 2**20
"""Bound on the text that is kept of one choice, each channel."""


class ToolCall:
    """A tool call as it grows."""

    __slots__ = ("_arguments", "began_ns", "id", "last_ns", "name", "server")

    def __init__(self) -> None:
        self.id = ""
        self.name = ""
        self.server = False
        """Run by the provider itself, not by the client."""
        self.began_ns: int | None = None
        """Time of its first piece; None when no dated event carried one."""
        self.last_ns: int | None = None
        self._arguments: list[str] = []

    @property
    def arguments(self) -> str:
        return "".join(self._arguments)

    def see(self, piece: ToolFragment, at_ns: int | None) -> None:
        """Who it is, and when a piece of it came: kept also where text is not."""
        if piece.id and not self.id:
            self.id = piece.id
        if piece.name and not self.name:
            self.name = piece.name
        if at_ns is not None:
            if self.began_ns is None:
                self.began_ns = at_ns
            self.last_ns = at_ns

    def add(self, piece: ToolFragment) -> None:
        if piece.joint:
            self._arguments.append(piece.joint)
        if piece.arguments:
            self._arguments.append(piece.arguments)


class Channel:
    """The text of one output channel of one choice, kept up to a bound."""

    __slots__ = ("_chars", "_parts")

    def __init__(self) -> None:
        self._parts: list[str] = []
        self._chars = 0

    def add(self, piece: str) -> None:
        if self._chars < MAX_KEPT_CHARS:
            self._chars += len(piece)
            self._parts.append(piece)

    def __str__(self) -> str:
        return "".join(self._parts)


class Choice:
    """What one choice amounts to."""

    __slots__ = ("finish_reason", "reasoning", "refusal", "text", "tools")

    def __init__(self) -> None:
        self.finish_reason: str | None = None
        self.text = Channel()
        self.reasoning = Channel()
        self.refusal = Channel()
        self.tools: dict[str | int, ToolCall] = {}
