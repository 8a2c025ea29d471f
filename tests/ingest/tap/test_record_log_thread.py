"""The log thread: a failing log does not delay traffic, and its losses are reported."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from streamgauge.ingest.record_log.embedded_reader import EmbeddedReader
from streamgauge.ingest.record_log.embedded_writer import EmbeddedWriter
from streamgauge.ingest.record_log.interface import LogBroken, LogFull, LogInUse
from streamgauge.ingest.recording import log_thread as record_log_thread
from streamgauge.ingest.recording.log_thread import LogThread
from streamgauge.ingest.records import Frames, Lost, Request, encode, unpack
from tests.analytics.log_entries import stream
from tests.ingest.running_tap import (
    END,
    SSE_HEAD,
    MemoryLog,
    assert_complete,
    body_of,
    chunk,
    read_request,
    running_tap,
)

GET = b"GET / HTTP/1.1\r\nHost: h\r\n\r\n"


def stream_of(size: int, count: int):
    async def upstream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await read_request(reader)
            writer.write(SSE_HEAD)
            for _ in range(count):
                writer.write(chunk(b"x" * size))
                await writer.drain()
            writer.write(END)

    return upstream


def test_start_is_refused_while_another_process_writes_the_log():
    def broken() -> MemoryLog:
        raise LogInUse("another tap uses this data folder")

    thread = LogThread(broken)
    with pytest.raises(LogInUse, match="another tap"):
        thread.start()


class Relayed:
    """Records of the relay. None: they cannot be copied."""

    def __init__(self, records: list[bytes] | None, size_bytes: int) -> None:
        self._records, self.size_bytes = records, size_bytes
        self.count = len(records or ())

    def take(self) -> list[bytes]:
        if self._records is None:
            raise MemoryError
        return self._records


def test_records_of_the_relay_are_appended_in_order_in_entries_that_a_small_log_can_take():
    big = [encode(Frames("s", seq, [(0, b"x" * 100_000)])) for seq in range(7)]
    first, last = ([encode(record) for record in stream(number)] for number in (1, 2))
    log = MemoryLog()
    thread = LogThread(lambda: log)
    thread.put(first, 10)
    thread.put(Relayed(big, 1_000_000), 1_000_000)
    thread.put(Relayed(None, 50), 50)
    thread.put(last, 10)
    thread.start()
    thread.stop(5)
    assert [encode(record) for record in log.records] == [*first, *big, *last]
    assert log.entries >= 6  # three of them for the seven large records
    assert thread.done_bytes == 1_000_070


def test_batch_that_cannot_be_packed_is_dropped_alone(monkeypatch: pytest.MonkeyPatch):
    good = [encode(record) for record in stream(1)]
    pack = record_log_thread.pack_encoded

    def pack_or_raise(records: list[bytes]) -> bytes:
        if records == [b"bad"]:
            raise ValueError("cannot pack")
        return pack(records)

    monkeypatch.setattr(record_log_thread, "pack_encoded", pack_or_raise)
    log = MemoryLog()
    thread = LogThread(lambda: log)
    for batch in ([b"bad"], good, [b"bad"]):
        thread.put(batch, 10)
    thread.start()
    thread.stop(5)
    assert thread.take_dropped() == [[b"bad"], [b"bad"]]
    assert [encode(record) for record in log.records] == good
    assert thread.done_bytes == 30


@pytest.mark.parametrize(
    "error", [OSError(28, "No space left on device"), LogBroken("x"), ValueError("a bug")]
)
async def test_traffic_is_forwarded_while_the_log_cannot_be_opened_and_recorded_later(error: Exception):
    log = MemoryLog()
    refused: list[Exception] = []

    def open_log() -> MemoryLog:
        if len(refused) < 3:
            refused.append(error)
            raise error
        return log

    async with running_tap(stream_of(1000, 3), open_log=open_log) as tap:
        client = await tap.client()
        await client.send(GET)
        _, body = await client.response()
        assert body == chunk(b"x" * 1000) * 3 + END
        await tap.wait_until(lambda: len(log.streams) == 1 or None)
        assert len(refused) == 3


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (OSError(28, "No space left on device"), "log_error"),
        (LogFull("full"), "log_full"),
        (LogBroken("x"), "log_error"),
    ],
)
async def test_traffic_continues_while_the_log_fails_and_the_loss_is_reported_later(
    error: Exception, cause: str
):
    async with running_tap(stream_of(1000, 300), queue_bytes=100_000) as tap:
        client = await tap.client()
        tap.log.broken = error
        await client.send(GET)
        _, body = await client.response()
        assert body == chunk(b"x" * 1000) * 300 + END
        await tap.wait_until(lambda: tap.log.failed > 0)
        await client.send(GET)
        await client.response()
        assert tap.worker.recording.stats()["queue_bytes_now"] <= 125_000
        tap.log.broken = None
        all_records = await tap.records(2)
        assert sum(r.bytes for records in all_records for r in records if isinstance(r, Lost)) > 0
        for records in all_records:
            assert_complete(records)
            lost = [r for r in records if isinstance(r, Lost)]
            assert len(body_of(records)) + sum(r.bytes for r in lost) == 300_000
            assert {r.cause for r in lost} <= {cause, "queue_full"}
        counters = tap.worker.recording.counters
        assert counters.captured_bytes + counters.lost_bytes == counters.body_bytes == 600_000
        assert tap.worker.recording.stats()["log_append_errors"] == tap.log.failed
        await tap.wait_until(lambda: tap.worker.recording.stats()["log_failing_now"] == 0)


async def test_a_stalled_log_does_not_delay_traffic():
    async with running_tap(stream_of(10_000, 200), queue_bytes=500_000) as tap:
        tap.log.gate.clear()
        client = await tap.client()
        for _ in range(3):
            await client.send(GET)
            _, body = await client.response()
            assert len(body) > 2_000_000
        tap.log.gate.set()
        for records in await tap.records(3):
            assert_complete(records)
        assert tap.worker.recording.counters.lost_bytes > 0


async def test_a_batch_that_the_log_rejects_is_dropped_and_reported():
    class Picky(MemoryLog):
        def append(self, payloads) -> None:
            if not self.failed and self.records:
                self.failed += 1
                raise ValueError("not this one")
            super().append(payloads)

    log = Picky()

    async with running_tap(stream_of(100, 3), open_log=lambda: log) as tap:
        await tap.wait_until(lambda: bool(log.records))
        await tap.request(GET)
        await tap.wait_until(lambda: any(isinstance(r, Lost) for r in log.records))
        assert tap.worker.recording.counters.lost_records > 0
        await tap.request(GET)
        await tap.wait_until(lambda: any(isinstance(r, Frames) for r in log.records))


def test_stopping_does_not_wait_forever_for_a_failing_log():
    log = MemoryLog()
    log.broken = OSError(28, "No space left on device")
    thread = LogThread(lambda: log)
    thread.start()
    thread.put([encode(Lost("s", 0, 0, "queue_full", 0))], 10)
    thread.stop(0.2)
    assert thread.unappended_records == 1
    assert log.records == []


def test_stopping_appends_the_queue():
    log = MemoryLog()
    thread = LogThread(lambda: log)
    thread.start()
    for i in range(100):
        thread.put([encode(Lost("s", i, i, "queue_full", 0))], 10)
    thread.stop(5)
    assert [r.seq for r in log.records] == list(range(100))
    assert thread.done_bytes == 1000


def test_the_smallest_log_accepts_a_long_queue_and_drops_its_oldest_segments(tmp_path: Path):
    thread = LogThread(lambda: EmbeddedWriter(tmp_path, "w0", cap_bytes=2**20))
    records = [Request("s", n, os.urandom(65_536), False) for n in range(64)]
    for record in records:
        thread.put([encode(record)], 65_536)
    thread.start()
    thread.stop(10)
    assert (thread.unappended_records, thread.append_errors, thread.appended_entries) == (0, 0, 64)
    with EmbeddedReader(tmp_path, "test") as reader:
        found = [r for entry in iter(lambda: reader.poll(0), []) for e in entry for r in unpack(e.payload)[0]]
    reported = {
        seq
        for r in found
        if isinstance(r, Lost) and r.cause == "log_full"
        for seq in range(r.seq, r.last_seq + 1)
    }
    kept = {r.seq for r in found if isinstance(r, Request)}
    assert reported
    assert reported | kept == set(range(64))


async def test_packed_streams_are_counted():
    async with running_tap(stream_of(100, 3)) as tap:
        for _ in range(3):
            await tap.request(GET)
        await tap.records(3)
        assert tap.worker.recording._run_totals().streams_in_log == 3
