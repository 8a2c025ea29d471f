"""The log thread: packs batches of encoded records and appends them to the record log. The event loop never waits for it.

While the log fails (disk full), appends are retried with growing pauses and the record buffer fills up; the buffer decides
what is dropped. A batch that cannot be packed, or that the log rejects with any other exception (a bug), is dropped, counted and
reported. A stop appends the queue for a limited time and logs the number of records that remain. An exception anywhere else
drops the batches in hand, and the thread continues with the queue.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

from streamgauge.ingest.guards import Guards, guarded_thread, system_error
from streamgauge.ingest.record_log.interface import LogBroken, LogFull, LogInUse, LogWriter
from streamgauge.ingest.recording.relayed import RelayedBatch
from streamgauge.ingest.records import pack_encoded, streams_begun

logger = logging.getLogger("streamgauge.tap.log")

Queued = tuple[list[bytes] | RelayedBatch, int]
Batch = tuple[list[bytes], int]
"""Encoded records, and their size in the record buffer."""

_NICE = 10
_SWITCH_S = 0.000_2
"""Switch interval of the interpreter lock. With the default of 5 ms the event loop would delay traffic."""
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 5.0
GUARD = "log thread"
_BEAT_S, _SILENT_AFTER_S = 1.0, 8.0
"""Between heartbeats, the thread waits for a batch, or for one append and the pause after it."""
_MAX_ENTRIES_AT_ONCE, _MAX_BYTES_AT_ONCE = 64, 256 * 2**10
"""Limits for one transaction: a quarter of a log's smallest cap, because an append above the cap could never succeed."""


