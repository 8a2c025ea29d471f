"""Detect how a body is framed, and split it into events.

The first bytes decide; the content type only breaks ties, because it is often wrong. Framings:

- `sse`: lines with SSE field names, or an event-stream without any.
- `lines`: one JSON value per line.
- `array`: a JSON array that grows by elements (Gemini without `alt=sse`). Each element is an event.
- `body`: one JSON value, HTML, anything else, or nothing: a response that was not streamed, or an error. Kept whole, up to
  `MAX_BODY_BYTES`.

An event has the arrival time of the read that completed it. A line or an element above `sse.MAX_EVENT_BYTES` is counted and
skipped. JSON values in an SSE body outside of SSE fields are collected in
`unframed`: their content counts, but they are not events.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal, NamedTuple

import msgspec

from streamgauge.analytics.decoding.sse import MAX_EVENT_BYTES, SSEDecoder, UnframedJSON
from streamgauge.analytics.dialects.events import RawEvent
from streamgauge.analytics.dialects.tolerant_json import json_or_none

Framing = Literal["undecided", "sse", "lines", "array", "body"]

MAX_BODY_BYTES = 16 * 2**20
MAX_LEADING_SPACE = 4096
_SPACE = b" \t\r\n\x1e"  # RS (1E) starts the records of JSON text sequences
_BOM = b"\xef\xbb\xbf"
_LINE_TYPES = ("ndjson", "jsonl", "stream+json", "jsonlines", "json-seq", "json-lines")
_PREFIX = re.compile(rb"(?:event: ?([^\r\n]*)\r?\n)?data: ?")
_SUFFIXES = (b"\n\n", b"\r\n\r\n")
_FIELDS = (b"data:", b"event:", b"id:", b"retry:", b":")


class BodyEnd(msgspec.Struct):
    """The unfinished event, or the body without events, at the end of a body."""

    tail: RawEvent | None = None
    """An event with data that was never completed, so it was not dispatched."""
    body: bytes | None = None
    """The whole body, when it held no events."""


class Envelope(NamedTuple):
    """The bytes around the data of a read's only event."""

    event_name: str
    prefix: bytes
    suffix: bytes


