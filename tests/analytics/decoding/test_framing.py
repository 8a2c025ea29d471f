"""Framing detection and event splitting, for any content type and any division into reads."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamgauge.analytics.decoding.framing import MAX_BODY_BYTES, BodyEnd, Framer, Framing

LONG = json.dumps({"error": [[1]] * 300}, indent=1).encode()
A, B = b'{"a": 1}', b'{"b": "x\\"}]"}'


def read(
    body: bytes, content_type: str = "", cuts: list[int] | None = None, **options: bool
) -> tuple[list[bytes], BodyEnd, Framer]:
    framer = Framer(content_type, **options)
    edges = [0, *sorted(cut for cut in cuts or [] if cut < len(body)), len(body)]
    found = [
        event.data
        for number, (start, end) in enumerate(pairwise(edges))
        if start < end
        for event in framer.feed(body[start:end], number)
    ]
    ending = framer.finish()
    return found, ending, framer


CASES: list[tuple[str, bytes, Framing, list[bytes]]] = [
    ("text/event-stream", b"data: " + A + b"\n\n", "sse", [A]),
    ("text/event-stream; charset=utf-8", b": hi\n\ndata: " + A + b"\r\n\r\n", "sse", [A]),
    ("", b"data: " + A + b"\n\n", "sse", [A]),
    ("application/json", b"event: x\ndata: " + A + b"\n\n", "sse", [A]),
    ("text/plain", b"\xef\xbb\xbfdata: " + A + b"\n\n", "sse", [A]),
    ("text/event-stream", b"\n\n  \ndata: " + A + b"\n\n", "sse", [A]),
    ("text/event-stream", b"nonsense\n\ndata: " + A + b"\n\n", "sse", [A]),
    ("application/x-ndjson", A + b"\n" + B + b"\n", "lines", [A, B]),
    ("application/x-ndjson", A, "lines", []),
    ("application/stream+json", A + b"\r\n\r\n" + B + b"\r\n", "lines", [A, B]),
    ("application/json", A + b"\n" + B + b"\n", "lines", [A, B]),
    ("text/event-stream", A + b"\n" + B + b"\n", "lines", [A, B]),
    ("application/json-seq", b"\x1e" + A + b"\n\x1e" + B + b"\n", "lines", [A, B]),
    ("application/json", b"[" + A + b"\n,\r\n" + B + b"]\n", "array", [A, B]),
    ("application/json", b"[\n  " + A + b",\n" + B + b"\n]", "array", [A, B]),
    ("application/json", A, "undecided", []),
    ("application/json", A + b"\n", "undecided", []),
    ("application/json", b"{\n" + A[1:], "body", []),
    ("text/html", b"<html><body>502</body></html>", "body", []),
    ("text/event-stream", b"<html>", "body", []),
    ("", b"upstream connect error", "body", []),
    ("", b"", "undecided", []),
]  # fmt: skip


@pytest.mark.parametrize(("content_type", "body", "framing", "events"), CASES)
@pytest.mark.parametrize("step", [1, 2, 5, 10**6])
def test_framing_is_detected_despite_content_type_and_splits(
    content_type: str, body: bytes, framing: Framing, events: list[bytes], step: int
) -> None:
    found, ending, framer = read(body, content_type, list(range(0, len(body), step)))
    assert (framer.framing, found) == (framing, events)
    if framing in ("body", "undecided"):
        assert ending.body == body


@pytest.mark.parametrize(
    ("body", "events", "stray"),
    [
        (b'{\n "error": {"code": 1}\n}\n', [], [b'{\n "error": {"code": 1}\n}']),
        (A + b"\n\ndata: " + B + b"\n\n", [B], [A]),
        (b"data: " + A + b'\n\n{\n "e":\n {"code": 1}\n}\n\n', [A], [b'{\n "e":\n {"code": 1}\n}']),
        (b"data: " + A + b'\n\nerror: {"code": 1}\n\ndata: ' + B + b"\n\n", [A, B], [b'{"code": 1}']),
        (b"data: " + A + b"\n\nerror: gone\n\n", [A], [b"gone"]),
        (b"data: " + A + b"\n\n" + B, [A], [B]),
        (b"data: " + A + b"\n\n" + LONG + b"\n", [A], [LONG]),
        (b"data: " + A + b"\n\n{ nonsense }\npadding: x\n", [A], []),
    ],
)  # fmt: skip
@pytest.mark.parametrize("step", [1, 3, 10**6])
def test_json_between_events_is_unframed(
    body: bytes, events: list[bytes], stray: list[bytes], step: int
) -> None:
    found, _, framer = read(body, "text/event-stream", list(range(0, len(body), step)))
    assert (framer.framing, found) == ("sse", events)
    assert [event.data for event in framer.unframed] == stray


@settings(max_examples=150)
@given(case=st.sampled_from(CASES), cuts=st.lists(st.integers(0, 80), max_size=10))
def test_splits_do_not_change_events(case: tuple[str, bytes, Framing, list[bytes]], cuts: list[int]) -> None:
    content_type, body, framing, events = case
    found, _, framer = read(body, content_type, cuts)
    assert (framer.framing, found) == (framing, events)


@given(
    body=st.binary(max_size=60) | st.text('{}[]"\\\n\r :,adt1', max_size=60).map(str.encode),
    content_type=st.sampled_from(["", "text/event-stream", "application/json", "application/x-ndjson"]),
    cuts=st.lists(st.integers(0, 60), max_size=8),
)
@settings(max_examples=200)
def test_any_bytes_give_the_same_events_for_any_split(
    body: bytes, content_type: str, cuts: list[int]
) -> None:
    whole, whole_ending, whole_framer = read(body, content_type)
    found, ending, framer = read(body, content_type, cuts)
    assert (framer.framing, found, ending.body) == (whole_framer.framing, whole, whole_ending.body)


values = st.recursive(
    st.none() | st.integers() | st.text("a\"\\{}[]\u00e9\n", max_size=6),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text("k]}", max_size=2), inner, max_size=2),
    max_leaves=5,
)  # fmt: skip


@settings(max_examples=60)
@given(
    items=st.lists(st.dictionaries(st.text("ab", max_size=2), values, max_size=3), min_size=1, max_size=5),
    cuts=st.lists(st.integers(0, 300), max_size=12),
    indent=st.sampled_from([None, 2]),
)
def test_array_elements_match_a_json_parser(
    items: list[dict[str, object]], cuts: list[int], indent: int | None
) -> None:
    body = json.dumps(items, indent=indent, ensure_ascii=False).encode()
    found, _, framer = read(body, "application/json", cuts)
    assert framer.framing == "array"
    assert [json.loads(data) for data in found] == items


def test_lines_have_the_time_of_the_read_that_ended_them() -> None:
    framer = Framer("application/json")
    assert framer.feed(A, 1) == []
    assert framer.feed(b"\n", 2) == []
    found = framer.feed(B[:3], 3)
    assert [(event.data, event.at_ns, event.read_seq) for event in found] == [(A, 2, 1)]
    assert [(e.data, e.at_ns, e.read_seq) for e in framer.feed(B[3:] + b"\n", 4)] == [(B, 4, 3)]


def test_error_bodies_are_never_lines() -> None:
    body = A + b"\n" + B + b"\n"
    _, ending, framer = read(body, "application/json", streams=False)
    assert (framer.framing, ending.body) == ("body", body)


def test_unterminated_tail_is_not_dispatched() -> None:
    _, ending, _ = read(b"data: " + A + b"\n\ndata: [DONE]", "text/event-stream")
    assert ending.tail is not None
    assert ending.tail.data == b"[DONE]"
    _, ending, _ = read(A + b"\n" + B, "application/x-ndjson")
    assert ending.tail is not None
    assert ending.tail.data == B


def test_kept_body_is_limited() -> None:
    framer = Framer("application/json")
    piece = b"{" + b" " * 2**20
    for number in range(40):
        framer.feed(piece, number)
    body = framer.finish().body
    assert body is not None
    assert len(body) <= MAX_BODY_BYTES


def test_oversized_line_and_element_are_counted_and_skipped() -> None:
    for content_type, start, between, end in (
        ("application/x-ndjson", b"", b"\n", b"\n"),
        ("application/json", b"[", b",", b"]"),
    ):
        framer = Framer(content_type)
        huge = b'{"a": "' + b"x" * 17 * 2**20 + b'"}'
        body = start + A + between + huge + between + B + end
        found = [e.data for at in range(0, len(body), 2**20) for e in framer.feed(body[at : at + 2**20], at)]
        assert found == [A, B]
        assert framer.oversized_events == 1


@pytest.mark.parametrize(
    ("start", "blank", "end", "framing"),
    [
        (b"[", b" ", b'{"a": 1}', "array"),
        (b'{"a": 1}\n', b"\n", b'{"b": 2}\n', "lines"),
        (b'{"a": 1}\n', b"\x1e", b"x", "body"),
    ],
)
def test_work_for_blanks_before_the_framing_is_known_grows_with_their_number(
    start: bytes, blank: bytes, end: bytes, framing: str
):
    """A read of one blank must not look at all reads before it. The lists of reads that are joined are counted."""

    class Kept(list[tuple[int, bytes]]):
        looks = 0

        def __iter__(self) -> Iterator[tuple[int, bytes]]:
            Kept.looks += len(self)
            return super().__iter__()

    framer = Framer()
    framer._kept = Kept()
    framer.feed(start, 0)
    for _ in range(5_000):
        framer.feed(blank, 0)
    framer.feed(end, 0)
    assert framer.framing == framing
    assert Kept.looks < 20_000
