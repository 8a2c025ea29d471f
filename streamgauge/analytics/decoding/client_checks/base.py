"""Find the rules of strict clients that a stream breaks (`streamgauge.analytics.schema.strict_clients`). No I/O, no clock.

Input: the events of one stream with their kinds. Nearly all of them are output, and alike: they differ in their text only. So of
successive outputs the first `OUTPUTS_AFTER_OTHERS` are checked, and of the next `MAX_CHECKED` those that differ from these in more
than their text; and all other events, up to `MAX_CHECKED`. Errors inside a stream break no rule, because every client reports them.

The state that the checks keep is the state of the clients: their lists of choices, blocks and output items, and what of them is open.
The types of members are in `streamgauge.analytics.schema.client_types`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any, TypeGuard

import msgspec

from streamgauge.analytics.dialects.events import OUTPUT_KINDS, RawEvent
from streamgauge.analytics.dialects.tolerant_json import FAULTS, json_or_none
from streamgauge.analytics.schema import client_types
from streamgauge.analytics.schema.strict_clients import MESSAGES, RULES

OUTPUTS_AFTER_OTHERS = 2
MAX_CHECKED = 256

DECODE_JSON = msgspec.json.Decoder().decode


_Shared = tuple[bytes, Sequence[bytes], bytes]
"""What outputs share around strings and numbers that differ: their start, pieces between two of these, and their end."""


class ClientChecks:
    """The checks of one stream. A subclass has the rules of one dialect."""

    dialect = ""
    outputs_left = OUTPUTS_AFTER_OTHERS
    """Output events that are checked before the next other event."""
    has_mark = False
    """The stream begins with a byte order mark."""
    _checked = 0
    _compared = 0  # outputs since the last other event
    _done_seen = _error_seen = False  # `[DONE]` or an error was seen
    _typed: Any = None
    """The current event, if its members have their types."""

    def __init__(self) -> None:
        self._found: set[str] = set()
        self._decode_typed = _TYPED[self.dialect].decode
        self._before_last = self._last = b""  # outputs that were checked, since the last other event
        self._shared: _Shared | None = None

    def check(
        self,
        events: Sequence[RawEvent],
        kinds: Sequence[str],
        chars: Sequence[int],
        finish_reasons: Sequence[str | None],
    ) -> None:
        """Check the next events. `kinds`, `chars` and `finish_reasons`: those of their rows in `events`."""
        of_rows = zip(kinds, finish_reasons, strict=True)
        is_output = [reason is None and kind in OUTPUT_KINDS for kind, reason in of_rows]
        if "tool_call" in kinds and 0 in chars:
            is_output = [of and bool(size) for of, size in zip(is_output, chars, strict=True)]
        is_output.append(False)
        at = one_by_one = 0
        while at < len(events):
            event = events[at]
            data = event.data
            if not is_output[at]:  # among them a tool call without characters, which begins
                self.outputs_left = OUTPUTS_AFTER_OTHERS
                self._before_last = self._last = b""
                self._compared = 0
                if kinds[at] == "error":
                    self._error_seen = True
                    at += 1
                    continue
            elif self.outputs_left:
                self.outputs_left -= 1
                self._before_last, self._last, self._shared = self._last, data, None
            else:
                end = is_output.index(False, at) if at >= one_by_one else at + 1
                if self.alike(events[at:end]):
                    at = end
                    continue
                one_by_one = max(end, one_by_one)
                if end > at + 1 and self.alike(events[at : at + 1]):
                    at += 1
                    continue
                self._before_last, self._last, self._shared = self._last, data, None
            at += 1
            if self._checked <= MAX_CHECKED:
                self._checked += 1
                if data[:1] == b"[" or not self.accepts(event.name, data):
                    self._check(event.name, data)

    def alike(self, events: Sequence[RawEvent]) -> bool:
        """Whether output events differ from those that were checked last in their text alone."""
        if self._compared == MAX_CHECKED:
            return True
        if self._shared is None:
            self._shared = _shared(self._before_last, self._last) if self._before_last else _NOTHING_SHARED
        start, middles, end = self._shared
        if not end:
            return self._checked > MAX_CHECKED
        data = [event.data for event in events[: MAX_CHECKED - self._compared]]
        texts = list(map(itemgetter(slice(len(start), -len(end))), data))
        # One comparison and one search of all events, in C: six times as fast as of each.
        if start + (end + start).join(texts) + end != b"".join(data):
            return False
        between = b"".join(texts) if middles else b""
        are_alike = all(between.count(middle) >= len(data) for middle in middles)
        self._compared += len(data) if are_alike else 0
        return are_alike

    def violations(self, *, ended: bool, framing: Iterable[str], arguments: Mapping[Any, str]) -> list[str]:
        """Codes of the broken rules, sorted.

        `framing`: those that the lines show. `ended`: the stream is complete. `arguments`: of each tool call, by its key.
        """
        found = self._found.union(framing)
        if ended and self._checked <= MAX_CHECKED:
            found.update(code for code, broken in self.lacks(arguments).items() if broken)
        return sorted(code for code in found if self.dialect in RULES[code].clients) if found else []

    def lacks(self, arguments: Mapping[Any, str]) -> dict[str, Any]:
        """Rule → whether the stream breaks it if it ends now."""
        raise NotImplementedError

    def accepts(self, name: str, data: bytes) -> bool:
        """Whether an event breaks no rule, if that shows without `event`, which costs three times as much."""
        try:
            self._typed = typed = self._decode_typed(data)
        except FAULTS:
            self._typed = None
            return False
        # In skipped members, the decoder does not check UTF-8.
        return not self._done_seen and data.isascii() and self._accepts(name, typed)

    def _accepts(self, name: str, event: Any) -> bool:
        return False

    def add(self, *codes: str) -> None:
        self._found.update(codes)

    def add_if(self, **codes: Any) -> None:
        """Add the codes whose value is true."""
        if any(codes.values()):  # rarely
            self._found.update(code for code, broken in codes.items() if broken)

    def _check(self, name: str, data: bytes) -> None:
        if data[:6] == b"[DONE]":
            self._done_seen = True
            self.add_if(named_done=name, padded_done=data != b"[DONE]")
            return
        try:
            value = DECODE_JSON(data)
        except FAULTS:
            if not data.strip():
                self.add("empty_data")
                return
            value = json_or_none(data)
            if value is None and self.dialect == MESSAGES and name in ("", "ping"):
                self.add("invalid_ping")  # the other clients skip events without a name, and pings
                return
            if value is not None:
                self.add_if(invalid_utf8=not _is_utf8(data))
                self._typed = _converted(value, client_types.EVENTS[self.dialect])
        if isinstance(value, dict):
            self.event(name, value)
        else:
            self.add("invalid_json")

    def event(self, name: str, value: dict[str, Any]) -> None:
        """Check one event that is a JSON object."""
        raise NotImplementedError


_TYPED = {dialect: msgspec.json.Decoder(of) for dialect, of in client_types.EVENTS.items()}


def _converted(value: Any, of: Any) -> Any:
    """The value as this type. None if it differs."""
    try:
        return msgspec.convert(value, of)
    except msgspec.ValidationError:
        return None


_NOTHING_SHARED: _Shared = (b"", (), b"")
_MAX_PIECES = 8
_MAX_MIDDLE_BYTES = 64
_STRING_REST = re.compile(rb'(?:[^"\\]|\\.)*')
_NUMBER_REST = re.compile(rb"[-+.0-9eE]*")


def _shared(first: bytes, second: bytes) -> _Shared:
    """What two outputs share, if they have the same members, and the same indices."""
    pieces: list[bytes] = []
    while len(pieces) < _MAX_PIECES:
        piece = _shared_start(first, second)
        if piece == first == second:
            longest = max(pieces[1:], key=len, default=b"")
            middles = [
                piece[-_MAX_MIDDLE_BYTES:] for piece in pieces[1:] if piece == longest or b'index"' in piece
            ]
            if not pieces:  # the same bytes
                return piece[:-1], (), piece[-1:]
            return (pieces[0], middles, piece) if piece else _NOTHING_SHARED
        before_number = piece.rstrip(b"-+.0123456789eE")
        is_number = before_number.rstrip()[-1:] in (b":", b",", b"[")
        piece = before_number if is_number else piece[: piece.rfind(b'"') + 1]
        if len(piece) < 2 or (is_number and b'index"' in piece[-9:]):
            break
        rest = _NUMBER_REST if is_number else _STRING_REST
        first, second = (
            event[found.end() :] for event in (first, second) if (found := rest.match(event, len(piece)))
        )
        pieces.append(piece)
    return _NOTHING_SHARED


def _shared_start(first: bytes, second: bytes) -> bytes:
    count = min(len(first), len(second))
    unlike_bits = int.from_bytes(first[:count]) ^ int.from_bytes(second[:count])
    return first[: count - (unlike_bits.bit_length() + 7) // 8]


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def is_whole(value: Any) -> TypeGuard[int]:
    return isinstance(value, int)  # and so may be a boolean, as in Python


def is_true(value: Any) -> bool:
    """Whether JavaScript takes the value as true."""
    return bool(value) or isinstance(value, (list, dict))


def list_of(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
