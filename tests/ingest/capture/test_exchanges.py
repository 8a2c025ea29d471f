"""The records of HTTP exchanges in packets."""

from __future__ import annotations

from streamgauge.ingest.capture.tcp_packets import RAW_IP, RST
from streamgauge.ingest.records import Closed, Frames, Lost, Opened, Request
from tests.ingest.capture.packets import MS, START_NS, Sent, Talk, captured, capturing
from tests.ingest.running_tap import END, SSE_HEAD, assert_complete, chunk

BODY = b'{"model": "m", "stream": true}'
REQUEST = b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: 30\r\n\r\n"
GET = b"GET /v1/models HTTP/1.1\r\nHost: a\r\n\r\n"
PARTS = [b"data: %d\n\n" % n for n in range(4)]
PLAIN = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"


async def test_event_stream_has_the_times_of_its_packets():
    talk = Talk().open().wait(1).client(REQUEST).client(BODY).wait(100).server(SSE_HEAD)
    times = []
    for part in PARTS:
        talk.wait(10)
        times.append(talk.at_ns)
        talk.server(chunk(part))
    talk.server(END).close()
    [records] = await captured(talk.packets)
    assert_complete(records)
    opened, request, *frames, closed = records
    assert isinstance(opened, Opened)
    assert (opened.path, opened.gateway, opened.server_port, opened.method) == (
        "/v1/chat/completions",
        "10.0.0.2:4000",
        4000,
        "POST",
    )
    assert START_NS < opened.wall_ns < START_NS + 2 * MS
    assert isinstance(request, Request)
    assert (request.body, request.truncated) == (BODY, False)
    found = [frame for record in frames if isinstance(record, Frames) for frame in record.frames]
    assert found == [(at_ns - opened.wall_ns, part) for at_ns, part in zip(times, PARTS, strict=True)]
    assert isinstance(closed, Closed)
    assert (closed.cause, closed.request_bytes, closed.reused_connection) == ("complete", 30, False)
    assert closed.delivered_ns is not None
    assert closed.end_ns < closed.delivered_ns < closed.end_ns + MS


def closed_of(records: object) -> Closed:
    assert isinstance(records, list)
    assert_complete(records)
    assert isinstance(records[-1], Closed)
    return records[-1]


async def test_keep_alive_and_pipelined_requests_are_exchanges_of_their_own():
    talk = Talk().open().client(GET).server(PLAIN).client(GET + GET).server(PLAIN + PLAIN).close()
    streams = await captured(talk.packets)
    assert [closed_of(one).cause for one in streams] == ["complete"] * 3
    assert [closed_of(one).reused_connection for one in streams] == [False, True, True]


async def test_client_that_resets_within_a_response_has_left():
    talk = Talk().open().client(GET).server(SSE_HEAD + chunk(PARTS[0])).reset(from_client=True)
    [records] = await captured(talk.packets)
    closed = closed_of(records)
    assert (closed.cause, closed.detail) == ("client_left", "ConnectionResetError")
    assert closed.client_left_ns == closed.end_ns


async def test_half_closed_client_receives_the_whole_response():
    talk = Talk().open().client(GET).end(from_client=True).server(PLAIN).end(from_client=False)
    [records] = await captured(talk.packets)
    assert closed_of(records).cause == "complete"


async def test_client_that_closes_within_a_response_has_left_when_the_server_closes():
    talk = (
        Talk()
        .open()
        .client(GET)
        .server(SSE_HEAD + chunk(PARTS[0]))
        .end(from_client=True)
        .end(from_client=False)
    )
    [records] = await captured(talk.packets)
    assert closed_of(records).cause == "client_left"


async def test_server_that_closes_or_resets_within_a_response_is_an_upstream_reset():
    ends = [
        Talk().open().client(GET).server(SSE_HEAD + chunk(PARTS[0])).end(from_client=False),
        Talk().open().client(GET).server(SSE_HEAD + chunk(PARTS[0])).reset(from_client=False),
    ]
    for talk in ends:
        [records] = await captured(talk.packets)
        assert closed_of(records).cause == "upstream_reset"


async def test_close_ends_a_body_without_length():
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
    talk = Talk().open().client(GET).server(head + PARTS[0]).end(from_client=False)
    [records] = await captured(talk.packets)
    assert closed_of(records).cause == "complete"


