"""Match inner streams to outer ones by evidence, the strongest first. No I/O, no clock.

| evidence | an inner stream belongs to the outer stream … |
|---|---|
| span | whose span is its parent |
| trace | of its trace, if no other one is possible |
| response_id | with the same response id |
| request_id | with the same request id |
| fingerprint | with the same output (`identical_output`) |

Every inner stream has at most one outer stream: of several gateways in a row, the last one. All evidence but `span` requires
that the inner stream starts while the outer one is open, and that complete output does not differ. Pairs by response id also
require that the output leaves the gateway after it arrived there, and that neither stream has another candidate; pairs by
fingerprint that the times leave no doubt. What stays ambiguous is not matched.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from math import inf
from typing import NamedTuple

from streamgauge.analytics.hops.candidate import HopCandidate, Side, contradicts, same_output
from streamgauge.analytics.hops.clock_offset import ClockOffsets, may_carry, starts_within
from streamgauge.analytics.hops.identical_output import OutputTimes, Pair, certain_pairs

MAX_PAIRS = 10_000
"""Pairs of sides that are remembered. Further ones are not learned."""


class SideOrder:
    """Which side of a gateway is the outer one, learned from matched pairs.

    Counts matched pairs by (outer side, inner side). Requests flow in one direction between two sides.

    Without it, concurrent streams with the same output can fit into each other in both directions by chance.
    """

    def __init__(self) -> None:
        self._matched: Counter[tuple[Side, Side]] = Counter()

    def add(self, outer: HopCandidate, inner: HopCandidate) -> None:
        """Learn from a matched pair."""
        sides = outer.side, inner.side
        if sides in self._matched or len(self._matched) < MAX_PAIRS:
            self._matched[sides] += 1

    def allows(self, outer: Side, inner: Side) -> bool:
        """Whether pairs in this direction are at least as frequent as in the other one."""
        return self._matched[outer, inner] >= self._matched[inner, outer]

    def outer_sides(self, possible: Iterable[Pair]) -> Callable[[HopCandidate, HopCandidate], bool]:
        """As `allows`, for streams with one output. Without matched pairs, the direction with more possible pairs is allowed."""
        counts = Counter((outer.side, inner.side) for outer, inner in possible)

        def weight(outer: Side, inner: Side) -> tuple[int, int]:
            return self._matched[outer, inner], counts[outer, inner]

        return lambda outer, inner: weight(outer.side, inner.side) > weight(inner.side, outer.side)


MAX_GROUP = 200
"""Streams with one id or output. A larger group is not matched by it."""


class Match(NamedTuple):
    outer: HopCandidate
    inner: HopCandidate
    matched_by: str


class Matches(NamedTuple):
    found: Sequence[Match]
    ambiguous: frozenset[str]
    """Ids of outer streams with several possible inner streams, or with one that has several possible outer streams, and of
    unmatched streams of too large groups."""


def match(
    streams: Sequence[HopCandidate],
    offsets: ClockOffsets,
    order: SideOrder,
    output_times: Callable[[Sequence[str]], OutputTimes],
    known: Iterable[Match] = (),
) -> Matches:
    """All pairs among the streams, `known` ones included. Adds the pairs to `order`, those with ids also to `offsets`.

    `output_times` returns when the output of streams arrived. It is called only for streams that are not alone with their output.
    """
    matcher = _Matcher(offsets, order)
    for pair in known:
        matcher.found[pair.inner.stream_id] = pair
        order.add(pair.outer, pair.inner)
    matcher.by_span(streams)
    matcher.by_trace(streams)
    matcher.by_response_id(streams)
    matcher.by_request_id(streams)
    matcher.by_fingerprint(streams, output_times)
    matched = {found.outer.stream_id for found in matcher.found.values()}
    crowded = matcher.crowded - matcher.found.keys()
    return Matches(list(matcher.found.values()), frozenset((matcher.ambiguous | crowded) - matched))


class _Matcher:
    def __init__(self, offsets: ClockOffsets, order: SideOrder) -> None:
        self._offsets, self._order = offsets, order
        self.found: dict[str, Match] = {}
        """By the inner stream."""
        self.ambiguous: set[str] = set()
        self.crowded: set[str] = set()
        """Streams of too large groups."""

    def by_span(self, streams: Sequence[HopCandidate]) -> None:
        by_span = {(s.trace_id, s.span_id): s for s in streams if s.span_id}
        for inner in self._unmatched(streams):
            outer = by_span.get((inner.trace_id, inner.parent_span_id or ""))
            # The span of a WebSocket is the parent of those of its answers.
            if outer is not None and outer is not inner and outer.stream_id != inner.connection_id:
                self._add(outer, inner, "span")

    def by_trace(self, streams: Sequence[HopCandidate]) -> None:
        for group in self._groups(streams, lambda s: s.trace_id):
            root = next((s for s in group if s.parent_span_id is None), None)
            for inner in self._unmatched(group):
                outers = [
                    outer
                    for outer in group
                    if outer.parent_span_id != inner.parent_span_id
                    and self._starts_within(outer, inner)
                    and (
                        outer is root
                        or same_output(outer, inner)
                        or (root is None and not contradicts(outer, inner))
                    )
                ]
                self._add_only(outers, inner, "trace")

    def by_response_id(self, streams: Sequence[HopCandidate]) -> None:
        for group in self._groups(streams, lambda s: s.response_id):
            overlapping = self._overlapping(group, list(self._unmatched(group)))
            possible = [pair for pair in overlapping if self._carries(*pair)]
            allows = self._order.outer_sides(possible)
            self._add_mutual([pair for pair in possible if allows(*pair)], "response_id")

    def by_request_id(self, streams: Sequence[HopCandidate]) -> None:
        for group in self._groups(streams, lambda s: s.request_id):
            for inner in self._unmatched(group):
                outers = [s for s in group if self._starts_within(s, inner) and not contradicts(s, inner)]
                self._add_only(outers, inner, "request_id")

    def by_fingerprint(
        self, streams: Sequence[HopCandidate], output_times: Callable[[Sequence[str]], OutputTimes]
    ) -> None:
        answered = {m.outer.stream_id for m in self.found.values() if same_output(m.outer, m.inner)}
        for group in self._groups(streams, lambda s: s.fingerprint):
            outers = [s for s in group if s.stream_id not in answered]
            overlapping = self._overlapping(outers, list(self._unmatched(group)))
            allows = self._order.outer_sides(pair for pair in overlapping if self._carries(*pair))
            pairs = [pair for pair in overlapping if allows(*pair)]
            certain = certain_pairs(pairs, group, output_times, self._offsets)
            self._add_direct(pairs, certain)

    # -- adding pairs --------------------------------------------------------------------------------------------------

    def _add(self, outer: HopCandidate, inner: HopCandidate, evidence: str) -> None:
        self.found[inner.stream_id] = Match(outer, inner, evidence)
        self._order.add(outer, inner)
        # Pairs by fingerprint rely on the offsets. Learning from them would confirm an error by itself.
        if evidence != "fingerprint":
            self._offsets.add(outer, inner, same_output=same_output(outer, inner))

    def _add_only(self, outers: Sequence[HopCandidate], inner: HopCandidate, evidence: str) -> None:
        """Match `inner` if a single outer stream is possible."""
        outers = self._innermost(outers)
        if len(outers) == 1:
            self._add(outers[0], inner, evidence)
        else:
            self.ambiguous.update(s.stream_id for s in outers)

    def _add_mutual(self, pairs: Sequence[Pair], evidence: str) -> None:
        certain, open_pairs = _mutual(pairs)
        self._add_direct(pairs, certain, evidence)
        self.ambiguous.update(outer.stream_id for outer, _ in open_pairs)

    def _add_direct(
        self, possible: Sequence[Pair], certain: Sequence[Pair], evidence: str = "fingerprint"
    ) -> None:
        """Add pairs of one output without those that skip a gateway, and without contradictory ones."""
        self.ambiguous.update(outer.stream_id for outer, _ in possible)
        outers_of, inners_of = defaultdict(list), defaultdict(list)
        ids = {(outer.stream_id, inner.stream_id) for outer, inner in certain}
        direct = [
            (outer, inner)
            for outer, inner in certain
            if not any((outer.stream_id, b) in ids and (b, inner.stream_id) in ids for _, b in ids)
        ]
        for outer, inner in direct:
            outers_of[inner.stream_id].append(outer)
            inners_of[outer.stream_id].append(inner)
        for outer, inner in direct:
            if len(outers_of[inner.stream_id]) == 1 == len(inners_of[outer.stream_id]):
                self._add(outer, inner, evidence)

    def _overlapping(self, outers: Iterable[HopCandidate], inners: Iterable[HopCandidate]) -> list[Pair]:
        """Pairs whose inner stream may start while the outer one is open, by the start of the inner one."""
        by_place: defaultdict[tuple[Side, str], list[HopCandidate]] = defaultdict(list)
        for outer in sorted(outers, key=_clock_ns):
            by_place[outer.side, outer.clock_id].append(outer)
        longest_ns = {
            place: max(inf if stream.end_ns is None else stream.end_ns for stream in possible)
            for place, possible in by_place.items()
        }
        pairs = []
        for inner in inners:
            for (side, clock_id), possible in by_place.items():
                if side == inner.side or not self._order.allows(side, inner.side):
                    continue
                if clock_id == inner.clock_id:
                    first = bisect_left(possible, inner.clock_ns - longest_ns[side, clock_id], key=_clock_ns)
                    possible = possible[first : bisect_right(possible, inner.clock_ns, key=_clock_ns)]
                pairs += [
                    (outer, inner)
                    for outer in possible
                    if starts_within(outer, inner, self._offsets.between(outer, inner))
                ]
        return pairs

    # -- groups and conditions -----------------------------------------------------------------------------------------

    def _groups(
        self, streams: Iterable[HopCandidate], key: Callable[[HopCandidate], str | None]
    ) -> Iterator[Sequence[HopCandidate]]:
        """Streams of several sides with the same key, unless they are too many."""
        groups: defaultdict[str, list[HopCandidate]] = defaultdict(list)
        for stream in streams:
            value = key(stream)
            if value is not None:
                groups[value].append(stream)
        for group in groups.values():
            if len({stream.side for stream in group}) > 1:
                if len(group) <= MAX_GROUP:
                    yield group
                else:
                    self.crowded.update(stream.stream_id for stream in group)

    def _unmatched(self, group: Iterable[HopCandidate]) -> Iterator[HopCandidate]:
        """Streams without an outer one, by start."""
        return (s for s in sorted(group, key=lambda s: s.wall_ns) if s.stream_id not in self.found)

    def _starts_within(self, outer: HopCandidate, inner: HopCandidate) -> bool:
        return self._order.allows(outer.side, inner.side) and starts_within(
            outer, inner, self._offsets.between(outer, inner)
        )

    def _carries(self, outer: HopCandidate, inner: HopCandidate) -> bool:
        offset = self._offsets.between(outer, inner)
        return (
            starts_within(outer, inner, offset)
            and may_carry(outer, inner, offset)
            and not contradicts(outer, inner)
        )

    def _innermost(self, outers: Sequence[HopCandidate]) -> Sequence[HopCandidate]:
        """Without streams that are the outer stream of another one of them."""
        above: set[str] = set()
        for outer in outers:
            found = self.found.get(outer.stream_id)
            while found is not None and found.outer.stream_id not in above:
                above.add(found.outer.stream_id)
                found = self.found.get(found.outer.stream_id)
        return [s for s in outers if s.stream_id not in above]


def _clock_ns(stream: HopCandidate) -> int:
    return stream.clock_ns


def _mutual(pairs: Sequence[Pair]) -> tuple[list[Pair], list[Pair]]:
    """(pairs whose streams have no other partner at the same two sides, the other pairs)."""
    degrees: defaultdict[tuple[str, object], int] = defaultdict(int)
    for outer, inner in pairs:
        degrees[outer.stream_id, inner.side] += 1
        degrees[inner.stream_id, outer.side] += 1
    found: tuple[list[Pair], list[Pair]] = ([], [])
    for pair in pairs:
        outer, inner = pair
        single = degrees[outer.stream_id, inner.side] == 1 == degrees[inner.stream_id, outer.side]
        found[not single].append(pair)
    return found
