"""What a recorder notes is bounded from the moment at which it is noted, and every loss is told in its stream."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
import uvloop

from ingest.records import Closed, Frames, Lost, Opened, Request
from ingest.tap import stream_recorder as recorder_module
from ingest.tap.counters import Counters
from ingest.tap.http_head import HeadLimits, read_request_head, read_response_head
from ingest.tap.options import TapOptions
from ingest.tap.record_buffer import RecordBuffer
from ingest.tap.routing import Router
from ingest.tap.stream_recorder import RecorderFactory, StreamRecorder
from ingest.tap.trace_context import join_trace
from ingest.tap.upstreams import parse_upstreams
from tests.ingest.running_tap import assert_complete, body_of, request_of
from tests.ingest.tap.test_record_buffer import HeldSink

UPSTREAMS = parse_upstreams(["a=http://127.0.0.1:1"])
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n%b\r\n"


class Play:
    """RecorderFactory of one worker whose log stands still until `settle` is called."""

    def __init__(self, *, queue_bytes: int) -> None:
        self.sink = HeldSink()
        self.counters = Counters()
        self.buffer = RecordBuffer(self.sink, self.counters, queue_bytes=queue_bytes)
        options = TapOptions(upstreams=UPSTREAMS, data=Path("nowhere"))
        self._recorders = RecorderFactory(self.buffer, options, incarnation="i", client_key=b"k" * 32)

    def ask(self, *, fields: bytes = b"") -> StreamRecorder:
        raw = b"POST /v1/chat HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n%b\r\n" % fields
        head = read_request_head(raw, HeadLimits())
        route = Router(UPSTREAMS).route(head)
        assert route is not None
        return StreamRecorder(self._recorders, head, route, join_trace(None), 0, 0)

    def answer(self, recorder: StreamRecorder, *, fields: bytes = b"") -> None:
        recorder.response_head(read_response_head(ANSWER % fields), 1)

    def end(self, recorder: StreamRecorder) -> None:
        recorder.record_request(over=False)
        recorder.ended("complete", None, 2, 0, 0, reused=False, tunnel=False)
        recorder.drained(2)

    def settle(self) -> None:
        """The log takes everything, also what could not be told before."""
        for _ in range(100):
            self.buffer.flush_all()
            self.sink.take()
        assert self.buffer.queued_bytes == 0
        assert self.counters.lost_untold == 0

    def records_of(self, recorder: StreamRecorder) -> list[Opened | Request | Frames | Lost | Closed]:
        return [r for r in self.sink.records if getattr(r, "stream", None) == recorder.stream]  # type: ignore[misc]


def playing(scenario: Callable[[], None]) -> None:
    async def run() -> None:
        await asyncio.sleep(0)
        scenario()

    uvloop.run(run())


def test_bodies_that_are_noted_stay_within_the_bound_and_what_has_no_room_is_told():
    def scenario() -> None:
        play = Play(queue_bytes=200_000)
        recorders = [play.ask() for _ in range(20)]
        for _ in range(8):
            for recorder in recorders:
                recorder.request_data(b"q" * 5_000)
                assert play.buffer.queued_bytes <= 200_000
        for recorder in recorders:
            play.answer(recorder)
            play.end(recorder)
            assert play.buffer.queued_bytes <= 250_000
        play.settle()
        lost = 0
        for recorder in recorders:
            records = play.records_of(recorder)
            assert_complete(records)
            request = request_of(records)
            if request is None:
                lost += 1
                assert [r.cause for r in records if isinstance(r, Lost)] == ["queue_full"]
            else:
                assert len(request.body) == 40_000
        assert 0 < lost < 20
        assert play.counters.lost_records == lost

    playing(scenario)


def test_a_body_counts_from_its_first_byte_and_no_longer_than_it_is_kept():
    def scenario() -> None:
        play = Play(queue_bytes=2**20)
        recorder = play.ask()
        before = play.buffer.queued_bytes
        recorder.request_data(b"q" * 30_000)
        assert play.buffer.queued_bytes == before + 30_000
        recorder.request_data(b"q" * 50_000)
        assert play.buffer.queued_bytes == before + 65_536
        recorder.request_data(b"q" * 50_000)
        assert play.buffer.queued_bytes == before + 65_536
        play.end(recorder)
        play.settle()
        request = request_of(play.records_of(recorder))
        assert request is not None
        assert (len(request.body), request.truncated) == (65_536, True)

    playing(scenario)


def test_a_body_that_was_lost_is_not_begun_again_when_there_is_room():
    def scenario() -> None:
        play = Play(queue_bytes=20_000)
        recorder, other = play.ask(), play.ask()
        other.request_data(b"o" * 15_000)
        recorder.request_data(b"q" * 15_000)
        play.end(other)
        play.settle()
        recorder.request_data(b"q" * 1_000)
        play.answer(recorder)
        recorder.response_data(b"data: x\n\n", 2)
        play.end(recorder)
        play.settle()
        records = play.records_of(recorder)
        assert [type(r) for r in records] == [Opened, Lost, Frames, Closed]
        assert_complete(records)
        assert body_of(records) == b"data: x\n\n"

    playing(scenario)


def test_a_requests_head_counts_while_it_waits_and_is_told_when_it_is_lost():
    def scenario() -> None:
        play = Play(queue_bytes=100_000)
        large = b"User-Agent: %b\r\n" % (b"u" * 30_000)
        recorders = []
        for _ in range(8):
            recorders.append(play.ask(fields=large))
            assert play.buffer.queued_bytes <= 125_000
        assert play.buffer.queued_bytes > 60_000
        for recorder in recorders:
            play.end(recorder)
        play.settle()
        opened = [r for r in play.sink.records if isinstance(r, Opened)]
        lost = [r for r in play.sink.records if isinstance(r, Lost)]
        assert len(opened) == 4
        assert {r.stream for r in lost if r.seq == 0} == {w.stream for w in recorders[4:]}
        assert len({w.stream for w in recorders}) == 8

    playing(scenario)


def test_a_responses_head_counts_while_it_waits_and_is_told_when_it_is_lost():
    def scenario() -> None:
        play = Play(queue_bytes=100_000)
        large = b"X-Some: %b\r\n" % (b"s" * 50_000)
        recorders = [play.ask() for _ in range(4)]
        for recorder in recorders:
            play.answer(recorder, fields=large)
            assert play.buffer.queued_bytes <= 125_000
        assert play.buffer.queued_bytes > 100_000
        for recorder in recorders:
            play.end(recorder)
        play.settle()
        seen = [[type(r) for r in play.records_of(w)] for w in recorders]
        assert seen[:2] == [[Opened, Frames, Closed]] * 2
        assert seen[2:] == [[Opened, Lost, Closed]] * 2
        for recorder in recorders:
            assert_complete(play.records_of(recorder))

    playing(scenario)


def test_a_body_that_is_not_recorded_is_not_lost_when_there_is_no_room():
    def scenario() -> None:
        play = Play(queue_bytes=20_000)
        others = []
        while play.buffer.has_room(0):
            others.append(play.ask())
        recorder = play.ask(fields=b"Content-Type: audio/mpeg\r\n")
        recorder.request_data(b"q" * 1_000)
        for one in (recorder, *others):
            play.settle()
            play.end(one)
        play.settle()
        assert [type(r) for r in play.records_of(recorder)] == [Opened, Closed]
        assert play.counters.lost_records == 0

    playing(scenario)


@pytest.mark.skipif(
    str(recorder_module.__file__).endswith(".so"), reason="machine code does not look up what is broken here"
)
def test_a_stream_whose_records_cannot_be_made_costs_no_other(monkeypatch: pytest.MonkeyPatch):
    made = recorder_module.client_id

    def broken(known: dict[bytes, bytes], key: bytes) -> str | None:
        if b"authorization" in known:
            raise ValueError("a bug of ours")
        return made(known, key)

    async def scenario() -> None:
        play = Play(queue_bytes=2**20)
        bad = [play.ask(fields=b"Authorization: x\r\n") for _ in range(2)]
        good = [play.ask() for _ in range(2)]
        handed_over = asyncio.Event()
        put = play.sink.put

        def heard(records: list[bytes], size_bytes: int) -> None:
            put(records, size_bytes)
            handed_over.set()

        monkeypatch.setattr(play.sink, "put", heard)
        for one in (bad[0], good[0]):
            play.end(one)
        await handed_over.wait()  # by the timer, which goes on
        handed_over.clear()
        for one in (bad[1], good[1]):
            play.end(one)
        await handed_over.wait()
        play.sink.take()
        for one in good:
            assert [type(r) for r in play.records_of(one)] == [Opened, Closed]
        assert play.counters.lost_untold == len(bad)

    monkeypatch.setattr(recorder_module, "client_id", broken)
    uvloop.run(asyncio.wait_for(scenario(), 30))
