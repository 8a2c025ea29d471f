"""Split Server-Sent Events bytes into events, by the WHATWG rules.

Input: the reads of one body, with arrival times in ns. Output: `RawEvent`s, each with the time of the read that completed its
blank line, because a client can use it from then on. How the bytes are divided into reads never changes the events.

- Lines end in CRLF, LF or CR. After a CR at the end of a read, a LF at the start of the next read belongs to it.
- One leading BOM is stripped, also when it is split over reads.
- A line that starts with ":" is a comment (heartbeat): counted in `comment_count`, otherwise ignored.
- At most one space after the colon is removed; data lines join with LF.
- A blank line dispatches the event if it has a data field, and resets the event's name.
- `id` and `retry` only matter to clients that reconnect, and are ignored.
- An event without its blank line at the end of the body is not dispatched; `finish` returns it.

An event whose lines exceed `max_event_bytes` is counted in `oversized_events` and skipped. Lines with an unknown field name
are kept in `unframed_lines`, up to `MAX_UNFRAMED_BYTES`: some servers report errors in such lines. `UnframedJSON` finds the values.
"""

from __future__ import annotations

import re

from streamgauge.analytics.dialects.events import RawEvent
from streamgauge.analytics.dialects.tolerant_json import json_or_none

MAX_EVENT_BYTES = 16 * 2**20
"""More than the largest legitimate event (an image as base64 is a few MB)."""
MAX_UNFRAMED_BYTES = 64 * 2**10

_LINE_END = re.compile(rb"\r\n|\n|\r")
_BOM = b"\xef\xbb\xbf"