class LogThread:
    """Owns the log's writer. `put` is called by the event loop. Counters may be read from any thread."""

    def __init__(self, open_writer: Callable[[], LogWriter], guards: Guards | None = None) -> None:
        self._open_writer = open_writer
        self._writer: LogWriter | None = None
        self._guard = (guards or Guards()).guard(GUARD, silent_after_s=_SILENT_AFTER_S)
        # A deque, because its `append` and `popleft` are atomic: the event loop must not wait for a lock that a thread
        # with a lower priority holds.
        self._queue: deque[Queued] = deque()
        self._wake = threading.Event()
        self._opened = threading.Event()
        self._stopping = threading.Event()
        self._ended = threading.Event()
        self._stop_at: float | None = None
        self._thread = guarded_thread(self._guard, self._run, self._ended)
        self._error_at_open: BaseException | None = None
        self._taken: list[Batch] = []
        """Batches that are neither in the queue nor appended nor dropped."""
        self._dropped: deque[list[bytes]] = deque()
        self.done_bytes = 0
        """Total bytes of appended and dropped batches."""
        self.append_errors = 0
        self.appended_entries = 0
        self.packed_streams = 0
        """Streams whose first record is in the log or in the append in progress."""
        self._appended_streams = 0
        self.appended_bytes = 0
        self.unappended_records = 0
        """Records that were still queued when the time for the stop was over."""
        self.failing: str | None = None
        """log_error | log_full while appending fails, else None."""
        self.failing_reason = ""

    def start(self) -> None:
        """Open the log and start the thread. Raises LogInUse. After any other error, each append tries to open the log."""
        # The event loop may wait here: there is no traffic yet, and a second tap on the folder must be refused before it
        # accepts any.
        self._thread.start()
        self._opened.wait()
        if self._error_at_open is not None:
            raise self._error_at_open

    def put(self, records: list[bytes] | RelayedBatch, size_bytes: int) -> None:
        """Hand over a batch. Never blocks."""
        self._queue.append((records, size_bytes))
        self._wake.set()

    def take_dropped(self) -> list[list[bytes]]:
        """Batches dropped since the last call. The record buffer reports them."""
        return [self._dropped.popleft() for _ in range(len(self._dropped))]

    def stop(self, timeout_s: float) -> None:
        """Append the queue for at most `timeout_s`, then close the log. Blocks."""
        self._stop_at = time.monotonic() + timeout_s
        self._stopping.set()
        self._wake.set()
        self._thread.join(timeout_s + 5)

    def _run(self) -> None:
        if not self._opened.is_set():
            _lower_priority()
            try:
                self._open()
            except LogInUse as e:  # start() raises it in its caller's thread
                self._error_at_open = e
                self._ended.set()
                return
            finally:
                self._opened.set()
        self._drop_taken()  # an exception has interrupted the last run
        while True:
            self._guard.beat()
            # Woken by `put`. The timeout is for the heartbeat only.
            self._wake.wait(_BEAT_S)
            self._wake.clear()
            # Read this first, so `_drain` appends everything put before the stop.
            stopping = self._stop_at is not None
            self._drain()
            if stopping:
                break
        self.unappended_records = sum(
            len(records) if isinstance(records, list) else records.count for records, _ in self._queue
        )
        if self.unappended_records:
            logger.error(
                "%d records were not appended to the log before the stop: they are lost. The next start reports their streams",
                self.unappended_records,
            )
        self._ended.set()
        try:
            if self._writer is not None:
                self._writer.close()
        except Exception as e:
            logger.error("cannot close the log cleanly: %s", e)

    def _drain(self) -> None:
        pause_s = _FIRST_PAUSE_S
        while self._queue:
            self._guard.beat()
            size_bytes = 0
            # After an outage the queue is long. A transaction costs more than the rows in it, so many batches share one.
            while self._queue and len(self._taken) < _MAX_ENTRIES_AT_ONCE and size_bytes < _MAX_BYTES_AT_ONCE:
                self._take_next()
                size_bytes += self._taken[-1][1]
            # Packed once: every retry appends the same bytes. Compression is the most expensive step here.
            payloads = self._pack()
            while payloads and not self._append(payloads):
                self._guard.beat()
                if self._stop_at is not None:
                    if time.monotonic() + pause_s >= self._stop_at:
                        # Back to the front, in order: what remains is counted as unappended and shown.
                        self._queue.extendleft(reversed(self._taken))
                        self._taken = []
                        return
                    time.sleep(min(pause_s, _FIRST_PAUSE_S))
                else:
                    self._stopping.wait(pause_s)
                pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)
            pause_s = _FIRST_PAUSE_S

    def _take_next(self) -> None:
        records, size_bytes = self._queue.popleft()
        if isinstance(records, list):
            self._taken.append((records, size_bytes))
            return
        try:
            batches = _divided(records.take(), size_bytes)
        except Exception as e:  # the reader finds the gap in the numbers of their streams
            self._guard.failed(e)
            batches = [([], size_bytes)]
        self._taken.append(batches[0])
        self._queue.extendleft(reversed(batches[1:]))

    def _pack(self) -> list[bytes]:
        """Pack the taken batches. Those that cannot be packed (a bug) are dropped."""
        payloads: list[bytes] = []
        packed: list[Batch] = []
        rejected: list[Batch] = []
        for batch in self._taken:
            try:
                payloads.append(pack_encoded(batch[0]))
            except Exception as e:
                self._guard.failed(e)
                rejected.append(batch)
            else:
                packed.append(batch)
        self._taken = packed
        # Stored before the append: a run that is killed within it must not count the streams of this append as missing,
        # because they may be in the log.
        self.packed_streams = self._appended_streams + sum(streams_begun(records) for records, _ in packed)
        self._drop(rejected)
        return payloads

    def _drop_taken(self) -> None:
        taken, self._taken = self._taken, []
        self._drop(taken)

    def _drop(self, batches: list[Batch]) -> None:
        """Report batches that are no longer taken as lost."""
        if batches:
            self.append_errors += 1
            # The thread does not report losses itself. Numbers of streams belong to the event loop, which makes the
            # `Lost` records at its next tick.
            self._dropped.extend(records for records, _ in batches)
            self.done_bytes += sum(size for _, size in batches)

    def _open(self) -> LogWriter | None:
        """Open the log. None: it failed, so each append tries it again. Raises LogInUse."""
        try:
            self._writer = self._open_writer()
        except LogInUse:
            raise
        except Exception as e:
            self._failed("log_error", e)
        return self._writer

    def _append(self, payloads: Sequence[bytes]) -> bool:
        """Append the taken batches, after opening the log if that has failed. False: try again later."""
        try:
            writer = self._writer or self._open()
            if writer is None:
                return False
            writer.append(payloads)
        except LogFull as e:
            return self._failed("log_full", e)
        except (OSError, LogBroken) as e:
            return self._failed("log_error", e)
        except Exception as e:  # a bug: one batch must not block all others
            self._guard.failed(e)
            self._drop_taken()
        else:
            self.appended_entries += len(payloads)
            self.appended_bytes += sum(map(len, payloads))
            if self.failing:
                logger.warning("the log accepts records again")
                self.failing = None
            # After the append, never before. The bytes count as queued until the log has them, so memory stays within
            # `--tap-queue` while the disk is slow.
            self.done_bytes += sum(size for _, size in self._taken)
            self._appended_streams = self.packed_streams
            self._taken = []
        return True

    def _failed(self, cause: str, error: Exception) -> bool:
        self.append_errors += 1
        self.failing_reason = system_error(error) or str(error)
        if self.failing != cause:
            logger.error("cannot append to the log (%s), retrying; traffic continues: %s", cause, error)
            self.failing = cause
        return False


def _divided(records: list[bytes], size_bytes: int) -> list[Batch]:
    """Batches that a small log can take. `size_bytes`: what all records count in the record buffer."""
    batches: list[list[bytes]] = [[]]
    room_bytes = _MAX_BYTES_AT_ONCE
    for record in records:
        if room_bytes <= 0:
            batches.append([])
            room_bytes = _MAX_BYTES_AT_ONCE
        batches[-1].append(record)
        room_bytes -= len(record)
    sizes = [sum(map(len, batch)) for batch in batches]
    sizes[0] += size_bytes - sum(sizes)
    return list(zip(batches, sizes, strict=True))


def _lower_priority() -> None:
    """Let the event loop run first when both threads share one core."""
    sys.setswitchinterval(_SWITCH_S)
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
