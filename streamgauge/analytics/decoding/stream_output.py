"""What the accumulator keeps of one stream: its choices and tool calls, the start of its output, and its events as columns."""

from __future__ import annotations

from streamgauge.analytics.dialects.events import ToolCallDelta
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


class Audio:
    """The audio of one stream, and what interrupted it."""

    __slots__ = ("first_ns", "interrupted_ns", "last_ns", "length_ns")

    def __init__(self) -> None:
        self.first_ns: int | None = None
        self.last_ns: int | None = None
        self.length_ns = 0
        self.interrupted_ns: int | None = None

    def add(self, length_ns: int, at_ns: int | None) -> None:
        self.length_ns += length_ns
        self.last_ns = at_ns
        if self.first_ns is None:
            self.first_ns = at_ns

    @property
    def silence_ns(self) -> int | None:
        """Time from the interruption to the last audio after it."""
        if self.interrupted_ns is None or self.last_ns is None:
            return None
        return max(0, self.last_ns - self.interrupted_ns)


KEPT_CHARS = 4096
"""Characters kept of the text, of the reasoning, and of the arguments of all tool calls."""
MAX_PARTS = 256
"""A list of more parts is joined, because small strings take much more memory than their characters."""


class OutputStart:
    """Parts of the output in order of arrival, until `streamgauge.analytics.measures.fingerprints` reads them.

    The accumulator adds to the lists.
    """

    __slots__ = ("argument_chars", "arguments", "reasoning", "text")

    def __init__(self) -> None:
        self.text: list[str] = []
        self.reasoning: list[str] = []
        self.arguments: dict[tuple[int, str | int], list[str]] = {}
        """By choice and key of the tool call."""
        self.argument_chars = 0
        """Characters of all arguments, also of those not kept."""

    def add_arguments(self, choice: int, key: str | int, text: str) -> None:
        """Add a fragment of the arguments of one tool call."""
        if self.argument_chars < KEPT_CHARS:
            add_part(self.arguments.setdefault((choice, key), []), text)
        self.argument_chars += len(text)


def add_part(parts: list[str], text: str) -> None:
    """Append a part without what exceeds `KEPT_CHARS`. Many parts are joined into one, of the same length at most."""
    parts.append(text[:KEPT_CHARS])
    if len(parts) > MAX_PARTS:
        parts[:] = ["".join(parts)[:KEPT_CHARS]]


class EventColumns:
    """The rows of table `events`, column by column; all lists are equally long.

    `kind` is the event's first output channel or, for an event without output, its `EventKind`.
    """

    def __init__(self) -> None:
        self.read_seq: list[int] = []
        self.at_ns: list[int] = []
        self.kind: list[str] = []
        self.event_name: list[str] = []
        self.choice: list[int | None] = []
        self.chars: list[int] = []
        self.tokens: list[int | None] = []
        self.bytes: list[int] = []
        self.finish_reason: list[str | None] = []
        self.more_choices: list[tuple[int, int]] = []
        """(event index, choice) of events with output for further choices, in addition to the one in `choice`."""
        self.more_than_reasoning: list[int] = []
        """Indices of events of kind `reasoning` that carry output of another channel too."""

    def __len__(self) -> int:
        return len(self.kind)
