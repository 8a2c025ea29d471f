"""Packets of a real interface. Skipped where this process may not open packet sockets."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from streamgauge.ingest.capture.packet_socket import PacketSocket, port_filter
from streamgauge.ingest.record_log.embedded_reader import EmbeddedReader
from streamgauge.ingest.records import Closed, Frames, Opened, Request, unpack
from tests.deadline import DEADLINE_S
from tests.ingest.capture.test_exchanges import BODY, REQUEST
from tests.ingest.capture.test_pcap import IP_4, IP_6
from tests.ingest.running_tap import END, SSE_HEAD, chunk


def may_capture() -> bool:
    try:
        socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, 0).close()
    except OSError:
        return False
    return True


def effective_capabilities(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1], 16) for line in lines if line.startswith("CapEff"))


needs_packets = pytest.mark.skipif(not may_capture(), reason="needs CAP_NET_RAW")


def accepts(program: list[tuple[int, int, int, int]], packet: bytes) -> bool:
    """Run a BPF program, as far as `port_filter` uses the machine."""
    at = value = header = 0
    while True:
        code, if_true, if_false, operand = program[at]
        at += 1
        if code == 0x06:
            return operand > 0
        if code == 0x30:
            value = packet[operand]
        elif code == 0x28:
            value = int.from_bytes(packet[operand : operand + 2])
        elif code == 0x48:
            value = int.from_bytes(packet[header + operand : header + operand + 2])
        elif code == 0xB1:
            header = 4 * (packet[operand] & 0x0F)
        elif code == 0x54:
            value &= operand
        else:
            assert code == 0x15
            at += if_true if value == operand else if_false


def test_filter_accepts_tcp_from_and_to_the_ports():
    with_options = bytes([IP_4[0] + 1]) + IP_4[1:20] + bytes(4) + IP_4[20:]
    for packet, ports in ((IP_4, (50_000, 4000)), (with_options, (50_000, 4000)), (IP_6, (1, 2))):
        assert all(
            accepts(port_filter(chosen), packet) for chosen in ([], [ports[0]], [ports[1]], [7, 8, ports[1]])
        )
        assert not accepts(port_filter([7, 8]), packet)
    udp = bytearray(IP_4)
    udp[9] = socket.IPPROTO_UDP
    assert not accepts(port_filter([]), bytes(udp))
    assert not accepts(port_filter([]), b"\x08\x06" + IP_4)  # neither IPv4 nor IPv6


def test_missing_privilege_is_one_line_that_says_what_to_grant(monkeypatch: pytest.MonkeyPatch):
    def refuse(*args: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(socket, "socket", refuse)
    with pytest.raises(OSError, match="CAP_NET_RAW") as e:
        PacketSocket("lo", [4000])
    assert "\n" not in str(e.value)


@needs_packets
def test_unknown_interface_is_one_line():
    with pytest.raises(OSError, match="cannot capture on nothing-0: No such device"):
        PacketSocket("nothing-0", [4000])


@needs_packets
def test_packets_of_all_interfaces_are_seen_once_sent_and_once_received():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        source = PacketSocket("any", [port])
        socket.create_connection(("127.0.0.1", port)).close()
        seen: list[bytes] = []
        deadline_s = time.monotonic() + DEADLINE_S
        while len(seen) < 6 and time.monotonic() < deadline_s:
            source.take(lambda at_ns, link, data: seen.append(data))
    source.close()
    assert seen.count(seen[0]) == 2


@needs_packets
async def test_requests_on_the_loopback_interface_are_recorded(tmp_path: Path):
    next_part = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(len(REQUEST + BODY))
        for part in (SSE_HEAD, chunk(b"data: 1\n\n"), chunk(b"data: 2\n\n"), END):
            writer.write(part)
            await next_part.wait()
            next_part.clear()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    ready = tmp_path / "run" / "capture.json"
    is_ready = ready.exists
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-P", "-m", "streamgauge", "capture", "--interface", "lo", f"--port={port}", "--data", tmp_path,
        "--admin", "127.0.0.1:0",
    )  # fmt: skip
    try:
        while not is_ready():
            assert process.returncode is None
            await asyncio.sleep(0.02)
        assert not effective_capabilities(process.pid) & 1 << 13
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(REQUEST + BODY)
        for part in (SSE_HEAD, chunk(b"data: 1\n\n"), chunk(b"data: 2\n\n"), END):
            assert await reader.readexactly(len(part)) == part
            next_part.set()
        assert await reader.read() == b""
        writer.close()
        while json.loads(ready.read_bytes())["capture_connections"] == 0:  # noqa: ASYNC110 - of another process
            await asyncio.sleep(0.05)
        admin = json.loads(ready.read_bytes())["admin"]
        metrics = await asyncio.to_thread(lambda: urllib.request.urlopen(f"{admin}/metrics").read().decode())
        assert "streamgauge_tap_capture_connections_total 1\n" in metrics
        assert "streamgauge_tap_capture_dropped_total 0\n" in metrics
    finally:
        os.kill(process.pid, signal.SIGTERM)
        assert await process.wait() == 0
        server.close()
    assert not is_ready()
    log = EmbeddedReader(tmp_path / "log", "test")
    records = [record for entry in log.poll(1.0) for record in unpack(entry.payload)[0]]
    log.close()
    opened, request, *frames, closed = (
        r for r in records if isinstance(r, Opened | Request | Frames | Closed)
    )
    assert isinstance(opened, Opened)
    assert (opened.server_port, opened.path) == (port, "/v1/chat/completions")
    assert isinstance(request, Request)
    assert request.body == BODY
    found = [frame for record in frames if isinstance(record, Frames) for frame in record.frames]
    assert [data for _, data in found] == [b"data: 1\n\n", b"data: 2\n\n"]
    assert 0 < found[0][0] < found[1][0]
    assert isinstance(closed, Closed)
    assert closed.cause == "complete"
