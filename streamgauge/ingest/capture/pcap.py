"""Record the exchanges in a capture file."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from streamgauge.ingest.capture.packet_files import PacketFile
from streamgauge.ingest.capture.tcp_connections import Connections
from streamgauge.ingest.capture.tcp_packets import LINK_NAMES
from streamgauge.ingest.recording.options import RecordingOptions
from streamgauge.ingest.recording.recorder import Recorders
from streamgauge.ingest.recording.source import NO_LIMIT_BYTES, QUEUED_BYTES, recording

_FLUSH_BYTES = 2**20


class PcapReport(NamedTuple):
    """What was read of a file."""

    streams: int
    """Recorded exchanges, with those that were lost."""
    counters: dict[str, int]
    """As `Connections.counters`."""
    problems: list[str]
    """What of the file is damaged or missing."""
    unread: list[str]
    """What was not recorded, and why. Of packets that are of no interest only if there was no request."""

    @property
    def lines(self) -> list[str]:
        """What was recorded and what is damaged, then a line for everything that was not recorded."""
        found = f"{_counted(self.streams, 'request')} in {_counted(self.counters['packets'], 'packet')}"
        return ["; ".join([found, *self.problems]), *self.unread]


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


NOTES = {
    "connections_tls": "connections are TLS, which packets do not show. Capture behind the proxy that ends TLS, or use the tap",
    "connections_http2": "connections are HTTP/2, which is not read. Use the tap, to which clients speak HTTP/1.1",
    "connections_other": "connections are not HTTP",
    "gaps": "gaps: packets are missing, and the streams with a gap are recorded as tap_lost",
    "segments_inconsistent": "packets repeat bytes of their connection with different content. The first content is recorded",
    "connections_evicted": "connections were dropped at the limit of memory, and their streams recorded as tap_lost",
}
"""What a capture could not record, and what to do, by the name of the counter."""
_WITHOUT_REQUEST = {
    "packets_not_tcp": "packets are not TCP over IP",
    "packets_other_ports": "packets are of other ports than the chosen ones",
    "packets_without_start": "packets are of connections whose beginning the file does not have",
    "connections_without_request": "connections have no request",
}
"""Why a file may have no request."""
_UNREAD = {
    "packets_fragmented": "packets are fragments, which are not joined",
    "packets_cut_off": "packets end within their headers",
    "packets_untimed": "packets have no time, such as simple packet blocks of pcapng: nothing can be measured",
}


def read_pcap(
    path: Path,
    recorders: Recorders,
    flush: Callable[[], object],
    progress: Callable[[int, int], object] | None = None,
    ports: Collection[int] = (),
) -> PcapReport:
    """Record the exchanges in a pcap or pcapng file. `recorders`: with times in ns since 1970. Needs a running event loop.

    `flush` waits until the log has taken enough. It is called after each MiB, and not at the end. `progress`: as that of `InputFile`.
    `ports`: of the servers to record; empty: all. What is wrong with the file is in the report. Raises OSError if it cannot be opened.
    """
    connections, counters = Connections(recorders, ports), recorders.buffer.counters
    opened, waiting_bytes = counters.streams_opened, 0
    with PacketFile(path, progress) as file:
        for at_ns, link, data in file.packets():
            connections.packet(at_ns, link, data)
            waiting_bytes += len(data)
            if waiting_bytes >= _FLUSH_BYTES:
                waiting_bytes = 0
                flush()
        connections.stop()
        streams = counters.streams_opened - opened
        return PcapReport(streams, connections.counters, file.problems, _unread(connections, file, streams))


def _unread(connections: Connections, file: PacketFile, streams: int) -> list[str]:
    counters, texts = connections.counters, {**NOTES, **_UNREAD, **({} if streams else _WITHOUT_REQUEST)}
    found = [
        f"{count:,} packets have the link type {link} ({LINK_NAMES.get(link, 'unknown')}), which is not read. Capture on another interface"
        for link, count in sorted(connections.unknown_links.items())
    ]
    found += [f"{counters[name]:,} {text}" for name, text in texts.items() if counters[name]]
    if file.has_secrets:
        found.append("the file has keys of TLS, which are not used")
    if not streams and connections.other_ports:
        seen = ", ".join(map(str, sorted(connections.other_ports)[:10]))
        found.append(f"no request to these ports. The file has connections to {seen}")
    return found


async def record_pcap(
    path: Path, options: RecordingOptions, progress: Callable[[int, int], object], ports: Collection[int] = ()
) -> PcapReport:
    """As `read_pcap`, into the log of `options.data`. Raises OSError also if the log cannot be written."""
    async with recording(replace(options, record_log_max_bytes=NO_LIMIT_BYTES)) as started:
        assert started.recorders is not None
        report = read_pcap(path, started.recorders, lambda: started.flush(QUEUED_BYTES), progress, ports)
        started.flush(0)
        return report
