"""Find TCP in a packet: link layer, IPv4 and IPv6. Pure.

Read here and not by a library: a generic parser makes an object for each layer, which costs more time than everything else that is
done with a packet.
"""

from __future__ import annotations

import socket
import struct
from typing import NamedTuple

_ETHERNET, _COOKED, _COOKED_2, RAW_IP = 1, 113, 276, 101
_HEADER_BYTES = {
    0: 4, 108: 4,  # BSD loopback
    12: 0, 14: 0, RAW_IP: 0, 228: 0, 229: 0,
    _COOKED: 16, _COOKED_2: 20,
}  # fmt: skip
"""Bytes before the IP header by link type, without Ethernet."""
_VLAN_TAGS = (0x8100, 0x88A8, 0x9100)
_TCP = 6
_EXTENSIONS = (0, 43, 60)  # of IPv6: hop-by-hop options, routing, destination options
_TCP_HEADER = struct.Struct(">IIHH")
FIN, SYN, RST, ACK = 0x01, 0x02, 0x04, 0x10


class Segment(NamedTuple):
    """One TCP packet."""

    source: bytes
    """Addresses and ports, with those of the sender first."""
    seq: int
    ack: int
    flags: int
    window: int
    payload: bytes


def tcp_segment(link: int, data: bytes) -> Segment | None:
    """The TCP segment of a packet. None: it has none, is a fragment, or its headers are cut off."""
    try:
        at = _HEADER_BYTES.get(link, -1)
        if link == _ETHERNET:
            at, kind = 14, data[12] << 8 | data[13]
            while kind in _VLAN_TAGS:
                kind = data[at + 2] << 8 | data[at + 3]
                at += 4
        if at < 0:
            return None
        version = data[at] >> 4
        if version == 4:
            if data[at + 9] != _TCP or data[at + 6] & 0x3F or data[at + 7]:
                return None
            size = data[at + 2] << 8 | data[at + 3]
            start, addresses = at + 4 * (data[at] & 0x0F), data[at + 12 : at + 20]
        elif version == 6:
            start, kind = at + 40, data[at + 6]
            while kind in _EXTENSIONS:
                kind, start = data[start], start + 8 * (data[start + 1] + 1)
            if kind != _TCP:
                return None
            size = data[at + 4] << 8 | data[at + 5]
            size, addresses = size + 40 if size else 0, data[at + 8 : at + 40]
        else:
            return None
        seq, ack, flags, window = _TCP_HEADER.unpack_from(data, start + 4)
        header_bytes = flags >> 12 << 2
        if header_bytes < 20:
            return None
        # Without a size, the kernel has joined packets to one of more than 64 KiB. Ethernet pads short packets.
        payload = data[start + header_bytes : at + size if size else len(data)]
        return Segment(addresses + data[start : start + 4], seq, ack, flags, window, payload)
    except (IndexError, struct.error):
        return None


def opposite(source: bytes) -> bytes:
    """The addresses and ports of the other direction."""
    size = (len(source) - 4) // 2
    return source[size : 2 * size] + source[:size] + source[-2:] + source[-4:-2]


def address(source: bytes) -> tuple[str, int]:
    """Address and port of the sender."""
    size = (len(source) - 4) // 2
    family = socket.AF_INET if size == 4 else socket.AF_INET6
    return socket.inet_ntop(family, source[:size]), int.from_bytes(source[-4:-2])
