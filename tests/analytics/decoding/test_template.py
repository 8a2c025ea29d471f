"""Events that differ in one string are decoded without the reader, and only those."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from streamgauge.analytics.decoding.template import MAX_FAILED_TEMPLATES, PAUSE_EVENTS, EventTemplate
from streamgauge.analytics.dialects.events import DecodedEvent, DeltaRun, RawEvent, TextDelta


class CountingReader:
    """Decodes `text` as a TextDelta; counts its calls."""

    def __init__(self) -> None:
        self.calls = 0

    def read(self, name: str, data: bytes) -> DecodedEvent | TextDelta:
        self.calls += 1
        try:
            value: dict[str, Any] = msgspec.json.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return DecodedEvent(kind="malformed")
        text = value.get("text")
        return TextDelta("text", text) if isinstance(text, str) and text else DecodedEvent(kind="other")

    def read_body(self, body: bytes) -> list[DecodedEvent]:
        return []


class CumulativeReader(CountingReader):
    """Violates the contract of TextDelta: the result depends on earlier events."""

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


def decoded_texts(template: EventTemplate, sent: list[RawEvent]) -> list[str | None]:
    """The texts of events decoded one by one."""
    return [text for event in sent for text in expanded(template.read_many([event]))]


def expanded(answers: list[DecodedEvent | TextDelta | DeltaRun]) -> list[str | None]:
    found: list[str | None] = []
    for answer in answers:
        if isinstance(answer, DeltaRun):
            found += answer.texts
        else:
            found.append(answer.text if isinstance(answer, TextDelta) else None)
    return found


def test_matching_events_skip_the_reader() -> None:
    reader = CountingReader()
    sent = events(*({"id": 1, "text": f'w"{n}\u00e9\n', "end": None} for n in range(100)))
    assert decoded_texts(EventTemplate(reader), sent) == [f'w"{n}\u00e9\n' for n in range(100)]
    assert reader.calls == 2, "to learn and to confirm"


def test_other_events_go_to_the_reader() -> None:
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
    assert decoded_texts(EventTemplate(reader), sent) == expected
    for size in (3, 7, 1000):
        template = EventTemplate(CountingReader())
        batches = [sent[at : at + size] for at in range(0, len(sent), size)]
        assert [text for batch in batches for text in expanded(template.read_many(batch))] == expected


def test_event_with_another_name_does_not_match() -> None:
    reader, value = CountingReader(), {"text": "x"}
    template = EventTemplate(reader)
    decoded_texts(template, events(value, value, value, name="a"))
    calls = reader.calls
    decoded_texts(template, events(value, name="b"))
    assert reader.calls == calls + 1


def test_template_is_not_used_when_the_reader_disagrees() -> None:
    texts = ["a", "ab", "abc", "abcd", "x", "xy"]
    assert decoded_texts(EventTemplate(CumulativeReader()), events(*({"text": t} for t in texts))) == [
        "a",
        "b",
        "c",
        "d",
        "x",
        "y",
    ]


def test_text_that_occurs_twice_in_the_event_is_not_learned() -> None:
    """In the first event `note` equals `text`, so the position of the text is ambiguous."""
    reader = CountingReader()
    sent = events(
        {"note": "x", "text": "x"},
        {"note": "y", "text": "x"},
        *({"note": "x", "text": f"n{n}"} for n in range(100)),
    )
    assert decoded_texts(EventTemplate(reader), sent) == ["x", "x", *(f"n{n}" for n in range(100))]
    assert reader.calls < 10


def test_learning_pauses_when_events_never_match() -> None:
    reader = CountingReader()
    template = EventTemplate(reader)
    sent = events(*({"n": n, "text": "x", "m": n} for n in range(PAUSE_EVENTS)))
    decoded_texts(template, sent)
    assert template._pause > 0
    assert MAX_FAILED_TEMPLATES < PAUSE_EVENTS
    assert reader.calls == PAUSE_EVENTS
