"""The blocks of pcapng (draft-ietf-opsawg-pcapng): sections, interfaces, packets. Times are in ns since 1970."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol

UNTIMED_NS = -1
"""Time of a packet that has none."""
SECTION = b"\x0a\x0d\x0d\x0a"
_MAX_BLOCK_BYTES = 2**24
_ORDERS = {b"\x4d\x3c\x2b\x1a": "<", b"\x1a\x2b\x3c\x4d": ">"}
_INTERFACE, _SIMPLE_PACKET, _SECRETS = 1, 3, 10
_PACKETS = {6: "5I", 2: "H2x4I"}
"""Number of the interface, time, size and original size, by the type of a block."""
_PACKET_AT = 20
_RESOLUTION, _OFFSET = 9, 14  # options of an interface
_BINARY = 0x80


Packet = tuple[int, int, bytes]
"""Time in ns, link type (https://www.tcpdump.org/linktypes.html), bytes."""


class Fault(Exception):
    """The rest of the file cannot be read."""


class Exactly(Protocol):
    def __call__(self, size: int, *, may_end: bool = False) -> bytes:
        """Read this many bytes. b"" at the end of the file, if it may end here. Raises Fault."""


class _Interface(NamedTuple):
    link: int
    units_per_s: int
    offset_ns: int

    def at_ns(self, high: int, low: int) -> int:
        return (high << 32 | low) * 1_000_000_000 // self.units_per_s + self.offset_ns


_UNKNOWN = _Interface(-1, 1, 0)


class Blocks:
    """Those of one file, after its first four bytes."""

    def __init__(self, exactly: Exactly, count_cut: Callable[[int], object]) -> None:
        """`count_cut` takes the size of a packet that the snap length has cut."""
        self._exactly, self._count_cut = exactly, count_cut
        self.damaged = 0
        self.has_secrets = False
        """There are keys of TLS."""

    def packets(self) -> Iterator[Packet]:
        order, interfaces = "", list[_Interface]()
        kind = SECTION
        while kind:
            size, start = self._exactly(4), b""
            if kind == SECTION:
                start, interfaces = self._exactly(4), []
                if (order := _ORDERS.get(start, "")) == "":
                    raise Fault("a section has no byte order")
            number, size_bytes = struct.unpack(order + "II", kind + size)
            if size_bytes % 4 or not 12 <= size_bytes <= _MAX_BLOCK_BYTES:
                raise Fault(f"a block has {size_bytes:,} bytes")
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
            self.damaged += is_damaged
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
