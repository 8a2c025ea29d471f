"""Redact one body, read by read. Each read keeps its length.

The start of a line decides how it is treated, whatever the content type:
- `data:` and `error:` carry a payload. `event:` carries a name, which is kept as a word. `id:` and `:` (comment) are filled.
  `retry:` keeps digits.
- A line that starts with a bracket, or continues such a line, is JSON.
- Any other line is filled. A payload that is not JSON is filled too, except `[DONE]`.

Events with the shape of an earlier event are redacted by a template (`RedactedTemplate`), all others by these rules. Both give
the same result. For chunks of a chat stream the template is about ten times as fast.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

import msgspec

from streamgauge.ingest.redaction import filler
from streamgauge.ingest.redaction.json_keys import NO_WORD, PATTERNS, Keep, kept_of_start, kept_of_whole
from streamgauge.ingest.redaction.json_redactor import JSONRedactor, Slot, SlotKind

MAX_NAME_BYTES = 64

_LINE = re.compile(rb"[^\r\n]*+")
_EVENT_END = re.compile(rb"\r\n\r\n|\n\n")
_NAME = re.compile(rb" ?+[A-Za-z0-9_.:-]*+")
_DIGITS = re.compile(rb" ?+[0-9]*+")
_BLANKS = re.compile(rb"[ \t\x1e]*+")
_PAYLOADS = (b"data:", b"error:")
_FIELDS = (*_PAYLOADS, b"event:", b"id:", b"retry:", b":")
_BARE = b"{"  # `BodyState.field` of a JSON line without a field name
_PLAIN = b"<"  # `BodyState.field` of a line that is filled
_BOM = b"\xef\xbb\xbf"


class BodyState(msgspec.Struct):
    """Parser state of a body between two reads. Stored by `ship`."""

    text: JSONRedactor
    at_start: bool = True
    """Only blanks and a byte order mark were read."""
    mark: int = 0
    """Bytes of the byte order mark that were read; -1 after it."""
    field: bytes = b""
    """The line's field name, or the part of it that was read."""
    decided: bool = False
    """`field` is complete."""
    blank: bool = True
    """Nothing of this line was read."""
    saw_cr: bool = False
    taken: int = 0
    """In a name: bytes kept, -1 after the first byte that is not kept. In a payload: 1 after its first byte."""
    from_data: bool = False
    """The payload started in a `data:` line: it ends at the blank line."""
    plain: bool = False
    """A line was neither JSON nor a field. From then on blanks at the start of a line are filled too."""


