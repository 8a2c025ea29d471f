"""Redact one body, read by read: the lines around JSON, and JSON. Each read comes out as long as it went in.

What a line is, the line itself says, whatever the content type: `data:` carries a payload, `event:` a name (kept as a word),
`:` a comment, `id:` is filled, `retry:` keeps digits, `error:` is what some servers put between the events; a line that begins
with a bracket, or goes on with one that did, is JSON; anything else is filled. A payload that is no JSON is filled whole, all
but `[DONE]`.

Events that are like earlier ones are redacted by a template (`template`), the others by these rules.
"""

from __future__ import annotations

import re

import msgspec

from ingest.redaction import filler
from ingest.redaction.event_template import MAX_LEARNED, MAX_USED, EventTemplate, template_of
from ingest.redaction.json_redactor import JSONRedactor

MAX_NAME_BYTES = 64

_LINE = re.compile(rb"[^\r\n]*+")
_EVENT_END = re.compile(rb"\r\n\r\n|\n\n")
_NAME = re.compile(rb" ?+[A-Za-z0-9_.:-]*+")
_DIGITS = re.compile(rb" ?+[0-9]*+")
_BLANKS = re.compile(rb"[ \t\x1e]*+")
_PAYLOADS = (b"data:", b"error:")
_FIELDS = (*_PAYLOADS, b"event:", b"id:", b"retry:", b":")
_BARE = b"{"  # stands for the field of a line that is JSON without one
_PLAIN = b"<"  # of a line that is filled
_BOM = b"\xef\xbb\xbf"


class BodyState(msgspec.Struct):
    """Where a body stands, as it can be stored."""

    text: JSONRedactor
    at_start: bool = True
    """Nothing but blanks and a byte order mark was read."""
    mark: int = 0
    """Bytes of the mark that were read; -1 once that is decided."""
    field: bytes = b""
    """What this line is, or the part of it that was read."""
    decided: bool = False
    """`field` is whole."""
    blank: bool = True
    """Nothing of this line was read."""
    saw_cr: bool = False
    taken: int = 0
    """Bytes of a name that stayed, -1 once something else came; of a payload: whether it has begun."""
    from_data: bool = False
    """The payload began in a `data:` line: it lasts until the blank line."""
    plain: bool = False
    """A line was no JSON and no field: neither are those like it."""


