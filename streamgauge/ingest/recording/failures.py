"""The end of a stream's recording after an exception in it. Forwarding continues.

The code that forwards records inside a `try` and passes every exception to `RecordingFailures.failed`. The exception is
counted (`recording_failed`) and logged at most once a minute. What the recorder knows is written; the rest of the stream is
reported by a `Lost` record that ends it, so the tables have it as `tap_lost`. If not even that is possible, `lost_untold` counts
the stream. Later uses of the recorder raise an exception that is not counted: it detaches the recorder wherever it is still held.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from streamgauge.ingest.generated_ids import uuid7
from streamgauge.ingest.guards import Guards
from streamgauge.ingest.recording.counters import Counters
from streamgauge.ingest.records import Lost

CAUSE = "recording_failed"
"""`Lost.cause` of these losses."""


class FailedRecorder(Protocol):
    """Interface of `Recorder` after an exception."""

    @property
    def abandoned(self) -> bool: ...

    def abandon(self) -> None:
        """Write what is known and report the rest as lost."""


class LossReport(Protocol):
    """Interface of `RecordBuffer`."""

    def lose(self, lost: Lost) -> None: ...


class RecordingFailures:
    """Of one worker. The methods never raise."""

    def __init__(self, counters: Counters, guards: Guards) -> None:
        self.counters = counters
        self.buffer: LossReport | None = None
        self._guard = guards.guard("recording")

    def count(self, error: Exception) -> None:
        """Count and log an exception that ends no stream's recording."""
        self.counters.recording_failed += 1
        self._guard.failed(error)

    def attempt(self, step: Callable[..., object], *args: object) -> bool:
        """Call `step(*args)`. False: it raised an exception, which is counted."""
        try:
            step(*args)
        except Exception as e:
            self.count(e)
            return False
        return True

    def failed(self, error: Exception, recorder: FailedRecorder) -> None:
        """End the recording of a stream."""
        if recorder.abandoned:
            return
        self.count(error)
        try:
            recorder.abandon()
        except Exception:  # nothing of the stream may have been written
            self._lose_stream()

    def not_started(self, error: Exception) -> None:
        """Count a stream whose recorder could not be made."""
        self.count(error)
        self.counters.open_stream()
        self._lose_stream()

    def _lose_stream(self) -> None:
        """Report a whole stream as lost, under an id of its own."""
        now_ns = time.time_ns()
        try:
            if self.buffer is not None:
                self.buffer.lose(Lost(uuid7(now_ns), 0, 0, CAUSE, now_ns, 0, True))
        except Exception:
            self.counters.lost_untold += 1
