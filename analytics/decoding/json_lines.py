"""Split JSON lines (NDJSON, `application/stream+json`) that arrive piece by piece into one event per line.

A line has the time of the read that ended it. A line above `sse.MAX_EVENT_BYTES` is counted and skipped.
"""

from __future__ import annotations

from streamgauge.analytics.decoded.raw_event import RawEvent
from streamgauge.analytics.decoding.sse import MAX_EVENT_BYTES

_SPACE = b" \t\r\n\x1e"  # RS (1E) starts the records of JSON text sequences
_BOM = b"\xef\xbb\xbf"


class LineSplitter:
    """Splits one body."""

    def __init__(self) -> None:
        self.oversized_events = 0
        self.read_count = 0
        self._parts: list[bytes] = []
        self._bytes = 0

    @property
    def between_events(self) -> bool:
        """Nothing is carried over from earlier reads."""
        return not self._bytes

    def feed(self, data: bytes, at_ns: int) -> list[RawEvent]:
        """Return the lines that this read ends."""
        read_seq = self.read_count
        self.read_count += 1
        *whole, rest = data.split(b"\n")
        events: list[RawEvent] = []
        for part in whole:
            size = self._bytes + len(part)
            line = _json_of(b"".join([*self._parts, part]))
            self._parts, self._bytes = [], 0
            if size > MAX_EVENT_BYTES:
                self.oversized_events += 1
            elif line:
                events.append(RawEvent("", line, at_ns, read_seq))
        self._bytes += len(rest)
        if self._bytes <= MAX_EVENT_BYTES:
            self._parts.append(rest)
        else:
            self._parts.clear()
        return events

    def finish(self) -> RawEvent | None:
        """The last line, when no line end followed it."""
        line = _json_of(b"".join(self._parts))
        return RawEvent("", line, 0, self.read_count) if line and self._bytes <= MAX_EVENT_BYTES else None


def _json_of(line: bytes) -> bytes:
    # Some servers put SSE's `data:` before lines that they label NDJSON.
    return line.strip(_SPACE).removeprefix(_BOM).removeprefix(b"data:").strip(b" \t\r\n")
