"""Find the events in a decoded body, whatever its label says.

The first bytes decide, the content type only breaks ties, because servers mislabel both ways:

- `sse`: lines with SSE field names, or an event-stream that is nothing else.
- `lines`: one JSON value a line (NDJSON, `application/stream+json`), each an event dated by the read that ended its line.
- `array`: a JSON array that grows by elements (Gemini without `alt=sse`), each an event dated likewise.
- `body`: one JSON value, HTML, anything else, or nothing: a response that was not streamed, or an error. Kept whole up
  to `MAX_BODY_BYTES`; what is beyond is counted, not kept.

Inside an SSE body, lines that are no SSE but spell a JSON value (Gemini's bare error, an `error: {…}` line) are given as an
event too, once the value is whole.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from analytics.dialects.payload import json_or_none
from analytics.json_array import ArraySplitter
from analytics.sse import MAX_EVENT_BYTES, Event, SSEDecoder

Framing = Literal["undecided", "sse", "lines", "array", "body"]

MAX_BODY_BYTES = 16 * 2**20
MAX_STRAY_TRIES = 64
_SPACE = b" \t\r\n"
_BOM = b"\xef\xbb\xbf"
_RS = b"\x1e"  # what JSON text sequences begin their records with
_LINE_TYPES = ("ndjson", "jsonl", "stream+json", "jsonlines", "json-seq", "json-lines")
_FIELDS = (b"data:", b"event:", b"id:", b"retry:", b":")


class Ending(msgspec.Struct):
    """What the end of a body leaves over."""

    events: list[Event]
    """Events that only the end made whole (stray JSON). Not dispatched by the rules of SSE."""
    tail: Event | None = None
    """An event that has data but never got its end: not dispatched."""
    body: bytes | None = None
    """The whole body, when it held no events."""


class Framer:
    """Reads one body, in order."""

    def __init__(self, content_type: str = "", *, streams: bool = True) -> None:
        """`streams`: False where the status says that this is an error's body; then JSON is never taken as lines."""
        self.framing: Framing = "undecided"
        self.dropped_bytes = 0
        """Bytes beyond the bound of a body."""
        self._sse = SSEDecoder()
        self._lines = _LineSplitter()
        self._array = ArraySplitter(MAX_EVENT_BYTES)
        self._type = content_type.partition(";")[0].strip().lower()
        self._streams = streams
        self._kept: list[tuple[int, bytes]] = []
        self._kept_bytes = 0
        self.begins_with_json = False
        self._line_ended = False  # of an undecided body that begins with JSON: its first line is whole
        self._stray_tries = 0

    @property
    def comment_count(self) -> int:
        return self._sse.comment_count

    @property
    def oversized_events(self) -> int:
        return self._sse.oversized_events + self._array.oversized_events + self._lines.oversized_events

    def feed(self, data: bytes, at_ns: int) -> list[Event]:
        """The events that this read completes."""
        if self.framing == "sse":
            events = self._sse.feed(data, at_ns)
            if self._sse.stray:
                events += self._stray_events(at_ns)
            return events
        if self.framing == "lines":
            return self._lines.feed(data, at_ns)
        if self.framing == "array":
            return self._array.feed(data, at_ns)
        if self._kept_bytes + len(data) > MAX_BODY_BYTES:
            self.dropped_bytes += len(data)
            return []
        self._kept_bytes += len(data)
        self._kept.append((at_ns, data))
        if self.framing == "undecided":
            self.framing = self._decide(data)
        if self.framing in ("undecided", "body"):
            return []
        kept, self._kept = self._kept, []
        return [event for at, part in kept for event in self.feed(part, at)]

    def finish(self) -> Ending:
        """The body is over."""
        if self.framing == "sse":
            tail = self._sse.finish()
            late = self._stray_events(0, final=True) if self._sse.stray else []
            return Ending(late, Event(tail[0], tail[1], 0, self._sse.read_count) if tail else None)
        if self.framing == "lines":
            return Ending([], self._lines.finish())
        if self.framing == "array":
            return Ending([])
        return Ending([], None, b"".join(data for _, data in self._kept))

    def _decide(self, newest: bytes) -> Framing:
        if self._line_ended or self.begins_with_json:
            return self._decide_json(newest)
        head = b"".join(data for _, data in self._kept[-64:])[:4096]
        if len(head) < len(_BOM) and _BOM.startswith(head):
            return "undecided"
        head = head.removeprefix(_BOM).lstrip(_SPACE + _RS)
        first = head[:1]
        if not head:
            return "undecided"
        if first == b"{" or first == b"[":
            self.begins_with_json = True
            return self._decide_json(head)
        if self._type == "text/event-stream" and first != b"<":
            return "sse"
        if any(head.startswith(field) for field in _FIELDS):
            return "sse"
        return "undecided" if any(field.startswith(head) for field in _FIELDS) else "body"

    def _decide_json(self, newest: bytes) -> Framing:
        """One JSON value may be a whole body; a value, a line end and another value are lines."""
        if not self._streams:
            return "body"
        if any(self._type.endswith(t) for t in _LINE_TYPES):
            return "lines"
        if not self._line_ended and b"\n" not in newest:
            if len(self._kept) > 1 or len(newest) > 1:
                head = b"".join(data for _, data in self._kept[:4])[:64].removeprefix(_BOM).lstrip(_SPACE)
                if head[:1] == b"[" and head[1:].lstrip(_SPACE)[:1] == b"{":
                    return "array"
            return "undecided"
        self._line_ended = True
        data = b"".join(data for _, data in self._kept).removeprefix(_BOM).lstrip(_SPACE + _RS)
        if data[:1] == b"[":
            second = data[1:].lstrip(_SPACE)[:1]
            return "undecided" if not second else "array" if second == b"{" else "body"
        line, _, rest = data.partition(b"\n")
        rest = rest.lstrip(_SPACE + _RS)
        if not rest:
            return "undecided"
        if rest[:1] == b"{" and isinstance(json_or_none(line), dict):
            return "lines"
        if any(rest.startswith(field) or b"\n" + field in rest for field in _FIELDS[:2]):
            return "sse"  # bare JSON before the events: its lines are stray
        return "body"

    def _stray_events(self, at_ns: int, *, final: bool = False) -> list[Event]:
        stray = self._sse.stray
        last = stray[-1].rstrip(_SPACE)
        if not final and (last[-1:] not in (b"}", b"]", b'"') or self._stray_tries >= MAX_STRAY_TRIES):
            return []
        self._stray_tries += 1
        read_seq = self._sse.read_count - 1
        for start, line in enumerate(stray):
            name, _, value = line.partition(b":")
            value = value.strip(_SPACE)
            if name.lower() == b"error" and value:
                stray.clear()
                return [Event("error", value, at_ns, read_seq)]
            if line[:1] in (b"{", b"["):
                data = b"\n".join(stray[start:])
                if json_or_none(data) is not None:
                    stray.clear()
                    return [Event("", data, at_ns, read_seq)]
                break
        return []


