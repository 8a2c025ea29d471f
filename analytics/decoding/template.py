"""Read again what differs from an earlier event in one JSON string only, without parsing the rest of it.

Nearly all events of a stream are the same bytes around another piece of text. Once a reader answered a `Delta`, the bytes
before and after its piece are a stencil: an event that begins and ends with them, and has one JSON string between them, is
the same JSON with another string there, so it says the same `Delta` with another piece. A reader must therefore answer
a `Delta` only where the answer follows from the event's own bytes, given that it answered one for the same bytes before.

The stencil is trusted after the reader has once agreed with it, and given up for a while where it does not pay: events that
carry a running number or padding never fit.

Many events are tried at once. Their bytes at the places of the pieces are cut out, and the events are made again around
what was cut: if that gives the bytes that came, each of them fits. Then all pieces are decoded as one JSON string, with a
mark between them. No piece can swallow a mark: after a backslash, or within a character, it is no JSON.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter

import msgspec

from analytics.decoded.decoded_event import DecodedEvent, DeltaRun, EventKind, TextDelta
from analytics.decoded.dialect import DialectReader
from analytics.decoded.raw_event import RawEvent
from analytics.decoded.tolerant_json import FAULTS

_decode_string = msgspec.json.Decoder(str).decode
_encode = msgspec.json.encode

MAX_LEARNED_IN_VAIN = 8
PAUSE_EVENTS = 512
FIRST_LOOK, MAX_LOOK = 2, 64
"""So many events are asked at a time while there is nothing to go by: each time in vain twice as many."""
MIN_WINDOW, MAX_WINDOW = 8, 128
"""Events tried at once: twice as many after all of them fitted, half as many after one did not."""
MAX_ODD_AT_END = 4
"""So many of those tried, at most, are left out where they do not begin as the others: a stream's last say something else."""
MAX_STENCIL_BYTES = 16 * 1024
_DONE = DecodedEvent(kind="terminal", done_marker=True)
_MARK = "\x7f"


