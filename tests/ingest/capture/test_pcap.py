"""Capture files: formats, damage, and what is recorded of them."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from streamgauge.ingest.capture.packet_files import PacketFile
from streamgauge.ingest.capture.pcap import PcapReport, record_pcap
from streamgauge.ingest.capture.tcp_packets import tcp_segment
from streamgauge.ingest.http1.upstreams import parse_upstreams
from streamgauge.ingest.record_log.embedded_reader import EmbeddedReader
from streamgauge.ingest.records import Closed, Opened, unpack
from tests.ingest.capture.packets import START_NS, Sent, Talk, pcap
from tests.ingest.capture.test_exchanges import BODY, GET, PLAIN, REQUEST
from tests.ingest.running_tap import END, SSE_HEAD, chunk
from tests.options import tap_options

PACKETS = (
    Talk()
    .open()
    .client(REQUEST + BODY)
    .server(SSE_HEAD + chunk(b"data: 1\n\n") + END)
    .client(GET)
    .server(PLAIN)
    .close()
    .packets
)


def block(kind: int, body: bytes, order: str = "<") -> bytes:
    body += bytes(-len(body) % 4)
    size = struct.pack(order + "I", len(body) + 12)
    return struct.pack(order + "I", kind) + size + body + size


def pcapng(packets: list[Sent], order: str = "<") -> bytes:
    """Two interfaces with different times and links, of which the second has the packets, and a block that is not known."""
    section = block(0x0A0D0D0A, struct.pack(order + "IHHq", 0x1A2B3C4D, 1, 0, -1), order)
    first = block(1, struct.pack(order + "HHI", 1, 0, 0), order)
    options = struct.pack(order + "HHBxxxHHqHH", 9, 1, 9, 14, 8, 1, 0, 0)  # ns, after 1 s
    second = block(1, struct.pack(order + "HHI", 101, 0, 0) + options, order)
    parts = [section, first, second, block(0xBAD, b"x", order)]
    for packet in packets:
        high, low = divmod(packet.at_ns - 1_000_000_000, 2**32)
        size = len(packet.data)
        parts.append(block(6, struct.pack(order + "IIIII", 1, high, low, size, size) + packet.data, order))
    return b"".join(parts)


FORMATS = {
    "pcap": pcap(PACKETS),
    "pcapng": pcapng(PACKETS),
    "big endian": pcapng(PACKETS, ">"),
    "two sections": pcapng(PACKETS[:5]) + pcapng(PACKETS[5:], ">"),
    "gzip": gzip.compress(pcap(PACKETS)),
    "zstd": zstandard.compress(pcapng(PACKETS)),
}


def packets_of(path: Path, content: bytes) -> tuple[list[Sent], str]:
    path.write_bytes(content)
    with PacketFile(path) as file:
        return [Sent(at_ns, data) for at_ns, _, data in file.packets()], "; ".join(file.problems)


@pytest.mark.parametrize("name", FORMATS)
def test_formats_of_files_have_the_same_packets(tmp_path: Path, name: str):
    assert packets_of(tmp_path / "file", FORMATS[name]) == (PACKETS, "")


def test_times_in_microseconds(tmp_path: Path):
    content = struct.pack(">IHHiIIIIIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, 1, 5, 7, 1, 1) + b"x"
    assert packets_of(tmp_path / "file", content) == ([Sent(5_000_007_000, b"x")], "")


@pytest.mark.parametrize("name", FORMATS)
def test_file_that_is_cut_off_keeps_what_could_be_read(tmp_path: Path, name: str):
    found, problem = packets_of(tmp_path / "file", FORMATS[name][:-60])
    assert found == PACKETS[: len(found)]
    assert len(found) < len(PACKETS)
    assert f"after {len(found)} packets" in problem
    assert "\n" not in problem


def test_times_in_powers_of_two(tmp_path: Path):
    section = block(0x0A0D0D0A, struct.pack("<IHHq", 0x1A2B3C4D, 1, 0, -1))
    interface = block(1, struct.pack("<HHIHHBxxx", 101, 0, 0, 9, 1, 0x8A))  # 2**-10 s
    packet = block(6, struct.pack("<IIIII", 0, 0, 1536, 1, 1) + b"x")
    assert packets_of(tmp_path / "file", section + interface + packet) == ([Sent(1_500_000_000, b"x")], "")


def test_other_file_is_no_capture(tmp_path: Path):
    assert packets_of(tmp_path / "file", b"PK\x03\x04 and more") == (
        [],
        "the rest of the file cannot be read: it is neither pcap nor pcapng, after 0 packets",
    )


@settings(max_examples=150, deadline=None)
@given(
    name=st.sampled_from(sorted(FORMATS)), at=st.integers(0, 3000), data=st.binary(min_size=1, max_size=12)
)
def test_damaged_files_never_raise(
    tmp_path_factory: pytest.TempPathFactory, name: str, at: int, data: bytes
) -> None:
    content = FORMATS[name]
    at %= len(content)
    _, problem = packets_of(
        tmp_path_factory.getbasetemp() / "damaged", content[:at] + data + content[at + len(data) :]
    )
    assert "\n" not in problem


ADDRESSES_6 = bytes(15) + b"\1" + bytes(15) + b"\2"
TCP = struct.pack(">HHIIHHHH", 1, 2, 3, 4, 5 << 12 | 0x10, 6, 0, 0) + b"data"
IP_4 = PACKETS[3].data
IP_6 = struct.pack(">IHBB", 6 << 28, len(TCP), 6, 64) + ADDRESSES_6 + TCP
IP_6_OPTIONS = struct.pack(">IHBB", 6 << 28, len(TCP) + 8, 0, 64) + ADDRESSES_6 + b"\x06\0" + bytes(6) + TCP


PPPOE = b"\x11\0\0\x01" + struct.pack(">H", len(IP_4) + 2)


@pytest.mark.parametrize(
    ("link", "header"),
    [
        (1, bytes(12) + b"\x08\0"),
        (1, bytes(12) + b"\x81\0\0\x05\x08\0"),
        (1, bytes(12) + b"\x88\xa8\0\x05\x81\0\0\x05\x08\0"),
        (1, bytes(12) + b"\x88\x64" + PPPOE + b"\0\x21"),
        (1, bytes(12) + b"\x81\0\0\x05\x88\x64" + PPPOE + b"\0\x21"),
        (1, bytes(12) + b"\x88\x47" + b"\0\x01\0\x40" + b"\0\x02\x01\x40"),
        (0, b"\x02\0\0\0"),
        (101, b""),
        (9, b"\xff\x03\0\x21"),
        (9, b"\x21"),
        (50, b"\xff\x03\0\x21"),
        (51, PPPOE + b"\0\x21"),
        (104, b"\x0f\0\x08\0"),
        (109, bytes(12)),
        (242, b"\x08\0\0\0"),
        (258, struct.pack("<III", 16, 1, 0) + bytes(4) + b"\x02\0\0\0"),
        (113, bytes(14) + b"\x08\0"),
        (113, bytes(14) + b"\x81\0\0\x2a\x08\0"),
        (113, bytes(14) + b"\x88\xa8\0\x05\x81\0\0\x05\x08\0"),
        (113, bytes(14) + b"\x88\x64" + PPPOE + b"\0\x21"),
        (276, b"\x08\0" + bytes(18)),
        (276, b"\x81\0" + bytes(18) + b"\0\x2a\x08\0"),
        (276, b"\x88\x64" + bytes(18) + PPPOE + b"\0\x21"),
    ],
)
def test_link_types(link: int, header: bytes):
    expected = tcp_segment(101, IP_4)
    assert not isinstance(expected, str)
    assert tcp_segment(link, header + IP_4 + bytes(4)) == expected  # Ethernet pads
    assert tcp_segment(link, header + IP_4[:30]) == "packets_cut_off"


@pytest.mark.parametrize("link", [-1, 105, 239, 258])
def test_other_link_types_are_not_read(link: int):
    packet = struct.pack("<III", 12, 1, 258) + IP_4  # PKTAP within PKTAP
    assert tcp_segment(link, packet) == "packets_unknown_link"


@pytest.mark.parametrize("data", [IP_6, IP_6_OPTIONS, IP_6 + b"trailer"])
def test_ipv6(data: bytes):
    segment = tcp_segment(101, data)
    assert not isinstance(segment, str)
    assert segment.payload == b"data"
    assert segment.source == ADDRESSES_6 + b"\0\1\0\2"


def test_udp_and_fragments_are_no_segments():
    udp, fragment, fragment_6 = bytearray(IP_4), bytearray(IP_4), bytearray(IP_6)
    udp[9], fragment[6], fragment_6[6] = 17, 0x20, 44
    assert tcp_segment(101, bytes(udp)) == "packets_not_tcp"
    assert tcp_segment(1, bytes(12) + b"\x08\x06\0\x01\x08\0") == "packets_not_tcp"  # ARP
    assert {tcp_segment(101, bytes(one)) for one in (fragment, fragment_6)} == {"packets_fragmented"}


SECTION = block(0x0A0D0D0A, struct.pack("<IHHq", 0x1A2B3C4D, 1, 0, -1))
ONE = struct.pack("<IIIII", 0, 0, 7, 1, 1) + b"x"


def interface(link: int) -> bytes:
    return block(1, struct.pack("<HHI", link, 0, 0))


def test_each_interface_has_its_link_type(tmp_path: Path):
    path = tmp_path / "file"
    path.write_bytes(SECTION + interface(1) + interface(113) + block(6, ONE) + block(6, b"\x01" + ONE[1:]))
    with PacketFile(path) as file:
        assert [link for _, link, _ in file.packets()] == [1, 113]


def test_damaged_blocks_are_counted_and_the_others_are_read(tmp_path: Path):
    whole, expected = block(6, ONE), Sent(7_000, b"x")
    other_interface, too_long = (
        block(6, b"\x09" + ONE[1:]),
        block(6, ONE.replace(b"\1\0\0\0\1", b"\x99\0\0\0\1")),
    )
    for damaged in (other_interface, too_long):
        content = SECTION + interface(1) + damaged + whole
        assert packets_of(tmp_path / "file", content) == ([expected], "1 blocks are damaged")
    lengths_differ = SECTION + interface(1) + whole[:-4] + b"\x04\0\0\0" + whole
    assert packets_of(tmp_path / "file", lengths_differ) == ([expected] * 2, "1 blocks are damaged")
    # The packets of the next interface keep their link type.
    path = tmp_path / "file"
    path.write_bytes(SECTION + block(1, b"") + interface(113) + block(6, b"\x01" + ONE[1:]))
    with PacketFile(path) as file:
        assert [link for _, link, _ in file.packets()] == [113]
        assert file.problems == ["1 blocks are damaged"]
    _, problem = packets_of(tmp_path / "file", SECTION + interface(1) + whole + struct.pack("<II", 6, 7))
    assert "a block has 7 bytes, after 1 packets" in problem


def test_simple_packets_have_no_time(tmp_path: Path):
    content = SECTION + interface(1) + block(3, struct.pack("<I", 3) + b"abc")
    assert packets_of(tmp_path / "file", content) == ([Sent(-1, b"abc")], "")


def tls(client_port: int) -> list[Sent]:
    return Talk(client_port=client_port).open().client(b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03").packets


def cut(packets: list[Sent], size: int) -> bytes:
    head, rest = pcap(packets)[:24], b""
    for packet in packets:
        data = packet.data[:size]
        rest += struct.pack("<IIII", *divmod(packet.at_ns, 1_000_000_000), len(data), len(packet.data)) + data
    return head + rest


def datagrams(packets: list[Sent]) -> list[Sent]:
    return [Sent(at_ns, data[:9] + b"\x11" + data[10:]) for at_ns, data in packets]


@pytest.mark.parametrize(
    ("content", "ports", "lines"),
    [
        (pcap(PACKETS, link=239), [], [f"{len(PACKETS)} packets have the link type 239 (NFLOG), which is not read"]),
        (pcap(PACKETS, link=300), [], [f"{len(PACKETS)} packets have the link type 300 (unknown), which is not read"]),
        (pcap(datagrams(PACKETS)), [], [f"{len(PACKETS)} packets are not TCP over IP"]),
        (
            pcap(PACKETS), [1, 2],
            [f"{len(PACKETS)} packets are of other ports than the chosen ones", "The file has connections to 4000"],
        ),
        (pcap(tls(1) + tls(2)), [], ["2 connections are TLS"]),
        (SECTION + interface(101) + block(10, b"keys") + block(6, ONE.replace(b"x", b"E")), [], ["1 packets end", "has keys of TLS"]),
        (pcap(Talk().open().client(b"\0\1binary").packets), [], ["1 connections are not HTTP"]),
        (pcap(Talk().open().packets), [], ["1 connections have no request"]),
        (pcap(PACKETS[4:6]), [], ["2 packets are of connections whose beginning the file does not have"]),
        (SECTION + interface(101) + block(3, struct.pack("<I", len(IP_4)) + IP_4), [], ["1 packets have no time"]),
    ],
)  # fmt: skip
async def test_file_without_requests_says_why(
    tmp_path: Path, content: bytes, ports: list[int], lines: list[str]
):
    (tmp_path / "file").write_bytes(content)
    report = await record(tmp_path, ports)
    first, *found = report.lines
    assert first.startswith("0 requests in ")
    assert [line for line in found if not any(part in line for part in lines)] == []
    assert [part for part in lines if part not in "\n".join(found)] == []


async def test_first_line_says_what_is_cut_and_damaged(tmp_path: Path):
    (tmp_path / "file").write_bytes(cut(PACKETS, 60) + b"rest")
    report = await record(tmp_path, [])
    assert "packets are cut, to 60 bytes at most. Capture them whole" in report.lines[0]
    assert (
        f"the rest of the file cannot be read: it is cut off, after {len(PACKETS)} packets" in report.lines[0]
    )


async def record(tmp_path: Path, ports: list[int]) -> PcapReport:
    options = tap_options(upstreams=parse_upstreams(["http://localhost:1"]), data=tmp_path / "data")
    return await record_pcap(tmp_path / "file", options, lambda *step: None, ports)


async def test_file_becomes_records_in_the_log(tmp_path: Path):
    path = tmp_path / "file.pcap"
    secrets = [f"sk-{n:030x}" for n in range(200)]
    heads = [
        f"POST /v1/chat/completions?key={secret}&model=m HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {secret}\r\nCookie: a={secret}\r\n"
        f"x-api-key: {secret}\r\nx-{secret}: {secret}\r\n\r\n".encode()
        for secret in secrets
    ]
    talk = Talk().open()
    for head, secret in zip(heads, secrets, strict=True):
        talk.client(head).server(PLAIN.replace(b"\r\n\r\n", f"\r\nSet-Cookie: {secret}\r\n\r\n".encode()))
    path.write_bytes(pcap(talk.close().packets)[:-5])
    steps: list[tuple[int, int]] = []
    options = tap_options(upstreams=parse_upstreams(["http://localhost:1"]), data=tmp_path / "data")
    report = await record_pcap(path, options, lambda *step: steps.append(step))
    assert (report.streams, len(report.problems)) == (200, 1)
    assert steps[-1] == (path.stat().st_size, path.stat().st_size)
    reader = EmbeddedReader(tmp_path / "data" / "log", "test")
    records = [record for entry in reader.poll(1.0) for record in unpack(entry.payload)[0]]
    reader.close()
    assert sum(isinstance(record, Closed) for record in records) == 200
    assert {record.query_model for record in records if isinstance(record, Opened)} == {"m"}
    assert min(record.wall_ns for record in records if isinstance(record, Opened)) > START_NS
    text = repr(records)
    assert not [secret for secret in secrets if secret in text]
