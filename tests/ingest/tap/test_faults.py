"""Faults inside the tap stay contained: forwarding goes on, the work begins again, and `/recordingz` names it."""

from __future__ import annotations

import asyncio
import errno
import threading

import pytest

from streamgauge.ingest.recording import log_thread as record_log_thread
from streamgauge.ingest.recording import recording as recording_module
from streamgauge.ingest.recording.log_thread import LogThread
from streamgauge.ingest.recording.record_buffer import RecordBuffer
from streamgauge.ingest.records import OPENED, Alive, Closed, Lost, Opened
from streamgauge.ingest.tap.exchanges.exchange import Exchange
from streamgauge.ingest.tap.relay.body_relay import BodyRelay
from streamgauge.ingest.tap.relay.choice import native_relay
from tests.deadline import DEADLINE_S
from tests.guard_injection import Fault, Injection, derived
from tests.ingest.running_tap import END, SSE_HEAD, MemoryLog, chunk, read_request, running_tap

GET = b"GET / HTTP/1.1\r\nHost: h\r\n\r\n"
LIMIT_S = DEADLINE_S
NEVER_AT_WORK = {"stop", "hang-ups", "recording", "start of recording"}
"""Guards without work under this traffic. They have tests of their own, below and in `test_recorder`."""


async def stream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while True:
        await read_request(reader)
        writer.write(SSE_HEAD + b"".join(chunk(b"data: %d\n\n" % n) for n in range(20)) + END)


async def open_stream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await read_request(reader)
    writer.write(SSE_HEAD + chunk(b"data: 1\n\n"))
    await reader.read()


async def test_each_thread_and_loop_of_a_worker_survives_an_exception_and_is_named():
    async with running_tap(stream, alive_s=0.05) as tap:
        client = await tap.client()
        await client.send(GET)
        expected = await client.response()
        guards = tap.worker.context.guards
        hit = set()
        for guard in guards.all():
            if guard.name in NEVER_AT_WORK:
                continue
            with Injection(guard, guards.faults) as injection:
                async with asyncio.timeout(LIMIT_S):
                    while not (injection.raised and injection.works_again):
                        await client.send(GET)
                        assert await client.response() == expected
            assert injection.shown
            hit.add(guard.name)
        assert {"log thread", "alive records"} <= hit
        assert {name for name, count in guards.failures().items() if count} == hit
        done = tap.worker.recording.counters.streams_closed
        await client.send(GET)
        assert await client.response() == expected
        await tap.records(done + 1)


async def test_batch_that_cannot_be_packed_is_dropped_and_reported(monkeypatch: pytest.MonkeyPatch):
    pack = record_log_thread.pack_encoded

    def pack_once_broken(records: list[bytes]) -> bytes:
        if any(r.startswith(OPENED) for r in records):
            monkeypatch.setattr(record_log_thread, "pack_encoded", pack)
            raise ValueError("cannot pack")
        return pack(records)

    monkeypatch.setattr(record_log_thread, "pack_encoded", pack_once_broken)
    async with running_tap(stream) as tap:
        client = await tap.client()
        await client.send(GET)
        first = await client.response()
        await tap.wait_until(lambda: any(isinstance(r, Lost) for r in tap.log.records))
        assert "log thread" in tap.worker.context.guards.faults()
        await client.send(GET)
        assert await client.response() == first
        await tap.wait_until(lambda: any(isinstance(r, Opened) for r in tap.log.records))
        assert tap.worker.recording.stats()["log_append_errors"] == 1
        assert tap.worker.recording.stats()["queue_bytes_now"] < 10_000


async def test_full_disk_is_a_fault_with_its_path_until_the_log_accepts_records():
    async with running_tap(stream) as tap:
        tap.log.broken = OSError(errno.ENOSPC, "No space left on device")
        await tap.request(GET)
        faults = tap.worker.context.guards.faults
        await tap.wait_until(lambda: "record log" in faults())
        assert f"cannot append to {tap.worker.options.data / 'log'}: No space left" in faults()["record log"]
        assert tap.worker.ready
        tap.log.broken = None
        await tap.wait_until(lambda: not faults())


@pytest.mark.interpreted
async def test_stop_ends_each_exchange_and_closes_the_log_whatever_raises(monkeypatch: pytest.MonkeyPatch):
    closed = threading.Event()
    stop, calls = Exchange.stop, []

    def stop_once_broken(self: Exchange) -> None:
        calls.append(self)
        if len(calls) == 1:
            raise ValueError
        stop(self)

    monkeypatch.setattr(Exchange, "stop", stop_once_broken)
    async with running_tap(open_stream) as tap:
        monkeypatch.setattr(tap.log, "close", closed.set)
        for _ in range(3):
            client = await tap.client()
            await client.send(GET)
            await client.read_until(b"data: 1\n\n\r\n")
        monkeypatch.setattr(tap.worker.hangups, "close", lambda: 1 / 0)
        await tap.stop()
        assert len(calls) == 3
        assert closed.is_set()
        ends = [r.cause for r in tap.log.records if isinstance(r, Closed)]
        assert len(ends) == 3
        assert ends.count("tap_stopped") >= 2
        last = tap.log.records[-1]
        assert isinstance(last, Alive)
        assert last.stopping
        assert tap.worker.context.guards.failures()["stop"] == 2


async def test_recording_that_cannot_start_is_named_and_traffic_goes_on(monkeypatch: pytest.MonkeyPatch):
    native = native_relay is not None
    for holder, name in (
        (recording_module, "RecordBuffer"), (recording_module, "Recorders"), *([(BodyRelay, "record_in")] * native),
    ):  # fmt: skip
        fault = Fault(always=False)
        with monkeypatch.context() as patch:
            patch.setattr(holder, name, fault.instead_of(getattr(holder, name)))
            async with running_tap(stream) as tap:
                assert (await tap.request(GET))[1].endswith(END)
                assert tap.worker.ready
                assert fault.raised == 1
                assert "RuntimeError" in tap.worker.context.guards.faults()["start of recording"]


async def test_exception_at_the_end_of_recording_is_counted_and_the_tap_stops(
    monkeypatch: pytest.MonkeyPatch,
):
    native = native_relay is not None
    buffer = type(
        "Buffer", (RecordBuffer,), {"flush_all": RecordBuffer.flush_all}
    )  # a compiled class cannot be changed
    monkeypatch.setattr(recording_module, "RecordBuffer", buffer)
    for kind, name in (
        (buffer, "flush_all"), (LogThread, "stop"), (MemoryLog, "close"), *([(BodyRelay, "close")] * native),
    ):  # fmt: skip
        fault = Fault(always=False)
        with monkeypatch.context() as patch:
            patch.setattr(kind, name, derived(kind, name, fault))
            async with running_tap(open_stream) as tap:
                client = await tap.client()
                await client.send(GET)
                await client.read_until(b"data: 1\n\n\r\n")
                await tap.stop()
                assert fault.raised, name
                assert tap.worker.context.guards.failures()["stop"] or kind is MemoryLog
                if name != "flush_all":  # the next run reports what is left
                    await tap.wait_until(lambda: any(isinstance(r, Closed) for r in tap.log.records))