class BodyRedactor:
    """Redacts one body. `state` determines the result; the templates only save time."""

    def __init__(self, *, request: bool = False, state: BodyState | None = None) -> None:
        self.state = state or BodyState(JSONRedactor(request=request))
        self._templates: list[RedactedTemplate] = []
        self._learned = 0

    def feed(self, data: bytes) -> bytes:
        """One read, redacted."""
        out: list[bytes] = []
        at, size = 0, len(data)
        while at < size and self._at_event_start:
            after = self._apply_template(data, at, out) or self._apply_rules(data, at, out)
            if not after:
                break
            at = after
        if at < size:
            self._lines(data[at:] if at else data, out)
            self.state.text.slots.clear()
        return b"".join(out)

    def _apply_template(self, data: bytes, at: int, out: list[bytes]) -> int:
        """Redact the event at `at` with a template. Returns its end, 0 when no template matches."""
        templates = self._templates
        for index, template in enumerate(templates):
            found = template.match(data, at)
            if found is not None:
                # The template that matched last is tried first. A stream repeats one shape for most of its events.
                if index:
                    templates[0], templates[index] = template, templates[0]
                return template.fill(data, found, out)
        return 0

    def _apply_rules(self, data: bytes, at: int, out: list[bytes]) -> int:
        """Redact the event at `at` with the rules and learn a template from it. Returns its end, 0 when it is incomplete."""
        end = data.find(b"\n", at) + 1 if data[at] == 0x7B else 0
        if not end:
            found = _EVENT_END.search(data, at)
            if found is None:
                return 0
            end = found.end()
        event = data[at:end]
        learning = self._learned < MAX_LEARNED
        self.state.text.slots.clear()
        parts: list[bytes] = []
        self._lines(event, parts)
        redacted = b"".join(parts)
        out.append(redacted)
        if learning and self._at_event_start:
            self._learned += 1
            template = template_of(event, redacted, self.state.text.slots)
            if template is not None and template not in self._templates:
                # A failed match costs a scan of the start of the event, so a stream tries only the few that it used
                # last.
                self._templates = [template, *self._templates[: MAX_USED - 1]]
        return end

    @property
    def _at_event_start(self) -> bool:
        """At the start of an event, with no payload or line open: earlier bytes do not affect the result."""
        state = self.state
        return state.blank and not (state.at_start or state.saw_cr or state.plain or state.text.begun)

    def _lines(self, data: bytes, out: list[bytes]) -> None:
        state, size = self.state, len(data)
        at = self._byte_order_mark(data, out) if state.mark >= 0 else 0
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

    def _byte_order_mark(self, data: bytes, out: list[bytes]) -> int:
        """Pass the byte order mark, or the part of it that was read."""
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
        """Start a new payload."""
        old = self.state.text
        self.state.text = JSONRedactor(request=old.request, firsts=old.firsts, slots=old.slots)
        self.state.from_data = False

    def _line(self, data: bytes, at: int, end: int, out: list[bytes], *, to_be_continued: bool) -> None:
        """Redact a line or a part of one, without its line end."""
        state = self.state
        if not state.decided:
            at = self._decide(data, at, end, out, to_be_continued=to_be_continued)
            if not state.decided:
                return
        field = state.field
        if field in _PAYLOADS or field == _BARE:
            if not state.taken and at < end and field != _BARE:
                state.taken = 1
                if data[at] == 0x20:  # one space after the colon belongs to the field
                    out.append(b" ")
                    at += 1
            state.text.feed(data, at, end, out, to_be_continued=to_be_continued)
        elif field in (b"event:", b"retry:"):
            shape = _NAME if field == b"event:" else _DIGITS
            out.append(self._word(data[at:end], shape, is_whole=not (state.taken or to_be_continued)))
        else:
            out.append(filler.plain(data[at:end], filler.EVERY_BYTE))

    def _decide(self, data: bytes, at: int, end: int, out: list[bytes], *, to_be_continued: bool) -> int:
        """Decide the kind of the line. Returns where its content starts."""
        state = self.state
        if state.taken:  # an earlier read has blanks before it, so it has no field
            state.decided = True
            return self._decide_bare(data, at, end, out)
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
        if begun and (to_be_continued or head + b":" in _FIELDS):  # a field name may end without a colon
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
                state.decided, state.taken = False, 1
                return at
        first, at_start = data[at], state.at_start
        state.at_start = False
        if first in b"{[" or (at_start and first != 0x3C):
            if state.from_data:
                self._reset()
            state.field = _BARE
            return at
        state.field, state.plain = _PLAIN, True
        if at_start:  # keep "<": it marks the body as an HTML page
            out.append(data[at : at + 1])
            return at + 1
        return at

    def _word(self, run: bytes, shape: re.Pattern[bytes], *, is_whole: bool) -> bytes:
        """Keep a name or a number that matches `shape`. A read cuts it unless `is_whole`: its start is kept."""
        state = self.state
        if state.taken < 0:
            return self._filled_word(run)
        found = shape.match(run, 0, MAX_NAME_BYTES - state.taken)
        assert found is not None
        stays = found.end()
        if state.field == b"event:":
            begin = int(run[:1] == b" ")
            kept_of = kept_of_whole if is_whole else kept_of_start
            stays = min(stays, begin + kept_of(run[begin:], Keep.NAME))
        if state.taken and run[:1] == b" ":
            stays = 0
        if is_whole and stays < len(run):
            stays = int(run[:1] == b" ")
        state.taken = state.taken + stays if stays == len(run) else -1
        return run[:stays] + self._filled_word(run[stays:])

    def _filled_word(self, run: bytes) -> bytes:
        filled = filler.plain(run, filler.EVERY_BYTE)
        return filled.replace(b"x", NO_WORD) if self.state.field == b"event:" else filled


MAX_EVENT_BYTES = 4096
MAX_SHARED = 1024
"""Templates in the process. No API has more event shapes."""
MAX_LEARNED = 24
"""Templates that one stream may learn."""
MAX_USED = 4  # templates that one stream tries

_INSIDE = rb'((?:[^"\\\x00-\x1f]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*+)(?=")'
_NUMBER = rb"-?[0-9][-+0-9.eE]*+(?=[ \t,}\]])"


