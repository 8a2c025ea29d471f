"""Read again what differs from an earlier event in one JSON string only, without parsing the rest of it.

Nearly all events of a stream are the same bytes around another piece of text. Once a reader answered a `Delta`, the bytes
before and after its piece are a stencil: an event that begins and ends with them, and has one JSON string between them, is
the same JSON with another string there, so it says the same `Delta` with another piece. A reader must therefore answer
a `Delta` only where the answer follows from the event's own bytes, given that it answered one for the same bytes before.

The stencil is trusted after the reader has once agreed with it, and given up for a while where it does not pay: events that
carry a running number or padding never fit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from analytics.dialects.payload import FAULTS
from analytics.dialects.shape import Delta, Kind, Reader, Reading, Run
from analytics.sse import Event

_decode_string = msgspec.json.Decoder(str).decode
_encode = msgspec.json.encode

MAX_LEARNED_IN_VAIN = 8
PAUSE_EVENTS = 512
LOOK_EVENTS = 8
"""So many events are asked at a time while there is nothing to go by."""
MAX_STENCIL_BYTES = 16 * 1024
_DONE = Reading(kind="terminal", done=True)


class Stencil:
    """Stands before one reader of one stream."""

    def __init__(self, reader: Reader) -> None:
        self._read = reader.read
        self._read_many: Callable[[Sequence[Event]], list[Reading | Delta]] | None = getattr(
            reader, "read_many", None
        )
        self._prefix = self._suffix = b""
        self._name = ""
        self._kind: Kind = "text"
        self._choice = 0
        self._trusted = False
        self._vain = 0
        self._pause = 0

    def read_many(self, events: Sequence[Event]) -> list[Reading | Delta | Run]:
        """The reader's answers, one for each event; a `Run` answers as many as it has pieces."""
        answers: list[Reading | Delta | Run] = []
        at = 0
        while at < len(events):
            if not self._prefix:
                some = events[at : at + (self._pause if self._pause > 0 else LOOK_EVENTS)]
                told = self._ask(some)
                answers += told
                at += len(some)
                if self._pause > 0:
                    self._pause -= len(some)
                elif type(told[-1]) is Delta:
                    self._learn(some[-1], told[-1])
                continue
            at = self._fit(events, at, answers)
        return answers

    def _fit(self, events: Sequence[Event], at: int, answers: list[Reading | Delta | Run]) -> int:
        """Answer events from `at` on while this stencil holds; the index of the next one to answer."""
        prefix, suffix, name = self._prefix, self._suffix, self._name
        kind, choice, trusted = self._kind, self._choice, self._trusted
        start, cut = len(prefix) - 1, len(suffix) - 1
        shortest = start + cut + 3
        first = at
        pieces: list[str] = []
        fitted = pieces.append
        for event in events[at:] if at else events:
            data = event.data
            size = len(data)
            piece = ""
            fits = (
                data.startswith(prefix) and data.endswith(suffix) and event.name == name and size >= shortest
            )
            if fits:
                try:
                    piece = _decode_string(data[start : size - cut])
                except FAULTS:
                    fits = False
                if piece and trusted:
                    fitted(piece)
                    continue
            if pieces:
                answers.append(Run(kind, pieces, choice))
                at += len(pieces)
                pieces = []
                fitted = pieces.append
            told = self._ask((event,))[0]
            answers.append(told)
            at += 1
            if piece:
                self._trusted = trusted = told == Delta(kind, piece, choice)
                if not trusted:
                    self._give_up()
                    return at
            elif type(told) is Delta and not fits:
                if trusted and at - first > 1:
                    self._vain = 0
                self._learn(event, told)
                return at
        if pieces:
            answers.append(Run(kind, pieces, choice))
            at += len(pieces)
        if trusted:
            self._vain = 0
        return at

    def _ask(self, events: Sequence[Event]) -> list[Reading | Delta]:
        if self._read_many is not None:
            return self._read_many(events)
        read = self._read
        return [
            read(event.name, event.data) if len(event.data) > 16 or event.data.strip() != b"[DONE]" else _DONE
            for event in events
        ]

    def _learn(self, event: Event, told: Delta) -> None:
        self._vain += 1
        if self._vain > MAX_LEARNED_IN_VAIN:
            self._give_up()
            return
        data = event.data
        if len(data) > MAX_STENCIL_BYTES:
            return
        written = _encode(told.piece)
        at = data.find(written)
        if told.tokens is not None or at < 0 or data.find(written, at + 1) >= 0:
            self._prefix = b""
            return
        self._prefix, self._suffix = data[: at + 1], data[at + len(written) - 1 :]
        self._name, self._kind, self._choice = event.name, told.kind, told.choice
        self._trusted = False

    def _give_up(self) -> None:
        self._prefix = b""
        self._trusted = False
        self._vain = 0
        self._pause = PAUSE_EVENTS
