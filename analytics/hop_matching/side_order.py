"""Which side of a gateway is the outer one, learned from matched pairs. No I/O, no clock."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

from streamgauge.analytics.hop_matching.candidate import Candidate, Side

MAX_PAIRS = 10_000
"""Pairs of sides that are remembered. Further ones are not learned."""


class SideOrder:
    """Counts matched pairs by (outer side, inner side). Requests flow in one direction between two sides.

    Without it, concurrent streams with the same output can fit into each other in both directions by chance.
    """

    def __init__(self) -> None:
        self._matched: Counter[tuple[Side, Side]] = Counter()

    def add(self, outer: Candidate, inner: Candidate) -> None:
        """Learn from a matched pair."""
        sides = outer.side, inner.side
        if sides in self._matched or len(self._matched) < MAX_PAIRS:
            self._matched[sides] += 1

    def allows(self, outer: Candidate, inner: Candidate) -> bool:
        """Whether pairs in this direction are at least as frequent as in the other one."""
        return self._matched[outer.side, inner.side] >= self._matched[inner.side, outer.side]

    def outer_sides(
        self, possible: Iterable[tuple[Candidate, Candidate]]
    ) -> Callable[[Candidate, Candidate], bool]:
        """As `allows`, for streams with one output. Without matched pairs, the direction with more possible pairs is allowed."""
        counts = Counter((outer.side, inner.side) for outer, inner in possible)

        def weight(outer: Side, inner: Side) -> tuple[int, int]:
            return self._matched[outer, inner], counts[outer, inner]

        return lambda outer, inner: weight(outer.side, inner.side) > weight(inner.side, outer.side)
