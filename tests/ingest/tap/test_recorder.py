"""Records of one exchange: waiting data is within the limit, and every loss is reported in its stream."""

from __future__ import annotations

import asyncio
import gzip
import json
import random
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import brotli
import msgspec
import pytest
import zstandard

from streamgauge.ingest.condensed_body import CondensedBody
from streamgauge.ingest.http1.heads import read_response_head
from streamgauge.ingest.keyed_ids import keyed_hash
from streamgauge.ingest.prompt_skeleton import PromptSkeleton
from streamgauge.ingest.recording.recorder import FLUSH_BYTES
from streamgauge.ingest.records import (
    NO_SEGMENTS,
    Closed,
    Frames,
    Lost,
    Opened,
    Request,
    RequestAnatomy,
    ResponseHeaders,
)
from tests.deadline import DEADLINE_S
from tests.ingest.running_tap import assert_complete, body_of, request_of
from tests.ingest.tap.recorders import RESPONSE, RecorderGroup, WatchedUpstream
from tests.prompt_bodies import encoded, prompt, rendered


async def test_frames_are_flushed_by_size_and_the_first_carry_the_response_headers():
    group = RecorderGroup()
    recorder = group.started_response()
    for i in range(10):
        recorder.response_data(b"x" * (FLUSH_BYTES // 4), i)
    group.end(recorder)
    group.buffer.flush_all()
    group.sink.take()
    assert_complete(group.sink.records)
    frames = [r for r in group.sink.records if isinstance(r, Frames)]
    assert [len(f.frames) for f in frames] == [4, 4, 2]
    fields = [("content-type", "text/event-stream"), ("transfer-encoding", "chunked")]
    headers = ResponseHeaders(200, fields, 1)
    assert [f.response for f in frames] == [headers, None, None]
    assert group.buffer.queued_bytes == 0


async def test_frames_are_flushed_by_time():
    group = RecorderGroup()
    recorder = group.started_response()
    recorder.response_data(b"x", 1)
    async with asyncio.timeout(DEADLINE_S):
        await group.sink.handed_over.wait()
    group.sink.take()
    assert [type(r) for r in group.sink.records] == [Opened, Frames]


async def test_request_bodies_stay_within_the_limit_and_those_without_room_are_reported():
    group = RecorderGroup(queue_bytes=200_000)
    recorders = [group.start() for _ in range(20)]
    for _ in range(8):
        for recorder in recorders:
            recorder.request_data(b"q" * 5_000)
            assert group.buffer.queued_bytes <= 200_000
    for recorder in recorders:
        group.respond(recorder)
        group.end(recorder)
        assert group.buffer.queued_bytes <= 250_000
    group.settle()
    lost = 0
    for recorder in recorders:
        records = group.records_of(recorder)
        assert_complete(records)
        request = request_of(records)
        if request is None:
            lost += 1
            assert [r.cause for r in records if isinstance(r, Lost)] == ["queue_full"]
        else:
            assert len(request.body) == 40_000
    assert 0 < lost < 20
    assert group.counters.lost_records == lost


async def test_a_request_body_counts_from_its_first_byte_up_to_the_captured_size():
    group = RecorderGroup(queue_bytes=2**20)
    recorder = group.start()
    before = group.buffer.queued_bytes
    recorder.request_data(b"q" * 30_000)
    assert group.buffer.queued_bytes == before + 30_000
    recorder.request_data(b"q" * 50_000)
    assert group.buffer.queued_bytes == before + 65_536
    recorder.request_data(b"q" * 50_000)
    assert group.buffer.queued_bytes == before + 65_536
    group.end(recorder)
    group.settle()
    request = request_of(group.records_of(recorder))
    assert request is not None
    assert (len(request.body), request.truncated) == (65_536, True)


@pytest.mark.parametrize("read_bytes", [1_000, 65_536, 200_000])
async def test_a_json_body_above_the_captured_size_is_condensed(read_bytes: int):
    messages = [{"role": "user", "content": "q" * 30_000}, {"role": "assistant", "content": "a" * 60_000}]
    body = json.dumps({"messages": messages, "stream": True}).encode()
    group = RecorderGroup(queue_bytes=2**20)
    recorder = group.start()
    before = group.buffer.queued_bytes
    for start in range(0, len(body), read_bytes):
        recorder.request_data(body[start : start + read_bytes])
    recorder.record_request(True)
    group.end(recorder)
    group.settle()
    request = request_of(group.records_of(recorder))
    assert request is not None
    assert (request.condensed, request.truncated) == (True, False)
    expected = [{"role": "user", "content": ""}, {"role": "assistant", "content": ""}]
    assert json.loads(request.body) == {"messages": expected, "stream": True}
    assert request.anatomy is not None
    assert request.anatomy.segments is not None
    assert [(one.role, one.size) for one in request.anatomy.segments] == [
        ("user", 30_000),
        ("assistant", 60_000),
    ]
    assert msgspec.structs.replace(request.anatomy, encoded_segments=NO_SEGMENTS) == RequestAnatomy(
        [keyed_hash(b"q" * 30_000, b"k" * 32, kind=b"user_message")], [], 0
    )
    assert group.buffer.queued_bytes <= before


async def test_a_condensed_body_above_the_captured_size_is_cut():
    group = RecorderGroup(queue_bytes=2**20)
    recorder = group.start()
    for _ in range(3):
        recorder.request_data(b'{"messages": [' + b'{"role": "user"},' * 3_000)
    group.end(recorder)
    group.settle()
    request = request_of(group.records_of(recorder))
    assert request is not None
    assert (len(request.body), request.truncated) == (65_536, True)


async def test_segments_of_a_body_are_read_to_its_end():
    one = prompt(random.Random(2), long=True)
    body = encoded(rendered(replace(one, messages=one.messages * 60), "openai_chat")[0], random.Random(1))
    expected = CondensedBody(b"k" * 32)
    assert len(expected.feed(body)) > 65_536  # even without the long texts
    request = recorded_request(body)
    assert (request.condensed, request.truncated, len(request.body)) == (True, True, 65_536)
    assert request.anatomy == expected.anatomy


CODINGS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress, "zstd": zstandard.ZstdCompressor().compress, "br": partial(brotli.compress, quality=1),
}  # fmt: skip


@pytest.mark.parametrize("read_bytes", [1_000, 65_536, 2**20])
@pytest.mark.parametrize("coding", CODINGS)
async def test_a_compressed_body_above_the_captured_size_is_decoded(coding: str, read_bytes: int):
    texts = [random.Random(n).randbytes(30_000).hex() for n in range(5)]
    body = json.dumps(
        {"messages": [{"role": "user", "content": text} for text in texts], "model": "m"}
    ).encode()
    coded = CODINGS[coding](body)
    assert len(coded) > 65_536
    plain, request = recorded_request(body), recorded_request(coded, coding, read_bytes)
    assert request.decoded
    assert (request.body, request.truncated, request.anatomy) == (plain.body, False, plain.anatomy)
    cut = recorded_request(coded[:-9], coding, read_bytes)
    assert (cut.truncated, cut.condensed) == (True, True)


async def test_a_compressed_body_is_cut_where_it_is_broken():
    coded = gzip.compress(
        json.dumps({"model": "m", "prompt": random.Random(1).randbytes(90_000).hex()}).encode()
    )
    request = recorded_request(coded[:80_000] + b"x" * 9_000 + coded[89_000:], "gzip", 10_000)
    assert (request.truncated, request.decoded) == (True, True)
    assert request.anatomy is not None
    assert [one.kind for one in request.anatomy.segments or []] == ["model"]


async def test_a_compressed_body_below_the_captured_size_stays_as_it_is():
    coded = gzip.compress(b'{"messages": []}')
    request = recorded_request(coded, "gzip")
    assert (request.body, request.decoded, request.condensed) == (coded, False, False)


async def test_a_decompression_bomb_is_not_decoded_to_its_end():
    coded = gzip.compress(b'{"messages": "' + b"a" * 2**27, 1)
    assert len(coded) > 65_536
    request = recorded_request(coded, "gzip")
    assert (request.truncated, request.condensed) == (True, True)
    assert request.anatomy is not None
    assert request.anatomy.segments == []


@pytest.mark.interpreted
@pytest.mark.parametrize("name", ["opens", "string_ends", "end_read", "segments"])
async def test_an_exception_in_the_walk_loses_only_the_anatomy(name: str, monkeypatch: pytest.MonkeyPatch):
    body = json.dumps({"messages": [{"role": "user", "content": "q" * 90_000}], "model": "m"}).encode()
    expected = recorded_request(body)
    monkeypatch.setattr(PromptSkeleton, name, lambda *_: 1 // 0)
    group = RecorderGroup(queue_bytes=2**20)
    recorder = group.start()
    for start in range(0, len(body), 10_000):
        recorder.request_data(body[start : start + 10_000])
    recorder.record_request(True)
    group.end(recorder)
    group.settle()
    records = group.records_of(recorder)
    assert_complete(records)
    request = request_of(records)
    assert request is not None
    assert (request.body, request.truncated, request.anatomy) == (expected.body, False, None)
    assert group.counters.recording_failed == 1


async def test_a_condensed_body_without_room_is_not_resumed():
    group = RecorderGroup(queue_bytes=20_000)
    recorder, other = group.start(), group.start()
    other.request_data(b"o" * 15_000)
    recorder.request_data(b'{"messages": [' + b'{"role": "user"},' * 5_000)
    group.end(other)
    group.settle()
    for _ in range(3):
        recorder.request_data(b'{"role": "user"},')
    group.end(recorder)
    group.settle()
    records = group.records_of(recorder)
    assert [type(r) for r in records] == [Opened, Lost, Closed]
    assert_complete(records)


def recorded_request(body: bytes, coding: str = "", read_bytes: int = 65_536) -> Request:
    """The record of a request with this body and content coding."""
    group = RecorderGroup(queue_bytes=2**24)
    fields = (
        b"Content-Encoding: %b\r\nContent-Type: application/json\r\n" % coding.encode() if coding else b""
    )
    recorder = group.start(fields=fields)
    before = group.buffer.queued_bytes
    for start in range(0, len(body), read_bytes):
        recorder.request_data(body[start : start + read_bytes])
        assert group.buffer.queued_bytes <= before + 65_536
    recorder.record_request(True)
    group.end(recorder)
    group.settle()
    request = request_of(group.records_of(recorder))
    assert request is not None
    return request


async def test_a_lost_request_body_is_not_resumed_when_there_is_room():
    group = RecorderGroup(queue_bytes=20_000)
    recorder, other = group.start(), group.start()
    other.request_data(b"o" * 15_000)
    recorder.request_data(b"q" * 15_000)
    group.end(other)
    group.settle()
    recorder.request_data(b"q" * 1_000)
    group.respond(recorder)
    recorder.response_data(b"data: x\n\n", 2)
    group.end(recorder)
    group.settle()
    records = group.records_of(recorder)
    assert [type(r) for r in records] == [Opened, Lost, Frames, Closed]
    assert_complete(records)
    assert body_of(records) == b"data: x\n\n"


async def test_a_waiting_request_head_counts_and_is_reported_when_it_is_lost():
    group = RecorderGroup(queue_bytes=100_000)
    large = b"User-Agent: %b\r\n" % (b"u" * 30_000)
    recorders = []
    for _ in range(8):
        recorders.append(group.start(fields=large))
        assert group.buffer.queued_bytes <= 125_000
    assert group.buffer.queued_bytes > 60_000
    for recorder in recorders:
        group.end(recorder)
    group.settle()
    opened = [r for r in group.sink.records if isinstance(r, Opened)]
    lost = [r for r in group.sink.records if isinstance(r, Lost)]
    assert len(opened) == 4
    assert {r.stream for r in lost if r.seq == 0} == {r.stream for r in recorders[4:]}
    assert len({r.stream for r in recorders}) == 8


async def test_a_waiting_response_head_counts_and_is_reported_when_it_is_lost():
    group = RecorderGroup(queue_bytes=100_000)
    large = b"X-Some: %b\r\n" % (b"s" * 50_000)
    recorders = [group.start() for _ in range(4)]
    for recorder in recorders:
        group.respond(recorder, fields=large)
        assert group.buffer.queued_bytes <= 125_000
    assert group.buffer.queued_bytes > 100_000
    for recorder in recorders:
        group.end(recorder)
    group.settle()
    seen = [[type(r) for r in group.records_of(r)] for r in recorders]
    assert seen[:2] == [[Opened, Frames, Closed]] * 2
    assert seen[2:] == [[Opened, Lost, Closed]] * 2
    for recorder in recorders:
        assert_complete(group.records_of(recorder))


async def test_a_body_that_is_not_captured_cannot_be_lost():
    group = RecorderGroup(queue_bytes=20_000)
    others = []
    while group.buffer.has_room(0):
        others.append(group.start())
    recorder = group.start(fields=b"Content-Type: audio/mpeg\r\n")
    recorder.request_data(b"q" * 1_000)
    for one in (recorder, *others):
        group.settle()
        group.end(one)
    group.settle()
    assert [type(r) for r in group.records_of(recorder)] == [Opened, Closed]
    assert group.counters.lost_records == 0


async def test_a_stream_whose_records_cannot_be_made_does_not_affect_others():
    def broken() -> None:
        raise ValueError("a bug of ours")

    group = RecorderGroup(queue_bytes=2**20)
    bad = [group.start(upstream=WatchedUpstream(broken)) for _ in range(2)]
    good = [group.start() for _ in range(2)]
    async with asyncio.timeout(DEADLINE_S):
        for batch in ((bad[0], good[0]), (bad[1], good[1])):
            group.sink.handed_over.clear()
            for recorder in batch:
                group.end(recorder)
            await group.sink.handed_over.wait()  # the timer continues after an exception
    group.sink.take()
    for recorder in good:
        assert [type(r) for r in group.records_of(recorder)] == [Opened, Closed]
    losses = [r for r in group.sink.records if isinstance(r, Lost)]
    assert [(r.seq, r.cause, r.last) for r in losses] == [(0, "recording_failed", True)] * len(bad)
    assert len({r.stream for r in losses}) == len(bad)
    assert (group.counters.recording_failed, group.counters.lost_untold) == (len(bad), 0)
    assert group.buffer.queued_bytes == 0


async def test_opened_names_the_clock_of_its_time() -> None:
    group, other = RecorderGroup(), RecorderGroup()
    found = []
    for each in (group, group, other):
        recorder = each.started_response()
        each.end(recorder)
        each.settle()
        found.append(each.records_of(recorder)[0].clock_id)  # type: ignore[union-attr]
    assert found[0] == found[1] != found[2], "a tap that starts again has another clock"


async def test_an_abandoned_recorder_writes_nothing_and_its_buffer_is_not_used():
    group = RecorderGroup(queue_bytes=2**20)
    recorder = group.started_response()
    recorder.response_data(b"data: 1\n\n", 2)
    recorder.ended("complete", None, 2, 0, 9, False, False, [])
    recorder.abandon()
    assert recorder.abandoned
    head = read_response_head(RESPONSE % b"")
    calls: list[Callable[[], object]] = [
        lambda: recorder.request_data(b"q"), lambda: recorder.response_head(head, 3), lambda: recorder.response_data(b"x", 3),
        recorder.state_for_relay, lambda: recorder.relay_lost_frames(3, 9), lambda: recorder.drained(None),
        lambda: recorder.drained(None, left_ns=3), recorder.end, recorder.abandon,
    ]  # fmt: skip
    for call in calls:
        with pytest.raises(AttributeError):
            call()
    group.settle()
    assert [type(r) for r in group.sink.records] == [Opened, Frames, Lost]
    lost = group.sink.records[-1]
    assert isinstance(lost, Lost)
    assert (lost.seq, lost.bytes, lost.last) == (2, 0, True)
    assert group.buffer.queued_bytes == 0
