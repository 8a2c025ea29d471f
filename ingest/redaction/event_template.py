"""Redact an event with one regular expression, learned from an earlier event of the same shape.

Events of one API differ only in their values. A template is made from an event that the rules have redacted: its bytes, with a
slot for each complete value (a filled string, a kept word, a number). An event that matches has the same keys and shape, so
the rules would give the same result. All streams share the templates. A stream that rarely matches stops learning
(MAX_LEARNED).
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from streamgauge.ingest.redaction import filler
from streamgauge.ingest.redaction.json_redactor import Slot, SlotKind
from streamgauge.ingest.redaction.kept_text import PATTERNS

MAX_EVENT_BYTES = 4096
MAX_SHARED = 1024
"""Templates in the process. No API has more event shapes."""
MAX_LEARNED = 24
"""Templates that one stream may learn."""
MAX_USED = 4  # templates that one stream tries

_INSIDE = rb'((?:[^"\\\x00-\x1f]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*+)(?=")'
_NUMBER = rb"-?[0-9][-+0-9.eE]*+(?=[ \t,}\]])"


class EventTemplate:
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


_shared: dict[bytes, EventTemplate] = {}


def template_of(event: bytes, redacted: bytes, slots: Sequence[Slot]) -> EventTemplate | None:
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
        template = _shared[pattern] = EventTemplate(pattern, to_fill)
    return template
