"""Events that differ in one string are answered without the reader, and only those."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from analytics.decoded.event import DecodedEvent, DeltaRun, TextDelta
from analytics.decoded.raw_event import RawEvent
from analytics.decoding.template import MAX_FAILED_TEMPLATES, PAUSE_EVENTS, EventTemplate


class CountingReader:
    """Answers `text` as a Delta; counts how often it is asked."""

    def __init__(self) -> None:
        self.asked = 0

    def read(self, name: str, data: bytes) -> DecodedEvent | TextDelta:
        self.asked += 1
        try:
            value: dict[str, Any] = msgspec.json.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return DecodedEvent(kind="malformed")
        text = value.get("text")
        return TextDelta("text", text) if isinstance(text, str) and text else DecodedEvent(kind="other")

    def read_body(self, body: bytes) -> list[DecodedEvent]:
        return []


class CumulativeReader(CountingReader):
    """Breaks the rule on purpose: its answer depends on what came before."""

    def __init__(self) -> None:
        super().__init__()
        self._so_far = ""

    def read(self, name: str, data: bytes) -> DecodedEvent | TextDelta:
        text: str = json.loads(data)["text"]
        new, self._so_far = text.removeprefix(self._so_far), text
        return TextDelta("text", new) if new else DecodedEvent(kind="other")


def events(*values: Any, name: str = "") -> list[RawEvent]:
    return [
        RawEvent(name, v if isinstance(v, bytes) else json.dumps(v, ensure_ascii=False).encode(), n, n)
        for n, v in enumerate(values)
    ]


def pieces(stencil: EventTemplate, sent: list[RawEvent]) -> list[str | None]:
    """What is answered event by event; and the same must be answered batch by batch."""
    return [piece for event in sent for piece in expanded(stencil.read_many([event]))]


def expanded(answers: list[DecodedEvent | TextDelta | DeltaRun]) -> list[str | None]:
    found: list[str | None] = []
    for answer in answers:
        if isinstance(answer, DeltaRun):
            found += answer.texts
        else:
            found.append(answer.text if isinstance(answer, TextDelta) else None)
    return found


def test_what_fits_is_answered_without_the_reader() -> None:
    reader = CountingReader()
    sent = events(*({"id": 1, "text": f'w"{n}\u00e9\n', "end": None} for n in range(100)))
    assert pieces(EventTemplate(reader), sent) == [f'w"{n}\u00e9\n' for n in range(100)]
    assert reader.asked == 2, "to learn, and to be sure"


def test_what_does_not_fit_is_asked() -> None:
    reader = CountingReader()
    odd: list[Any] = [
        {"id": 1, "text": "", "end": None},
        {"id": 1, "text": None, "end": None},
        {"id": 1, "text": "a", "more": "b", "end": None},
        b'{"id": 1, "text": "a" "b", "end": null}',
        b'{"id": 1, "text": "\xff", "end": null}',
        b'{"id": 1, "text": "\\ud800", "end": null}',
        b'{"id": 1, "text": ", "end": null}',
        {"id": 2, "text": "c", "end": None},
    ]
    plain = {"id": 1, "text": "x", "end": None}
    sent = events(*(value for one in odd for value in (plain, plain, plain, one)))
    expected = [
        a.text if isinstance(a, TextDelta) else None
        for e in sent
        for a in [CountingReader().read("", e.data)]
    ]
    assert pieces(EventTemplate(reader), sent) == expected
    for size in (3, 7, 1000):
        stencil = EventTemplate(CountingReader())
        batches = [sent[at : at + size] for at in range(0, len(sent), size)]
        assert [piece for batch in batches for piece in expanded(stencil.read_many(batch))] == expected


def test_another_event_name_does_not_fit() -> None:
    reader, value = CountingReader(), {"text": "x"}
    stencil = EventTemplate(reader)
    pieces(stencil, events(value, value, value, name="a"))
    asked = reader.asked
    pieces(stencil, events(value, name="b"))
    assert reader.asked == asked + 1


def test_a_reader_that_disagrees_is_always_asked() -> None:
    texts = ["a", "ab", "abc", "abcd", "x", "xy"]
    assert pieces(EventTemplate(CumulativeReader()), events(*({"text": t} for t in texts))) == [
        "a",
        "b",
        "c",
        "d",
        "x",
        "y",
    ]


def test_a_piece_that_stands_twice_in_the_event_teaches_nothing_wrong() -> None:
    """The reader answers `text`; in the first event `note` is the same, so which one it read cannot be told."""
    reader = CountingReader()
    sent = events(
        {"note": "x", "text": "x"},
        {"note": "y", "text": "x"},
        *({"note": "x", "text": f"n{n}"} for n in range(100)),
    )
    assert pieces(EventTemplate(reader), sent) == ["x", "x", *(f"n{n}" for n in range(100))]
    assert reader.asked < 10


def test_events_that_never_fit_stop_the_learning_for_a_while() -> None:
    reader = CountingReader()
    stencil = EventTemplate(reader)
    sent = events(*({"n": n, "text": "x", "m": n} for n in range(PAUSE_EVENTS)))
    pieces(stencil, sent)
    assert stencil._pause > 0
    assert MAX_FAILED_TEMPLATES < PAUSE_EVENTS
    assert reader.asked == PAUSE_EVENTS
