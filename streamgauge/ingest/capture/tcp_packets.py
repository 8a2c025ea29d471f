"""Find TCP in a packet: link layer, IPv4 and IPv6. Pure.

Read here and not by a library: a generic parser makes an object for each layer, which costs more time than everything else that is
done with a packet.
"""

from __future__ import annotations

import socket
import struct
from typing import Literal, NamedTuple

RAW_IP = 101
_HEADER_BYTES = {
    0: 4, 108: 4,  # BSD loopback
    109: 12,  # OpenBSD enc
    12: 0, 14: 0, RAW_IP: 0, 228: 0, 229: 0,
}  # fmt: skip
"""Bytes before the IP header by link type."""
_TYPED_HEADERS = {
    1: (12, 14),  # Ethernet
    104: (2, 4),  # Cisco HDLC
    113: (14, 16), 276: (0, 20),  # Linux cooked, versions 1 and 2
    138: (16, 18),  # Apple IP over IEEE 1394
    242: (0, 4),  # IP over InfiniBand
}  # fmt: skip
"""Position of the type of what follows, and bytes of the header, by link type. Tags of a VLAN and PPPoE may follow."""
_PPP, _PPPOE, _PKTAP = (9, 50), 51, 258
LINK_NAMES = {
    105: "IEEE 802.11", 117: "PFLOG", 119: "IEEE 802.11 with Prism", 127: "IEEE 802.11 with radiotap", 147: "USER0",
    163: "IEEE 802.11 with AVS", 187: "Bluetooth HCI", 189: "USB", 192: "PPI", 197: "ERF", 201: "Bluetooth HCI", 220: "USB", 227: "CAN",
    239: "NFLOG", 240: "NetAnalyzer", 249: "USBPcap", 251: "Bluetooth LE", 252: "Wireshark upper PDU", 253: "Netlink",
    254: "Bluetooth monitor", 258: "PKTAP", 266: "USB of macOS", 271: "VSOCK", 272: "Nordic BLE",
}  # fmt: skip
"""Names of link types that are not read (https://www.tcpdump.org/linktypes.html)."""
_VLAN_TAGS = (0x8100, 0x88A8, 0x9100, 0x9200)
_MPLS = (0x8847, 0x8848)
_PPPOE_SESSION = 0x8864
_PPP_HEADER = b"\xff\x03"
_TCP = 6
_EXTENSIONS = (0, 43, 60)  # of IPv6: hop-by-hop options, routing, destination options
_FRAGMENT = 44
_TCP_HEADER = struct.Struct(">IIHH")
FIN, SYN, RST, ACK = 0x01, 0x02, 0x04, 0x10

Unread = Literal["packets_unknown_link", "packets_not_tcp", "packets_fragmented", "packets_cut_off"]
"""Counter of a packet without a segment: its link type is not read, it has another protocol, is a fragment, or ends within a header."""


class Segment(NamedTuple):
    """One TCP packet."""

    source: bytes
    """Addresses and ports, with those of the sender first."""
    seq: int
    ack: int
    flags: int
    window: int
    payload: bytes


def tcp_segment(link: int, data: bytes) -> Segment | Unread:
    """The TCP segment of a packet, or why it has none."""
    try:
        at = _HEADER_BYTES.get(link, -1)
        if at < 0:
            if link == _PKTAP:
                size, _, link = struct.unpack_from("<III", data)
                return tcp_segment(link if link != _PKTAP else -1, data[size:])
            at = _ip_at(link, data)
            if at < 0:
                return "packets_unknown_link"
        version = data[at] >> 4
        if version == 4:
            if data[at + 9] != _TCP:
                return "packets_not_tcp"
            if data[at + 6] & 0x3F or data[at + 7]:
                return "packets_fragmented"
            size = data[at + 2] << 8 | data[at + 3]
            start, addresses = at + 4 * (data[at] & 0x0F), data[at + 12 : at + 20]
        elif version == 6:
            start, kind = at + 40, data[at + 6]
            while kind in _EXTENSIONS:
                kind, start = data[start], start + 8 * (data[start + 1] + 1)
            if kind != _TCP:
                return "packets_fragmented" if kind == _FRAGMENT else "packets_not_tcp"
            size = data[at + 4] << 8 | data[at + 5]
            size, addresses = size + 40 if size else 0, data[at + 8 : at + 40]
        else:
            return "packets_not_tcp"
        seq, ack, flags, window = _TCP_HEADER.unpack_from(data, start + 4)
        header_bytes = flags >> 12 << 2
        if header_bytes < 20:
            return "packets_not_tcp"
        # Without a size, the kernel has joined packets to one of more than 64 KiB. Ethernet pads short packets.
        payload = data[start + header_bytes : at + size if size else len(data)]
        return Segment(addresses + data[start : start + 4], seq, ack, flags, window, payload)
    except (IndexError, struct.error):
        return "packets_cut_off"


def _ip_at(link: int, data: bytes) -> int:
    """Where the IP header begins; -1: the link type is not known. Raises IndexError if the headers are cut off."""
    if link == _PPPOE:
        return _after_ppp(data, 6)
    if link in _PPP:
        return _after_ppp(data, 0)
    if link not in _TYPED_HEADERS:
        return -1
    type_at, at = _TYPED_HEADERS[link]
    kind = data[type_at] << 8 | data[type_at + 1]
    while kind in _VLAN_TAGS:
        kind = data[at + 2] << 8 | data[at + 3]
        at += 4
    if kind == _PPPOE_SESSION:
        return _after_ppp(data, at + 6)
    while kind in _MPLS:
        kind = 0 if data[at + 2] & 1 else kind  # the bottom of the stack
        at += 4
    return at


def _after_ppp(data: bytes, at: int) -> int:
    """Where a packet begins in PPP: after its address and control, and its protocol, which may have been compressed to an odd byte."""
    if data[at : at + 2] == _PPP_HEADER:
        at += 2
    return at + (1 if data[at] & 1 else 2)


def opposite(source: bytes) -> bytes:
    """The addresses and ports of the other direction."""
    size = (len(source) - 4) // 2
    return source[size : 2 * size] + source[:size] + source[-2:] + source[-4:-2]


def address(source: bytes) -> tuple[str, int]:
    """Address and port of the sender."""
    size = (len(source) - 4) // 2
    family = socket.AF_INET if size == 4 else socket.AF_INET6
    return socket.inet_ntop(family, source[:size]), int.from_bytes(source[-4:-2])
