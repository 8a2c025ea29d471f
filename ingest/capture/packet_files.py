"""Read pcap and pcapng files, plain or compressed with gzip or zstd. Nothing is read ahead: files may be larger than memory.

Contract: `packets` yields every packet up to the first fault after which no packet can be found. It never raises for bad data;
`problems` then says what is wrong and where. Times are in ns since 1970.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from streamgauge.ingest.input_file import InputFile

MAX_PACKET_BYTES = 2**20
"""A longer packet is a fault: even packets that the kernel has joined (BIG TCP) are shorter."""
UNTIMED_NS = -1
"""Time of a packet that has none."""
_MAX_BLOCK_BYTES = 2**24
_PCAP = {
    b"\xd4\xc3\xb2\xa1": ("<", 1000),
    b"\x4d\x3c\xb2\xa1": ("<", 1),
    b"\xa1\xb2\xc3\xd4": (">", 1000),
    b"\xa1\xb2\x3c\x4d": (">", 1),
}
"""Byte order, and ns in the unit of the second time field, by magic number."""
_SECTION = b"\x0a\x0d\x0d\x0a"
_ORDERS = {b"\x4d\x3c\x2b\x1a": "<", b"\x1a\x2b\x3c\x4d": ">"}
_INTERFACE, _SIMPLE_PACKET, _SECRETS = 1, 3, 10
_PACKETS = {6: "5I", 2: "H2x4I"}
"""Number of the interface, time, size and original size, by the type of a block."""
_PACKET_AT = 20
_RESOLUTION, _OFFSET = 9, 14  # options of an interface
_BINARY = 0x80


Packet = tuple[int, int, bytes]
"""Time in ns, link type (https://www.tcpdump.org/linktypes.html), bytes."""


class _Fault(Exception):
    """The rest of the file cannot be read."""


class _Interface(NamedTuple):
    link: int
    units_per_s: int
    offset_ns: int

    def at_ns(self, high: int, low: int) -> int:
        return (high << 32 | low) * 1_000_000_000 // self.units_per_s + self.offset_ns


_UNKNOWN = _Interface(-1, 1, 0)


def is_packet_file(path: Path) -> bool:
    """Whether a file begins as pcap or pcapng, also compressed. Raises OSError if it cannot be opened."""
    with PacketFile(path) as file:
        return file.begins_as_packets


class PacketFile:
    """One file. Use it as a context manager. Opening raises OSError."""

    def __init__(self, path: Path, progress: Callable[[int, int], object] | None = None) -> None:
        """`progress`: as that of `InputFile`."""
        self._input = InputFile(path) if progress is None else InputFile(path, progress)
        self._source = io.BufferedReader(self._input, 2**16)
        self.count = self.cut_packets = self.damaged_blocks = 0
        """Packets that were read, those of them that the snap length has cut, and damaged blocks."""
        self.longest_cut_bytes = 0
        """About the snap length."""
        self.has_secrets = False
        """It has keys of TLS."""
        self._fault: str | None = None

    def __enter__(self) -> PacketFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._source.close()

    @property
    def begins_as_packets(self) -> bool:
        return self._source.peek(4)[:4] in (*_PCAP, _SECTION)

    @property
    def problems(self) -> list[str]:
        """What of the file is damaged or missing."""
        found = []
        if self.cut_packets:
            size = f"packets are cut, to {self.longest_cut_bytes:,} bytes at most"
            found.append(f"{self.cut_packets:,} {size}. Capture them whole, such as by tcpdump -s 0")
        if self.damaged_blocks:
            found.append(f"{self.damaged_blocks:,} blocks are damaged")
        if self._fault is not None:
            found.append(f"the rest of the file cannot be read: {self._fault}, after {self.count:,} packets")
        return found

    def packets(self) -> Iterator[Packet]:
        try:
            for packet in self._packets():
                yield packet
                self.count += 1
        except _Fault as e:
            self._fault = self._input.problem or str(e)
        else:
            self._fault = self._input.problem

    def _packets(self) -> Iterator[Packet]:
        magic = self._exactly(4)
        if magic in _PCAP:
            yield from self._pcap(*_PCAP[magic])
        elif magic == _SECTION:
            yield from self._pcapng()
        else:
            raise _Fault("it is neither pcap nor pcapng")

    def _exactly(self, size: int, *, may_end: bool = False) -> bytes:
        """Read this many bytes. b"" at the end of the file, if it may end here."""
        data = self._source.read(size)
        if len(data) < size and (data or not may_end):
            raise _Fault("it is cut off")
        return data

    def _pcap(self, order: str, unit_ns: int) -> Iterator[Packet]:
        # The upper bits have the length of the frame check sequence.
        link = struct.unpack(order + "16xI", self._exactly(20))[0] & 0xFFFF
        header = struct.Struct(order + "IIII")
        while head := self._exactly(header.size, may_end=True):
            seconds, fraction, size, original = header.unpack(head)
            if size > MAX_PACKET_BYTES:
                raise _Fault(f"a packet has {size:,} bytes")
            data = self._exactly(size)
            if size < original:
                self._count_cut(size)
            yield seconds * 1_000_000_000 + fraction * unit_ns, link, data

    def _count_cut(self, size: int) -> None:
        self.cut_packets += 1
        self.longest_cut_bytes = max(self.longest_cut_bytes, size)

    def _pcapng(self) -> Iterator[Packet]:
        order, interfaces = "", list[_Interface]()
        kind = _SECTION
        while kind:
            size, start = self._exactly(4), b""
            if kind == _SECTION:
                start, interfaces = self._exactly(4), []
                if (order := _ORDERS.get(start, "")) == "":
                    raise _Fault("a section has no byte order")
            number, size_bytes = struct.unpack(order + "II", kind + size)
            if size_bytes % 4 or not 12 <= size_bytes <= _MAX_BLOCK_BYTES:
                raise _Fault(f"a block has {size_bytes:,} bytes")
            # The size counts the two fields before the body and the one after it, which repeats it.
            body = start + self._exactly(size_bytes - 8 - len(start))
            is_damaged = body[-4:] != size
            try:
                if number == _INTERFACE:
                    interfaces.append(_interface(order, body[:-4]))
                elif number in _PACKETS or number == _SIMPLE_PACKET:
                    yield self._packet(order, number, body[:-4], interfaces)
                self.has_secrets |= number == _SECRETS
            except (struct.error, IndexError):
                is_damaged = True
                if number == _INTERFACE:
                    interfaces.append(_UNKNOWN)
            self.damaged_blocks += is_damaged
            kind = self._exactly(4, may_end=True)

    def _packet(self, order: str, kind: int, body: bytes, interfaces: list[_Interface]) -> Packet:
        """The packet in a block. Raises struct.error or IndexError if it is malformed."""
        if kind == _SIMPLE_PACKET:
            original = struct.unpack_from(order + "I", body)[0]
            at, at_ns, size, interface = 4, UNTIMED_NS, min(original, len(body) - 4), interfaces[0]
        else:
            number, high, low, size, original = struct.unpack_from(order + _PACKETS[kind], body)
            at, interface = _PACKET_AT, interfaces[number]
            at_ns = interface.at_ns(high, low)
            if size > len(body) - at:
                raise IndexError
        if size < original:
            self._count_cut(size)
        return at_ns, interface.link, body[at : at + size]


def _interface(order: str, body: bytes) -> _Interface:
    link = struct.unpack_from(order + "H", body)[0]
    units_per_s, offset_ns, at = 1_000_000, 0, 8
    while at + 4 <= len(body):
        code, size = struct.unpack_from(order + "HH", body, at)
        if code == _RESOLUTION and size == 1:
            exponent = body[at + 4]
            units_per_s = 1 << (exponent & ~_BINARY) if exponent & _BINARY else 10 ** min(exponent, 30)
        elif code == _OFFSET and size == 8:
            offset_ns = struct.unpack_from(order + "q", body, at + 4)[0] * 1_000_000_000
        at += 4 + (size + 3 & ~3)
    return _Interface(link, units_per_s, offset_ns)
