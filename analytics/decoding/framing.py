"""Find the events in a decoded body, whatever its label says.

The first bytes decide, the content type only breaks ties, because servers mislabel both ways:

- `sse`: lines with SSE field names, or an event-stream that is nothing else.
- `lines`: one JSON value a line (NDJSON, `application/stream+json`), each an event dated by the read that ended its line.
- `array`: a JSON array that grows by elements (Gemini without `alt=sse`), each an event dated likewise.
- `body`: one JSON value, HTML, anything else, or nothing: a response that was not streamed, or an error. Kept whole up
  to `MAX_BODY_BYTES`; what is beyond is not kept.

Inside an SSE body, lines that are no SSE but spell a JSON value (Gemini's bare error, an `error: {…}` line) are given in
`stray`, once the value is whole: they say something, but are no events.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal, NamedTuple

import msgspec

from analytics.decoded.raw_event import RawEvent
from analytics.decoded.tolerant_json import json_or_none
from analytics.decoding.json_array import ArraySplitter
from analytics.decoding.sse import MAX_EVENT_BYTES, SSEDecoder
from analytics.decoding.unframed_json import StrayLines

Framing = Literal["undecided", "sse", "lines", "array", "body"]

MAX_BODY_BYTES = 16 * 2**20
MAX_LEADING_SPACE = 4096
_SPACE = b" \t\r\n"
_BOM = b"\xef\xbb\xbf"
_RS = b"\x1e"  # what JSON text sequences begin their records with
_LINE_TYPES = ("ndjson", "jsonl", "stream+json", "jsonlines", "json-seq", "json-lines")
_LEAD = re.compile(rb"(?:event: ?([^\r\n]*)\r?\n)?data: ?")
_TRAILS = (b"\n\n", b"\r\n\r\n")
_FIELDS = (b"data:", b"event:", b"id:", b"retry:", b":")


class Ending(msgspec.Struct):
    """What the end of a body leaves over."""

    tail: RawEvent | None = None
    """An event that has data but never got its end: not dispatched."""
    body: bytes | None = None
    """The whole body, when it held no events."""


class Wrapping(NamedTuple):
    """What stands around the data of one event, in a read that holds nothing else."""

    name: str
    """Of the event."""
    lead: bytes
    trail: bytes


class Framer:
    """Reads one body, in order."""

    def __init__(self, content_type: str = "", *, streams: bool = True) -> None:
        """`streams`: False where the status says that this is an error's body; then JSON is never taken as lines."""
        self.framing: Framing = "undecided"
        self.stray: list[RawEvent] = []
        """What was said outside of events, so far."""
        self._sse = SSEDecoder()
        self._lines = _LineSplitter()
        self._array = ArraySplitter()
        self._type = content_type.partition(";")[0].strip().lower()
        self._streams = streams
        self._kept: list[tuple[int, bytes]] = []
        self._kept_bytes = 0
        self.begins_with_json = False
        """The first character is a JSON object's or array's."""
        self._head = b""
        self._may_be_array = True
        self._line_ended = False  # of an undecided body that begins with JSON: its first line is whole
        self._stray_lines = StrayLines()
        self._last_ns = 0

    @property
    def comment_count(self) -> int:
        return self._sse.comment_count

    @property
    def oversized_events(self) -> int:
        return self._sse.oversized_events + self._array.oversized_events + self._lines.oversized_events

    @property
    def at_rest(self) -> bool:
        """Between two events of a framing that is known, with nothing carried over."""
        if self.framing == "sse":
            return self._sse.at_rest
        return self.framing == "lines" and self._lines.at_rest

    def wrapping_of(self, read: bytes, event: RawEvent) -> Wrapping | None:
        """What stands in this read around the event's data; None if there is more to it.

        At rest, a read with the same around JSON without a line end says an event of the same name, and nothing else.
        """
        if not event.data or b"\n" in event.data or b"\r" in event.data:
            return None
        lead, _, trail = read.partition(event.data)
        if self.framing == "lines":
            plain = not lead and trail == b"\n"
        else:
            found = _LEAD.fullmatch(lead)
            plain = found is not None and (found[1] or b"") == event.name.encode() and trail in _TRAILS
        return Wrapping(event.name, lead, trail) if plain else None

    def pass_over(self, reads: int, last_ns: int) -> None:
        """So many reads, the last of them at that time, were read elsewhere: one event each. Only at rest."""
        self._last_ns = last_ns
        (self._sse if self.framing == "sse" else self._lines).pass_over(reads)

    @property
    def read_count(self) -> int:
        """Reads fed so far."""
        return self._sse.read_count if self.framing == "sse" else self._lines.read_count

    def feed_many(self, frames: Sequence[tuple[int, bytes]]) -> list[RawEvent]:
        """The events that these reads (arrival, bytes) complete."""
        events: list[RawEvent] = []
        at = 0
        while at < len(frames) and self.framing != "sse":
            at_ns, data = frames[at]
            events += self.feed(data, at_ns)
            at += 1
        if frames:
            self._last_ns = frames[-1][0]
        feed, stray = self._sse.feed, self._sse.stray
        for at_ns, data in frames[at:] if at else frames:
            events += feed(data, at_ns)
            if stray:
                self._look_at_stray(at_ns)
        return events

    def feed(self, data: bytes, at_ns: int) -> list[RawEvent]:
        """The events that this read completes."""
        if self.framing == "sse":
            events = self._sse.feed(data, at_ns)
            if self._sse.stray:
                self._look_at_stray(at_ns)
            return events
        if self.framing == "lines":
            return self._lines.feed(data, at_ns)
        if self.framing == "array":
            return self._array.feed(data, at_ns)
        if self._kept_bytes + len(data) > MAX_BODY_BYTES:
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
            if self._sse.stray:
                self._look_at_stray(self._last_ns)
            return Ending(RawEvent(tail[0], tail[1], 0, self._sse.read_count) if tail else None)
        if self.framing == "lines":
            return Ending(self._lines.finish())
        if self.framing == "array":
            return Ending()
        return Ending(None, b"".join(data for _, data in self._kept))

    def _decide(self, newest: bytes) -> Framing:
        """What the body is, as soon as its bytes leave no doubt: never by how they were cut."""
        if self.begins_with_json:
            return self._decide_json(newest)
        self._head += newest
        head = self._head
        if len(head) < len(_BOM) and _BOM.startswith(head):
            return "undecided"
        head = head.removeprefix(_BOM).lstrip(_SPACE + _RS)
        if not head:
            if len(self._head) <= MAX_LEADING_SPACE:
                return "undecided"
            return "sse" if self._type == "text/event-stream" else "body"
        first = head[:1]
        if first in (b"{", b"["):
            self.begins_with_json = True
            return self._decide_json(head)
        if self._type == "text/event-stream" and self._streams:
            return "body" if first == b"<" else "sse"
        if head.startswith(_FIELDS):
            return "sse"
        return "undecided" if any(field.startswith(head) for field in _FIELDS) else "body"

    def _decide_json(self, newest: bytes) -> Framing:
        """One JSON value may be a whole body; a value, a line end and another value are lines."""
        if not self._streams:
            return "body"
        if any(self._type.endswith(t) for t in _LINE_TYPES):
            return "lines"
        self._line_ended |= b"\n" in newest
        if not self._line_ended and not self._may_be_array:
            return "undecided"
        data = b"".join(part for _, part in self._kept).removeprefix(_BOM).lstrip(_SPACE + _RS)
        if data[:1] == b"[":
            second = data[1:].lstrip(_SPACE)[:1]
            return "undecided" if not second else "array" if second == b"{" else "body"
        self._may_be_array = False
        line, _, rest = data.partition(b"\n")
        rest = rest.lstrip(_SPACE + _RS)
        if not rest:
            return "undecided"
        if rest[:1] == b"{" and isinstance(json_or_none(line), dict):
            return "lines"
        if self._type == "text/event-stream" or rest.startswith(_FIELDS[:2]):
            return "sse"  # bare JSON where events should be: its lines are stray
        return "undecided" if any(field.startswith(rest) for field in _FIELDS[:2]) else "body"

    def _look_at_stray(self, at_ns: int) -> None:
        for line in self._sse.stray:
            found = self._stray_lines.add(line)
            if found is not None:
                self.stray.append(RawEvent(*found, at_ns, self._sse.read_count - 1))
        self._sse.stray.clear()


class _LineSplitter:
    """One JSON value a line."""

    def __init__(self) -> None:
        self.oversized_events = 0
        self._parts: list[bytes] = []
        self._bytes = 0
        self._read_seq = 0

    @property
    def at_rest(self) -> bool:
        return not self._bytes

    @property
    def read_count(self) -> int:
        return self._read_seq

    def pass_over(self, reads: int) -> None:
        self._read_seq += reads

    def feed(self, data: bytes, at_ns: int) -> list[RawEvent]:
        read_seq = self._read_seq
        self._read_seq += 1
        *whole, rest = data.split(b"\n")
        events: list[RawEvent] = []
        for part in whole:
            size = self._bytes + len(part)
            line = self._clean(b"".join([*self._parts, part]))
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
        line = self._clean(b"".join(self._parts))
        return RawEvent("", line, 0, self._read_seq) if line and self._bytes <= MAX_EVENT_BYTES else None

    @staticmethod
    def _clean(line: bytes) -> bytes:
        """Some servers put SSE's `data:` before the lines of what they call NDJSON."""
        return line.strip(_SPACE + _RS).removeprefix(_BOM).removeprefix(b"data:").strip(_SPACE)
