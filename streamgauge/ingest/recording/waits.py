"""The times in which one exchange waited for its client or was delayed by the tap.

Guarantees
- Waits are disjoint and sorted. Where both apply, the tap's delay takes precedence over the wait for the client, because a
  blocked tap cannot detect that the client is ready again.
- At most `MAX_WAITS` are kept. Beyond that the closest ones are merged; the sums per party stay exact.
- A delay is asked for only after a silence of `LONG_SILENCE_NS`, so reads in quick succession cost nothing.

A wait for the client through back-pressure follows at least three quarters of the write buffer (48 KiB), so `MAX_WAITS` are
enough for 12 MB to a slow reader.
"""

from __future__ import annotations

from typing import Final, Protocol

from streamgauge.ingest.records import Wait, WaitedFor

LONG_SILENCE_NS: Final = 50_000_000
MAX_WAITS: Final = 256


class Blocks(Protocol):
    """Interface of what knows when an event loop could not run."""

    def block_before(self, now_ns: int) -> tuple[int, int] | None:
        """(start, end) of the block that may have delayed the callback that runs now."""


class Waits:
    """Waits of one exchange. Times passed in are monotonic, in ns, and do not decrease."""

    def __init__(self, blocks: Blocks | None, t0_ns: int) -> None:
        """`blocks`: those of the event loop that forwards; None: nothing delays the bytes."""
        self._blocks = blocks
        self._t0_ns = t0_ns
        self._client_since_ns = -1
        self.found: list[Wait] = []
        """In ns since t0."""

    @property
    def for_client(self) -> bool:
        """The exchange waits for its client now."""
        return self._client_since_ns >= 0

    def begin(self, now_ns: int) -> None:
        """From now on the exchange waits for its client."""
        if self._client_since_ns < 0:
            self._client_since_ns = now_ns

    def end(self, now_ns: int) -> None:
        """The client is ready, or the exchange no longer waits for it."""
        since_ns = self._client_since_ns
        if since_ns >= 0:
            self.silence_ended(since_ns, now_ns)
            since_ns = self._client_since_ns
            self._client_since_ns = -1
            self.add(since_ns, now_ns, "client")

    def silence_ended(self, since_ns: int, now_ns: int) -> None:
        """Nothing arrived between these times. Add the tap's part of it: a block of the event loop just before now."""
        # Shorter silences cannot hold a stall, and the search would run for every read.
        if now_ns - since_ns <= LONG_SILENCE_NS or self._blocks is None:
            return
        block = self._blocks.block_before(now_ns)
        if block is None or block[1] <= since_ns:
            return
        from_ns, until_ns = max(since_ns, block[0]), block[1]
        if self._client_since_ns >= 0:
            self.add(self._client_since_ns, from_ns, "client")
            self._client_since_ns = max(self._client_since_ns, until_ns)
        self.add(from_ns, until_ns, "tap")

    def add(self, from_ns: int, until_ns: int, waited_for: WaitedFor) -> None:
        """Add a wait that has ended."""
        from_ns -= self._t0_ns
        until_ns -= self._t0_ns
        waits = self.found
        if waits:
            from_ns = max(from_ns, waits[-1][1])
        if from_ns < until_ns:
            waits.append((from_ns, until_ns, waited_for))
            if len(waits) > MAX_WAITS:
                merge_closest(waits)


def merge_closest(waits: list[Wait]) -> None:
    """Replace the three adjacent waits with the least time between them by one or two with the same sums."""

    def time_between_ns(i: int) -> int:
        before, wait, after = waits[i], waits[i + 1], waits[i + 2]
        return after[0] - before[1] - (wait[1] - wait[0])

    at = min(range(len(waits) - 2), key=time_between_ns)
    three = waits[at : at + 3]
    client_ns = sum(until - begin for begin, until, waited_for in three if waited_for == "client")
    tap_ns = sum(until - begin for begin, until, waited_for in three if waited_for == "tap")
    until_ns = three[-1][1]
    between_ns = until_ns - tap_ns
    merged: list[Wait] = [(between_ns - client_ns, between_ns, "client"), (between_ns, until_ns, "tap")]
    waits[at : at + 3] = [wait for wait in merged if wait[0] < wait[1]]
