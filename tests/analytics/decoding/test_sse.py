"""SSE decoding, for any division into reads."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamgauge.analytics.decoding.sse import MAX_UNFRAMED_BYTES, SSEDecoder
from streamgauge.analytics.dialects.events import RawEvent
from tests.analytics.corpus import recordings


@dataclass
class Reference:
    """The rules of the specification, written plainly for a whole body."""

    events: list[tuple[str, bytes]] = field(default_factory=list)
    comments: int = 0
    oversized: int = 0

    @classmethod
    def read(cls, body: bytes, max_event_bytes: int = 2**30) -> Reference:
        found = cls()
        if body.startswith(b"\xef\xbb\xbf"):
            body = body[3:]
        *lines, _unfinished = re.split(rb"\r\n|\n|\r", body)
        data: list[bytes] = []
        name = b""
        size = 0
        for line in lines:
            if line == b"":
                if size > max_event_bytes:
                    found.oversized += 1
                elif data:
                    found.events.append((name.decode("utf-8", "replace"), b"\n".join(data)))
                data, name, size = [], b"", 0
                continue
            if line.startswith(b":"):
                found.comments += 1
                continue
            size += len(line)
            if size > max_event_bytes:
                continue
            key, _, value = line.partition(b":")
            value = value.removeprefix(b" ")
            if key == b"data":
                data.append(value)
            elif key == b"event":
                name = value
        return found


def decode(body: bytes, cuts: list[int] | None = None, **options: int) -> tuple[list[RawEvent], SSEDecoder]:
    decoder = SSEDecoder(**options)
    edges = [0, *sorted(cuts or []), len(body)]
    events = [
        event
        for number, (start, end) in enumerate(pairwise(edges))
        for event in decoder.feed(body[start:end], at_ns=number * 1000)
    ]
    return events, decoder


def names_and_data(events: list[RawEvent]) -> list[tuple[str, bytes]]:
    return [(event.name, event.data) for event in events]


lines = st.one_of(
    st.sampled_from(
        [
            b"data: {}", b"data:x", b"data", b"data:", b"data: ", b"data:  two", b"event: message_start", b"event:", b"event",
            b": ping", b":", b"id: 7", b"id: \x00", b"retry: 10", b"retry: 1x", b"retry: \xc2\xb2", b"", b"", b"", b"junk",
            b'{"error": 1}', b" data: x", b"data : x", b"\xef\xbb\xbfdata: x", b"data: \xff\xfe", b"data: [DONE]", b"\xef\xbb",
        ]
    ),
    st.binary(max_size=12),
)  # fmt: skip
bodies = st.builds(
    lambda bom, parts: bom + b"".join(line + end for line, end in parts),
    st.sampled_from([b"", b"", b"\xef\xbb\xbf", b"\xef\xbb\xbf\xef\xbb\xbf", b"\xef", b"\n"]),
    st.lists(
        st.tuples(lines, st.sampled_from([b"\n", b"\n", b"\r\n", b"\r", b"\n\n", b"\r\n\r\n", b""])),
        max_size=30,
    ),
)


@settings(max_examples=600)
@given(body=bodies, cuts=st.lists(st.integers(0, 200), max_size=20))
def test_splits_do_not_change_events(body: bytes, cuts: list[int]) -> None:
    cuts = [cut for cut in cuts if cut <= len(body)]
    events, decoder = decode(body, cuts)
    reference = Reference.read(body)
    assert names_and_data(events) == reference.events
    assert decoder.comment_count == reference.comments


@settings(max_examples=200)
@given(body=bodies)
def test_byte_by_byte_equals_one_read(body: bytes) -> None:
    events, decoder = decode(body, list(range(len(body))))
    whole, whole_decoder = decode(body)
    assert names_and_data(events) == names_and_data(whole)
    assert decoder.finish() == whole_decoder.finish()
    assert decoder.unframed_lines == whole_decoder.unframed_lines


@settings(max_examples=300)
@given(body=bodies, cuts=st.lists(st.integers(0, 120), max_size=8))
def test_event_has_the_time_of_the_read_with_its_blank_line(body: bytes, cuts: list[int]) -> None:
    edges = sorted({cut for cut in cuts if 0 < cut < len(body)})
    events, _ = decode(body, edges)
    completed = [len(Reference.read(body[:edge]).events) for edge in [*edges, len(body)]]
    if body[:2] in (b"\xef", b"\xef\xbb"):
        return
    expected = [
        read for read, (before, after) in enumerate(pairwise([0, *completed])) for _ in range(after - before)
    ]
    assert [event.read_seq for event in events] == expected
    assert all(event.at_ns == event.read_seq * 1000 for event in events)


@settings(max_examples=300)
@given(body=bodies, cuts=st.lists(st.integers(0, 200), max_size=20), bound=st.integers(9, 30))
def test_oversized_event_is_counted_and_skipped(body: bytes, cuts: list[int], bound: int) -> None:
    cuts = [cut for cut in cuts if cut <= len(body)]
    events, decoder = decode(body, cuts, max_event_bytes=bound)
    reference = Reference.read(body, bound)
    assert names_and_data(events) == reference.events
    assert decoder.oversized_events == reference.oversized
    assert decoder.comment_count == reference.comments


@given(body=st.binary(max_size=400), cuts=st.lists(st.integers(0, 400), max_size=10))
def test_any_bytes_never_raise(body: bytes, cuts: list[int]) -> None:
    events, decoder = decode(body, [cut for cut in cuts if cut <= len(body)])
    decoder.finish()
    assert names_and_data(events) == Reference.read(body).events


@pytest.mark.parametrize(
    ("body", "events"),
    [
        (b"data: a\n\n", [("", b"a")]),
        (b"data: a\r\n\r\n", [("", b"a")]),
        (b"data: a\r\r", [("", b"a")]),
        (b"data: a\ndata: b\n\n", [("", b"a\nb")]),
        (b"data:a\n\n", [("", b"a")]),
        (b"data:  a\n\n", [("", b" a")]),
        (b"data\n\n", [("", b"")]),
        (b"data:\n\n", [("", b"")]),
        (b"event: x\ndata: a\n\ndata: b\n\n", [("x", b"a"), ("", b"b")]),
        (b"event: x\n\ndata: b\n\n", [("", b"b")]),
        (b"data: a\nevent: x\n\n", [("x", b"a")]),
        (b": c\n\ndata: a\n\n", [("", b"a")]),
        (b"\xef\xbb\xbfdata: a\n\n", [("", b"a")]),
        (b"\xef\xbb\xbf\xef\xbb\xbfdata: a\n\n", []),
        (b"data: a", []),
        (b"data: a\n", []),
        (b"id: 1\nretry: 2\n\n", []),
        (b"data: \xff\n\n", [("", b"\xff")]),
        (b"data: a\x0bb\x1c\xe2\x80\xa8c\n\n", [("", b"a\x0bb\x1c\xe2\x80\xa8c")]),
    ],
)
def test_rules_of_the_specification(body: bytes, events: list[tuple[str, bytes]]) -> None:
    for cuts in ([], list(range(len(body)))):
        assert names_and_data(decode(body, cuts)[0]) == events
    if not body.startswith(b"\xef"):  # same result in a read that follows a complete event
        warm = SSEDecoder()
        warm.feed(b": warm\n\n", 0)
        assert names_and_data(warm.feed(body, 1)) == events


def test_bom_is_stripped_only_at_the_start() -> None:
    """Also when the first read is a whole event."""
    decoder = SSEDecoder()
    assert names_and_data(decoder.feed(b"data: a\n\n", 0)) == [("", b"a")]
    assert decoder.feed(b"\xef\xbb\xbfdata: b\n\n", 1) == []


@settings(max_examples=300)
@given(
    reads=st.lists(
        st.lists(lines, max_size=4).map(lambda some: b"".join(line + b"\n" for line in some) + b"\n"),
        max_size=8,
    )
)
def test_reads_of_whole_events_equal_one_read(reads: list[bytes]) -> None:
    decoder = SSEDecoder()
    events = [event for read in reads for event in decoder.feed(read, 0)]
    reference = Reference.read(b"".join(reads))
    assert names_and_data(events) == reference.events
    assert decoder.comment_count == reference.comments


def test_half_event_at_disconnect_is_returned_by_finish() -> None:
    events, decoder = decode(b"event: end\ndata: [DONE]")
    assert events == []
    assert decoder.finish() == ("end", b"[DONE]")
    assert decoder.finish() is None


def test_crlf_split_over_two_reads_is_one_line_end() -> None:
    decoder = SSEDecoder()
    assert names_and_data(decoder.feed(b"data: a\r", 0)) == []
    assert names_and_data(decoder.feed(b"\ndata: b\r", 1)) == []
    assert names_and_data(decoder.feed(b"\n\r", 2)) == [("", b"a\nb")]
    assert decoder.feed(b"\n", 3) == []


def test_endless_line_is_limited_in_memory() -> None:
    decoder = SSEDecoder(max_event_bytes=1000)
    for number in range(100):
        assert decoder.feed(b"data: " + b"x" * 900, number) == []
        assert decoder._carry_bytes <= 1000
    assert names_and_data(decoder.feed(b"\n\ndata: ok\n\n", 100)) == [("", b"ok")]
    assert decoder.oversized_events == 1


def test_endless_comments_and_unknown_lines_take_no_memory() -> None:
    decoder = SSEDecoder(max_event_bytes=1000)
    for number in range(2000):
        decoder.feed(b": " + b"x" * 5000, number)
        decoder.feed(b"\nnonsense: " + b"y" * 50 + b"\n\n", number)
    assert decoder.comment_count == 2000
    assert sum(map(len, decoder.unframed_lines)) <= MAX_UNFRAMED_BYTES
    assert names_and_data(decoder.feed(b"data: ok\n\n", 0)) == [("", b"ok")]


@pytest.mark.parametrize("recording", recordings()[::9], ids=str)
@pytest.mark.parametrize("step", [1, 7, 4096])
def test_splits_do_not_change_recorded_streams(recording: object, step: int) -> None:
    body = recording.body.read_bytes()[:20_000]  # type: ignore[attr-defined]
    events, _ = decode(body, list(range(0, len(body), step)))
    assert names_and_data(events) == Reference.read(body).events