# Events of one API differ only in their values. A template is made from an event that the rules have redacted: its bytes, with a
# slot for each complete value (a filled string, a kept word, a number). An event that matches has the same keys and shape, so the
# rules would give the same result. All streams share the templates, because a stream is often too short to repay learning its own.
class RedactedTemplate:
    """One event shape. Its groups are the values to fill."""

    def __init__(self, pattern: bytes, slots: Sequence[tuple[SlotKind, bytes]]) -> None:
        self.match = re.compile(pattern, re.DOTALL).match
        self._slots = slots
        self._one_string = len(slots) == 1 and slots[0][0] is SlotKind.STRING

    def fill(self, data: bytes, found: re.Match[bytes], out: list[bytes]) -> int:
        """Append the redacted event to `out`. Returns its end."""
        at = found.start()
        if self._one_string:
            begin, end = found.span(1)
            out += (data[at:begin], filler.string(found[1]))
            at = end
        else:
            for group, (kind, constant) in enumerate(self._slots, 1):
                begin, end = found.span(group)
                out.append(data[at:begin])
                if kind is SlotKind.STRING:
                    out.append(filler.string(found[group]))
                else:
                    out.append(constant or found[group].translate(filler.DIGITS))
                at = end
        stop = found.end()
        out.append(data[at:stop])
        return stop


_shared: dict[bytes, RedactedTemplate] = {}


def template_of(event: bytes, redacted: bytes, slots: Sequence[Slot]) -> RedactedTemplate | None:
    """The template of an event and its redacted form. None when slots alone cannot describe the redaction."""
    if len(event) > MAX_EVENT_BYTES or any(kind is SlotKind.REPEATED for kind, _, _ in slots):
        return None
    parts: list[bytes] = []
    to_fill: list[tuple[SlotKind, bytes]] = []
    at = 0
    for kind, begin, end in slots:
        if event[at:begin] != redacted[at:begin]:
            return None  # bytes outside the slots were filled
        parts.append(re.escape(event[at:begin]))
        at = end
        if kind is SlotKind.STRING:
            parts.append(_INSIDE)
            to_fill.append((kind, b""))
        elif kind is SlotKind.KEY:
            parts.append(b"(" + re.escape(event[begin:end]) + b")")
            to_fill.append((kind, redacted[begin:end]))
        elif kind is SlotKind.FILLED_NUMBER:
            parts.append(b"(" + _NUMBER + b")")
            to_fill.append((kind, b""))
        elif kind is SlotKind.FILLED_NUMBERS:
            parts.append(b"([-+0-9.eE, \\t]++)")
            to_fill.append((kind, b""))
        elif kind is SlotKind.NUMBER:
            parts.append(_NUMBER)
        else:
            parts.append(PATTERNS[kind] + b'(?=")')
    if event[at:] != redacted[at:]:
        return None
    parts.append(re.escape(event[at:]))
    pattern = b"".join(parts)
    template = _shared.get(pattern)
    if template is None:
        if len(_shared) >= MAX_SHARED:
            return None
        template = _shared[pattern] = RedactedTemplate(pattern, to_fill)
    return template


_WRAP = b'{"usage":'
_STORED_NUMBER = re.compile(r"(?<=[:,\[])(-?\d[\d.eE+-]*)(?=[,\]}])")
_WITHOUT_TEXT = re.compile(r'(?:[{},]|"[A-Za-z0-9_.$@-]{0,64}":|-?\d[\d.eE+-]*+|null|true|false)*+')


def numbers_only(report: str) -> str:
    """Redact a report of counts and times, given as compact JSON: numbers, keys and known words are kept.

    Streams may send a report with each event, with the same words and other numbers. So the result for the words is cached.
    """
    if _WITHOUT_TEXT.fullmatch(report) is not None:
        return report
    parts = _STORED_NUMBER.split(report)  # words and numbers alternate
    words = _words(tuple(parts[::2]))
    if words is None:
        return _redacted(report)
    parts[::2] = words
    return "".join(parts)


@lru_cache(maxsize=1024)
def _words(words: tuple[str, ...]) -> tuple[str, ...] | None:
    """The redacted words around the numbers. None when a number is filled or a text looks like a number."""
    parts = _STORED_NUMBER.split(_redacted("7".join(words)))
    kept = [len(word) for word in parts[::2]] == [len(word) for word in words] and set(parts[1::2]) <= {"7"}
    return tuple(parts[::2]) if kept else None


def _redacted(report: str) -> str:
    return BodyRedactor().feed(_WRAP + report.encode() + b"}")[len(_WRAP) : -1].decode()
