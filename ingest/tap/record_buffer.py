"""Turn what the tap saw into records and hand them to the log's thread. Runs on the event loop; never waits.

The rules: a stream's records are numbered without a gap. Frames wait in their stream for at most 100 ms or 64 KiB, and
so does all else that a stream has to tell: records are made some at a time, because one after the other they cost a third
of what each costs between two reads of the traffic; and few at a time, because the traffic waits for them.
What waits for the log, in streams and in the thread's queue, is bounded in bytes: whatever a stream notes asks for room
first, and counts until the log has it. Beyond the bound the bytes of frames are dropped, each contiguous run of them
takes one number, and a `Lost` with that number and the bytes takes their place as soon as there is room; a request's body
likewise. Heads and small records (`Opened`, `Closed`, `Lost` …) may use a reserve on top of the bound, so that a stream
that lost data still says so. Beyond the reserve they are lost too, and what is to be told of that is kept, one
entry for a stream, in a table that is itself bounded; what does not fit there is counted as `lost_untold`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable
from typing import Protocol

from ingest.records import (
    Alive,
    AnyRecord,
    Closed,
    Damaged,
    Frames,
    Lost,
    Opened,
    Request,
    ResponseHeaders,
    decode,
    encode,
)
from ingest.tap.counters import Counters

logger = logging.getLogger("streamgauge.tap")

FLUSH_BYTES = 65_536
_HAND_OVER_BYTES = 262_144  # what one tick gathers at most; each hand-over wakes the log's thread
# A stream is flushed at the second tick after it began to wait: its oldest frame waits 40 to 80 ms, which leaves the
# loop's own lag some room under 100. Each tick costs the log a transaction, and the loop the turns of whoever writes it.
_TICK_S = 0.04
FRAME_OVERHEAD_BYTES = 96  # a tuple, an int and the head of a bytes object
RECORD_OVERHEAD_BYTES = 400
_RESERVE = 0.25
_MAX_UNREPORTED = 65_536
_STREAMS_A_TURN = 16  # so that traffic does not wait for the streams of a tick: some 0.1 ms


class Sink(Protocol):
    """Where batches go: `LogThread`."""

    done_bytes: int
    failing: str | None

    def put(self, records: list[bytes], size_bytes: int) -> None: ...

    def take_dropped(self) -> list[list[bytes]]: ...


class RecordBuffer:
    """The way from the loop to the log's thread."""

    def __init__(self, sink: Sink, counters: Counters, *, queue_bytes: int) -> None:
        self.sink = sink
        self.counters = counters
        self.bound = queue_bytes
        self._hard_bound = int(queue_bytes * (1 + _RESERVE))
        self.added_bytes = 0
        self._pending: list[bytes] = []
        self._pending_bytes = 0
        self._waiting: dict[StreamRecords, None] = {}
        self._waiting_longer: dict[StreamRecords, None] = {}
        """Since before the last tick."""
        self._over: list[StreamRecords] = []
        self._timer: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        self.unreported: dict[str, list[Lost]] = {}
        self._unreported_count = 0

    @property
    def queued_bytes(self) -> int:
        """Bytes that wait for the log, in streams, here and in the thread's queue."""
        return self.added_bytes - self.sink.done_bytes

    def has_room(self, size_bytes: int) -> bool:
        """So many bytes of content may be taken."""
        return self.added_bytes - self.sink.done_bytes + size_bytes <= self.bound

    def note(self, size_bytes: int) -> bool:
        """Count so many bytes of content that a stream keeps for its records. False: there is no room."""
        granted = self.has_room(size_bytes)
        if granted:
            self.added_bytes += size_bytes
        return granted

    def note_head(self, size_bytes: int) -> bool:
        """The same of a head, which may use the reserve."""
        granted = self._room_for(size_bytes)
        if granted:
            self.added_bytes += size_bytes
        return granted

    def loss_cause(self) -> str:
        """Why there is no room."""
        return self.sink.failing or "queue_full"

    def add(self, record: AnyRecord, size_bytes: int) -> bool:
        """Take a record; False when even the reserve is full (or, a bug of ours, it cannot be encoded)."""
        return self._room_for(size_bytes) and self.append(record, size_bytes)

    def append(self, record: AnyRecord, size_bytes: int) -> bool:
        """Take a record whose bytes were granted before. False: a bug of ours, it cannot be encoded."""
        try:
            self._pending.append(encode(record))
        except Exception:
            logger.exception("a record that cannot be encoded was dropped")
            return False
        self.added_bytes += size_bytes
        self._pending_bytes += size_bytes
        self.counters.records += 1
        if self._pending_bytes >= _HAND_OVER_BYTES:
            self._hand_over()
        elif self._timer is None:
            self._arm()
        return True

    def wait_to_flush(self, stream: StreamRecords) -> None:
        """The stream has something to tell: flush it within the time."""
        self._waiting[stream] = None
        if self._timer is None:
            self._arm()

    def wait_to_end(self, stream: StreamRecords) -> None:
        """All is known of the stream: write its end, within the time too."""
        over = self._over
        over.append(stream)
        if len(over) >= _STREAMS_A_TURN:
            self._end_streams()
        elif self._timer is None:
            self._arm()

    def report_later(self, lost: Lost) -> None:
        """Keep what is to be told of a stream's loss until there is room; neighbouring losses are joined."""
        known = self.unreported.get(lost.stream)
        if known and known[-1].last_seq + 1 == lost.seq:
            last = known[-1]
            size = last.bytes + lost.bytes
            known[-1] = Lost(
                lost.stream, last.seq, lost.last_seq, last.cause, last.at_wall_ns, size, lost.last
            )
        elif self._unreported_count < _MAX_UNREPORTED:
            self.unreported.setdefault(lost.stream, []).append(lost)
            self._unreported_count += 1
        else:
            self.counters.lost_untold += 1
        if self._timer is None:
            self._arm()

    def report(self, stream: str) -> bool:
        """Tell what is kept of a stream, before its next record; False while there is no room even for that."""
        if not self.unreported:
            return True
        known = self.unreported.get(stream)
        while known:
            if not self._room_for(RECORD_OVERHEAD_BYTES):
                return False
            self.append(known.pop(0), RECORD_OVERHEAD_BYTES)
            self._unreported_count -= 1
        self.unreported.pop(stream, None)
        return True

    def flush_all(self) -> None:
        """Hand over everything, at the end."""
        for waiting in (self._waiting_longer, self._waiting):
            while waiting:
                waiting.popitem()[0].flush()
        self._end_streams()
        if self.unreported:
            self._report_losses()
        self._hand_over()

    def _end_streams(self) -> None:
        over, self._over = self._over, []
        for stream in over:
            if stream.waiting and self._waiting.pop(stream, self) is self:
                self._waiting_longer.pop(stream, None)
            try:
                stream.end()
            except Exception:
                self.not_written()

    def not_written(self) -> None:
        """A bug of ours, to be called where it is caught: a stream's records could not be made."""
        logger.exception("what a stream had to tell could not be written; the other streams go on")
        self.counters.lost_untold += 1

    def _room_for(self, size_bytes: int) -> bool:
        return self.added_bytes - self.sink.done_bytes + size_bytes <= self._hard_bound

    def _arm(self) -> None:
        self._timer = self._loop.call_later(_TICK_S, self._tick)

    def _report_losses(self) -> None:
        for stream in list(self.unreported):
            if not self.report(stream):
                return

    def _hand_over(self) -> None:
        if self._pending:
            self.sink.put(self._pending, self._pending_bytes)
            self._pending = []
            self._pending_bytes = 0

    def _tick(self) -> None:
        waiting = self._waiting_longer
        for _ in range(_STREAMS_A_TURN):
            if not waiting:
                break
            waiting.popitem()[0].flush()
        else:
            self._loop.call_soon(self._tick)
            return
        self._waiting, self._waiting_longer = waiting, self._waiting
        self._end_streams()
        if self.unreported:
            self._report_losses()
        self._hand_over()
        for batch in self.sink.take_dropped():
            self._report_dropped(batch)
        # Only now: what was done above must not arm a second timer.
        self._timer = None
        if self._waiting_longer or self.unreported or self._pending:
            self._arm()

    def _report_dropped(self, batch: Iterable[bytes]) -> None:
        """Records that the log's thread gave up."""
        for record in map(decode, batch):
            if not isinstance(record, (Alive, Damaged)):
                size = sum(len(f) for _, f in record.frames) if isinstance(record, Frames) else 0
                self.counters.lost_records += 1
                self.counters.lost_bytes += size
                last = record.last_seq if isinstance(record, Lost) else record.seq
                ends = record.last if isinstance(record, Lost) else isinstance(record, Closed)
                self.report_later(
                    Lost(record.stream, record.seq, last, "log_error", time.time_ns(), size, ends)
                )


