"""Tell the tool calls of a Responses stream apart.

By item id, call id, then output index: Copilot changes ids from event to event, and some proxies number every item 0.
"""

from __future__ import annotations

from analytics.dialects.openai_responses_types import Item


class Call:
    """One tool call: the key that it has in fragments, and whether its arguments have been seen."""

    __slots__ = ("argued", "key", "server_side", "whole")

    def __init__(self, key: int, *, server_side: bool) -> None:
        self.key = key
        self.server_side = server_side
        self.argued = False
        self.whole = False


class Calls:
    """The calls of one stream."""

    def __init__(self) -> None:
        self.count = 0
        self._known: dict[str | int, Call] = {}

    def begin(self, item: Item, index: int | None, *, server_side: bool) -> Call:
        """The call of an item that is announced; an item that is announced again is the same call."""
        call = self._known.get(item.id) if item.id else None
        if call is None:
            call = Call(self.count, server_side=server_side)
            self.count += 1
        for key in (item.id, item.call_id, index):
            if key is not None and key != "":
                self._known[key] = call
        return call

    def find(self, item_id: str | None, call_id: str | None, index: int | None) -> Call | None:
        """The call by the first of these that is known."""
        known = self._known
        return next(
            (known[key] for key in (item_id, call_id, index) if key is not None and key in known), None
        )

    def of_delta(self, item_id: str | None, index: int | None, *, server_side: bool) -> Call:
        """The call that a delta belongs to; one that was never announced begins with it."""
        return self.find(item_id, None, index) or self.begin(Item(id=item_id), index, server_side=server_side)