class SSEDecoder:
    """Decodes one stream incrementally."""

    def __init__(self, *, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        self.comment_count = 0
        self.oversized_events = 0
        self.unframed_lines: list[bytes] = []
        self.broken_rules: set[str] = set()
        """Codes of rules of strict clients (`streamgauge.analytics.schema.strict_clients`)."""
        self._unframed_bytes = 0
        self._max = max_event_bytes
        self.read_count = 0
        # The parts of an unfinished line are joined once, when it ends. Appending to one bytes object would copy the line at
        # every read, so a long line in small reads would cost the square of its size.
        self._bom: bytes | None = b""  # first bytes, kept while they may be a BOM; then None
        self.between_events = True
        """Nothing is carried over from earlier reads."""
        self._skip_lf = False
        self._carry: list[bytes] = []
        self._carry_bytes = 0
        self._data: list[bytes] = []
        self._name = b""
        self._size = 0
        self._lone_field = False  # an id or a retry, so far without data
        self._skipping = False
        self._names: dict[bytes, str] = {b"": ""}

    def feed(self, data: bytes, at_ns: int) -> list[RawEvent]:
        """Return the events that this read completes. `at_ns` is when the read returned.

        Three paths, because decoding is the largest part of analytics' work. `_parse_lines` handles all input.
        Reads of whole events in their usual form take `_whole_events`, which doubles the rate of a full decode (`bench decode`,
        "openai_chat, padded"). A read of exactly one such event is split here, which adds another 20 %.
        """
        read_seq = self.read_count
        self.read_count = read_seq + 1
        size = len(data)
        if (
            self.between_events
            and 8 < size <= self._max
            and data[size - 1] == 10 == data[size - 2]
            and data[0] != _BOM[0]
            # A CR may belong to a line end that the next read completes, and a BOM only exists at the start: both are left to
            # `_parse_lines`. `in` and `find` search in C, so these tests cost little beside the parsing that they save.
            and 13 not in data
        ):
            self._bom = None
            end = data.find(10)
            if end == size - 2:
                if data[:6] == b"data: ":
                    return [RawEvent("", data[6:-2], at_ns, read_seq)]
            elif (
                data[:7] == b"event: "
                and data[end + 1 : end + 7] == b"data: "
                and data.find(10, end + 1) == size - 2
                # Only a known name: `_whole_events` decodes and interns a new one.
                and (name := self._names.get(data[7:end])) is not None
            ):
                return [RawEvent(name, data[end + 7 : -2], at_ns, read_seq)]
            found = self._whole_events(data, at_ns, read_seq)
            if found is not None:
                return found
        if self._bom is not None:
            data = self._strip_bom(data)
        events: list[RawEvent] = []
        if data:
            self._parse_lines(data, at_ns, read_seq, events)
        return events

    def finish(self) -> tuple[str, bytes] | None:
        """End the body. Return (name, data) of an event without its blank line, if it has data."""
        if self._bom:
            self._carry, self._bom = [self._bom], None
        if self._carry:
            line = b"".join(self._carry)
            self._carry = []
            if line[:1] != b":" and not self._skipping:
                self._add_field(line)
        if self._skipping:
            self.oversized_events += 1
            self._skipping = False
            return None
        if not self._data:
            return None
        data, self._data = b"\n".join(self._data), []
        return self._intern(self._name), data

    def _whole_events(self, data: bytes, at_ns: int, read_seq: int) -> list[RawEvent] | None:
        """The events of a read that starts and ends between events; None if only `_parse_lines` can parse it."""
        events: list[RawEvent] = []
        value: bytes | None = None
        name = ""
        comments = 0
        has_id = False
        for line in data[:-1].split(b"\n"):
            if not line:
                if value is not None:
                    events.append(RawEvent(name, value, at_ns, read_seq))
                    value = None
                elif name or has_id:
                    self.broken_rules.add("event_without_data" if name else "lone_field")
                name = ""
                has_id = False
                continue
            # The first byte as an integer excludes most fields without a slice.
            first = line[0]
            if first == 100 and line[:5] == b"data:" and value is None:  # "d"
                value = line[6:] if line[5:6] == b" " else line[5:]
            elif first == 58:  # ":"
                comments += 1
            elif first == 101 and line[:6] == b"event:":  # "e"
                raw_name = line[7:] if line[6:7] == b" " else line[6:]
                known = self._names.get(raw_name)
                name = known if known is not None else self._intern(raw_name)
            elif first == 105 and line[:3] == b"id:":  # "i"
                has_id = True
            else:
                return None
        self.comment_count += comments
        return events

    def _intern(self, name: bytes) -> str:
        # A stream has few names. One str for each, not one per event, saves memory and the decoding. The limit keeps a server
        # that sends a new name with every event from filling the memory.
        found = self._names.get(name)
        if found is None:
            found = name.decode("utf-8", "replace")
            if len(self._names) < 256:
                self._names[name] = found
        return found

    def _strip_bom(self, data: bytes) -> bytes:
        held = (self._bom or b"") + data
        if len(held) < 3 and _BOM.startswith(held):
            self._bom, self.between_events = held, False
            return b""
        self._bom = None
        if held.startswith(_BOM):
            self.broken_rules.add("byte_order_mark")
        return held.removeprefix(_BOM)

    def _parse_lines(self, data: bytes, at_ns: int, read_seq: int, events: list[RawEvent]) -> None:
        position = 0
        if self._skip_lf:
            self._skip_lf = False
            if data[:1] == b"\n":
                position = 1
        for end in _LINE_END.finditer(data, position):
            line = data[position : end.start()]
            position = end.end()
            if self._carry:
                self._carry.append(line)
                line = b"".join(self._carry)
                self._carry.clear()
                self._carry_bytes = 0
            if not line:
                self._dispatch(at_ns, read_seq, events)
            elif line[0] == 58:  # ":"
                self.comment_count += 1
            elif not self._skipping:
                self._size += len(line)
                if self._size > self._max:
                    self._skip_event()
                else:
                    self._add_field(line)
        # A CR ends its line at once. Waiting for a possible LF would delay an event by a read.
        self._skip_lf = data[-1:] == b"\r"
        rest = data[position:]
        if rest:
            self._carry_over(rest)
        self.between_events = not (
            self._carry or self._data or self._name or self._size or self._skip_lf or self._skipping
        )

    def _carry_over(self, rest: bytes) -> None:
        """Keep an unfinished line, but only the first byte of a comment or a skipped line."""
        # A comment or a skipped line without an end must not fill the memory. Its first byte shows later what the line was.
        if self._carry and (self._skipping or self._carry[0][:1] == b":"):
            return
        if self._skipping or (rest[:1] == b":" and not self._carry):
            self._carry.append(rest[:1])
            return
        self._carry.append(rest)
        self._carry_bytes += len(rest)
        if self._size + self._carry_bytes > self._max:
            first = self._carry[0][:1]
            self._skip_event()
            self._carry, self._carry_bytes = [first], 1

    def _skip_event(self) -> None:
        self._skipping = True
        self._data.clear()
        self._name = b""

    def _dispatch(self, at_ns: int, read_seq: int, events: list[RawEvent]) -> None:
        if self._skipping:
            self.oversized_events += 1
            self._skipping = False
        elif self._data:
            events.append(RawEvent(self._intern(self._name), b"\n".join(self._data), at_ns, read_seq))
        elif self._name or self._lone_field:
            self.broken_rules.add("event_without_data" if self._name else "lone_field")
        self._data.clear()
        self._name = b""
        self._size = 0
        self._lone_field = False

    def _add_field(self, line: bytes) -> None:
        name, _, value = line.partition(b":")
        if value[:1] == b" ":
            value = value[1:]
        if name == b"data":
            self._data.append(value)
        elif name == b"event":
            self._name = value
        elif name in (b"id", b"retry"):
            self._lone_field = True
        elif self._unframed_bytes + len(line) <= MAX_UNFRAMED_BYTES:
            self._unframed_bytes += len(line)
            self.unframed_lines.append(line)


MAX_PARSE_ATTEMPTS = 64
_SPACE = b" \t\r\n"


class UnframedJSON:
    """Joins the lines of one stream that are no SSE fields into JSON values.

    A value starts with a line that begins with "{" or "[", and ends with the line that completes it.
    """

    # llama.cpp and GPUStack have sent `error: {…}`. Gemini sends a bare JSON error over many lines. The lines are bounded
    # by `MAX_UNFRAMED_BYTES`, and `MAX_PARSE_ATTEMPTS` bounds the attempts: each parses all lines so far, so without it a
    # body of closing brackets would cost the square of its size.

    def __init__(self) -> None:
        self._lines: list[bytes] = []
        self._attempts = 0

    def add(self, line: bytes) -> tuple[str, bytes] | None:
        """Return (event name, data) when this line completes a value."""
        if not self._lines or (line[:1] == b"{" and self._lines[0][:1] == b"{"):
            name, _, value = line.partition(b":")
            value = value.strip(_SPACE)
            if name.lower() == b"error" and value:
                return "error", value
            if line[:1] not in (b"{", b"["):
                return None
            self._lines = [line]
        else:
            self._lines.append(line)
        if line.rstrip(_SPACE)[-1:] not in (b"}", b"]") or self._attempts >= MAX_PARSE_ATTEMPTS:
            return None
        self._attempts += 1
        data = b"\n".join(self._lines)
        if json_or_none(data) is None:
            return None
        self._lines = []
        return "", data