class StreamRecords:
    """The records of one stream. Every method is called by the exchange, in the order of the protocol."""

    __slots__ = (
        "_buffer",
        "_bytes",
        "_frames",
        "_head",
        "_head_bytes",
        "_lost_bytes",
        "_seq",
        "_uncaptured",
        "stream",
        "waiting",
    )

    def __init__(self, buffer: RecordBuffer, stream: str) -> None:
        self._buffer = buffer
        self.stream = stream
        buffer.counters.streams_opened += 1
        self.waiting = False
        """The buffer will flush it."""
        self._seq = 0
        self._frames: list[tuple[int, bytes]] = []
        self._bytes = 0
        self._head: ResponseHeaders | None = None
        self._head_bytes = 0
        self._uncaptured = 0
        self._lost_bytes = -1  # ≥ 0 while a run of frames is being dropped; then no frames wait

    def open(self, opened: Opened, noted_bytes: int) -> None:
        """The first record, seq 0, for which `noted_bytes` were granted."""
        self._buffer.added_bytes -= noted_bytes
        self._emit(opened, noted_bytes)

    def request(self, body: bytes, *, truncated: bool) -> None:
        """The first bytes of the request's body, which were granted."""
        self._buffer.added_bytes -= len(body)
        self._emit(Request(self.stream, self._seq, body, truncated), RECORD_OVERHEAD_BYTES + len(body))

    def note_response(self, size_bytes: int) -> bool:
        """The final head of the response is there: it is to ride on the first `Frames`. False: no room, and it is lost."""
        granted = self._buffer.note_head(size_bytes)
        if granted:
            self._head_bytes = size_bytes
            self._wait()
        else:
            self.lose_noted()
        return granted

    def lose_noted(self) -> None:
        """What was to be noted now found no room: its number is lost, after all that was noted before it."""
        self._write_waiting()
        seq = self._seq
        self._seq += 1
        self._lose(seq, 0)

    def frame(self, at_ns: int, body: bytes) -> None:
        """One read's payload. The hot path."""
        buffer = self._buffer
        size = len(body)
        if buffer.added_bytes + size - buffer.sink.done_bytes > buffer.bound:
            self._drop(size)
            return
        if self._lost_bytes >= 0:
            self._end_lost_run()
        self._frames.append((at_ns, body))
        buffer.added_bytes += size + FRAME_OVERHEAD_BYTES
        size += self._bytes
        self._bytes = size
        if size >= FLUSH_BYTES:
            self._write_waiting()
        elif not self.waiting:
            self._wait()

    def uncaptured(self, size_bytes: int) -> None:
        """Body bytes that passed and are not mirrored, by rule."""
        self._uncaptured += size_bytes
        if not self.waiting:
            self._wait()

    def end_frames(self) -> int:
        """No more frames: flush them, and return the seq for `Closed`."""
        self._write_waiting()
        self._end_lost_run()
        return self._seq

    def close(self, closed: Closed) -> None:
        """The last record."""
        counters = self._buffer.counters
        counters.streams_closed += 1
        counters.closed_by_cause[closed.cause] += 1
        self._emit(closed, RECORD_OVERHEAD_BYTES)

    def flush(self) -> None:
        """The time is over for what waits."""
        self.waiting = False
        try:
            self._write_waiting()
        except Exception:
            self._buffer.not_written()

    def end(self) -> None:
        """Write what is left to tell, after `RecordBuffer.wait_to_end`."""
        raise NotImplementedError

    def _wait(self) -> None:
        if not self.waiting:
            self.waiting = True
            self._buffer.wait_to_flush(self)

    def _write_waiting(self) -> None:
        frames, head, uncaptured = self._frames, self._head, self._uncaptured
        if not frames and head is None and not uncaptured:
            return
        size, seq, buffer = self._bytes, self._seq, self._buffer
        granted_bytes = size + FRAME_OVERHEAD_BYTES * len(frames)
        self._frames, self._bytes, self._seq = [], 0, seq + 1
        counters = buffer.counters
        if head is not None or uncaptured:
            counters.uncaptured_bytes += uncaptured
            granted_bytes += self._head_bytes
            self._head, self._head_bytes, self._uncaptured = None, 0, 0
            record = Frames(self.stream, seq, frames, head, uncaptured)
        else:
            record = Frames(self.stream, seq, frames)
        buffer.added_bytes -= granted_bytes
        if (not buffer.unreported or buffer.report(self.stream)) and buffer.append(
            record, granted_bytes + RECORD_OVERHEAD_BYTES
        ):
            counters.frames += len(frames)
            counters.captured_bytes += size
        else:
            self._lose(seq, size)

    def _drop(self, size_bytes: int) -> None:
        """No room for this frame: it joins the run of lost ones."""
        if self._lost_bytes < 0:
            self._write_waiting()
            self._lost_bytes = 0
        self._lost_bytes += size_bytes

    def _end_lost_run(self) -> None:
        """Give the run of lost frames its number and tell it."""
        if self._lost_bytes >= 0:
            size, self._lost_bytes = self._lost_bytes, -1
            seq = self._seq
            self._seq += 1
            self._lose(seq, size)
            self._buffer.report(self.stream)

    def _emit(self, record: AnyRecord, size_bytes: int) -> None:
        seq = self._seq
        self._seq += 1
        buffer = self._buffer
        if (buffer.unreported and not buffer.report(self.stream)) or not buffer.add(record, size_bytes):
            self._lose(seq, 0, last=isinstance(record, Closed))

    def _lose(self, seq: int, size_bytes: int, *, last: bool = False) -> None:
        """This number is lost, and told as soon as there is room."""
        counters = self._buffer.counters
        counters.lost_records += 1
        counters.lost_bytes += size_bytes
        cause = self._buffer.loss_cause()
        self._buffer.report_later(Lost(self.stream, seq, seq, cause, time.time_ns(), size_bytes, last))
