"""Read pcap and pcapng files, plain or compressed with gzip or zstd. Nothing is read ahead: files may be larger than memory.

Contract: `packets` yields every packet up to the first fault after which no packet can be found. It never raises for bad data;
`problems` then says what is wrong and where. Times are in ns since 1970.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

from streamgauge.ingest.capture import pcapng
from streamgauge.ingest.capture.pcapng import Fault, Packet
from streamgauge.ingest.input_file import InputFile

MAX_PACKET_BYTES = 2**20
"""A longer packet is a fault: even packets that the kernel has joined (BIG TCP) are shorter."""
_PCAP = {
    b"\xd4\xc3\xb2\xa1": ("<", 1000),
    b"\x4d\x3c\xb2\xa1": ("<", 1),
    b"\xa1\xb2\xc3\xd4": (">", 1000),
    b"\xa1\xb2\x3c\x4d": (">", 1),
}
"""Byte order, and ns in the unit of the second time field, by magic number."""


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
        self.count = self.cut_packets = 0
        """Packets that were read, and those of them that the snap length has cut."""
        self.longest_cut_bytes = 0
        """About the snap length."""
        self._blocks = pcapng.Blocks(self._exactly, self._count_cut)
        self._fault: str | None = None

    def __enter__(self) -> PacketFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._source.close()

    @property
    def begins_as_packets(self) -> bool:
        return self._source.peek(4)[:4] in (*_PCAP, pcapng.SECTION)

    @property
    def has_secrets(self) -> bool:
        """It has keys of TLS."""
        return self._blocks.has_secrets

    @property
    def problems(self) -> list[str]:
        """What of the file is damaged or missing."""
        found = []
        if self.cut_packets:
            size = f"packets are cut, to {self.longest_cut_bytes:,} bytes at most"
            found.append(f"{self.cut_packets:,} {size}. Capture them whole, such as by tcpdump -s 0")
        if self._blocks.damaged:
            found.append(f"{self._blocks.damaged:,} blocks are damaged")
        if self._fault is not None:
            found.append(f"the rest of the file cannot be read: {self._fault}, after {self.count:,} packets")
        return found

    def packets(self) -> Iterator[Packet]:
        try:
            for packet in self._packets():
                yield packet
                self.count += 1
        except Fault as e:
            self._fault = self._input.problem or str(e)
        else:
            self._fault = self._input.problem

    def _packets(self) -> Iterator[Packet]:
        magic = self._exactly(4)
        if magic in _PCAP:
            yield from self._pcap(*_PCAP[magic])
        elif magic == pcapng.SECTION:
            yield from self._blocks.packets()
        else:
            raise Fault("it is neither pcap nor pcapng")

    def _exactly(self, size: int, *, may_end: bool = False) -> bytes:
        """Read this many bytes. b"" at the end of the file, if it may end here."""
        data = self._source.read(size)
        if len(data) < size and (data or not may_end):
            raise Fault("it is cut off")
        return data

    def _pcap(self, order: str, unit_ns: int) -> Iterator[Packet]:
        # The upper bits have the length of the frame check sequence.
        link = struct.unpack(order + "16xI", self._exactly(20))[0] & 0xFFFF
        header = struct.Struct(order + "IIII")
        while head := self._exactly(header.size, may_end=True):
            seconds, fraction, size, original = header.unpack(head)
            if size > MAX_PACKET_BYTES:
                raise Fault(f"a packet has {size:,} bytes")
            data = self._exactly(size)
            if size < original:
                self._count_cut(size)
            yield seconds * 1_000_000_000 + fraction * unit_ns, link, data

    def _count_cut(self, size: int) -> None:
        self.cut_packets += 1
        self.longest_cut_bytes = max(self.longest_cut_bytes, size)
