"""From what was seen to records: numbered without a gap, bounded, and every loss told exactly."""

from __future__ import annotations

import asyncio
import random

import uvloop

from ingest.records import AnyRecord, Closed, Frames, Lost, Opened, Request, ResponseHeaders, decode
from ingest.tap.counters import Counters
from ingest.tap.record_buffer import FLUSH_BYTES, RECORD_OVERHEAD_BYTES, RecordBuffer, StreamRecords
from tests.ingest.running_tap import assert_complete, body_of

HEAD = ResponseHeaders(200, [("content-type", "text/event-stream")], 5)


class HeldSink:
    """The log's thread, standing still until `take` is called."""

    def __init__(self) -> None:
        self.done_bytes = 0
        self.failing: str | None = None
        self.batches: list[tuple[list[bytes], int]] = []
        self.records: list[AnyRecord] = []
        self.dropped: list[list[bytes]] = []

    def put(self, records: list[bytes], size_bytes: int) -> None:
        self.batches.append((records, size_bytes))

    def take_dropped(self) -> list[list[bytes]]:
        dropped, self.dropped = self.dropped, []
        return dropped

    def take(self) -> None:
        for records, size in self.batches:
            self.records += map(decode, records)
            self.done_bytes += size
        self.batches = []


def opened(stream: str) -> Opened:
    return Opened(
        stream=stream, seq=0, tap="t", tap_worker=0, incarnation="i", gateway="g", server_address="a", server_port=1,
        method="POST", path="/", wall_ns=0, mono_ns=0, client_start_ns=0, trace_id="0", span_id="0", parent_span_id=None,
        trace_flags=0, client_id=None, headers=[],
    )  # fmt: skip


def closed(stream: StreamRecords) -> Closed:
    return Closed(
        stream=stream.stream, seq=stream.end_frames(), cause="complete", detail=None, end_ns=0, connected_ns=0,
        request_sent_ns=0, request_bytes=0, response_bytes=0, delivered_bytes=0, client_drain_ns=0,
    )  # fmt: skip


class Told(StreamRecords):
    """A stream that notes what it is told, as a recorder does."""

    def begin(self) -> None:
        if self._buffer.note_head(RECORD_OVERHEAD_BYTES):
            self.open(opened(self.stream), RECORD_OVERHEAD_BYTES)
        else:
            self.lose_noted()

    def ask(self, body: bytes) -> None:
        if self._buffer.note(len(body)):
            self.request(body, truncated=False)
        else:
            self.lose_noted()

    def respond(self, head: ResponseHeaders) -> None:
        if self.note_response(50):
            self._head = head


def begin(buffer: RecordBuffer, name: str = "s") -> Told:
    stream = Told(buffer, name)
    stream.begin()
    return stream