class _LineSplitter:
    """One JSON value a line."""

    def __init__(self) -> None:
        self.oversized_events = 0
        self._parts: list[bytes] = []
        self._bytes = 0
        self._read_seq = 0

    def feed(self, data: bytes, at_ns: int) -> list[Event]:
        read_seq = self._read_seq
        self._read_seq += 1
        *whole, rest = data.split(b"\n")
        events: list[Event] = []
        for part in whole:
            size = self._bytes + len(part)
            line = self._clean(b"".join([*self._parts, part]))
            self._parts, self._bytes = [], 0
            if size > MAX_EVENT_BYTES:
                self.oversized_events += 1
            elif line:
                events.append(Event("", line, at_ns, read_seq))
        self._bytes += len(rest)
        if self._bytes <= MAX_EVENT_BYTES:
            self._parts.append(rest)
        else:
            self._parts.clear()
        return events

    def finish(self) -> Event | None:
        line = self._clean(b"".join(self._parts))
        return Event("", line, 0, self._read_seq) if line and self._bytes <= MAX_EVENT_BYTES else None

    @staticmethod
    def _clean(line: bytes) -> bytes:
        """Some servers put SSE's `data:` before the lines of what they call NDJSON."""
        return line.strip(_SPACE + _RS).removeprefix(_BOM).removeprefix(b"data:").strip(_SPACE)
