"""Packets of TCP connections, capture files of them, and the records that a capture makes of them."""

from __future__ import annotations

import contextlib
import struct
import tempfile
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from streamgauge.ingest.capture.tcp_connections import Connections
from streamgauge.ingest.capture.tcp_packets import ACK, FIN, RST, SYN
from streamgauge.ingest.http1.upstreams import parse_upstreams
from streamgauge.ingest.recording.recording import Recording
from streamgauge.ingest.records import AnyRecord, Closed, Frames, Lost, Opened, Request
from tests.ingest.running_tap import MemoryLog
from tests.options import tap_options

START_NS = 1_700_000_000_000_000_000
MS = 1_000_000
ETHERNET, RAW_IP = 1, 101


class Sent(NamedTuple):
    """A packet and its time."""

    at_ns: int
    data: bytes


class Talk:
    """One TCP connection: each call appends packets to `packets`, as seen by an interface with raw IP."""

    def __init__(
        self,
        *,
        client_port: int = 50_000,
        server_port: int = 4000,
        client_seq: int = 1000,
        server_seq: int = 2**32 - 20,
    ) -> None:
        self.packets: list[Sent] = []
        self.at_ns = START_NS
        self._ports = client_port, server_port
        self._seqs = [client_seq, server_seq]
        self._acks = [0, 0]

    def open(self) -> Talk:
        self.packet(True, flags=SYN, counts=1)
        self.packet(False, flags=SYN | ACK, counts=1)
        self.packet(True)
        return self

    def client(self, data: bytes, *, size: int = 1400, ack: bool = True) -> Talk:
        return self._data(True, data, size, ack)

    def server(self, data: bytes, *, size: int = 1400, ack: bool = True) -> Talk:
        return self._data(False, data, size, ack)

    def close(self) -> Talk:
        self.end(from_client=False)
        return self.end(from_client=True)

    def end(self, *, from_client: bool) -> Talk:
        self.packet(from_client, flags=FIN | ACK, counts=1)
        self.packet(not from_client)
        return self

    def reset(self, *, from_client: bool) -> Talk:
        self.packet(from_client, flags=RST | ACK)
        return self

    def wait(self, ms: float) -> Talk:
        self.at_ns += int(ms * MS)
        return self

    def _data(self, from_client: bool, data: bytes, size: int, ack: bool) -> Talk:
        for at in range(0, len(data), size):
            self.packet(from_client, data[at : at + size])
            if ack:
                self.packet(not from_client)
        return self

    def packet(
        self,
        from_client: bool,
        payload: bytes = b"",
        *,
        flags: int = ACK,
        counts: int = 0,
        window: int = 1000,
    ) -> None:
        me = 0 if from_client else 1
        source, target = self._ports if from_client else self._ports[::-1]
        ack = self._acks[me] = self._seqs[1 - me]
        tcp = (
            struct.pack(">HHIIHHHH", source, target, self._seqs[me], ack, 5 << 12 | flags, window, 0, 0)
            + payload
        )
        self._seqs[me] = (self._seqs[me] + len(payload) + counts) % 2**32
        addresses = [b"\x0a\0\0\1", b"\x0a\0\0\2"]
        ip = struct.pack(
            ">BBHHHBBH4s4s", 0x45, 0, 20 + len(tcp), 0, 0x4000, 64, 6, 0, addresses[me], addresses[1 - me]
        )
        self.packets.append(Sent(self.at_ns, ip + tcp))
        self.at_ns += 1000


def pcap(packets: Iterable[Sent], *, link: int = RAW_IP) -> bytes:
    """A capture file with times in ns."""
    head = struct.pack("<IHHiIII", 0xA1B23C4D, 2, 4, 0, 0, 262_144, link)
    return head + b"".join(
        struct.pack("<IIII", *divmod(p.at_ns, 1_000_000_000), len(p.data), len(p.data)) + p.data
        for p in packets
    )


@contextlib.asynccontextmanager
async def capturing(
    ports: Sequence[int] = (),
) -> AsyncIterator[tuple[Connections, Callable[[], dict[str, list[AnyRecord]]]]]:
    """Connections, and a function that ends the capture and returns the records by stream."""
    with tempfile.TemporaryDirectory() as folder:
        options = tap_options(
            upstreams=parse_upstreams(["http://localhost:1"]), data=Path(folder), client_key=b"k" * 32
        )
        log = MemoryLog()
        recording = Recording(options, client_key=b"k" * 32, open_log=lambda: log, wall_ns=int)
        recording.start()
        assert recording.recorders is not None
        connections = Connections(recording.recorders, ports)

        def records() -> dict[str, list[AnyRecord]]:
            connections.stop()
            recording.close()
            assert not recording.counters.recording_failed
            found: dict[str, list[AnyRecord]] = {}
            for record in log.records:
                if isinstance(record, Opened | Request | Frames | Closed | Lost):
                    found.setdefault(record.stream, []).append(record)
            return found

        yield connections, records


async def captured(packets: Iterable[Sent], ports: Sequence[int] = ()) -> list[list[AnyRecord]]:
    """The records of each stream, in the order of their times."""
    async with capturing(ports) as (connections, records):
        for packet in packets:
            connections.packet(packet.at_ns, RAW_IP, packet.data)
        return sorted(records().values(), key=lambda one: one[0].wall_ns if isinstance(one[0], Opened) else 0)
