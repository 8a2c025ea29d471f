"""The start of a stream's output, kept in memory until its fingerprints are computed (`streamgauge.analytics.measures.fingerprints`)."""

from __future__ import annotations

KEPT_CHARS = 4096
"""Characters kept of the text, of the reasoning, and of the arguments of all tool calls."""
MAX_PARTS = 256
"""A list of more parts is joined, because small strings take much more memory than their characters."""


class OutputStart:
    """Parts of the output in order of arrival. The accumulator adds to the lists."""

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
    """Append a part. Many parts are joined into one, without what exceeds `KEPT_CHARS`."""
    parts.append(text)
    if len(parts) > MAX_PARTS:
        parts[:] = ["".join(parts)[:KEPT_CHARS]]
