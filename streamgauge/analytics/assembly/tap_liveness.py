"""Detect dead incarnations of tap workers from the records of one partition. No I/O, no clock.

- An incarnation is *superseded* when a newer one of the same slot (tap, worker) is alive in the same partition. Newer means
  started after the stream in question was opened, so duplicates of old records and two taps of one name are harmless.
- An incarnation is *silent* when another one has been alive for longer than the limit since its last `Alive`. Time is
  measured on the observer's monotonic clock, never across clocks, so a wrong or stepped wall clock has no effect.
- The limit is `lost_after_ns` for an observer of the same slot and `tap_gone_after_ns` for any other.
  Ships drain at different speeds after an outage, so simultaneous records of different slots can be hours apart in the log.
  The log cannot distinguish a dead host from a disconnected one. The default is a day, because a late verdict costs little
  and a wrong one loses the end of a stream.
- Earlier reports are unknown after a restart. The wait starts again, so a verdict may come later, never earlier.
- Log time (`now_ns`) advances with the monotonic clocks of all incarnations seen. It never goes back.
"""

from __future__ import annotations

from streamgauge.ingest.records import Alive, Opened

TAP_GONE_AFTER_NS = 24 * 3600 * 1_000_000_000
MAX_INCARNATIONS = 4096
"""Beyond this number, the incarnation that has been silent longest is marked as dead."""


class _Incarnation:
    __slots__ = ("incarnation", "mono_ns", "newest", "offset_ns", "silent_since", "tap", "tick", "worker")

    def __init__(self, tap: str, worker: int, incarnation: str) -> None:
        self.tap = tap
        self.worker = worker
        self.incarnation = incarnation
        self.mono_ns: int | None = None
        self.newest: Alive | None = None
        self.offset_ns = 0
        self.tick = 0
        self.silent_since: dict[str, int] = {}
        """Observing incarnation → its monotonic time at its first `Alive` after this one's last."""


class Liveness:
    """The incarnations seen in one partition."""

    def __init__(self, lost_after_ns: int, tap_gone_after_ns: int | None = TAP_GONE_AFTER_NS) -> None:
        """`tap_gone_after_ns` None: only observers of the same slot are used."""
        self.now_ns = 0
        """Log time, with an arbitrary start."""
        self._lost_after_ns = lost_after_ns
        self._tap_gone_after_ns = tap_gone_after_ns if tap_gone_after_ns is not None else 2**63
        self._incarnations: dict[str, _Incarnation] = {}  # the one silent longest first
        self._ticks = 0

    @property
    def reports(self) -> list[Alive]:
        """The newest report of each incarnation in this partition."""
        return [one.newest for one in self._incarnations.values() if one.newest is not None]

    def opened(self, record: Opened) -> str | None:
        """Process a stream's first record. Returns the incarnation evicted to make room, if any."""
        if record.incarnation in self._incarnations:
            return None
        return self._add(_Incarnation(record.tap, record.tap_worker, record.incarnation))

    def alive(self, record: Alive) -> list[str]:
        """Process a report of a tap. Returns the incarnations that are now dead by silence."""
        reporter = self._incarnations.get(record.incarnation)
        if reporter is None:
            reporter = _Incarnation(record.tap, record.tap_worker, record.incarnation)
        elif reporter.mono_ns is not None and record.mono_ns <= reporter.mono_ns:
            return []  # a duplicate
        if reporter.mono_ns is None:
            reporter.offset_ns = self.now_ns - record.mono_ns
        reporter.mono_ns, reporter.newest = record.mono_ns, record
        self.now_ns = max(self.now_ns, record.mono_ns + reporter.offset_ns)
        previous_tick = reporter.tick
        dropped = self._add(reporter)
        dead = [dropped] if dropped is not None else []
        for other in self._incarnations.values():
            if other.tick > previous_tick:
                # Ordered by their newest report, so a tap that reports every two seconds does not visit every incarnation.
                break  # this one and all after it reported since the previous `Alive` of `reporter`
            if other is reporter:
                continue
            first_ns = other.silent_since.setdefault(reporter.incarnation, record.mono_ns)
            if record.mono_ns - first_ns > self._limit_ns(other, reporter):
                dead.append(other.incarnation)
        for incarnation in dead:
            self._incarnations.pop(incarnation, None)
        return dead

    def rivals(self, record: Alive) -> list[str]:
        """The other incarnations of the same slot."""
        return [
            t.incarnation
            for t in self._incarnations.values()
            if t.worker == record.tap_worker and t.tap == record.tap and t.incarnation != record.incarnation
        ]

    def remove(self, incarnation: str) -> None:
        """Remove an incarnation that has stopped."""
        self._incarnations.pop(incarnation, None)

    def _limit_ns(self, silent: _Incarnation, observer: _Incarnation) -> int:
        if (silent.tap, silent.worker) != (observer.tap, observer.worker):
            return self._tap_gone_after_ns
        return self._lost_after_ns

    def _add(self, reporter: _Incarnation) -> str | None:
        self._ticks += 1
        reporter.tick = self._ticks
        reporter.silent_since.clear()
        self._incarnations.pop(reporter.incarnation, None)  # move to the end: most recent last
        self._incarnations[reporter.incarnation] = reporter
        if len(self._incarnations) <= MAX_INCARNATIONS:
            return None
        oldest = next(iter(self._incarnations))
        del self._incarnations[oldest]
        return oldest