def test_frames_are_flushed_by_size_and_the_head_rides_on_the_first():
    async def scenario() -> None:
        sink = HeldSink()
        buffer = RecordBuffer(sink, Counters(), queue_bytes=2**30)
        stream = begin(buffer)
        stream.respond(HEAD)
        for i in range(10):
            stream.frame(i, b"x" * (FLUSH_BYTES // 4))
        stream.close(closed(stream))
        buffer.flush_all()
        sink.take()
        assert_complete(sink.records)
        frames = [r for r in sink.records if isinstance(r, Frames)]
        assert [len(f.frames) for f in frames] == [4, 4, 2]
        assert [f.response for f in frames] == [HEAD, None, None]
        assert buffer.queued_bytes == 0

    uvloop.run(scenario())


def test_frames_are_flushed_by_time():
    async def scenario() -> None:
        sink = HeldSink()
        buffer = RecordBuffer(sink, Counters(), queue_bytes=2**30)
        stream = begin(buffer)
        stream.respond(HEAD)
        stream.frame(1, b"x")
        async with asyncio.timeout(5):
            while sum(len(b) for b, _ in sink.batches) < 2:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        sink.take()
        assert [type(r) for r in sink.records] == [Opened, Frames]

    uvloop.run(scenario())


def test_over_the_bound_data_is_dropped_and_told_with_its_numbers_and_bytes():
    async def scenario() -> None:
        sink = HeldSink()
        counters = Counters()
        buffer = RecordBuffer(sink, counters, queue_bytes=20_000)
        stream = begin(buffer)
        stream.respond(HEAD)
        for i in range(60):
            stream.frame(i, b"a" * 1000)
        sink.take()
        buffer.flush_all()
        sink.take()
        assert buffer.has_room(1000)
        stream.frame(61, b"b" * 1000)
        stream.close(closed(stream))
        buffer.flush_all()
        sink.take()
        assert_complete(sink.records)
        [lost] = [r for r in sink.records if isinstance(r, Lost)]
        assert lost.seq == lost.last_seq
        assert lost.cause == "queue_full"
        got = body_of(sink.records)
        assert got.endswith(b"b" * 1000)
        assert len(got) + lost.bytes == 61_000
        assert (counters.lost_bytes, counters.lost_records) == (lost.bytes, 1)
        assert counters.captured_bytes == len(got)
        assert buffer.queued_bytes == 0

    uvloop.run(scenario())


def test_the_cause_of_a_loss_is_what_stops_the_log():
    async def scenario() -> None:
        sink = HeldSink()
        sink.failing = "log_error"
        buffer = RecordBuffer(sink, Counters(), queue_bytes=10_000)
        stream = begin(buffer)
        stream.respond(HEAD)
        for i in range(20):
            stream.frame(i, b"a" * 1000)
        stream.close(closed(stream))
        buffer.flush_all()
        sink.take()
        buffer.flush_all()
        sink.take()
        assert_complete(sink.records)
        assert [r.cause for r in sink.records if isinstance(r, Lost)] == ["log_error"]

    uvloop.run(scenario())


def test_the_head_of_a_response_survives_when_its_data_does_not():
    async def scenario() -> None:
        sink = HeldSink()
        buffer = RecordBuffer(sink, Counters(), queue_bytes=10_000)
        stream = begin(buffer)
        buffer.added_bytes += 10_001  # somebody else's
        stream.respond(HEAD)
        stream.frame(1, b"a" * 100)
        buffer.added_bytes -= 10_001
        stream.close(closed(stream))
        buffer.flush_all()
        sink.take()
        assert_complete(sink.records)
        assert [type(r) for r in sink.records] == [Opened, Frames, Lost, Closed]

    uvloop.run(scenario())


def test_batches_that_the_log_gave_up_are_told():
    async def scenario() -> None:
        sink = HeldSink()
        counters = Counters()
        buffer = RecordBuffer(sink, counters, queue_bytes=2**20)
        stream = begin(buffer)
        stream.frame(1, b"abc")
        stream.flush()
        buffer.flush_all()
        [(batch, size)] = sink.batches
        sink.batches = []
        sink.done_bytes += size
        sink.dropped.append(batch)
        stream.close(closed(stream))
        async with asyncio.timeout(5):
            while not any(isinstance(decode(r), Lost) for b, _ in sink.batches for r in b):  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        sink.take()
        lost = [r for r in sink.records if isinstance(r, Lost)]
        assert [(r.seq, r.last_seq, r.bytes, r.cause) for r in lost] == [(0, 1, 3, "log_error")]
        assert counters.lost_bytes == 3

    uvloop.run(scenario())


def test_a_record_that_cannot_be_encoded_costs_no_other_and_is_told():
    async def scenario() -> None:
        sink = HeldSink()
        buffer = RecordBuffer(sink, Counters(), queue_bytes=2**30)
        stream = begin(buffer)
        stream.respond(HEAD)
        stream.frame(1, b"good")
        stream.flush()
        stream.frame(2**70, b"a bug of ours")
        stream.close(closed(stream))
        buffer.flush_all()
        sink.take()
        assert_complete(sink.records)
        assert body_of(sink.records) == b"good"
        [lost] = [r for r in sink.records if isinstance(r, Lost)]
        assert lost.bytes == len(b"a bug of ours")
        assert buffer.queued_bytes == 0

    uvloop.run(scenario())


def test_any_play_of_full_and_free_leaves_each_stream_without_a_silent_gap():
    """A model test: streams that open, send and close at random while the log stops and goes."""

    async def play(seed: int) -> None:
        dice = random.Random(seed)
        sink = HeldSink()
        counters = Counters()
        buffer = RecordBuffer(sink, counters, queue_bytes=dice.choice([500, 5000, 50_000]))
        streams: dict[str, Told] = {}
        sent: dict[str, int] = {}
        for step in range(400):
            move = dice.random()
            if move < 0.15 and len(streams) < 20:
                name = f"s{step}"
                streams[name] = begin(buffer, name)
                sent[name] = 0
                if dice.random() < 0.8:
                    streams[name].ask(b"r" * dice.randint(1, 2000))
                streams[name].respond(HEAD)
            elif move < 0.75 and streams:
                name = dice.choice(list(streams))
                size = dice.choice([1, 300, 3000, 70_000])
                streams[name].frame(step, b"x" * size)
                sent[name] += size
            elif move < 0.85 and streams:
                name = dice.choice(list(streams))
                streams[name].close(closed(streams.pop(name)))
            elif move < 0.92:
                buffer.flush_all()
            else:
                sink.take()
        for stream in streams.values():
            stream.close(closed(stream))
        for _ in range(200):
            buffer.flush_all()
            sink.take()
        assert buffer.queued_bytes == 0
        assert counters.lost_untold == 0
        for name, size in sent.items():
            records = [r for r in sink.records if getattr(r, "stream", None) == name]
            expected = 0
            told = 0
            for record in records:
                assert record.seq == expected, records
                expected = (record.last_seq if isinstance(record, Lost) else record.seq) + 1
                told += record.bytes if isinstance(record, Lost) else 0
            assert isinstance(records[-1], Closed | Lost)
            assert len(body_of(records)) + told == size
        lost = [r for r in sink.records if isinstance(r, Lost)]
        assert sum(r.bytes for r in lost) == counters.lost_bytes
        assert counters.captured_bytes + counters.lost_bytes == sum(sent.values())
        assert sum(isinstance(r, Request) for r in sink.records) <= len(sent)

    async def scenario() -> None:
        for seed in range(40):
            await play(seed)

    uvloop.run(scenario())