async def test_exchange_that_is_open_at_the_end_of_the_capture_is_stopped():
    [records] = await captured(Talk().open().client(GET).server(SSE_HEAD + chunk(PARTS[0])).packets)
    assert closed_of(records).cause == "tap_stopped"


async def test_connection_that_began_before_the_capture_is_recorded_from_its_next_request():
    talk = Talk().open().client(GET).server(PLAIN).client(GET).server(PLAIN)
    streams = await captured(talk.packets[6:])  # within the first response
    assert [closed_of(one).cause for one in streams] == ["complete"]


def without(packets: list[Sent], payload: bytes) -> list[Sent]:
    """The packets without the one that has this payload, which its receiver had acknowledged."""
    kept = [packet for packet in packets if not packet.data.endswith(payload)]
    assert len(kept) == len(packets) - 1
    return kept


async def test_missing_packet_of_a_response_ends_its_stream_as_lost():
    talk = Talk().open().client(GET).server(SSE_HEAD + chunk(PARTS[0]))
    talk.wait(20).server(chunk(PARTS[1])).wait(20).server(chunk(PARTS[2])).wait(20).server(END)
    talk.wait(20).client(GET).server(PLAIN)
    lost, whole = await captured(without(talk.packets, chunk(PARTS[1])))
    assert isinstance(lost[-1], Lost)
    assert (lost[-1].cause, lost[-1].bytes, lost[-1].last) == ("packets_missing", len(chunk(PARTS[1])), True)
    frames = [data for record in lost if isinstance(record, Frames) for _, data in record.frames]
    assert frames == [PARTS[0]]
    assert closed_of(whole).cause == "complete"


async def test_last_packet_of_a_response_is_missing():
    talk = Talk().open().client(GET).server(SSE_HEAD + chunk(PARTS[0])).wait(20).server(END)
    talk.wait(20).client(GET).server(PLAIN)
    lost, whole = await captured(without(talk.packets, END))
    assert isinstance(lost[-1], Lost)
    assert closed_of(whole).cause == "complete"


async def test_missing_request_is_a_lost_stream_of_its_own():
    talk = Talk().open().client(GET).server(PLAIN).wait(20)
    talk.client(REQUEST).server(SSE_HEAD + chunk(PARTS[0]) + END).wait(20).client(GET).server(PLAIN)
    lost, *whole = await captured(without(talk.packets, REQUEST))
    assert [type(record) for record in lost] == [Lost]
    assert [closed_of(one).cause for one in whole] == ["complete", "complete"]


async def test_missing_part_of_a_request_loses_its_stream():
    talk = (
        Talk().open().client(REQUEST).client(BODY).wait(20).server(PLAIN).wait(20).client(GET).server(PLAIN)
    )
    lost, whole = await captured(without(talk.packets, BODY))
    assert isinstance(lost[0], Opened)
    assert isinstance(lost[-1], Lost)
    assert closed_of(whole).cause == "complete"


async def test_missing_packets_of_the_handshake_lose_nothing():
    talk = Talk().open().client(GET).server(PLAIN).close()
    for missing in (0, 1, 2):
        [records] = await captured(talk.packets[:missing] + talk.packets[missing + 1 :])
        assert closed_of(records).cause == "complete"


async def test_missing_end_of_the_connection_loses_nothing():
    talk = Talk().open().client(GET).server(PLAIN).close()
    for missing in (-1, -2, -3, -4):
        packets = talk.packets[:]
        del packets[missing]
        [records] = await captured(packets)
        assert closed_of(records).cause == "complete"


async def test_client_that_does_not_read_is_waited_for():
    talk = Talk().open().client(GET).server(SSE_HEAD + chunk(PARTS[0]), ack=False)
    closed_ns = talk.at_ns
    talk.packet(True, window=0)
    talk.wait(300)
    opened_ns = talk.at_ns
    talk.packet(True)
    talk.server(END).close()
    [records] = await captured(talk.packets)
    opened = records[0]
    assert isinstance(opened, Opened)
    assert closed_of(records).waits == [(closed_ns - opened.wall_ns, opened_ns - opened.wall_ns, "client")]


