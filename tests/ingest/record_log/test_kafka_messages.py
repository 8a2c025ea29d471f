"""Entries become few messages, in order and within the size limit, and every lost record is reported."""

from __future__ import annotations

import os

import zstandard
from hypothesis import given
from hypothesis import strategies as st

from streamgauge.ingest.record_log.kafka_writer import group_by_stream
from streamgauge.ingest.record_log.packing import OVERHEAD_BYTES, TARGET_BYTES, messages_of
from streamgauge.ingest.records import (
    MAX_ENTRY_BYTES,
    PLAIN,
    ZSTD,
    Alive,
    Closed,
    Frames,
    Lost,
    encode,
    pack,
    pack_damage,
    unpack,
)
from tests.ingest.record_log.entries import frames

LIMIT = 1_048_588


def alive(incarnation: str, wall_ns: int) -> Alive:
    return Alive("tap", 0, incarnation, wall_ns, wall_ns, 0)


@given(st.lists(st.lists(st.sampled_from("abc"), max_size=6), max_size=6), st.booleans())
def test_grouping_keeps_every_record_and_the_order_of_each_stream(
    batches: list[list[str]], zipped: bool
) -> None:
    counts = dict.fromkeys("abc", 0)
    entries = []
    for batch in batches:
        records = []
        for stream in batch:
            records.append(frames(stream, counts[stream]))
            counts[stream] += 1
        entries.append(pack(records, compress=zipped))
    found = group_by_stream(entries)
    assert found.records == sum(counts.values())
    assert {stream: [record.seq for record in records] for stream, records in found.streams.items()} == {
        stream: list(range(count)) for stream, count in counts.items() if count
    }


def test_the_last_alive_of_each_incarnation_is_kept() -> None:
    found = group_by_stream(
        [pack([alive("i", 1), alive("j", 2)], compress=True), pack([alive("i", 3)], compress=True)]
    )
    assert {(one.incarnation, one.wall_ns) for one in found.broadcast if isinstance(one, Alive)} == {
        ("i", 3),
        ("j", 2),
    }
    assert found.streams == {}


def test_a_damage_entry_passes_unchanged_and_counts_its_entries() -> None:
    entry = pack_damage("w0", 1000, 1048, "database disk image is malformed")
    (poison,) = unpack(entry)[1]
    assert (poison.reason, poison.size) == ("damaged_segment", 48)
    assert group_by_stream([entry]).poison == [entry]
    (forged,) = unpack(entry[:-1])[1]
    assert forged.reason == "unknown_format"


def test_poison_passes_unchanged_and_stays_poison() -> None:
    good = pack([frames("a", 0)], compress=False)
    no_record = b"\x01\x92" + good[2:] + b"\xa3abc"  # an array of a record and a string
    bad = [b"", b"\x07xyz", b"\x02not zstd", b"\x01\xc1", no_record]
    reasons = [one.reason for payload in bad for one in unpack(payload)[1]]
    found = group_by_stream(bad)
    assert [one.reason for payload in found.poison for one in unpack(payload)[1]] == reasons
    assert [record.seq for record in found.streams["a"]] == [0]


@given(st.integers(0, 5000))
def test_poison_that_is_cut_stays_poison(size: int) -> None:
    zeros = ZSTD + zstandard.ZstdCompressor().compress(bytes(MAX_ENTRY_BYTES + 1))
    starts = [
        b"\x07",
        ZSTD,
        zeros,
        PLAIN + b"\xc1",
        PLAIN + b"\x91\xc6\x00\x00\x13\x88",
        PLAIN + b"\xdd\xff\xff\xff\xff",
    ]
    for start in starts:
        assert unpack((start + b"x" * 5000)[:size])[1], start