class EventTemplate:
    """Stands before one reader of one stream."""

    def __init__(self, reader: DialectReader) -> None:
        self.name = ""
        """The name of the events that it is for."""
        self.trusted = False
        """It answers without the reader what fits."""
        self.window = MAX_WINDOW
        """So many events are best tried at once."""
        self._read = reader.read
        self._read_many: Callable[[Sequence[RawEvent]], list[DecodedEvent | TextDelta]] | None = getattr(
            reader, "read_many", None
        )
        self._prefix = self._suffix = b""
        self._kind: EventKind = "text"
        self._choice = 0
        self._look = FIRST_LOOK
        self._vain = 0
        self._pause = 0

    def read_many(self, events: Sequence[RawEvent]) -> list[DecodedEvent | TextDelta | DeltaRun]:
        """The reader's answers, one for each event; a `Run` answers as many as it has pieces."""
        answers: list[DecodedEvent | TextDelta | DeltaRun] = []
        at = 0
        while at < len(events):
            if self.trusted:
                likely = events[at].data.startswith(self._prefix)
                run = self._fit_events(events, at) if likely else None
                if run is not None:
                    answers.append(run)
                    at += len(run.texts)
                    continue
            elif not self._prefix:
                some = events[at : at + (self._pause if self._pause > 0 else self._look)]
                told = self._ask(some)
                answers += told
                at += len(some)
                if self._pause > 0:
                    self._pause -= len(some)
                elif type(told[-1]) is TextDelta:
                    self._learn(some[-1], told[-1])
                else:
                    self._look = min(2 * self._look, MAX_LOOK)
                continue
            answers.append(self._test(events[at]))
            at += 1
        return answers

    def fit_reads(self, reads: Sequence[bytes], lead: bytes, trail: bytes) -> DeltaRun | None:
        """The run of the first reads that hold one fitting event each, between `lead` and `trail`; None: not even one.

        Only for a trusted stencil. Best given `window` reads.
        """
        pieces = self._pieces(reads, lead + self._prefix, self._suffix + trail)
        return DeltaRun(self._kind, pieces, self._choice) if pieces else None

    def _fit_events(self, events: Sequence[RawEvent], at: int) -> DeltaRun | None:
        some = events[at : at + self.window]
        same = next((n for n, event in enumerate(some) if event.name != self.name), len(some))
        pieces = self._pieces([event.data for event in some[:same]], self._prefix, self._suffix)
        return DeltaRun(self._kind, pieces, self._choice) if pieces else None

    def _pieces(self, parts: Sequence[bytes], prefix: bytes, suffix: bytes) -> list[str]:
        """What stands between prefix and suffix in the first so many of the parts, which all fit."""
        start, end = len(prefix), -len(suffix)
        fits = len(parts)
        while fits > len(parts) - MAX_ODD_AT_END and fits and parts[fits - 1][:start] != prefix:
            fits -= 1  # the last of a stream: finish, usage, [DONE]
        tried = parts[:fits]
        cut: list[bytes] = list(map(itemgetter(slice(start, end)), tried))
        if prefix + (suffix + prefix).join(cut) + suffix != b"".join(tried):
            cut = []
            for part in tried:
                if len(part) < start - end or part[:start] != prefix or part[end:] != suffix:
                    break
                cut.append(part[start:end])
        pieces = _strings(cut)
        if len(pieces) < len(parts):
            self.window = max(MIN_WINDOW, self.window // 2)
        elif len(pieces) == self.window:
            self.window = min(MAX_WINDOW, self.window * 2)
        if len(pieces) > 1:
            self._vain = 0
        return pieces

    def _test(self, event: RawEvent) -> DecodedEvent | TextDelta:
        """Ask the reader, and hold the answer against the stencil, or take a new one from it."""
        told = self._ask((event,))[0]
        fits = not self.trusted and event.name == self.name
        pieces = self._pieces((event.data,), self._prefix, self._suffix) if fits else []
        if pieces:
            self.trusted = told == TextDelta(self._kind, pieces[0], self._choice)
            if not self.trusted:
                self._give_up()
        elif type(told) is TextDelta:
            self._learn(event, told)
        return told

    def _ask(self, events: Sequence[RawEvent]) -> list[DecodedEvent | TextDelta]:
        if self._read_many is not None:
            return self._read_many(events)
        read = self._read
        return [
            read(event.name, event.data) if len(event.data) > 16 or event.data.strip() != b"[DONE]" else _DONE
            for event in events
        ]

    def _learn(self, event: RawEvent, told: TextDelta) -> None:
        self._vain += 1
        self.trusted = False
        if self._vain > MAX_LEARNED_IN_VAIN:
            self._give_up()
            return
        data = event.data
        if len(data) > MAX_STENCIL_BYTES:
            return
        written = _encode(told.text)
        at = data.find(written)
        if told.tokens is not None or told.usage is not None or at < 0 or data.find(written, at + 1) >= 0:
            self._prefix = b""
            return
        self._prefix, self._suffix = data[: at + 1], data[at + len(written) - 1 :]
        self.name, self._kind, self._choice = event.name, told.kind, told.choice
        self._look = FIRST_LOOK

    def _give_up(self) -> None:
        self._prefix = b""
        self.trusted = False
        self._vain = 0
        self._pause = PAUSE_EVENTS


def _strings(cut: Sequence[bytes]) -> list[str]:
    """The first so many of these insides of JSON strings that are one, and not empty."""
    if not cut:
        return []
    try:
        pieces = _decode_string(b'"%b"' % b"\x7f".join(cut)).split(_MARK)
    except FAULTS:
        pieces = []
    if len(pieces) != len(cut):  # one of them is none, or holds the mark
        pieces = []
        for inside in cut:
            try:
                pieces.append(_decode_string(b'"%b"' % inside))
            except FAULTS:
                break
    return pieces[: pieces.index("")] if "" in pieces else pieces