async def test_websocket_is_a_tunnel():
    upgrade = b"GET /v1/realtime HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
    switch = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
    talk = (
        Talk()
        .open()
        .client(upgrade)
        .server(switch)
        .client(b"\x81\x00")
        .server(b"\x88\x00")
        .client(b"\x88\x00")
        .close()
    )
    [records] = await captured(talk.packets)
    closed = closed_of(records)
    assert (closed.cause, closed.tunnel, closed.request_bytes, closed.response_bytes) == (
        "complete",
        True,
        4,
        2,
    )


async def test_interim_responses_are_skipped():
    talk = Talk().open().client(GET).server(b"HTTP/1.1 103 Early Hints\r\n\r\n").wait(5).server(PLAIN).close()
    [records] = await captured(talk.packets)
    assert isinstance(records[1], Frames)
    assert records[1].response is not None
    assert records[1].response.status == 200
    assert records[1].response.headers_ns > 5 * MS


async def test_requests_within_a_gap_are_lost_streams_of_their_own():
    talk = (
        Talk()
        .open()
        .client(REQUEST, size=1000)
        .server(PLAIN)
        .client(GET)
        .server(PLAIN)
        .wait(20)
        .client(GET)
        .server(PLAIN)
    )
    lost, also_lost, whole = await captured(without(talk.packets, REQUEST))
    assert [type(record) for record in (*lost, *also_lost)] == [Lost, Lost]
    assert closed_of(whole).cause == "complete"


async def test_requests_that_are_missing_one_after_the_other_are_lost_streams_of_their_own():
    talk = Talk().open()
    for path in (b"/1", b"/2", b"/3"):
        talk.client(GET.replace(b"/v1/models", path)).server(PLAIN).wait(20)
    kept = [packet for packet in talk.packets if b"GET /3" in packet.data or b"GET" not in packet.data]
    lost, also_lost, whole = await captured(kept)
    assert [type(record) for record in (*lost, *also_lost)] == [Lost, Lost]
    assert closed_of(whole).cause == "complete"


async def test_request_without_a_response_in_a_gap_is_a_lost_stream():
    talk = Talk().open().client(GET).server(PLAIN).wait(20).client(REQUEST).wait(20).reset(from_client=True)
    whole, lost = sorted(await captured(without(talk.packets, REQUEST)), key=len, reverse=True)
    assert closed_of(whole).cause == "complete"
    assert [type(record) for record in lost] == [Lost]


async def test_gap_loses_no_response_that_begins_after_it():
    talk = (
        Talk()
        .open()
        .client(GET)
        .server(SSE_HEAD + chunk(PARTS[0]))
        .server(END)
        .client(GET)
        .server(PLAIN)
        .wait(20)
        .close()
    )
    lost, whole = await captured(without(talk.packets, END))
    assert isinstance(lost[-1], Lost)
    assert closed_of(whole).cause == "complete"


async def test_client_that_resets_before_it_has_the_response_has_left():
    talk = Talk().open().client(GET).server(PLAIN, ack=False)
    reset = bytearray(talk.packets[3].data[:40])
    reset[33] = RST
    talk.packets.append(Sent(talk.at_ns, bytes(reset)))
    [records] = await captured(talk.packets)
    closed = closed_of(records)
    assert (closed.cause, closed.delivered_bytes, closed.delivered_ns) == ("complete", 0, None)
    assert closed.client_left_ns is not None


async def test_stream_whose_recording_has_failed_is_lost_and_the_next_one_is_recorded():
    talk = Talk().open().client(GET).server(SSE_HEAD)
    begun = len(talk.packets)
    talk.server(chunk(PARTS[0]) + END).client(GET).server(PLAIN).close()
    async with capturing() as (connections, records):
        for number, packet in enumerate(talk.packets):
            if number == begun:
                ((connection, _), *_) = connections._by_source.values()
                recorder = connection.exchanges._open[0].recorder
                assert recorder is not None
                recorder.abandon()  # as after an exception: each further use of it raises
            connections.packet(packet.at_ns, RAW_IP, packet.data)
        failed, recorded = records().values()
    assert isinstance(failed[-1], Lost)
    assert (failed[-1].cause, failed[-1].last) == ("recording_failed", True)
    assert closed_of(recorded).cause == "complete"
    assert connections.counters["connections_evicted"] == 0
