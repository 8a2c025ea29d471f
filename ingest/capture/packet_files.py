"""Read pcap and pcapng files, plain or compressed with gzip or zstd. Nothing is read ahead: files may be larger than memory.

Contract: `packets` yields every packet up to the first fault. It never raises for bad data; `problem` then says what is wrong and
where. Times are in ns since 1970.
"""

from __future__ import annotations

import gzip
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

import zstandard

from streamgauge.ingest.records import coding_of

MAX_PACKET_BYTES = 2**20
"""A longer packet is a fault: even packets that the kernel has joined (BIG TCP) are shorter."""
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
_INTERFACE = 1
_PACKETS = {6: "4I", 2: "H2x3I"}
"""Number of the interface, time and size, by the type of a block. A simple packet (3) has no time: nothing could be measured."""
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


def is_packet_file(path: Path) -> bool:
    """Whether a file begins as pcap or pcapng, also compressed. Raises OSError if it cannot be opened."""
    with PacketFile(path) as file:
        try:
            return file._exactly(4) in (*_PCAP, _SECTION)
        except (_Fault, OSError, EOFError, zlib.error, zstandard.ZstdError):
            return False


class PacketFile:
    """One file. Use it as a context manager. Opening raises OSError."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("rb")
        self.size_bytes = path.stat().st_size
        self.problem: str | None = None
        """Why the rest of the file cannot be read."""
        coding = coding_of(self._file.peek(4))
        self._source: BinaryIO = self._file
        if coding == "gzip":
            self._source = gzip.GzipFile(fileobj=self._file)  # type: ignore[assignment]
        elif coding == "zstd":
            self._source = zstandard.ZstdDecompressor().stream_reader(self._file, read_across_frames=True)

    def __enter__(self) -> PacketFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._source.close()
        self._file.close()

    @property
    def read_bytes(self) -> int:
        """Bytes of the file that have been read."""
        return self._file.tell()

    def packets(self) -> Iterator[Packet]:
        count = 0
        try:
            for packet in self._packets():
                yield packet
                count += 1
        except _Fault as e:
            self.problem = f"{e}, after {count} packets"
        except (OSError, EOFError, zlib.error, zstandard.ZstdError) as e:
            self.problem = f"its compressed data or the disk is damaged ({e}), after {count} packets"

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
        while 0 < len(data) < size and (more := self._source.read(size - len(data))):
            data += more
        if len(data) < size and (data or not may_end):
            raise _Fault("it is cut off")
        return data

    def _pcap(self, order: str, unit_ns: int) -> Iterator[Packet]:
        # The upper bits have the length of the frame check sequence.
        link = struct.unpack(order + "16xI", self._exactly(20))[0] & 0xFFFF
        header = struct.Struct(order + "IIII")
        while head := self._exactly(header.size, may_end=True):
            seconds, fraction, size, _ = header.unpack(head)
            if size > MAX_PACKET_BYTES:
                raise _Fault(f"a packet has {size} bytes")
            yield seconds * 1_000_000_000 + fraction * unit_ns, link, self._exactly(size)

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
                raise _Fault(f"a block has {size_bytes} bytes")
            # The size counts the two fields before the body and the one after it.
            body = (start + self._exactly(size_bytes - 8 - len(start)))[:-4]
            try:
                if number == _INTERFACE:
                    interfaces.append(_interface(order, body))
                elif number in _PACKETS:
                    yield _packet(order + _PACKETS[number], body, interfaces)
            except (struct.error, IndexError):
                raise _Fault("a block is malformed") from None
            kind = self._exactly(4, may_end=True)


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


def _packet(fields: str, body: bytes, interfaces: list[_Interface]) -> Packet:
    """The packet in a block. Raises struct.error or IndexError if it is malformed."""
    number, high, low, size = struct.unpack_from(fields, body)
    if size > len(body) - _PACKET_AT:
        raise IndexError
    interface = interfaces[number]
    return interface.at_ns(high, low), interface.link, body[_PACKET_AT : _PACKET_AT + size]
