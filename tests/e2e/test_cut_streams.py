"""Recorded streams through a running tap, cut by the client, a reset or a clean end: the outcome is that of the cause."""

from __future__ import annotations

import asyncio
import socket
import struct
from itertools import islice

import msgspec
import pytest

from streamgauge.analytics.assembly.assembler import Assembler
from streamgauge.analytics.dialects.dialect import ExchangeInfo
from streamgauge.analytics.measures.measure import measure
from streamgauge.ingest.records import Cause, Closed, Opened
from streamgauge.ingest.tap.relay.choice import native_relay
from tests.analytics.corpus import SKIP_REASON, Recording
from tests.analytics.test_cut_streams import CAUSES, RECORDINGS, cuts, exchange_of, verdicts
from tests.ingest import running_tap
from tests.ingest.running_tap import END, chunk, read_request

pytestmark = [
    pytest.mark.skipif(not RECORDINGS, reason=SKIP_REASON),
    pytest.mark.parametrize("relay", ["python", "native"]),
]
REQUEST = (
    b"POST %b HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\nContent-Length: 15\r\n\r\n"
    b'{"stream":true}'
)
LARGE_BYTES = 100_000
"""Several bodies of this size at once would not fit the record buffer on a busy machine."""
FOLDERS = {recording.folder: recording for recording in RECORDINGS}


class CutUpstream:
    """Sends the body of the current case, waits until the client has it, and ends as the case says."""

    def __init__(self) -> None:
        self.body = b""
        self.content_type = ""
        self.cause: Cause = "complete"
        self.was_read = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        cause, was_read = self.cause, self.was_read
        kind = f"Content-Type: {self.content_type}\r\n" if self.content_type else ""
        writer.write(
            f"HTTP/1.1 200 OK\r\n{kind}Connection: close\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
        )
        if self.body:
            writer.write(chunk(self.body))
        await writer.drain()
        await was_read.wait()
        if cause == "complete":
            writer.write(END)
            await writer.drain()
            return
        if cause == "upstream_reset":
            linger = struct.pack("ii", 1, 0)
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            writer.transport.abort()
            return
        await reader.read()


def recorded_exchange(recording: Recording) -> ExchangeInfo:
    """The tap does not record bodies without a content type."""
    exchange = exchange_of(recording)
    kind = exchange.content_type or "text/event-stream"
    return msgspec.structs.replace(exchange, host="127.0.0.1", content_type=kind)


Case = tuple[Recording, int, Cause]


async def outcomes(cases: list[Case], relay: str) -> list[str]:
    """The stored outcome of each case, one after the other."""
    upstream = CutUpstream()
    async with running_tap.running_tap(upstream.serve, relay=relay) as tap:
        for recording, end, cause in cases:
            exchange = recorded_exchange(recording)
            upstream.body, upstream.cause = recording.body.read_bytes()[:end], cause
            upstream.content_type = exchange.content_type
            upstream.was_read = asyncio.Event()
            before = len(tap.log.records)
            client = await tap.client(limit=2**22)
            await client.send(REQUEST % exchange.path.encode())
            await client.read_until(b"\r\n\r\n")
            if upstream.body:
                await client.read(len(chunk(upstream.body)))
            if cause == "client_left":
                client.close()
            upstream.was_read.set()
            if cause == "complete":
                await client.read(len(END))
                client.close()
            elif cause == "upstream_reset":
                await client.reader.read()
            if len(upstream.body) > LARGE_BYTES:
                await tap.wait_until(lambda: any(isinstance(r, Closed) for r in tap.log.records[before:]))  # noqa: B023
        await tap.wait_until(lambda: sum(isinstance(r, Closed) for r in tap.log.records) == len(cases))
        records = list(tap.log.records)
    order = sorted((r.mono_ns, r.stream) for r in records if isinstance(r, Opened))
    assembler = Assembler(capture=())
    for offset, record in enumerate(records):
        assembler.feed("w0", offset, [record])
    rows = measure(assembler.take_finished())["streams"]
    found = dict(zip(rows["stream_id"], rows["outcome"], strict=True))
    return [found[stream] for _, stream in order]


async def check(cases: list[Case], relay: str) -> None:
    if relay == "native" and native_relay is None:
        pytest.skip("the native relay is not built: no C compiler")
    wrong = []
    for (recording, end, cause), outcome in zip(cases, await outcomes(cases, relay), strict=True):
        exchange = recorded_exchange(recording)
        by_cause = dict(zip(CAUSES, verdicts(exchange, recording.body.read_bytes()[:end]), strict=True))
        if outcome != by_cause[cause][1].outcome:
            wrong.append(f"{recording} cut at {end} by {cause}: {outcome}, not {by_cause[cause][1].outcome}")
    assert not wrong


async def test_stream_cut_through_the_tap_has_the_outcome_of_its_end(relay: str) -> None:
    """One recording of each folder, cut after its first event and in the middle, by every cause."""
    cases: list[Case] = [(RECORDINGS[0], 0, cause) for cause in CAUSES]
    for recording in FOLDERS.values():
        ends = cuts(recording.body.read_bytes())
        for end in dict.fromkeys([*ends[1:2], ends[len(ends) // 2]]):
            cases += [(recording, end, cause) for cause in CAUSES]
    await check(cases, relay)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("part", range(8))
async def test_stream_cut_after_each_event_through_the_tap_has_the_outcome_of_its_end(
    part: int, relay: str
) -> None:
    cases: list[Case] = [
        (recording, end, cause)
        for recording in islice(RECORDINGS, part, None, 8)
        for end in cuts(recording.body.read_bytes())
        for cause in CAUSES
    ]
    await check(cases, relay)
