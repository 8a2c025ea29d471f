"""Packets of a network interface: an AF_PACKET socket with a ring that the kernel fills (TPACKET_V3). Linux.

A ring and not `recv`: its size is not bounded by net.core.rmem_max, and one wake-up of this process takes many packets. Packets begin
with the IP header (SOCK_DGRAM), on interfaces of all kinds. Times are those of the kernel, in ns of CLOCK_MONOTONIC.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import socket
import struct
import sys
import time
from collections.abc import Callable, Sequence

from streamgauge.ingest.capture.tcp_packets import RAW_IP
from streamgauge.ingest.guards import system_error

_AF_PACKET, _SOL_PACKET = 17, 263
_RX_RING, _STATISTICS, _VERSION, _IGNORE_OUTGOING = 5, 6, 10, 23
_TPACKET_V3 = 2
_SO_ATTACH_FILTER = 26
_ETH_P_ALL = 3
_BLOCK_BYTES, BLOCKS = 2**19, 128
_BLOCK_MS = 40
"""The kernel hands over a block after this time, although it is not full: the ring then has packets of 5 s at least."""
_FRAME_BYTES = 2**11
_TO_KERNEL, _TO_USER = 0, 1
_STATUS_AT = 8
_STATUS = struct.Struct("=I")
_BLOCK = struct.Struct("=8xIII")  # status, number of packets, offset of the first one
# Offset of the next one, s, ns, captured bytes, …, offset of the IP header.
_PACKET = struct.Struct("=IIII8x2xH")
MAX_PORTS = 16
_CAP_NET_RAW = 13
_CAP_VERSION_3 = 0x20080522
_libc = ctypes.CDLL(None, use_errno=True)
GRANT = (
    "Run it as root, or grant CAP_NET_RAW: `setcap cap_net_raw+ep` on the Python program, "
    "or capabilities.add: [NET_RAW] in a Pod's securityContext."
)


_Instruction = tuple[int, int, int, int]
"""Code, instructions to skip if true and if false, value."""


def port_filter(ports: Sequence[int]) -> list[_Instruction]:
    """A classic BPF program that accepts TCP from and to these ports, or all TCP.

    Packets begin with the IP header. IPv6 with extension headers is not accepted.
    """
    load_byte, load_half, load_half_after_header, load_header_size = 0x30, 0x28, 0x48, 0xB1
    mask, equal, answer = 0x54, 0x15, 0x06
    accept, reject = (answer, 0, 0, 0xFFFFFFFF), (answer, 0, 0, 0)

    def of_tcp(protocol_at: int, load: int, port_at: int) -> list[_Instruction]:
        """Reads the rest of a packet whose ports are at this place."""
        program = [
            (load_byte, 0, 0, protocol_at),
            (equal, 1, 0, socket.IPPROTO_TCP),
            reject,
            (load_header_size, 0, 0, 0),
        ]
        for at in (port_at, port_at + 2) if ports else ():
            program.append((load, 0, 0, at))
            for port in ports:
                program += [(equal, 0, 1, port), accept]
        return [*program, reject if ports else accept]

    version_4, version_6 = of_tcp(9, load_half_after_header, 0), of_tcp(6, load_half, 40)
    return [
        (load_byte, 0, 0, 0), (mask, 0, 0, 0xF0), (equal, 0, len(version_4), 0x40), *version_4, (equal, 1, 0, 0x60), reject,
        *version_6,
    ]  # fmt: skip


def _check_system(interface: str) -> None:
    if sys.platform != "linux":
        raise OSError(
            f"cannot capture on {interface}: this needs Linux. Record packets with `tcpdump -w FILE` and read them with "
            "`streamgauge open FILE`, or send the traffic through the tap."
        )


class PacketSocket:
    """Receives the TCP packets of one interface. Not thread-safe."""

    def __init__(self, interface: str, ports: Sequence[int] = ()) -> None:
        """Raises OSError, with one line, if the interface does not exist or the privilege is missing."""
        if len(ports) > MAX_PORTS:
            raise ValueError(
                f"cannot capture {len(ports)} ports: the limit is {MAX_PORTS}. Leave out --port to capture all."
            )
        _check_system(interface)
        self.interface = interface
        self.dropped = 0
        """Packets that the kernel dropped since the start, because the ring was full."""
        self.offset_ns = time.time_ns() - time.monotonic_ns()
        """Unix time minus the packets' times."""
        self._block = 0
        # Without a protocol, nothing is received before the filter is set.
        try:
            self.socket = socket.socket(_AF_PACKET, socket.SOCK_DGRAM, 0)
        except PermissionError:
            raise PermissionError(f"cannot capture on {interface}: CAP_NET_RAW is missing. {GRANT}") from None
        try:
            self._ring = self._open(interface, ports)
        except OSError as e:
            self.socket.close()
            raise OSError(
                f"cannot capture on {interface}: {system_error(e) or e}. `ip link` lists the interfaces."
            ) from None

    def _open(self, interface: str, ports: Sequence[int]) -> mmap.mmap:
        sock = self.socket
        program = b"".join(struct.pack("=HBBI", *instruction) for instruction in port_filter(ports))
        buffer = ctypes.create_string_buffer(program)
        attached = struct.pack("@HP", len(program) // 8, ctypes.addressof(buffer))
        sock.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, attached)
        sock.setsockopt(_SOL_PACKET, _VERSION, _TPACKET_V3)
        frames = _BLOCK_BYTES * BLOCKS // _FRAME_BYTES
        ring = struct.pack("=IIIIIII", _BLOCK_BYTES, BLOCKS, _FRAME_BYTES, frames, _BLOCK_MS, 0, 0)
        sock.setsockopt(_SOL_PACKET, _RX_RING, ring)
        if interface == "lo":
            sock.setsockopt(_SOL_PACKET, _IGNORE_OUTGOING, 1)  # each packet is seen again when it comes in
        mapped = mmap.mmap(sock.fileno(), _BLOCK_BYTES * BLOCKS)
        if interface == "any":
            every = struct.pack("=HHiHBB8x", _AF_PACKET, socket.htons(_ETH_P_ALL), 0, 0, 0, 0)
            # `socket` knows no address without an interface.
            _check(_libc.bind(sock.fileno(), every, len(every)))
        else:
            sock.bind((interface, _ETH_P_ALL))
        return mapped

    def close(self) -> None:
        self._ring.close()
        self.socket.close()

    def take(self, use: Callable[[int, int, bytes], object]) -> bool:
        """Pass the packets of the next block to `use`: time in ns, link type, bytes. False: no block is ready."""
        ring, base = self._ring, self._block * _BLOCK_BYTES
        status, count, at = _BLOCK.unpack_from(ring, base)
        if not status & _TO_USER:
            return False
        at += base
        for _ in range(count):
            following, seconds, ns, size, start = _PACKET.unpack_from(ring, at)
            use(seconds * 1_000_000_000 + ns - self.offset_ns, RAW_IP, ring[at + start : at + start + size])
            at += following
        _STATUS.pack_into(ring, base + _STATUS_AT, _TO_KERNEL)
        self._block = (self._block + 1) % BLOCKS
        return True

    def count_drops(self) -> int:
        """Read the kernel's counter; returns `dropped`."""
        _, dropped, _ = struct.unpack("=III", self.socket.getsockopt(_SOL_PACKET, _STATISTICS, 12))
        self.dropped += dropped
        return self.dropped


def drop_capability() -> None:
    """Give up CAP_NET_RAW. Threads that are started later do not have it either. Raises OSError."""
    header, sets = struct.pack("=Ii", _CAP_VERSION_3, 0), ctypes.create_string_buffer(24)
    _check(_libc.capget(header, sets))
    keep = ~(1 << _CAP_NET_RAW) & 0xFFFFFFFF
    # Effective, permitted, inheritable; then the same for capabilities from 32 on.
    words = struct.unpack("=6I", sets.raw)
    _check(_libc.capset(header, struct.pack("=6I", *(word & keep for word in words[:3]), *words[3:])))


def _check(result: int) -> None:
    if result:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