class BodyRedactor:
    """Redacts one body. `state` is all that it knows; the rest is for speed."""

    def __init__(self, *, request: bool = False, state: BodyState | None = None) -> None:
        self.state = state or BodyState(JSONRedactor(request=request))
        self._templates: list[EventTemplate] = []
        self._learned = 0

    def feed(self, data: bytes) -> bytes:
        """One read, redacted."""
        out: list[bytes] = []
        at, size = 0, len(data)
        while at < size and self._between:
            after = self._fit(data, at, out) or self._one_event(data, at, out)
            if not after:
                break
            at = after
        if at < size:
            self._lines(data[at:] if at else data, out)
            self.state.text.slots.clear()
        return b"".join(out)

    def _fit(self, data: bytes, at: int, out: list[bytes]) -> int:
        """The event at `at` by a template; where it ends, 0 when none fits."""
        templates = self._templates
        for place, template in enumerate(templates):
            found = template.match(data, at)
            if found is not None:
                if place:
                    templates[0], templates[place] = template, templates[0]
                return template.fill(data, found, out)
        return 0

    def _one_event(self, data: bytes, at: int, out: list[bytes]) -> int:
        """The event at `at` by the rules, and a template of it; where it ends, 0 when it is not whole."""
        end = data.find(b"\n", at) + 1 if data[at] == 0x7B else 0
        if not end:
            found = _EVENT_END.search(data, at)
            if found is None:
                return 0
            end = found.end()
        event = data[at:end]
        learning = self._learned < MAX_LEARNED
        self.state.text.slots.clear()
        made: list[bytes] = []
        self._lines(event, made)
        redacted = b"".join(made)
        out.append(redacted)
        if learning and self._between:
            self._learned += 1
            template = template_of(event, redacted, self.state.text.slots)
            if template is not None and template not in self._templates:
                self._templates = [template, *self._templates[: MAX_USED - 1]]
        return end

    @property
    def _between(self) -> bool:
        """At the beginning of a line, with nothing open: what was read before changes nothing."""
        state = self.state
        return state.blank and not (state.at_start or state.saw_cr or state.plain or state.text.begun)

    def _lines(self, data: bytes, out: list[bytes]) -> None:
        state, size = self.state, len(data)
        at = self._begin(data, out) if state.mark >= 0 else 0
        while at < size:
            found = _LINE.match(data, at)
            assert found is not None
            end = found.end()
            if end > at:
                self._line(data, at, end, out, to_be_continued=end == size)
                state.blank = state.saw_cr = False
            at = end
            while at < size and data[at] in b"\r\n":
                self._end_line(data[at])
                out.append(data[at : at + 1])
                at += 1

    def _begin(self, data: bytes, out: list[bytes]) -> int:
        """The byte order mark, or as much of one as there is."""
        state, at = self.state, 0
        while at < len(data) and state.mark >= 0:
            if data[at] != _BOM[state.mark]:
                state.mark = -1
                break
            state.mark = state.mark + 1 if state.mark < 2 else -1
            at += 1
        out.append(data[:at])
        return at

    def _end_line(self, byte: int) -> None:
        state, text = self.state, self.state.text
        if byte == 0x0A and state.saw_cr:
            state.saw_cr = False
            return
        state.saw_cr = byte == 0x0D
        if state.blank:
            if state.from_data:
                self._reset()
        elif state.field in _PAYLOADS or state.field == _BARE:
            if text.cut and state.from_data:
                text.invalid = True
            elif text.cut:
                state.plain |= text.invalid
                self._reset()
            elif text.between and not state.from_data:
                self._reset()
            text.in_number = False
        state.blank, state.decided, state.field, state.taken = True, False, b"", 0

    def _reset(self) -> None:
        """The next payload is a new one."""
        old = self.state.text
        self.state.text = JSONRedactor(request=old.request, firsts=old.firsts, slots=old.slots)
        self.state.from_data = False

    def _line(self, data: bytes, at: int, end: int, out: list[bytes], *, to_be_continued: bool) -> None:
        """A line, or a part of one, without its end."""
        state = self.state
        if not state.decided:
            at = self._decide(data, at, end, out, to_be_continued=to_be_continued)
            if not state.decided:
                return
        field = state.field
        if field in _PAYLOADS or field == _BARE:
            if not state.taken and at < end and field != _BARE:
                state.taken = 1
                if data[at] == 0x20:  # one space belongs to the field
                    out.append(b" ")
                    at += 1
            state.text.feed(data, at, end, out, to_be_continued=to_be_continued)
        elif field in (b"event:", b"retry:"):
            out.append(self._word(data[at:end], _NAME if field == b"event:" else _DIGITS))
        else:
            out.append(filler.plain(data[at:end], filler.EVERY_BYTE))

    def _decide(self, data: bytes, at: int, end: int, out: list[bytes], *, to_be_continued: bool) -> int:
        """What this line is; where the rest of it begins."""
        state = self.state
        head = state.field + data[at : min(end, at + 6)]
        for field in _FIELDS:
            if head.startswith(field):
                stop = at + len(field) - len(state.field)
                out.append(data[at:stop])
                state.field, state.decided, state.at_start = field, True, False
                if field == b"error:" or (field == b"data:" and not state.from_data):
                    self._reset()
                    state.from_data = field == b"data:"
                return stop
        begun = len(head) < 6 and any(field.startswith(head) for field in _FIELDS)
        if begun and (to_be_continued or head + b":" in _FIELDS):  # a field without a colon is one, too
            out.append(data[at:end])
            state.field, state.at_start = head, False
            return end
        state.decided = True
        if state.field:
            state.field = _PLAIN
            return at
        return self._decide_bare(data, at, end, out)

    def _decide_bare(self, data: bytes, at: int, end: int, out: list[bytes]) -> int:
        state, text = self.state, self.state.text
        if text.stack and not state.from_data:
            state.field = _BARE
            return at
        blanks = _BLANKS.match(data, at, end)
        assert blanks is not None
        if not state.plain:
            out.append(blanks.group())
            at = blanks.end()
            if at == end:
                state.decided = False
                return at
        first, at_start = data[at], state.at_start
        state.at_start = False
        if first in b"{[" or (at_start and first != 0x3C):
            if state.from_data:
                self._reset()
            state.field = _BARE
            return at
        state.field, state.plain = _PLAIN, True
        if at_start:  # "<" tells a page from events
            out.append(data[at : at + 1])
            return at + 1
        return at

    def _word(self, run: bytes, shape: re.Pattern[bytes]) -> bytes:
        """A name or a number as far as it is one."""
        state = self.state
        if state.taken < 0:
            return filler.plain(run, filler.EVERY_BYTE)
        found = shape.match(run, 0, MAX_NAME_BYTES - state.taken)
        assert found is not None
        stays = found.end()
        if state.taken and run[:1] == b" ":
            stays = 0
        state.taken = state.taken + stays if stays == len(run) else -1
        return run[:stays] + filler.plain(run[stays:], filler.EVERY_BYTE)
