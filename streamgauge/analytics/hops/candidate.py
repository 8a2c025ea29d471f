"""One stored stream as the matcher uses it, and the offsets of clocks between two of them. No I/O, no clock.

The offset between the monotonic clocks of two taps, the inner one's minus the outer one's, is estimated from nested requests, as NTP
does. For a matched pair on clocks of two taps:

- The gateway sends the inner request after it received the outer one: offset <= inner request's first byte - outer request's last byte.
- It sends output after it received it: offset >= inner output - outer output, for the first and the last output event.

All pairs of two clocks within `WINDOW_NS` give one interval; older bounds are widened by `DRIFT`. The estimate is its middle and
the error half its width. An empty interval means that a clock jumped: the newest pair starts over. Until a bound is known,
the wall clocks are assumed to agree within `WALL_ERROR_NS`.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

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
    for outer_ns, inner_ns in _output_times(outer, inner):
        at_ns = outer.clock_ns + outer_ns
        yield at_ns, inner.clock_ns + inner_ns - at_ns


def _output_times(outer: HopCandidate, inner: HopCandidate) -> list[tuple[int, int]]:
    """Times of the output that both streams have."""
    pairs = [(outer.ttft_ns, inner.ttft_ns), (outer.last_output_ns, inner.last_output_ns)]
    if outer.ttft_ns is None and inner.ttft_ns is None:  # not streamed
        pairs = [(outer.ttfb_ns, inner.ttfb_ns)]
    return [(a, b) for a, b in pairs if a is not None and b is not None]


Side = tuple[str | None, str | None]
"""Tap and upstream: where a stream was measured."""


class HopCandidate(NamedTuple):
    """Columns of `streams`, and the time of `started_at` in ns. Times in ns since t0, if not stated otherwise."""

    stream_id: str
    wall_ns: int
    tap: str | None
    gateway: str | None
    clock_id: str
    clock_ns: int
    trace_id: str | None
    span_id: str | None
    parent_span_id: str | None
    response_id: str | None
    request_id: str | None
    output_fingerprint: str | None
    tool_fingerprint: str | None
    outcome: str
    client_start_ns: int | None
    request_sent_ns: int | None
    ttfb_ns: int | None
    ttft_ns: int | None
    last_output_ns: int | None
    end_ns: int | None
    connection_id: str | None = None
    """The stream of the WebSocket on which this one is an answer."""

    @property
    def side(self) -> Side:
        return self.tap, self.gateway

    @property
    def fingerprint(self) -> str | None:
        """That of the text, else that of the tool calls."""
        return self.output_fingerprint or self.tool_fingerprint


SQL_COLUMNS = tuple(
    {
        "stream_id": "stream_id::VARCHAR AS stream_id",
        "connection_id": "connection_id::VARCHAR AS connection_id",
        "wall_ns": "epoch_us(started_at) * 1000 AS wall_ns",
    }.get(name, name)
    for name in HopCandidate._fields
)
"""The fields as SQL over `streams`. `candidate` requires `clock_id` and `clock_ns`."""


def candidate(row: Mapping[str, Any]) -> HopCandidate:
    """The candidate of a row with at least `SQL_COLUMNS`."""
    return HopCandidate(*(row[name] for name in HopCandidate._fields))


def start_ns(outer: HopCandidate, inner: HopCandidate, offset: ClockOffset) -> int:
    """The start of `inner` in ns since that of `outer`."""
    return inner.clock_ns - offset.ns - outer.clock_ns


def starts_within(outer: HopCandidate, inner: HopCandidate, offset: ClockOffset) -> bool:
    """Whether `inner` may have started while `outer` was open, at another upstream or tap."""
    if outer.side == inner.side or outer.stream_id == inner.stream_id:
        return False
    start = start_ns(outer, inner, offset)
    return start >= -offset.error_ns and (outer.end_ns is None or start <= outer.end_ns + offset.error_ns)


def same_output(outer: HopCandidate, inner: HopCandidate) -> bool:
    """Whether both streams have the same output."""
    return outer.fingerprint is not None and outer.fingerprint == inner.fingerprint


def may_carry(outer: HopCandidate, inner: HopCandidate, offset: ClockOffset) -> bool:
    """Whether `outer` may have the output of `inner`: nothing leaves a gateway before it has arrived there."""
    earliest = max(0, start_ns(outer, inner, offset) - offset.error_ns)
    return all(a >= earliest + b for a, b in _output_times(outer, inner))


def contradicts(outer: HopCandidate, inner: HopCandidate) -> bool:
    """Whether both streams are complete and have different output."""
    if outer.outcome != "ok" or inner.outcome != "ok":
        return False
    channels = (
        (outer.output_fingerprint, inner.output_fingerprint),
        (outer.tool_fingerprint, inner.tool_fingerprint),
    )
    known = [(a, b) for a, b in channels if a is not None and b is not None]
    return bool(known) and all(a != b for a, b in known)
