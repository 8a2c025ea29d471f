"""The offset of the clocks of two taps, and the pairs of streams that it allows. No I/O, no clock.

The offset between the monotonic clocks of two taps, the inner one's minus the outer one's, is estimated from nested requests, as NTP
does. For a matched pair on clocks of two taps:

- The gateway sends the inner request after it received the outer one: offset <= inner request's first byte - outer request's last byte.
- It sends output after it received it: offset >= inner output - outer output, for the first and the last output event.

All pairs of two clocks within `WINDOW_NS` give one interval; older bounds are widened by `DRIFT`. The estimate is its middle and
the error half its width. An empty interval means that a clock jumped: the estimate restarts with the newest pair. Until a bound is known,
the wall clocks are assumed to agree within `WALL_ERROR_NS`.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable
from typing import NamedTuple

from streamgauge.analytics.hops.candidate import HopCandidate, output_times

WINDOW_NS = 300_000_000_000
DRIFT = 1e-4
"""Bound of the relative drift of two clocks. Hardware allows 500 ppm; a few are usual."""
WALL_ERROR_NS = 30_000_000_000
MAX_BOUNDS = 128
"""Bounds kept of each kind per pair of clocks."""
MAX_CLOCKS = 256
"""Pairs of clocks kept; the least recently used is dropped."""


class ClockOffset(NamedTuple):
    ns: int
    error_ns: int


SAME_CLOCK = ClockOffset(0, 0)


_Bound = tuple[int, int]
"""(time on the outer clock, bound of the offset)."""


class _Bounds:
    def __init__(self) -> None:
        self.lower: deque[_Bound] = deque(maxlen=MAX_BOUNDS)
        self.upper: deque[_Bound] = deque(maxlen=MAX_BOUNDS)

    def interval(self, at_ns: int) -> tuple[int | None, int | None]:
        """(least, greatest) offset at a time on the outer clock. None: not bounded."""
        near_lower = [bound - drift for bound, drift in _near(self.lower, at_ns)]
        near_upper = [bound + drift for bound, drift in _near(self.upper, at_ns)]
        return max(near_lower, default=None), min(near_upper, default=None)

    def is_empty(self, at_ns: int) -> bool:
        least, greatest = self.interval(at_ns)
        return least is not None and greatest is not None and least > greatest


def _near(bounds: Iterable[_Bound], at_ns: int) -> Iterable[tuple[int, int]]:
    """(bound, its drift until then) of the bounds within the window."""
    for then_ns, bound in bounds:
        age_ns = abs(at_ns - then_ns)
        if age_ns <= WINDOW_NS:
            yield bound, int(age_ns * DRIFT)


class ClockOffsets:
    """The offsets of all pairs of clocks."""

    def __init__(self) -> None:
        self._bounds: OrderedDict[tuple[str, str], _Bounds] = OrderedDict()

    def between(self, outer: HopCandidate, inner: HopCandidate) -> ClockOffset:
        """The offset of the clocks of two streams at the start of the outer one."""
        if outer.clock_id == inner.clock_id:
            return SAME_CLOCK
        assumed = (inner.clock_ns - inner.wall_ns) - (outer.clock_ns - outer.wall_ns)
        bounds = self._bounds.get((outer.clock_id, inner.clock_id))
        least, greatest = bounds.interval(outer.clock_ns) if bounds is not None else (None, None)
        if least is None:
            least = (assumed if greatest is None else min(assumed, greatest)) - WALL_ERROR_NS
        greatest = max(assumed, least) + WALL_ERROR_NS if greatest is None else greatest
        middle = (least + greatest) // 2
        return ClockOffset(middle, max(greatest - middle, middle - least))

    def add(self, outer: HopCandidate, inner: HopCandidate, *, same_output: bool) -> None:
        """Use a matched pair. `same_output`: both streams have the same output."""
        if outer.clock_id == inner.clock_id:
            return
        key = outer.clock_id, inner.clock_id
        bounds = self._bounds.setdefault(key, _Bounds())
        self._bounds.move_to_end(key)
        if len(self._bounds) > MAX_CLOCKS:
            self._bounds.popitem(last=False)
        lower, upper = [*(_lower_bounds(outer, inner) if same_output else ())], [*_upper_bounds(outer, inner)]
        bounds.lower += lower
        bounds.upper += upper
        # The bounds contradict each other, so a clock jumped. Older ones say nothing about the new offset.
        if bounds.is_empty(outer.clock_ns):
            bounds = self._bounds[key] = _Bounds()
            bounds.lower += lower
            bounds.upper += upper


def _upper_bounds(outer: HopCandidate, inner: HopCandidate) -> Iterable[_Bound]:
    if outer.request_sent_ns is not None:
        sent_ns = outer.clock_ns + outer.request_sent_ns
        yield sent_ns, inner.clock_ns + (inner.client_start_ns or 0) - sent_ns


def _lower_bounds(outer: HopCandidate, inner: HopCandidate) -> Iterable[_Bound]:
    for outer_ns, inner_ns in output_times(outer, inner):
        at_ns = outer.clock_ns + outer_ns
        yield at_ns, inner.clock_ns + inner_ns - at_ns


def start_ns(outer: HopCandidate, inner: HopCandidate, offset: ClockOffset) -> int:
    """The start of `inner` in ns since that of `outer`."""
    return inner.clock_ns - offset.ns - outer.clock_ns


def starts_within(outer: HopCandidate, inner: HopCandidate, offset: ClockOffset) -> bool:
    """Whether `inner` may have started while `outer` was open, at another upstream or tap."""
    if outer.side == inner.side or outer.stream_id == inner.stream_id:
        return False
    start = start_ns(outer, inner, offset)
    return start >= -offset.error_ns and (outer.end_ns is None or start <= outer.end_ns + offset.error_ns)


def may_carry(outer: HopCandidate, inner: HopCandidate, offset: ClockOffset) -> bool:
    """Whether `outer` may have the output of `inner`: nothing leaves a gateway before it has arrived there."""
    earliest = max(0, start_ns(outer, inner, offset) - offset.error_ns)
    return all(a >= earliest + b for a, b in output_times(outer, inner))
