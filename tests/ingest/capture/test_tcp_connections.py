"""TCP reassembly: the same bytes make the same records, however they arrive; invalid packets; limits."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamgauge.ingest.capture import tcp_connections as module
from streamgauge.ingest.records import AnyRecord, Closed, Frames, Lost, Opened, Request
from tests.ingest.capture.packets import MS, RAW_IP, Sent, Talk, captured, capturing
from tests.ingest.capture.test_exchanges import BODY, GET, PARTS, PLAIN, REQUEST
from tests.ingest.running_tap import END, SSE_HEAD, chunk

RESPONSE = SSE_HEAD + b"".join(map(chunk, PARTS)) + END
HANDSHAKE = 3


def without_times(records: Sequence[AnyRecord]) -> list[object]:
    """What the records of a stream say, whatever the packets that brought it."""
    found: list[object] = []
    body = b""
    for record in records:
        if isinstance(record, Opened):
            found.append((record.method, record.path, record.headers, record.client_id, record.gateway))
        elif isinstance(record, Request):
            found.append((record.body, record.truncated))
        elif isinstance(record, Frames):
            body += b"".join(data for _, data in record.frames)
            if record.response is not None:
                found.append((record.response.status, record.response.headers))
        elif isinstance(record, Closed):
            found.append(
                (
                    record.cause,
                    record.request_bytes,
                    record.response_bytes,
                    record.delivered_bytes,
                    record.reused_connection,
                )
            )
        else:
            found.append(record)
    return [*found, body]


def talk_of(size: int) -> list[Sent]:
    """Two exchanges on one connection, in packets of a size. All at one time."""
    talk = Talk(client_seq=2**32 - 100, server_seq=2**32 - 300).open()
    talk.client(REQUEST + BODY, size=size).server(RESPONSE, size=size).client(GET, size=size).server(
        PLAIN, size=size
    ).close()
    return [Sent(talk.packets[0].at_ns, packet.data) for packet in talk.packets]


EXPECTED = [without_times(one) for one in asyncio.run(captured(talk_of(10_000)))]


@settings(max_examples=60, deadline=None)
@given(
    size=st.integers(1, 400),
    seed=st.integers(0, 2**32),
    duplicated=st.integers(0, 20),
    window=st.integers(0, 50),
)
def test_segmentation_order_and_duplicates_do_not_change_the_records(
    size: int, seed: int, duplicated: int, window: int
) -> None:
    chance = random.Random(seed)
    packets = talk_of(size)
    # Retransmissions have other boundaries than the first transmission, so that they overlap.
    repeated = chance.choices(packets[HANDSHAKE:] + talk_of(size + 7)[HANDSHAKE:], k=duplicated)
    placed = [(at + chance.uniform(0, window), packet.data) for at, packet in enumerate(packets[HANDSHAKE:])]
    placed += [(chance.uniform(0, len(packets)), packet.data) for packet in repeated]
    shuffled = [Sent(packets[0].at_ns, data) for _, data in sorted(placed)]
    records = asyncio.run(captured(packets[:HANDSHAKE] + shuffled))
    assert [without_times(one) for one in records] == EXPECTED


def three_exchanges(client_port: int = 50_000) -> list[Sent]:
    talk = Talk(client_port=client_port).open()
    for _ in range(3):
        talk.wait(20).client(REQUEST + BODY, size=100).wait(20)
        for part in (SSE_HEAD, *map(chunk, PARTS), END):
            talk.server(part).wait(20)
    return talk.close().packets


def assert_measured_or_lost(streams: Sequence[Sequence[AnyRecord]]) -> int:
    """Each stream has all that was sent, or is lost. Returns the number of lost ones."""
    lost = 0
    for records in streams:
        last = records[-1]
        if isinstance(last, Closed) and last.cause == "complete":
            assert without_times(records)[:-2] == EXPECTED[0][:-2]
            assert without_times(records)[-1] == b"".join(PARTS)
        else:
            assert isinstance(last, Lost) or (isinstance(last, Closed) and last.cause == "tap_stopped")
            lost += 1
    return lost


async def test_any_missing_packet_loses_its_stream_if_it_has_data_and_no_other():
    packets = three_exchanges()
    sizes = [len(packet.data) - 40 for packet in packets]
    for missing, size in enumerate(sizes):
        streams = await captured(packets[:missing] + packets[missing + 1 :])
        assert len(streams) == 3, missing
        assert assert_measured_or_lost(streams) == (size > 0), missing


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32), share=st.floats(0.005, 0.3))
def test_nothing_is_measured_over_missing_packets(seed: int, share: float) -> None:
    chance = random.Random(seed)
    packets = [packet for port in range(3) for packet in three_exchanges(port)]
    packets.sort(key=lambda packet: packet.at_ns)
    kept = [packet for packet in packets if chance.random() > share]
    assert_measured_or_lost(asyncio.run(captured(kept)))


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 60), st.integers(0, 200), st.binary(max_size=4)), max_size=30),
    st.sampled_from([0, 1, 101, 113, 276]),
)
def test_invalid_packets_never_raise(changes: list[tuple[int, int, bytes]], link: int) -> None:
    packets = talk_of(100)

    async def capture() -> None:
        async with capturing() as (connections, records):
            for number, at, data in changes:
                packet = packets[number % len(packets)]
                packets[number % len(packets)] = Sent(
                    packet.at_ns, packet.data[:at] + data + packet.data[at + len(data) :]
                )
            for packet in packets:
                connections.packet(packet.at_ns, link, packet.data)
                connections.packet(packet.at_ns, RAW_IP, packet.data)
            records()

    asyncio.run(capture())


async def test_connections_that_cannot_be_read_are_counted():
    async with capturing() as (connections, records):
        for port, first in enumerate(
            (b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"\0\0\0\1")
        ):
            for packet in (
                Talk(client_port=port)
                .open()
                .client(first)
                .server(b"\x17\x03\x03")
                .client(b"more")
                .close()
                .packets
            ):
                connections.packet(packet.at_ns, RAW_IP, packet.data)
        found = connections.counters
        assert (found["connections_tls"], found["connections_http2"], found["connections_other"]) == (1, 1, 1)
        assert records() == {}


async def test_only_servers_on_the_chosen_ports_are_recorded():
    packets = [
        packet
        for port in (1, 2)
        for packet in Talk(server_port=port).open().client(GET).server(PLAIN).packets
    ]
    [records] = await captured(packets, ports=[2])
    assert isinstance(records[0], Opened)
    assert records[0].server_port == 2


async def test_bytes_that_wait_are_bounded(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "MAX_HELD_BYTES", 20_000)
    async with capturing() as (connections, records):
        for port in range(10):
            talk = Talk(client_port=port).open().client(GET).server(SSE_HEAD + b"x" * 5000, ack=False)
            for packet in talk.packets[:4] + talk.packets[6:]:
                connections.packet(packet.at_ns, RAW_IP, packet.data)
        assert connections.counters["connections_evicted"] > 0
        assert {record.cause for one in records().values() for record in one if isinstance(record, Lost)} == {
            "capture_evicted", "packets_missing",
        }  # fmt: skip


@pytest.mark.parametrize("ahead", [False, True])
async def test_repeated_bytes_that_differ_are_counted_and_the_first_ones_recorded(ahead: bool):
    packets = talk_of(100)
    at = next(
        n
        for n, packet in enumerate(packets)
        if packet.data.endswith(PARTS[0][:20]) or PARTS[0][:20] in packet.data
    )
    other = packets[at].data[:-5] + b"other"
    repeated = [*packets[: at + 1], Sent(packets[at].at_ns, other), *packets[at + 1 :]]
    if ahead:  # both wait for the packet before them
        before = repeated.pop(at - 2)
        repeated.insert(at + 1, before)
    async with capturing() as (connections, records):
        for packet in [*repeated, packets[at]]:
            connections.packet(packet.at_ns, RAW_IP, packet.data)
        assert connections.counters["segments_inconsistent"] == 1
        assert [without_times(one) for one in records().values()] == EXPECTED


async def test_connections_are_bounded(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "MAX_CONNECTIONS", 32)
    async with capturing() as (connections, records):
        for port in range(100):
            for packet in Talk(client_port=port).open().client(GET).packets:
                connections.packet(packet.at_ns + port * MS, RAW_IP, packet.data)
        assert 50 < connections.counters["connections_evicted"] < 100
        streams = records()
        assert len(streams) == 100
        assert (
            sum(isinstance(one[-1], Lost) for one in streams.values())
            == connections.counters["connections_evicted"]
        )
