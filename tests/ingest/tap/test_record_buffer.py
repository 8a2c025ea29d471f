"""The record buffer: bounded bytes, and every loss reported in its stream."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from streamgauge.ingest.facts import FieldFacts, ResponseFacts
from streamgauge.ingest.recording.record_buffer import MAX_ENDED, RECORD_OVERHEAD_BYTES
from streamgauge.ingest.recording.recorder import Recorder
from streamgauge.ingest.records import Closed, Frames, Lost, Opened, Request
from tests.deadline import DEADLINE_S
from tests.ingest.running_tap import assert_complete, body_of
from tests.ingest.tap.recorders import RecorderGroup, WatchedUpstream


async def test_reserved_bytes_count_until_they_are_released():
    buffer = RecorderGroup(queue_bytes=1000).buffer
    assert buffer.reserve(900)
    assert not buffer.reserve(101)
    assert buffer.queued_bytes == 900
    buffer.used_bytes -= 900
    assert buffer.reserve(1000)


async def test_heads_and_small_records_may_use_the_margin_above_the_limit():
    buffer = RecorderGroup(queue_bytes=1000).buffer
    assert buffer.reserve(1000)
    assert not buffer.reserve(1)
    assert buffer.reserve(250, margin=True)
    assert not buffer.reserve(1, margin=True)
    assert not buffer.has_room(RECORD_OVERHEAD_BYTES, True)


async def test_frames_over_the_limit_are_dropped_and_reported_with_their_numbers_and_bytes():
    group = RecorderGroup(queue_bytes=20_000)
    buffer, sink, counters = group.buffer, group.sink, group.counters
    recorder = group.started_response()
    for i in range(60):
        recorder.response_data(b"a" * 1000, i)
    sink.take()
    buffer.flush_all()
    sink.take()
    assert buffer.has_room(1000)
    recorder.response_data(b"b" * 1000, 61)
    group.end(recorder)
    buffer.flush_all()
    sink.take()
    assert_complete(sink.records)
    [lost] = [r for r in sink.records if isinstance(r, Lost)]
    assert lost.seq == lost.last_seq
    assert lost.cause == "queue_full"
    captured = body_of(sink.records)
    assert captured.endswith(b"b" * 1000)
    assert len(captured) + lost.bytes == 61_000
    assert (counters.lost_bytes, counters.lost_records) == (lost.bytes, 1)
    assert counters.captured_bytes == len(captured)
    assert buffer.queued_bytes == 0


async def test_the_cause_of_a_loss_is_the_failure_of_the_log():
    group = RecorderGroup(queue_bytes=10_000)
    group.sink.failing = "log_error"
    recorder = group.started_response()
    for i in range(20):
        recorder.response_data(b"a" * 1000, i)
    group.end(recorder)
    group.settle()
    assert_complete(group.sink.records)
    assert [r.cause for r in group.sink.records if isinstance(r, Lost)] == ["log_error"]


async def test_response_headers_are_recorded_when_their_body_has_no_room():
    group = RecorderGroup(queue_bytes=10_000)
    recorder = group.start()
    assert group.buffer.reserve(10_001, margin=True)
    group.respond(recorder)
    recorder.response_data(b"a" * 100, 1)
    group.buffer.used_bytes -= 10_001
    group.end(recorder)
    group.buffer.flush_all()
    group.sink.take()
    assert_complete(group.sink.records)
    assert [type(r) for r in group.sink.records] == [Opened, Frames, Lost, Closed]


async def test_batches_dropped_by_the_log_thread_are_reported():
    group = RecorderGroup(queue_bytes=2**20)
    sink = group.sink
    recorder = group.started_response()
    recorder.response_data(b"abc", 1)
    recorder.flush()
    group.buffer.flush_all()
    assert len(sink.batches) == 1
    sink.drop()
    group.end(recorder)
    async with asyncio.timeout(DEADLINE_S):
        while not [r for r in sink.records if isinstance(r, Lost)]:
            await sink.handed_over.wait()
            sink.handed_over.clear()
            sink.take()
    lost = [r for r in sink.records if isinstance(r, Lost)]
    assert [(r.seq, r.last_seq, r.bytes, r.cause) for r in lost] == [(0, 1, 3, "log_error")]
    assert group.counters.lost_bytes == 3


async def test_a_record_that_cannot_be_encoded_is_reported_and_other_records_are_kept():
    group = RecorderGroup()
    recorder = group.start()
    unencodable: Any = ("server", object())
    fields = [FieldFacts(b"server", b"", unencodable)]
    recorder.response_head(ResponseFacts(200, fields, b"text/event-stream", 100), 1)
    recorder.response_data(b"a bug of ours", 2)
    recorder.flush()
    recorder.response_data(b"good", 3)
    group.end(recorder)
    group.buffer.flush_all()
    group.sink.take()
    assert [type(r) for r in group.sink.records] == [Opened, Lost, Frames, Closed]
    assert_complete(group.sink.records, with_response=False)
    assert body_of(group.sink.records) == b"good"
    [lost] = [r for r in group.sink.records if isinstance(r, Lost)]
    assert lost.bytes == len(b"a bug of ours")
    assert group.buffer.queued_bytes == 0


async def test_streams_have_no_unreported_gap_whenever_the_log_stalls():
    """A model test: streams start, send and end at random while the log stalls and recovers."""
    for seed in range(40):
        random_streams(random.Random(seed))


def random_streams(dice: random.Random) -> None:
    group = RecorderGroup(queue_bytes=dice.choice([500, 5000, 50_000]))
    buffer, counters = group.buffer, group.counters
    open_streams: list[Recorder] = []
    sent_bytes: dict[Recorder, int] = {}
    for step in range(400):
        move = dice.random()
        if move < 0.15 and len(open_streams) < 20:
            recorder = group.start()
            if dice.random() < 0.8:
                recorder.request_data(b"r" * dice.randint(1, 2000))
                recorder.record_request(True)
            group.respond(recorder)
            open_streams.append(recorder)
            sent_bytes[recorder] = 0
        elif move < 0.75 and open_streams:
            recorder = dice.choice(open_streams)
            size = dice.choice([1, 300, 3000, 70_000])
            recorder.response_data(b"x" * size, step)
            sent_bytes[recorder] += size
        elif move < 0.85 and open_streams:
            group.end(open_streams.pop(dice.randrange(len(open_streams))))
        elif move < 0.92:
            buffer.flush_all()
        else:
            group.sink.take()
    for recorder in open_streams:
        group.end(recorder)
    group.settle()
    for recorder, size in sent_bytes.items():
        records = group.records_of(recorder)
        next_seq = 0
        lost_bytes = 0
        for record in records:
            assert record.seq == next_seq, records
            next_seq = (record.last_seq if isinstance(record, Lost) else record.seq) + 1
            lost_bytes += record.bytes if isinstance(record, Lost) else 0
        assert isinstance(records[-1], Closed | Lost)
        assert len(body_of(records)) + lost_bytes == size
    all_lost = [r for r in group.sink.records if isinstance(r, Lost)]
    assert sum(r.bytes for r in all_lost) == counters.lost_bytes
    assert counters.captured_bytes + counters.lost_bytes == sum(sent_bytes.values())
    assert sum(isinstance(r, Request) for r in group.sink.records) <= len(sent_bytes)


async def test_ticks_go_on_after_an_error(caplog: pytest.LogCaptureFixture):
    group = RecorderGroup()
    failures = [MemoryError("once")]

    class Relay:
        active = 1
        pending_bytes = 0

        def take(self, records_before_ns: int) -> None:
            if failures:
                raise failures.pop()

    group.buffer.relay = Relay()
    recorder = group.start()
    async with asyncio.timeout(DEADLINE_S):
        while failures:  # noqa: ASYNC110 - the failure has no event
            await asyncio.sleep(0.005)
    assert "recording failed" in caplog.text
    group.respond(recorder)
    await asyncio.wait_for(group.sink.handed_over.wait(), DEADLINE_S)


async def test_records_of_a_burst_are_made_after_it():
    group = RecorderGroup()
    for _ in range(200):
        group.end(group.started_response())
    assert group.counters.streams_closed == 0
    async with asyncio.timeout(DEADLINE_S):
        while group.counters.streams_closed < 200:  # noqa: ASYNC110 - the counter has no event
            await asyncio.sleep(0.001)
    await asyncio.wait_for(group.sink.handed_over.wait(), DEADLINE_S)


async def test_the_number_of_ended_exchanges_without_records_is_bounded():
    group = RecorderGroup()
    for _ in range(MAX_ENDED + 200):
        group.end(group.started_response())
        assert len(group.buffer._ended) <= MAX_ENDED
    group.settle()
    assert group.counters.streams_closed == MAX_ENDED + 200


async def test_a_stream_faster_than_the_log_leaves_room_for_others():
    group = RecorderGroup(queue_bytes=2**20)
    fast, others = group.started_response(), [group.started_response() for _ in range(20)]
    for step in range(1000):
        fast.response_data(b"f" * 4096, step)
        if step % 50 == 0:
            for recorder in others:
                recorder.response_data(b"o" * 300, step)
    for recorder in (fast, *others):
        group.end(recorder)
    group.settle()
    assert 2**20 / 4 < len(body_of(group.records_of(fast))) < 2**20 / 2
    for recorder in others:
        assert_complete(group.records_of(recorder))
        assert len(body_of(group.records_of(recorder))) == 20 * 300


async def test_a_fast_stream_may_use_its_share_again_after_the_log_has_caught_up():
    group = RecorderGroup(queue_bytes=2**20)
    fast = group.started_response()
    for step in range(1000):
        fast.response_data(b"f" * 4096, step)
        if step % 30 == 0:
            group.buffer.flush_all()
            group.sink.take()
    group.end(fast)
    group.settle()
    assert group.counters.lost_bytes == 0


async def test_a_batch_ends_when_its_time_is_over_and_the_relay_comes_first():
    now_ns, done = 0, []

    def clock_ns() -> int:
        return now_ns

    def made() -> None:
        nonlocal now_ns
        now_ns += 10**9  # longer than any batch
        done.append("record")

    class Relay:
        active = 1
        pending_bytes = 0

        def take(self, records_before_ns: int) -> None:
            done.append("relay")

    group = RecorderGroup(clock_ns=clock_ns)
    group.buffer.relay = Relay()
    for _ in range(20):
        group.start(upstream=WatchedUpstream(made))
    async with asyncio.timeout(DEADLINE_S):
        while done.count("record") < 20:  # noqa: ASYNC110 - the list has no event
            await asyncio.sleep(0.001)
    at = [i for i, what in enumerate(done) if what == "record"]
    assert all(done[i - 1] == "relay" for i in at)


async def test_records_of_the_relay_are_taken_while_exchanges_keep_ending():
    group = RecorderGroup()
    loop, taken = asyncio.get_running_loop(), asyncio.Event()

    class Relay:
        active = 1
        pending_bytes = 0

        def take(self, records_before_ns: int) -> None:
            taken.set()

    def end_more() -> None:
        """More exchanges end in each iteration of the loop than it makes records of."""
        for _ in range(130):
            group.end(group.start())
        if not taken.is_set():
            loop.call_soon(end_more)

    group.buffer.relay = Relay()
    end_more()
    await asyncio.wait_for(taken.wait(), DEADLINE_S)
