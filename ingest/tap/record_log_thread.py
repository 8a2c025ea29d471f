"""The thread that takes batches of encoded records from the event loop, packs them and appends them to the log.

The rules: the loop never waits for it. A batch stays here until the log has it, so a log that fails (disk full) makes
the buffer's bound fill up, and losing is decided there, never here; appending is tried again with growing pauses.
A batch that the log can never take (an exception that says it is our bug) is dropped, counted and told. At the
end what is queued is appended, for at most the time given; what is left then is counted.
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

from ingest.record_log.interface import LogBroken, LogFull, LogWriter
from ingest.records import OPENED, pack_encoded

logger = logging.getLogger("streamgauge.tap.log")

Batch = tuple[list[bytes], int]
"""Encoded records and the bytes that they count for in the buffer's bound."""

_NICE = 10
_SWITCH_S = 0.000_2
"""For so long the loop may wait for the interpreter's lock. Python's own 5 ms is an age on the data's path."""
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 5.0
_MAX_ENTRIES_AT_ONCE, _MAX_BYTES_AT_ONCE = 64, 256 * 2**10
"""One transaction: whichever is reached first. A quarter of the smallest cap of a log, for what is larger than the log's
cap would never get in, whatever gives way."""


class LogThread:
    """Owns the log's writer. `put` is for the loop's thread; the counts may be read from any thread."""

    def __init__(self, open_writer: Callable[[], LogWriter]) -> None:
        self._open_writer = open_writer
        self._queue: deque[Batch] = deque()
        self._wake = threading.Event()
        self._opened = threading.Event()
        self._stopping = threading.Event()
        self._stop_at: float | None = None
        self._thread = threading.Thread(target=self._run, name="tap-log", daemon=True)
        self._error_at_open: BaseException | None = None
        self._dropped: deque[list[bytes]] = deque()
        self.done_bytes = 0
        """Bytes of batches that the log has (or that were given up), total."""
        self.append_errors = 0
        self.appended_entries = 0
        self.packed_streams = 0
        """Streams whose `Opened` was packed for the log."""
        self.appended_bytes = 0
        self.left_records = 0
        """Records that were still queued when the time for stopping was over."""
        self.failing: str | None = None
        """log_error | log_full while appending fails, else None."""

    def start(self) -> None:
        """Open the log and start. Raises what opening raised."""
        self._thread.start()
        self._opened.wait()
        if self._error_at_open is not None:
            raise self._error_at_open

    def put(self, records: list[bytes], size_bytes: int) -> None:
        """Hand over a batch. Never blocks."""
        self._queue.append((records, size_bytes))
        self._wake.set()

    def take_dropped(self) -> list[list[bytes]]:
        """Batches given up since the last call: the buffer tells their loss."""
        dropped: list[list[bytes]] = []
        while self._dropped:
            dropped.append(self._dropped.popleft())
        return dropped

    def stop(self, timeout_s: float) -> None:
        """Append what is queued, for at most `timeout_s`, and close the log. Blocks."""
        self._stop_at = time.monotonic() + timeout_s
        self._stopping.set()
        self._wake.set()
        self._thread.join(timeout_s + 5)

    def _run(self) -> None:
        _stand_back()
        try:
            writer = self._open_writer()
        except BaseException as e:  # start() raises it in its caller's thread
            self._error_at_open = e
            self._opened.set()
            return
        self._opened.set()
        try:
            while True:
                self._wake.wait()
                self._wake.clear()
                stopping = (
                    self._stop_at is not None
                )  # asked before draining: all that was put before the stop is seen
                self._drain(writer)
                if stopping:
                    self.left_records = sum(len(records) for records, _ in self._queue)
                    if self.left_records:
                        logger.error("the log did not take %d records before the stop", self.left_records)
                    return
        finally:
            try:
                writer.close()
            except (OSError, LogBroken) as e:
                logger.error("the log could not be closed cleanly: %s", e)

    def _drain(self, writer: LogWriter) -> None:
        pause_s = _FIRST_PAUSE_S
        while self._queue:
            batches: list[Batch] = []
            size_bytes = 0
            while self._queue and len(batches) < _MAX_ENTRIES_AT_ONCE and size_bytes < _MAX_BYTES_AT_ONCE:
                batches.append(self._queue.popleft())
                size_bytes += batches[-1][1]
            payloads = [pack_encoded(records) for records, _ in batches]
            self.packed_streams += sum(r.startswith(OPENED) for records, _ in batches for r in records)
            while not self._append(writer, payloads, batches):
                if self._stop_at is not None:
                    if time.monotonic() + pause_s >= self._stop_at:
                        self._queue.extendleft(reversed(batches))
                        return
                    time.sleep(min(pause_s, _FIRST_PAUSE_S))
                else:
                    self._stopping.wait(pause_s)
                pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)
            pause_s = _FIRST_PAUSE_S

    def _give_up(self, batches: list[Batch]) -> None:
        self.append_errors += 1
        self._dropped.extend(records for records, _ in batches)
        self.done_bytes += sum(size for _, size in batches)

    def _append(self, writer: LogWriter, payloads: Sequence[bytes], batches: list[Batch]) -> bool:
        """Append; False to try again later."""
        try:
            writer.append(payloads)
        except LogFull as e:
            return self._failed("log_full", e)
        except (OSError, LogBroken) as e:
            return self._failed("log_error", e)
        except Exception:  # our bug, and one batch must not stop all others for ever
            logger.exception("a batch that the log cannot take was dropped")
            self._give_up(batches)
        else:
            self.appended_entries += len(payloads)
            self.appended_bytes += sum(map(len, payloads))
            if self.failing:
                logger.warning("the log takes records again")
                self.failing = None
            self.done_bytes += sum(size for _, size in batches)
        return True

    def _failed(self, word: str, error: Exception) -> bool:
        self.append_errors += 1
        if self.failing != word:
            logger.error("the log takes no records (%s); traffic goes on, trying again: %s", word, error)
            self.failing = word
        return False


def _stand_back() -> None:
    """The loop goes first: on one core with this thread, what woke it is served at once and not after the thread's turn."""
    sys.setswitchinterval(_SWITCH_S)
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