class Framer:
    """Splits one body, fed in order."""

    def __init__(self, content_type: str = "", *, streams: bool = True) -> None:
        """`streams=False`: the body is an error or a file, so JSON is never split into lines."""
        self.framing: Framing = "undecided"
        self.unframed: list[RawEvent] = []
        self.begins_with_json = False
        """The first character starts a JSON object or array."""
        self._sse = SSEDecoder()
        self._lines = LineSplitter()
        self._array = ArraySplitter()
        self._unframed_json = UnframedJSON()
        self._type = content_type.partition(";")[0].strip().lower()
        self._streams = streams
        self._kept: list[tuple[int, bytes]] = []
        self._kept_bytes = 0
        self._first_bytes = b""
        self._may_be_array = True
        self._first_line_ended = False  # of an undecided body that begins with JSON
        self._ignored = b""  # while undecided: bytes that decide nothing
        self._last_ns = 0

    @property
    def comment_count(self) -> int:
        return self._sse.comment_count

    @property
    def broken_rules(self) -> set[str]:
        """Codes of the rules of strict clients that the lines break (`streamgauge.analytics.schema.strict_clients`)."""
        rules = self._sse.broken_rules
        return rules | {"missing_data_prefix"} if self.unframed else rules

    @property
    def oversized_events(self) -> int:
        return self._sse.oversized_events + self._array.oversized_events + self._lines.oversized_events

    @property
    def between_events(self) -> bool:
        """The framing is SSE or lines, and nothing is carried over from earlier reads."""
        if self.framing == "sse":
            return self._sse.between_events
        return self.framing == "lines" and self._lines.between_events

    @property
    def read_count(self) -> int:
        """Reads fed so far, of SSE or lines."""
        return self._sse.read_count if self.framing == "sse" else self._lines.read_count

    def envelope_of(self, read: bytes, event: RawEvent) -> Envelope | None:
        """The bytes around the event's data, if the read holds nothing else.

        If `between_events`, a read with the same envelope around JSON without a line end holds one event of that name.
        """
        if not event.data or b"\n" in event.data or b"\r" in event.data:
            return None
        prefix, _, suffix = read.partition(event.data)
        if self.framing == "lines":
            plain = not prefix and suffix == b"\n"
        else:
            # The name of the event must be in the bytes: otherwise it would come from a line of an earlier read.
            found = _PREFIX.fullmatch(prefix)
            plain = found is not None and (found[1] or b"") == event.name.encode() and suffix in _SUFFIXES
        return Envelope(event.name, prefix, suffix) if plain else None

    def skip_reads(self, count: int, last_ns: int) -> None:
        """Count reads of one event each that were decoded without the framer. Requires `between_events`."""
        self._last_ns = last_ns
        if self.framing == "sse":
            self._sse.read_count += count
        else:
            self._lines.read_count += count

    def feed_many(self, reads: Sequence[tuple[int, bytes]]) -> list[RawEvent]:
        """Return the events that these reads (arrival, bytes) complete."""
        events: list[RawEvent] = []
        at = 0
        while at < len(reads) and self.framing != "sse":
            at_ns, data = reads[at]
            events += self.feed(data, at_ns)
            at += 1
        if reads:
            self._last_ns = reads[-1][0]
        # SSE is the framing of nearly all streams. Its loop has the decoder's methods as locals, without a test per read.
        feed, unframed_lines = self._sse.feed, self._sse.unframed_lines
        for at_ns, data in reads[at:] if at else reads:
            events += feed(data, at_ns)
            if unframed_lines:
                self._collect_unframed(at_ns)
        return events

    def feed(self, data: bytes, at_ns: int) -> list[RawEvent]:
        """Return the events that this read completes."""
        if self.framing == "sse":
            events = self._sse.feed(data, at_ns)
            if self._sse.unframed_lines:
                self._collect_unframed(at_ns)
            return events
        if self.framing == "lines":
            return self._lines.feed(data, at_ns)
        if self.framing == "array":
            return self._array.feed(data, at_ns)
        if self._kept_bytes == MAX_BODY_BYTES:
            return []
        self._kept.append((at_ns, data))
        if self.framing == "undecided":
            self.framing = self._decide(data)
        if self.framing in ("undecided", "body"):
            room = MAX_BODY_BYTES - self._kept_bytes
            # A body that is kept whole may be cut, because only its start is decoded. The first read may be larger than the limit.
            if len(data) >= room:
                self.framing, self._kept[-1] = "body", (at_ns, data[:room])
            self._kept_bytes += min(len(data), room)
            return []
        kept, self._kept = self._kept, []
        return [event for at, part in kept for event in self.feed(part, at)]

    def finish(self) -> BodyEnd:
        if self.framing == "sse":
            tail = self._sse.finish()
            if self._sse.unframed_lines:
                self._collect_unframed(self._last_ns)
            return BodyEnd(RawEvent(tail[0], tail[1], 0, self._sse.read_count) if tail else None)
        if self.framing == "lines":
            return BodyEnd(self._lines.finish())
        if self.framing == "array":
            return BodyEnd()
        return BodyEnd(None, b"".join(data for _, data in self._kept))

    def _decide(self, newest: bytes) -> Framing:
        """The framing, once the bytes determine it. The division into reads has no effect."""
        if self.begins_with_json:
            return self._decide_json(newest)
        self._first_bytes += newest
        start = self._first_bytes
        if len(start) < len(_BOM) and _BOM.startswith(start):
            return "undecided"
        start = start.removeprefix(_BOM).lstrip(_SPACE)
        if not start:
            if len(self._first_bytes) <= MAX_LEADING_SPACE:
                return "undecided"
            return "sse" if self._type == "text/event-stream" else "body"
        first = start[:1]
        if first in (b"{", b"["):
            self.begins_with_json = True
            return self._decide_json(start)
        if self._type == "text/event-stream" and self._streams:
            return "body" if first == b"<" else "sse"
        if start.startswith(_FIELDS):
            return "sse"
        return "undecided" if any(field.startswith(start) for field in _FIELDS) else "body"

    def _decide_json(self, newest: bytes) -> Framing:
        """One JSON value may be a whole body. A value, a line end and another value are lines."""
        if not self._streams:
            return "body"
        if self._type.endswith(_LINE_TYPES):
            return "lines"
        self._first_line_ended |= b"\n" in newest
        if not self._first_line_ended and not self._may_be_array:
            return "undecided"
        if self._ignored and not newest.strip(self._ignored):
            return "undecided"  # without a look at everything before
        data = b"".join(part for _, part in self._kept).removeprefix(_BOM).lstrip(_SPACE)
        if data[:1] == b"[":
            self._ignored = b" \t\r\n"
            second = data[1:].lstrip(self._ignored)[:1]
            return "undecided" if not second else "array" if second == b"{" else "body"
        self._may_be_array = False
        line, _, rest = data.partition(b"\n")
        rest = rest.lstrip(_SPACE)
        self._ignored = b"" if rest else _SPACE
        if not rest:
            return "undecided"
        if rest[:1] == b"{" and isinstance(json_or_none(line), dict):
            return "lines"
        if self._type == "text/event-stream" or rest.startswith(_FIELDS[:2]):
            return "sse"  # bare JSON in place of events: unframed lines
        return "undecided" if any(field.startswith(rest) for field in _FIELDS[:2]) else "body"

    def _collect_unframed(self, at_ns: int) -> None:
        for line in self._sse.unframed_lines:
            found = self._unframed_json.add(line)
            if found is not None:
                self.unframed.append(RawEvent(*found, at_ns, self._sse.read_count - 1))
        self._sse.unframed_lines.clear()


class LineSplitter:
    """Splits JSON lines (NDJSON, `application/stream+json`) that arrive piece by piece."""

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


_TOKEN = re.compile(rb'\\.|["{}\[\]]', re.DOTALL)


class ArraySplitter:
    """Splits a JSON array that arrives piece by piece into its objects or arrays. Ignores bytes outside its elements."""

    # Brackets outside strings are counted, and elements are not parsed: parsing again from the start at each read would
    # cost the square of the body's size.

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
        # A backslash at the end of a read escapes the first byte of the next one.
        self._escaped = self._escaped or (self._in_string and end < len(data) and data[-1:] == b"\\")
        if start >= 0:
            self._bytes += len(data) - start
            if self._bytes <= MAX_EVENT_BYTES:
                self._parts.append(data[start:])
            else:
                self._parts.clear()
        return events
