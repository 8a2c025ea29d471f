"""Which incarnations of tap workers have died, judged by the log of one partition alone. No I/O, no clock.

Rules that this file keeps:

- An incarnation is *superseded* when a newer one of the same slot (tap, worker) is alive in the same partition: what
  the old one wrote came before it. Newer means started after the stream in question was opened, so that duplicates of
  old records and two taps of one name do no harm.
- It is *silent* when another incarnation has lived on for longer than `lost_after_ns` since its last sign. Time is taken
  from the witness's own monotonic clock, never across clocks, so a stepped or wrong wall clock kills nobody.
- The witness that counts is another incarnation of the same slot. Any other, on this host or another one, counts only after
  `gone_after_ns`: a ship brings its workers' logs one after the other, and ships drain at speeds of their own, so that after an
  outage what happened at the same time is hours apart in the log. Log time is the time of one slot. Nothing in a topic tells
  a host that is gone from one that is cut off: how long a cut may last before its streams are given up is for the operator to
  say (`--tap-gone-after`), and a day is the default because a late verdict costs nothing and a wrong one a stream's end.
- After a restart nothing is known of earlier signs: the wait begins anew, so a verdict may come later, never earlier.
- Log time (`now_ns`) moves with the monotonic clocks of all incarnations seen; it only goes forward.
"""

from __future__ import annotations

from ingest.records import Alive, Opened

GONE_AFTER_NS = 24 * 3600 * 1_000_000_000
"""Unless told otherwise."""
MAX_INCARNATIONS = 4096
"""Over it, the one that has been silent for longest is taken for dead."""


class _Track:
    __slots__ = ("incarnation", "mono_ns", "offset_ns", "since", "tap", "tick", "worker")

    def __init__(self, tap: str, worker: int, incarnation: str) -> None:
        self.tap = tap
        self.worker = worker
        self.incarnation = incarnation
        self.mono_ns: int | None = None
        self.offset_ns = 0
        self.tick = 0
        self.since: dict[str, int] = {}
        """Witness → its monotonic time at its first `Alive` that found this one silent."""


class Liveness:
    """The incarnations that one partition tells of."""

    def __init__(self, lost_after_ns: int, gone_after_ns: int | None = GONE_AFTER_NS) -> None:
        """`gone_after_ns` None: no other slot's time counts, ever."""
        self.now_ns = 0
        """Log time: grows with the log, begins anywhere."""
        self._lost_after_ns = lost_after_ns
        self._gone_after_ns = gone_after_ns if gone_after_ns is not None else 2**63
        self._tracks: dict[str, _Track] = {}  # the longest silent first
        self._ticks = 0

    def opened(self, record: Opened) -> str | None:
        """A stream of this incarnation began. Returns an incarnation given up for want of room, if any."""
        if record.incarnation in self._tracks:
            return None
        return self._add(_Track(record.tap, record.tap_worker, record.incarnation))

    def alive(self, record: Alive) -> list[str]:
        """A sign of life. Returns the incarnations that are now taken for dead by silence."""
        track = self._tracks.get(record.incarnation)
        if track is None:
            track = _Track(record.tap, record.tap_worker, record.incarnation)
        elif track.mono_ns is not None and record.mono_ns <= track.mono_ns:
            return []  # a duplicate is no sign
        if track.mono_ns is None:
            track.offset_ns = self.now_ns - record.mono_ns
        track.mono_ns = record.mono_ns
        self.now_ns = max(self.now_ns, record.mono_ns + track.offset_ns)
        previous_tick = track.tick
        dropped = self._add(track)
        dead = [dropped] if dropped is not None else []
        for other in self._tracks.values():
            if other.tick > previous_tick:
                break  # has given a sign since this one's last, and so have all that follow
            if other is track:
                continue
            first_ns = other.since.setdefault(track.incarnation, record.mono_ns)
            if record.mono_ns - first_ns > self._patience_ns(other, track):
                dead.append(other.incarnation)
        for incarnation in dead:
            self._tracks.pop(incarnation, None)
        return dead

    def rivals(self, record: Alive) -> list[str]:
        """The other incarnations of this one's slot."""
        return [
            t.incarnation
            for t in self._tracks.values()
            if t.worker == record.tap_worker and t.tap == record.tap and t.incarnation != record.incarnation
        ]

    def forget(self, incarnation: str) -> None:
        """Nothing of it is open any more and nothing more will come."""
        self._tracks.pop(incarnation, None)

    def _patience_ns(self, silent: _Track, witness: _Track) -> int:
        if (silent.tap, silent.worker) != (witness.tap, witness.worker):
            return self._gone_after_ns
        return self._lost_after_ns

    def _add(self, track: _Track) -> str | None:
        self._ticks += 1
        track.tick = self._ticks
        track.since.clear()
        self._tracks.pop(track.incarnation, None)  # to the end: it is the one heard of last
        self._tracks[track.incarnation] = track
        if len(self._tracks) <= MAX_INCARNATIONS:
            return None
        oldest = next(iter(self._tracks))
        del self._tracks[oldest]
        return oldest
