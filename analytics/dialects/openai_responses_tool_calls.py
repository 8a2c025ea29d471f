"""Assign the events of a Responses stream to tool calls: by item id, then call id, then output index.

Copilot changes ids from event to event, and some proxies number every item 0.
"""

from __future__ import annotations

from streamgauge.analytics.dialects.openai_responses_types import Item


class ToolCall:
    """One tool call: its key in deltas, and how its arguments arrived."""

    __slots__ = ("complete", "has_arguments", "key", "server_side")

    def __init__(self, key: int, *, server_side: bool) -> None:
        self.key = key
        self.server_side = server_side
        self.has_arguments = False
        self.complete = False
        """The arguments arrived whole: further ones are repeats."""


class ToolCalls:
    """The calls of one stream."""

    def __init__(self) -> None:
        self.count = 0
        self._known: dict[str | int, ToolCall] = {}

    def begin(self, item: Item, index: int | None, *, server_side: bool) -> ToolCall:
        """Return the call of an item that starts; the same call if it starts again."""
        call = self._known.get(item.id) if item.id else None
        if call is None:
            call = ToolCall(self.count, server_side=server_side)
            self.count += 1
        for key in (item.id, item.call_id, index):
            if key is not None and key != "":
                self._known[key] = call
        return call

    def find(self, item_id: str | None, call_id: str | None, index: int | None) -> ToolCall | None:
        """The call of the first of these ids that is known."""
        known = self._known
        return next(
            (known[key] for key in (item_id, call_id, index) if key is not None and key in known), None
        )

    def of_delta(self, item_id: str | None, index: int | None, *, server_side: bool) -> ToolCall:
        """The call that a delta belongs to; started here if no event announced it."""
        return self.find(item_id, None, index) or self.begin(Item(id=item_id), index, server_side=server_side)
