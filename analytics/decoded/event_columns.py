"""The events of one stream as columns: the raw facts that every metric is computed from."""

from __future__ import annotations


class EventColumns:
    """The rows of table `events`, column by column; all lists are equally long.

    `kind` is the event's first output channel or, for an event without output, its `event.EventKind`.
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
