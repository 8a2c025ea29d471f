"""Whose delay it was: time split between upstream, client and tap. No I/O, no clock.

The tap records when it waited for its client and when it delayed the exchange itself (`Closed.waits`, disjoint). The rest of
the time it waited for the upstream. Times are in ns since t0.

A gap between two output events is split in the same way. Its cause is the party with the longest part; on a tie upstream
before client before tap.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import Literal, NamedTuple

from streamgauge.ingest.records import Wait, WaitedFor

Cause = Literal["upstream", "client", "tap"]


class TimeSplit(NamedTuple):
    """The parts of a duration. They add up to it."""

    upstream_ns: int
    client_ns: int
    tap_ns: int

    @property
    def cause(self) -> Cause:
        longest_ns = self.cause_ns
        if longest_ns == self.upstream_ns:
            return "upstream"
        return "client" if longest_ns == self.client_ns else "tap"

    @property
    def cause_ns(self) -> int:
        """The longest part."""
        return max(self)


class WaitedTime:
    """Splits durations within one stream by its waits."""

    def __init__(self, waits: Sequence[Wait]) -> None:
        self._waits = waits
        self._starts = [from_ns for from_ns, _, _ in waits]
        self._client_before = self._sums_before("client")
        self._tap_before = self._sums_before("tap")

    def split(self, from_ns: int, until_ns: int) -> TimeSplit:
        client_ns, tap_ns = self._until(until_ns)
        client_before_ns, tap_before_ns = self._until(from_ns)
        client_ns -= client_before_ns
        tap_ns -= tap_before_ns
        return TimeSplit(until_ns - from_ns - client_ns - tap_ns, client_ns, tap_ns)

    def upstream_times(self, times_ns: Sequence[int]) -> list[int]:
        """The times on a clock that stands still during the waits."""
        return [at_ns - sum(self._until(at_ns)) for at_ns in times_ns]

    def _sums_before(self, waited_for: WaitedFor) -> list[int]:
        """For each wait, the sum of the earlier ones of this kind."""
        lengths = (until - begin if by == waited_for else 0 for begin, until, by in self._waits)
        return [0, *accumulate(lengths)]

    def _until(self, at_ns: int) -> tuple[int, int]:
        """(waits for the client, delays by the tap) before this time."""
        i = bisect_right(self._starts, at_ns) - 1
        if i < 0:
            return 0, 0
        from_ns, until_ns, waited_for = self._waits[i]
        part_ns = min(at_ns, until_ns) - from_ns
        client_ns, tap_ns = self._client_before[i], self._tap_before[i]
        return (client_ns + part_ns, tap_ns) if waited_for == "client" else (client_ns, tap_ns + part_ns)


def split_stream(waits: Sequence[Wait], end_ns: int) -> TimeSplit:
    """The parts of [0, end_ns]."""
    return WaitedTime(waits).split(0, end_ns) if waits else TimeSplit(end_ns, 0, 0)


def waits_between(waits: Sequence[Wait], from_ns: int, until_ns: int) -> list[Wait]:
    """The waits, or parts of them, between two times."""
    return [
        (max(begin, from_ns), min(end, until_ns), by)
        for begin, end, by in waits
        if begin < until_ns and end > from_ns
    ]
