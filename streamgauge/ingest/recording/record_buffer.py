"""Buffer between the recorders of one worker and the log thread. Runs on the event loop and never blocks.

Guarantees
- The bytes that wait for the log (in recorders, in the relay, here and in the log thread) stay within `limit_bytes`. Recorders
  reserve room before they keep data. Reserved bytes count until the log has them.
- Heads and small records (`Opened`, `Closed`, `Lost` …) may use a margin of 25 % above the limit. So a stream that lost data
  can still report the loss.
- A loss becomes a `Lost` record of its stream as soon as there is room. Unreported losses are kept in a bounded table. A loss
  that does not fit into it is only counted (`lost_untold`).
- Streams share the buffer fairly: one may have half as many bytes in the log's queue as are free (the dynamic threshold of switch
  buffers). So one fast stream takes a third of the limit at most, and ten take five sixths. Bytes count for two epochs. An epoch
  ends when the log has all that was appended before it began. `has_share` is the rule; `native_relay` applies it to the room that
  `grant` gives it, which is half of the free room, so what it uses counts twice.
- An exception in a recorder ends the recording of its stream (`failures`). One in a step of a tick is contained, and
  the step is repeated at the next tick.

Each tick first takes the relay's records, which have less room than others. Recorders are flushed at the second tick after they
began to wait: 40 to 80 ms later. Making records is work in batches of at most `_BATCH_NS`; between two of them the event loop
processes what has arrived, and the relay's records are taken again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from typing import Protocol

from streamgauge.ingest.recording.failures import CAUSE, FailedRecorder, RecordingFailures
from streamgauge.ingest.recording.log_thread import LogThread
from streamgauge.ingest.recording.relayed import RelayedBatch
from streamgauge.ingest.records import Alive, AnyRecord, Damaged, Frames, Lost, decode, encode

RECORD_OVERHEAD_BYTES = 400
# These two are typed in the .pxd: compiled code reads other globals from the module's dict.
_ENCODED_BYTES = 48  # a bytes object and its place in a list
_HAND_OVER_BYTES = 262_144  # from this size on, records go to the log thread without waiting for the tick
# A recorder's oldest data waits 40 to 80 ms, which leaves at least 20 ms for the loop's lag below 100 ms. Each tick costs a
# transaction of the log.
_TICK_S = 0.04
_TICK_NS = int(_TICK_S * 1e9)
_NEVER_NS = 2**62
_MARGIN = 0.25
_MAX_UNREPORTED = 65_536
# Making records in a batch costs a third of making them between two reads. A batch delays requests by as much.
_BATCH_NS = 400_000
MAX_ENDED = 1024
"""Maximum number of ended exchanges whose last records are not made yet."""


def has_share(used_bytes: int, size_bytes: int, held_bytes: int, limit_bytes: int) -> bool:
    """Whether a stream that has `held_bytes` in the log's queue may add to it: they are half of the free bytes at most."""
    return used_bytes + size_bytes + 2 * held_bytes <= limit_bytes


def held_bytes_of(new_bytes: int, passed_epochs: int) -> int:
    """What a stream holds in a new epoch, if it has added `new_bytes` in its last one: those of the previous epoch count."""
    return new_bytes if passed_epochs == 1 else 0


class WaitingRecorder(FailedRecorder, Protocol):
    """Writes the records of one stream when the buffer asks for them: `Recorder`."""

    waiting: bool
    """The buffer is going to flush it."""

    def flush(self) -> None: ...

    def end(self) -> None: ...


class Relay(Protocol):
    """Makes records outside the event loop: `BodyRelay`."""

    @property
    def active(self) -> int: ...

    @property
    def pending_bytes(self) -> int: ...

    def take(self, records_before_ns: int) -> None:
        """Append the records whose first data arrived before a time."""


