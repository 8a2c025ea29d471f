"""Match streams with the same output by the times at which it arrived. No I/O, no clock.

Any stream may lack its partner: a cache of the gateway answered, or a tap lost the stream. So the number of streams proves
nothing, nor does the lack of another candidate. A pair is certain if every part of the output left the gateway after it had
arrived there, and one of these holds:

- Both streams are alone: no other stream with this output was open at their sides within `ALONE_NS`.
- Long and short gaps come at the same parts of both outputs, more clearly than chance explains, and no other stream at the same
  side has the same gaps or gets its output at the same times.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from math import atanh, sqrt
from operator import mul
from typing import NamedTuple

from streamgauge.analytics.hops.candidate import HopCandidate, contradicts
from streamgauge.analytics.hops.clock_offset import ClockOffsets, may_carry, start_ns

ALONE_NS = 5_000_000_000
PARTS = 64
"""Parts of the output whose times are compared."""
MIN_GAPS = 8
"""With fewer gaps between events the times show nothing."""
LEAST_SCORE = 4.0
"""Least rank correlation of the gaps, in standard deviations of its distribution for unrelated streams."""
STEP_NS, STEPS_PER_GAP = 1_000_000, 10
"""Events of two streams are of one step if they are this close, and closer than this part of the mean gap."""

Pair = tuple[HopCandidate, HopCandidate]
Key = tuple[str, str]


class Output(NamedTuple):
    """Times in ns since t0 and cumulative characters of the output events of one stream, in order."""

    at_ns: Sequence[int]
    chars: Sequence[int]


OutputTimes = Mapping[str, Output]
"""By stream id."""


def certain_pairs(
    pairs: Sequence[Pair],
    same_output: Sequence[HopCandidate],
    output_times: Callable[[Sequence[str]], OutputTimes],
    offsets: ClockOffsets,
) -> list[Pair]:
    """The certain pairs among overlapping ones. `same_output`: all streams with this output, `output_times` by stream ids."""
    found: list[Pair] = []
    by_sides: defaultdict[object, dict[Key, Pair]] = defaultdict(dict)
    for outer, inner in pairs:
        offset = offsets.between(outer, inner)
        if all(_is_alone(stream, same_output, ALONE_NS + offset.error_ns) for stream in (outer, inner)):
            if may_carry(outer, inner, offset) and not contradicts(outer, inner):
                found.append((outer, inner))
        else:
            by_sides[outer.side, inner.side][outer.stream_id, inner.stream_id] = outer, inner
    if by_sides:
        times = output_times(
            sorted({stream_id for keyed in by_sides.values() for key in keyed for stream_id in key})
        )
        parts = {stream_id: _Parts(output) for stream_id, output in times.items() if output.at_ns}
        for keyed in by_sides.values():
            found += _by_times(keyed, parts, offsets)
    return found


def _is_alone(stream: HopCandidate, same_output: Iterable[HopCandidate], distance_ns: int) -> bool:
    return not any(
        other.side == stream.side
        and other is not stream
        and other.wall_ns - distance_ns < stream.wall_ns + (stream.end_ns or 0)
        and stream.wall_ns - distance_ns < other.wall_ns + (other.end_ns or 0)
        for other in same_output
    )


def _by_times(pairs: Mapping[Key, Pair], parts: Mapping[str, _Parts], offsets: ClockOffsets) -> list[Pair]:
    """The pairs of two sides whose times are related, and are not related to those of other streams at these sides."""
    related = [pair for pair in pairs.values() if _is_related(*pair, parts, offsets)]
    by_side = [{pair[n].stream_id: pair[n] for pair in pairs.values()} for n in (0, 1)]
    return [
        pair
        for pair in related
        if not any(
            _is_alike(stream, other, parts)
            for stream, side in zip(pair, by_side, strict=True)
            for other in side.values()
        )
    ]


class _Parts:
    """When parts of the output of one stream were complete."""

    def __init__(self, output: Output) -> None:
        self.chars = output.chars[-1]
        self.events = tuple(
            bisect_left(output.chars, -(-self.chars * n // PARTS)) for n in range(1, PARTS + 1)
        )
        """Index of the event that completed each part."""
        self.times_ns = [output.at_ns[n] for n in self.events]
        self.at_ns = output.at_ns
        """Of all events."""
        self._ranks: dict[tuple[int, ...], Sequence[int]] = {}

    def ranks_of_gaps(self, events: tuple[int, ...]) -> Sequence[int]:
        """Twice the rank of each gap between parts that `events` of the stream or of another one end, less the mean rank."""
        if events not in self._ranks:
            gaps = _gaps(self.times_ns, events)
            ordered = sorted(gaps)
            self._ranks[events] = [
                bisect_left(ordered, v) + bisect_right(ordered, v) - len(gaps) for v in gaps
            ]
        return self._ranks[events]


def _gaps(times_ns: Sequence[int], events: Sequence[int]) -> list[float]:
    """Gaps between the ends of events, less the mean time of the events in them: equal text may have equally long parts."""
    ends = [n for n, (a, b) in enumerate(pairwise(events)) if a != b] + [len(events) - 1]
    first, last = ends[0], ends[-1]
    per_event = (times_ns[last] - times_ns[first]) / max(1, events[last] - events[first])
    return [times_ns[b] - times_ns[a] - per_event * (events[b] - events[a]) for a, b in pairwise(ends)]


def _is_related(
    outer: HopCandidate, inner: HopCandidate, parts: Mapping[str, _Parts], offsets: ClockOffsets
) -> bool:
    """Whether each part left the gateway after it had arrived there, and the gaps are the same."""
    a, b = parts.get(outer.stream_id), parts.get(inner.stream_id)
    if a is None or b is None or contradicts(outer, inner):
        return False
    offset = offsets.between(outer, inner)
    least_ns = start_ns(outer, inner, offset) - offset.error_ns
    return all(x - y >= least_ns for x, y in zip(a.times_ns, b.times_ns, strict=True)) and _has_same_gaps(
        a, b
    )


def _has_same_gaps(one: _Parts, other: _Parts) -> bool:
    """Whether long and short gaps come at the same parts, by rank: one long gap in each proves nothing."""
    if one.chars != other.chars:
        return False
    x, y = one.ranks_of_gaps(other.events), other.ranks_of_gaps(other.events)
    squares = sum(map(mul, x, x)) * sum(map(mul, y, y))
    if len(x) < MIN_GAPS or not squares:
        return False
    correlation = sum(map(mul, x, y)) / sqrt(squares)
    return atanh(min(max(0.0, correlation), 1 - 1e-9)) * sqrt(len(x) - 3) >= LEAST_SCORE


def _is_alike(stream: HopCandidate, other: HopCandidate, parts: Mapping[str, _Parts]) -> bool:
    """Whether the times of two streams of one side are related, so that they identify neither."""
    if stream is other or other.stream_id not in parts:
        return False
    return _has_same_gaps(parts[stream.stream_id], parts[other.stream_id]) or (
        stream.clock_id == other.clock_id and _is_in_step(stream, other, parts)
    )


def _is_in_step(stream: HopCandidate, other: HopCandidate, parts: Mapping[str, _Parts]) -> bool:
    """Whether two streams get their output at the same times, as the streams of one batch do."""
    others_ns = parts[other.stream_id].at_ns
    near_ns = min(STEP_NS, (others_ns[-1] - others_ns[0]) // (STEPS_PER_GAP * len(others_ns)))
    begin_ns = stream.clock_ns - other.clock_ns
    times_ns = (begin_ns + at_ns for at_ns in set(parts[stream.stream_id].times_ns))
    both_open = [t for t in times_ns if others_ns[0] - near_ns <= t <= others_ns[-1] + near_ns]
    same = sum(bisect_right(others_ns, t + near_ns) > bisect_left(others_ns, t - near_ns) for t in both_open)
    return len(both_open) >= MIN_GAPS and same > len(both_open) / 2
