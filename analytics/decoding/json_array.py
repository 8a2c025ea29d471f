"""Split a JSON array that arrives piece by piece into its elements (objects or arrays), without parsing them.

Brackets are counted outside strings. An element has the time of the read that closed it. An element above
`sse.MAX_EVENT_BYTES` is counted and skipped.
"""

from __future__ import annotations

import re

from streamgauge.analytics.decoded.raw_event import RawEvent
from streamgauge.analytics.decoding.sse import MAX_EVENT_BYTES

_TOKEN = re.compile(rb'\\.|["{}\[\]]', re.DOTALL)


class ArraySplitter:
    """Splits one array. Ignores bytes outside its elements."""

    def __init__(self) -> None:
        self.oversized_events = 0
        self._parts: list[bytes] = []
        self._bytes = 0
        self._depth = 0
        self._in_string = False
        self._escaped = False
        self._read_seq = 0

    def feed(self, data: bytes, at_ns: int) -> list[RawEvent]:
        """Return the elements that this read closes."""
        read_seq = self._read_seq
        self._read_seq += 1
        events: list[RawEvent] = []
        start = 0 if self._depth > 1 else -1
        end = 1 if self._escaped and data else 0
        self._escaped = self._escaped and not data
        for token in _TOKEN.finditer(data, end):
            end = token.end()
            mark = token.group()
            if mark == b'"':
                self._in_string = not self._in_string
            elif self._in_string or mark[:1] == b"\\":
                continue
            elif mark in b"{[":
                self._depth += 1
                if self._depth == 2:
                    start = token.start()
            else:
                self._depth -= 1
                if self._depth == 1 and start >= 0:
                    self._bytes += end - start
                    if self._bytes <= MAX_EVENT_BYTES:
                        events.append(
                            RawEvent("", b"".join([*self._parts, data[start:end]]), at_ns, read_seq)
                        )
                    else:
                        self.oversized_events += 1
                    self._parts, self._bytes, start = [], 0, -1
        self._escaped = self._escaped or (self._in_string and end < len(data) and data[-1:] == b"\\")
        if start >= 0:
            self._bytes += len(data) - start
            if self._bytes <= MAX_EVENT_BYTES:
                self._parts.append(data[start:])
            else:
                self._parts.clear()
        return events