class RecordBuffer:
    """Holds encoded records and the losses that are not reported yet."""

    def __init__(
        self,
        sink: LogThread,
        failures: RecordingFailures,
        *,
        queue_bytes: int,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self.sink = sink
        self._clock_ns = clock_ns
        self.counters = failures.counters
        self.failures = failures
        failures.buffer = self
        self.limit_bytes = queue_bytes
        self._margin_limit_bytes = int(queue_bytes * (1 + _MARGIN))
        self.used_bytes = 0
        """Bytes reserved, without those that the log thread was done with at the last `take_done`. Recorders subtract what they
        drop, or what a record is made of."""
        self._done_bytes = 0
        self._pending: list[bytes] = []
        self._pending_bytes = 0
        self._put_bytes = 0
        """Total of bytes given to the log thread."""
        self._epoch = 0
        self._epoch_ends_at = 0
        """The epoch ends when the log thread is done with this many bytes."""
        self._waiting: dict[WaitingRecorder, None] = {}
        self._waiting_longer: dict[WaitingRecorder, None] = {}
        """Recorders that waited at the last tick."""
        self._ended: list[WaitingRecorder] = []
        self._ended_batch: asyncio.Handle | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        self.relay: Relay | None = None
        self._granted_bytes = 0
        """The part of `used_bytes` that the relay may use."""
        self.unreported: dict[str, list[Lost]] = {}
        self._unreported_count = 0

    # --- room

    @property
    def queued_bytes(self) -> int:
        """Bytes that wait for the log, in recorders, in the relay, here and in the log thread."""
        # The relay's grant is reserved as a whole, so that its thread never has to ask for room. It is replaced here by
        # what the relay really holds: a metric of the whole grant would show a half-full queue on an idle tap.
        relay_bytes = self.relay.pending_bytes if self.relay is not None else 0
        self.take_done()
        return self.used_bytes - self._granted_bytes + relay_bytes

    def take_done(self) -> None:
        """Give the room of what the log thread has done since the last call to others."""
        # Not at each reservation: `done_bytes` belongs to the log thread and only grows. An old value may refuse room
        # that has become free, so it is read before a refusal; it never grants room that is not there. So no lock is needed.
        done_bytes = self.sink.done_bytes
        self.used_bytes -= done_bytes - self._done_bytes
        self._done_bytes = done_bytes

    def has_room(self, size_bytes: int, margin: bool = False) -> bool:
        """Whether this many bytes fit. `margin`: heads and small records may use the margin."""
        limit_bytes = self._margin_limit_bytes if margin else self.limit_bytes
        if self.used_bytes + size_bytes > limit_bytes:
            self.take_done()
        return self.used_bytes + size_bytes <= limit_bytes

    def reserve(self, size_bytes: int, margin: bool = False) -> bool:
        """Count bytes that a recorder keeps for its records. False: there is no room."""
        granted = self.has_room(size_bytes, margin)
        if granted:
            self.used_bytes += size_bytes
        return granted

    def grant(self, pending_bytes: int, *, more: bool) -> int:
        """Replace the relay's last grant and return the new one: `pending_bytes`, or with `more` half of the free room if that
        is larger."""
        self.take_done()
        used_bytes = self.used_bytes - self._granted_bytes
        free_bytes = self.limit_bytes - used_bytes
        # Half of the free room, not all of it: bodies in Python and in the relay then share the queue by the same rule
        # as two streams do. Room that the relay already uses cannot be taken away.
        self._granted_bytes = max(pending_bytes, free_bytes // 2) if more else pending_bytes
        self.used_bytes = used_bytes + self._granted_bytes
        return self._granted_bytes

    def epoch(self) -> int:
        """Number of this epoch."""
        done_bytes, appended_bytes = self.sink.done_bytes, self._put_bytes + self._pending_bytes
        if done_bytes >= self._epoch_ends_at:
            # Without a queue, earlier bytes count no more.
            self._epoch += 1 if done_bytes < appended_bytes else 2
            self._epoch_ends_at = appended_bytes
        return self._epoch

    # --- records

    def append(self, record: AnyRecord) -> int:
        """Append a record without a check for room: its data was reserved. Returns its size in the queue; 0: it cannot be
        encoded, which is a bug."""
        try:
            # Encoded here and not in the log thread: encoding holds the interpreter lock, so a thread would delay the
            # event loop by as much, at an unpredictable time. The thread compresses, which releases the lock.
            encoded = encode(record)
        except Exception as e:
            self.failures.count(e)
            return 0
        size_bytes = len(encoded) + _ENCODED_BYTES
        self._pending.append(encoded)
        self.used_bytes += size_bytes
        self._pending_bytes += size_bytes
        self.counters.records += 1
        # A large batch compresses no better, and until it is handed over the log thread has nothing to do.
        if self._pending_bytes >= _HAND_OVER_BYTES:
            self._put_pending()
        elif self._timer is None:
            self.arm()
        return size_bytes

    def append_relayed(self, records: RelayedBatch) -> None:
        """Append records that the relay has encoded. The relay's grant covers their bytes. The log thread copies them: on one
        core, copies here would delay the chunks that arrive meanwhile."""
        self._put_pending()
        self.sink.put(records, records.size_bytes)
        self.used_bytes += records.size_bytes
        self._put_bytes += records.size_bytes
        self.counters.records += records.count

    # --- losses

    def lose(self, lost: Lost) -> None:
        """Count a loss and keep it until there is room to report it. Adjacent losses of a stream are merged."""
        self.counters.lost_records += 1
        self.counters.lost_bytes += lost.bytes
        losses = self.unreported.get(lost.stream)
        if losses and losses[-1].last_seq + 1 == lost.seq:
            last = losses[-1]
            size = last.bytes + lost.bytes
            losses[-1] = Lost(
                lost.stream, last.seq, lost.last_seq, last.cause, last.at_wall_ns, size, lost.last
            )
        elif self._unreported_count < _MAX_UNREPORTED:
            self.unreported.setdefault(lost.stream, []).append(lost)
            self._unreported_count += 1
        else:
            self.counters.lost_untold += 1
        self.arm()

    def report(self, stream: str) -> bool:
        """Append the unreported losses of a stream, before its next record. False: there is no room for them."""
        losses = self.unreported.get(stream)
        while losses:
            if not self.has_room(RECORD_OVERHEAD_BYTES, True):
                return False
            self.append(losses[0])
            losses.pop(0)  # after the step that may fail
            self._unreported_count -= 1
        self.unreported.pop(stream, None)
        return True

    def lose_records(self, records: list[bytes], error: Exception | None = None) -> None:
        """Account for records that the log thread dropped, or that could not be appended because of `error`, a bug."""
        if error is not None:
            self.failures.count(error)
        if not self.failures.attempt(self._lose_batch, records, "log_error" if error is None else CAUSE):
            self.counters.lost_untold += len(records)

    # --- flushing

    def flush_later(self, recorder: WaitingRecorder) -> None:
        """Flush the recorder within 80 ms."""
        if self._timer is None:
            self.arm()
        self._waiting[recorder] = None

    def end_later(self, recorder: WaitingRecorder) -> None:
        """Let the recorder write its last records at the next tick. They do not reach the log earlier, and the requests of a burst
        are forwarded before the records of the first ones are made."""
        ended = self._ended
        ended.append(recorder)
        if self._timer is None:
            self.arm()
        # Each exchange above the bound pays for a batch, so the list cannot grow faster than it is worked off.
        if len(ended) >= MAX_ENDED:
            self._end_recorders(self._clock_ns() + _BATCH_NS)

    def flush_all(self) -> None:
        """Hand over everything, before the worker stops."""
        attempt = self.failures.attempt
        attempt(self._take_from_relay, self._clock_ns())
        attempt(self._end_recorders, _NEVER_NS)
        for waiting in (self._waiting_longer, self._waiting):
            attempt(self._flush, waiting, _NEVER_NS)
        attempt(self._put_all, _NEVER_NS)

    def _end_batch(self) -> None:
        """A batch of ended recorders, and the next one after the reads that have arrived in the meantime."""
        self._ended_batch = None
        if self.failures.attempt(self._end_recorders, self._clock_ns() + _BATCH_NS) and self._ended:
            self._ended_batch = self._loop.call_soon(self._end_batch)
        self.arm()

    def _end_recorders(self, until_ns: int) -> None:
        """End recorders of ended exchanges, the first ones first. Until a time, but one at least, as in all batches."""
        ended, count = self._ended, 0
        while count < len(ended):
            recorder = ended[count]
            count += 1
            try:
                # A recorder waits in one of the two tables at most. `self` is the default because it is never a value of
                # the table: one look-up instead of `in` and `del`.
                if recorder.waiting and self._waiting.pop(recorder, self) is self:
                    self._waiting_longer.pop(recorder, None)
                recorder.end()
            except Exception as e:
                self.failures.failed(e, recorder)
            if self._clock_ns() >= until_ns:
                break
        del ended[:count]

    def arm(self) -> None:
        """Start the timer of the next tick, if it is not running."""
        if self._timer is None:
            self._timer = self._loop.call_later(_TICK_S, self._on_timer)

    def _on_timer(self) -> None:
        if not self.failures.attempt(self._tick):
            self._timer = None
            self.arm()

    def _tick(self) -> None:
        attempt, waiting = self.failures.attempt, self._waiting_longer
        # First, because records from the relay have the room of its grant only: what Python appends before them would
        # otherwise use it up. Records younger than half a tick stay and grow: with few streams, one record then holds a
        # tick's frames.
        worked = attempt(self._take_from_relay, self._clock_ns() - _TICK_NS // 2)
        until_ns = self._clock_ns() + _BATCH_NS
        if self._ended and self._ended_batch is None:
            worked &= attempt(self._end_batch)
        worked &= attempt(self._flush, waiting, until_ns)
        # More recorders wait than one batch may flush. `call_soon` lets reads that have arrived in the meantime go
        # first. After a failure the rest waits for the next tick, so a recorder that always fails cannot keep the loop
        # busy.
        if waiting and worked:
            self._loop.call_soon(self._on_timer)
            return
        # `waiting` is empty now and is reused. A recorder that began to wait just before this tick is flushed at the
        # next one: it has collected data for at least one whole tick, and for at most two.
        self._waiting, self._waiting_longer = waiting, self._waiting
        worked &= attempt(self._put_all, until_ns)
        # Cleared last: the steps above must not start a second timer.
        self._timer = None
        relaying = self.relay is not None and self.relay.active
        left = waiting or self._waiting_longer or self._ended or self.unreported or self._pending
        if relaying or left or not worked:
            self.arm()

    def _flush(self, waiting: dict[WaitingRecorder, None], until_ns: int) -> None:
        while waiting:
            # The table is a dict used as an ordered set. `popitem` removes the recorder before its `flush` runs, so one
            # that raises, or waits again, is not flushed twice.
            recorder = waiting.popitem()[0]
            try:
                recorder.flush()
            except Exception as e:
                self.failures.failed(e, recorder)
            if self._clock_ns() >= until_ns:
                return

    def _take_from_relay(self, records_before_ns: int) -> None:
        # Without bodies it has no reports: the last one of a body is its end.
        if self.relay is not None and self.relay.active:
            self.relay.take(records_before_ns)

    def _put_all(self, until_ns: int) -> None:
        """Hand over all records that are made, and those of losses."""
        for stream in list(self.unreported):
            if not self.report(stream) or self._clock_ns() >= until_ns:
                break
        self._put_pending()
        for batch in self.sink.take_dropped():
            self.lose_records(batch)

    def _put_pending(self) -> None:
        if self._pending:
            self.sink.put(self._pending, self._pending_bytes)
            self._put_bytes += self._pending_bytes
            self._pending = []
            self._pending_bytes = 0

    def _lose_batch(self, batch: Iterable[bytes], cause: str) -> None:
        """Account for records that were dropped."""
        for record in map(decode, batch):
            if not isinstance(record, (Alive, Damaged)):
                size = sum(len(f) for _, f in record.frames) if isinstance(record, Frames) else 0
                self.lose(record.lost(cause, time.time_ns(), size))