@given(st.lists(st.integers(0, 400_000), min_size=1, max_size=12))
def test_messages_have_all_records_in_order_and_none_is_too_large(sizes: list[int]) -> None:
    records = [frames("a", seq, size) for seq, size in enumerate(sizes)]
    messages, lost = messages_of(records, LIMIT, 0)
    assert lost == 0
    assert [record for one in messages for record in unpack(one.value)[0]] == records
    assert all(list(one.records) == unpack(one.value)[0] for one in messages)
    assert all(
        sum(len(encode(record)) for record in one.records) <= TARGET_BYTES or len(one.records) == 1
        for one in messages
    )
    assert all(len(one.value) <= LIMIT - OVERHEAD_BYTES for one in messages)


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.integers(0, 90_000)), max_size=30))
def test_messages_of_many_streams_are_filled_to_the_limit(drawn: list[tuple[str, int]]) -> None:
    counts = dict.fromkeys("abcd", 0)
    records = []
    for stream, size in drawn:
        records.append(frames(stream, counts[stream], size))
        counts[stream] += 1
    messages, _ = messages_of(records, 200_000, 0)
    assert [record for one in messages for record in unpack(one.value)[0]] == records
    sizes = [sum(len(encode(record)) for record in one.records) for one in messages]
    for at, one in enumerate(messages[1:]):
        assert sizes[at] + len(encode(one.records[0])) > 200_000 - 200_000 // 100 - OVERHEAD_BYTES


def test_incompressible_records_of_the_largest_size_fit_the_limit() -> None:
    """Compression makes incompressible data larger."""
    for limit in (100_000, 400_000, LIMIT):
        records = [Frames("a", seq, [(0, os.urandom(limit // 40))]) for seq in range(60)]
        messages, lost = messages_of(records, limit, 0)
        assert lost == 0
        assert max(len(one.value) for one in messages) <= limit - OVERHEAD_BYTES


def test_a_large_record_is_compressed_before_it_is_replaced() -> None:
    record = frames("a", 3, 5_000_000)
    (message,), lost = messages_of([record], LIMIT, 0)
    assert (len(message.value) < LIMIT, lost) == (True, 0)
    assert unpack(message.value)[0] == [record]


def test_a_record_that_is_too_large_when_compressed_becomes_a_lost_record() -> None:
    noise = Frames("a", 1, [(0, os.urandom(2_000_000))])
    records = [frames("a", 0), noise, frames("a", 2)]
    messages, lost = messages_of(records, LIMIT, 99)
    assert lost == 1
    assert [record for one in messages for record in unpack(one.value)[0]] == [
        records[0],
        Lost("a", 1, 1, "record_too_large", 99, 2_000_000),
        records[2],
    ]


def test_a_record_that_no_reader_unpacks_becomes_a_lost_record() -> None:
    sizes = ((1, MAX_ENTRY_BYTES), (2, MAX_ENTRY_BYTES - 100))
    records = [Frames("a", seq, [(1, bytes(size))]) for seq, size in sizes]
    messages, lost = messages_of(records, LIMIT, 99)
    assert lost == 1
    found = [unpack(message.value) for message in messages]
    assert found == [([Lost("a", 1, 1, "record_too_large", 99, MAX_ENTRY_BYTES)], []), (records[1:], [])]


def test_the_last_seq_of_a_lost_record_that_is_too_large_is_kept() -> None:
    ((message,), _) = messages_of([Lost("a", 2, 7, "c" * 10_000, 5, 11)], 3000, 99)
    assert isinstance(unpack(message.value)[0][0], Lost)
    ((message,), _) = messages_of([Lost("a", 2, 7, os.urandom(5000).hex(), 5, 11)], 3000, 99)
    (lost,) = unpack(message.value)[0]
    assert lost == Lost("a", 2, 7, "record_too_large", 99, 11)


def test_captured_bytes_of_closed_lost_and_frames() -> None:
    from streamgauge.ingest.record_log.segments import captured_bytes

    closed = Closed("a", 1, "complete", None, 1, None, None, 0, 500, 500, None)
    assert captured_bytes(closed) == 0
    assert captured_bytes(Lost("a", 1, 1, "x", 0, 77)) == 77
    assert captured_bytes(frames("a", 0, 12)) == 12
