"""Buffer between the recorders of one worker and the log thread. Runs on the event loop and never blocks.

Guarantees
- The bytes that wait for the log (in recorders, in the relay, here and in the log thread) stay within `limit_bytes`. Recorders
  reserve room before they keep data, except up to 16 KiB per new exchange (`DeferredRecorder`). Reserved bytes count until
  the log has them.
- Heads and small records (`Opened`, `Closed`, `Lost` …) may use a margin of 25 % above the limit. So a stream that lost data
  can still report the loss.
- A loss becomes a `Lost` record of its stream as soon as there is room. Unreported losses are kept in a bounded table. A loss
  that does not fit into it is only counted (`lost_untold`).

Recorders are flushed in batches, at the second tick after they began to wait: 40 to 80 ms later.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable
from typing import Protocol

from ingest.records import Alive, AnyRecord, Closed, Damaged, Frames, Lost, decode, encode
from ingest.tap.counters import Counters

logger = logging.getLogger("streamgauge.tap")

RECORD_OVERHEAD_BYTES = 400
ENCODED_OVERHEAD_BYTES = 48  # a bytes object and its place in a list
_HAND_OVER_BYTES = 262_144  # from this size on, records go to the log thread without waiting for the tick
# A recorder's oldest data waits 40 to 80 ms, which leaves at least 20 ms for the loop's lag below 100 ms. Each tick costs a
# transaction of the log.
_TICK_S = 0.04
_TICK_NS = int(_TICK_S * 1e9)
_MARGIN = 0.25
_MAX_UNREPORTED = 65_536
# Making records in a batch costs a third of making them between two reads. A batch delays requests by less than 0.5 ms.
_RECORDERS_PER_BATCH = 64
_BURST_S = 0.004  # requests of one burst are forwarded before the records of the first ones are made
MAX_ENDED = 1024
"""Maximum number of ended exchanges whose last records are not made yet."""


class Sink(Protocol):
    """Receives batches of encoded records: `LogThread`."""

    done_bytes: int
    failing: str | None

    def put(self, records: list[bytes], size_bytes: int) -> None: ...

    def take_dropped(self) -> list[list[bytes]]: ...


class Recorder(Protocol):
    """Writes the records of one stream when the buffer asks for them: `StreamRecorder`, `DeferredRecorder`."""

    waiting: bool
    """The buffer is going to flush it."""

    def flush(self) -> None: ...


class EndedRecorder(Recorder, Protocol):
    """The recorder of an exchange that is over: `DeferredRecorder`."""

    def end(self) -> None: ...


class RecordSource(Protocol):
    """Makes the records of short exchanges and may keep them until the next tick: `Recorders`."""

    def flush(self) -> None: ...


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

    def __init__(self, sink: Sink, counters: Counters, *, queue_bytes: int) -> None:
        self.sink = sink
        self.counters = counters
        self.limit_bytes = queue_bytes
        self._margin_limit_bytes = int(queue_bytes * (1 + _MARGIN))
        self.added_bytes = 0
        """Total of bytes reserved and not released. The log thread is done with `sink.done_bytes` of them."""
        self._pending: list[bytes] = []
        self._pending_bytes = 0
        self._waiting: dict[Recorder, None] = {}
        self._waiting_longer: dict[Recorder, None] = {}
        """Recorders that waited at the last tick."""
        self._ended: list[EndedRecorder] = []
        self._ended_batch: asyncio.Handle | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        self.relay: Relay | None = None
        self.recorders: RecordSource | None = None
        self._granted_bytes = 0
        """The part of `added_bytes` that the relay may use."""
        self.unreported: dict[str, list[Lost]] = {}
        self._unreported_count = 0

    # --- room

    @property
    def queued_bytes(self) -> int:
        """Bytes that wait for the log, in recorders, in the relay, here and in the log thread."""
        relay_bytes = self.relay.pending_bytes if self.relay is not None else 0
        return self.added_bytes - self._granted_bytes + relay_bytes - self.sink.done_bytes

    def has_room(self, size_bytes: int, *, margin: bool = False) -> bool:
        """Whether this many bytes fit. `margin`: heads and small records may use the margin.

        `reserve`, `add` and `StreamRecorder._frame` inline this check: they run for each request or read.
        """
        limit_bytes = self._margin_limit_bytes if margin else self.limit_bytes
        return self.added_bytes - self.sink.done_bytes + size_bytes <= limit_bytes

    def reserve(self, size_bytes: int, *, margin: bool = False) -> bool:
        """Count bytes that a recorder keeps for its records. False: there is no room."""
        limit_bytes = self._margin_limit_bytes if margin else self.limit_bytes
        granted = self.added_bytes - self.sink.done_bytes + size_bytes <= limit_bytes
        if granted:
            self.added_bytes += size_bytes
        return granted

    def release(self, size_bytes: int) -> None:
        """Return reserved bytes, when they are dropped or before the record made of them is appended."""
        self.added_bytes -= size_bytes

    def grant(self, pending_bytes: int, *, more: bool) -> int:
        """Replace the relay's last grant and return the new one: `pending_bytes`, or with `more` half of the free room if that
        is larger."""
        used_bytes = self.added_bytes - self._granted_bytes
        free_bytes = self.limit_bytes - used_bytes + self.sink.done_bytes
        self._granted_bytes = max(pending_bytes, free_bytes // 2) if more else pending_bytes
        self.added_bytes = used_bytes + self._granted_bytes
        return self._granted_bytes

    # --- records

    def add(self, record: AnyRecord, size_bytes: int) -> bool:
        """Append a record if it fits with the margin. False: no room, or `append` failed."""
        if self.added_bytes - self.sink.done_bytes + size_bytes > self._margin_limit_bytes:
            return False
        return self.append(record, size_bytes)

    def append(self, record: AnyRecord, size_bytes: int) -> bool:
        """Append a record without a check for room: its data was reserved. False: it cannot be encoded, which is a bug."""
        try:
            self._pending.append(encode(record))
        except Exception:
            logger.exception("cannot encode a record: it is dropped and counted as lost")
            return False
        self.added_bytes += size_bytes
        self._pending_bytes += size_bytes
        self.counters.records += 1
        if self._pending_bytes >= _HAND_OVER_BYTES:
            self._put_pending()
        else:
            self.arm()
        return True

    def append_exchanges(
        self, records: list[bytes], frame_count: int, captured_bytes: int, ends: dict[str, int]
    ) -> None:
        """Append all records of ended exchanges. The caller has checked that they fit. `ends`: number of exchanges by cause."""
        size_bytes = sum(map(len, records)) + ENCODED_OVERHEAD_BYTES * len(records)
        self._pending += records
        self.added_bytes += size_bytes
        self._pending_bytes += size_bytes
        counters = self.counters
        counters.records += len(records)
        counters.frames += frame_count
        counters.captured_bytes += captured_bytes
        for cause, count in ends.items():
            counters.streams_closed += count
            counters.closed_by_cause[cause] += count
        if self._pending_bytes >= _HAND_OVER_BYTES:
            self._put_pending()
        elif self._timer is None:
            self.arm()

    def append_encoded(self, records: list[bytes]) -> None:
        """Append records that the relay has encoded. The relay's grant covers their bytes."""
        for record in records:
            size_bytes = len(record) + ENCODED_OVERHEAD_BYTES
            self._pending.append(record)
            self.added_bytes += size_bytes
            self._pending_bytes += size_bytes
            if self._pending_bytes >= _HAND_OVER_BYTES:
                self._put_pending()
        self.counters.records += len(records)

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

    def loss_cause(self) -> str:
        """Why there is no room: `Lost.cause`."""
        return self.sink.failing or "queue_full"

    def report(self, stream: str) -> bool:
        """Append the unreported losses of a stream, before its next record. False: there is no room for them."""
        losses = self.unreported.get(stream)
        while losses:
            if not self.has_room(RECORD_OVERHEAD_BYTES, margin=True):
                return False
            self.append(losses.pop(0), RECORD_OVERHEAD_BYTES)
            self._unreported_count -= 1
        self.unreported.pop(stream, None)
        return True

    def count_failed_recorder(self) -> None:
        """Log and count the current exception: a recorder could not make its records (a bug)."""
        logger.exception("cannot make the records of a stream: they are lost, other streams continue")
        self.counters.lost_untold += 1

    # --- flushing

    def flush_later(self, recorder: Recorder) -> None:
        """Flush the recorder within 80 ms."""
        self._waiting[recorder] = None
        if self._timer is None:
            self.arm()

    def end_later(self, recorder: EndedRecorder) -> None:
        """Let the recorder write its last records, soon but not within a burst of requests."""
        ended = self._ended
        ended.append(recorder)
        if self._ended_batch is None:
            self._ended_batch = self._loop.call_later(_BURST_S, self._end_batch)
        elif len(ended) >= MAX_ENDED:
            self._end_recorders(_RECORDERS_PER_BATCH)

    def flush_all(self) -> None:
        """Hand over everything, before the worker stops."""
        if self.relay is not None:
            self.relay.take(time.monotonic_ns())
        self._end_recorders()
        for waiting in (self._waiting_longer, self._waiting):
            while waiting:
                waiting.popitem()[0].flush()
        if self.recorders is not None:
            self.recorders.flush()
        self._report_all()
        self._put_pending()

    def _end_batch(self) -> None:
        self._end_recorders(_RECORDERS_PER_BATCH)
        self._ended_batch = self._loop.call_soon(self._end_batch) if self._ended else None
        self.arm()

    def _end_recorders(self, count: int | None = None) -> None:
        """End the first `count` recorders of ended exchanges, or all."""
        ended = self._ended[:count]
        del self._ended[:count]
        for recorder in ended:
            if recorder.waiting and self._waiting.pop(recorder, self) is self:
                self._waiting_longer.pop(recorder, None)
            try:
                recorder.end()
            except Exception:
                self.count_failed_recorder()

    def arm(self) -> None:
        """Start the timer of the next tick, if it is not running."""
        if self._timer is None:
            self._timer = self._loop.call_later(_TICK_S, self._tick)

    def _tick(self) -> None:
        self._end_recorders(_RECORDERS_PER_BATCH)
        if self._ended:
            self._loop.call_soon(self._tick)
            return
        waiting = self._waiting_longer
        for _ in range(_RECORDERS_PER_BATCH):
            if not waiting:
                break
            waiting.popitem()[0].flush()
        else:
            self._loop.call_soon(self._tick)
            return
        self._waiting, self._waiting_longer = waiting, self._waiting
        failed = False
        try:
            self._collect()
        except Exception:  # a bug; it must not stop the later ticks
            failed = True
            logger.exception("cannot collect the records")
        # Cleared last: the steps above must not start a second timer.
        self._timer = None
        relaying = self.relay is not None and self.relay.active
        if failed or relaying or self._waiting_longer or self.unreported or self._pending:
            self.arm()

    def _collect(self) -> None:
        """Hand over all records that can be made now."""
        if self.relay is not None:
            self.relay.take(time.monotonic_ns() - _TICK_NS // 2)
        if self.recorders is not None:
            self.recorders.flush()
        self._report_all()
        self._put_pending()
        for batch in self.sink.take_dropped():
            self._lose_batch(batch)

    def _report_all(self) -> None:
        for stream in list(self.unreported):
            if not self.report(stream):
                return

    def _put_pending(self) -> None:
        if self._pending:
            self.sink.put(self._pending, self._pending_bytes)
            self._pending = []
            self._pending_bytes = 0

    def _lose_batch(self, batch: Iterable[bytes]) -> None:
        """Account for records that the log thread dropped."""
        for record in map(decode, batch):
            if not isinstance(record, (Alive, Damaged)):
                size = sum(len(f) for _, f in record.frames) if isinstance(record, Frames) else 0
                last = record.last_seq if isinstance(record, Lost) else record.seq
                ends = record.last if isinstance(record, Lost) else isinstance(record, Closed)
                self.lose(Lost(record.stream, record.seq, last, "log_error", time.time_ns(), size, ends))
