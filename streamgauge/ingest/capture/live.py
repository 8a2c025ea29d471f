"""`streamgauge capture --interface`: record the exchanges that an interface carries, until SIGTERM or SIGINT.

DATA/run/capture.json exists while packets are captured, and has the counters of the last second. Packets that the kernel drops are a
fault for a minute; the streams that lack them are recorded as `tap_lost`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Sequence

from streamgauge.ingest.admin import Admin
from streamgauge.ingest.capture.packet_socket import BLOCKS, PacketSocket, drop_capability
from streamgauge.ingest.capture.pcap import NOTES
from streamgauge.ingest.capture.tcp_connections import Connections
from streamgauge.ingest.event_loop import reduce_gc, stop_on_signals
from streamgauge.ingest.listening import AllowedHosts, bind, join_address, split_address
from streamgauge.ingest.metrics import CAPTURE, Report
from streamgauge.ingest.ready_file import HEARTBEAT_S, remove_ready_file, report_progress, write_ready_file
from streamgauge.ingest.recording.options import RecordingOptions
from streamgauge.ingest.recording.recording import Recording
from streamgauge.ingest.recording.source import recording

logger = logging.getLogger("streamgauge.capture")

_BLOCKS_AT_ONCE = 4
"""Other tasks of the event loop run after these."""
_FAULT_S = 60.0


def run(
    options: RecordingOptions,
    interface: str,
    ports: Sequence[int],
    admin: str | None = None,
    allowed_hosts: Sequence[str] = (),
) -> int:
    """Returns 0. Raises OSError or ValueError, with one line, if the capture cannot start. `admin`, `allowed_hosts`: as those of a tap;
    None: no port."""
    source = PacketSocket(interface, ports)
    drop_capability()  # before any thread is started: each thread has its own capabilities
    reduce_gc()
    asyncio.run(_Capture(source, ports, allowed_hosts).run(options, admin))
    return 0


class _Capture:
    _connections: Connections  # set once recording has started

    def __init__(self, source: PacketSocket, ports: Sequence[int], allowed_hosts: Sequence[str]) -> None:
        self._source = source
        self._ports = ports
        self._allowed_hosts = allowed_hosts
        self._counters: dict[str, int] = {}
        self._drops_seen_s = 0.0
        self._noted: set[str] = set()
        self._stop = asyncio.Event()
        self._ready = False
        self._content: dict[str, object] = {"interface": source.interface}
        """Of the ready file, besides the counters."""

    async def run(self, options: RecordingOptions, admin: str | None) -> None:
        source, loop = self._source, asyncio.get_running_loop()
        async with recording(options, self._stats, wall_ns=None) as started:
            assert started.recorders is not None
            self._connections = Connections(started.recorders, self._ports)
            self._counters = self._connections.counters
            started.guards.check("packets", self._fault)
            server = await self._serve(started, admin) if admin is not None else None
            stop_on_signals(self._stop.set)
            loop.add_reader(source.socket, self._take)
            path = options.data / "run" / "capture.json"
            logger.info(
                "capturing on %s, ports: %s", source.interface, ", ".join(map(str, self._ports)) or "all"
            )
            self._ready = True
            guard = started.guards.guard("capture")
            try:
                while not self._stop.is_set():
                    guard.attempt(self._observe)
                    report_progress()
                    content = {**self._content, "faults": started.guards.faults(), **self._stats()}
                    guard.attempt(write_ready_file, path, content)
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(self._stop.wait(), HEARTBEAT_S)
            finally:
                loop.remove_reader(source.socket)
                if server is not None:
                    server.close()
                self._take(BLOCKS)
                self._connections.stop()
                remove_ready_file(path)
        source.close()

    def _take(self, blocks: int = _BLOCKS_AT_ONCE) -> None:
        for _ in range(blocks):
            if not self._source.take(self._connections.packet):
                break

    def _observe(self) -> None:
        """Count drops, end what is silent, and log what cannot be recorded, once."""
        dropped = self._source.dropped
        if self._source.count_drops() > dropped:
            self._drops_seen_s = time.monotonic()
        self._connections.sweep(time.monotonic_ns())
        for name, text in NOTES.items():
            if name not in self._noted and (count := self._counters[name]):
                self._noted.add(name)
                logger.warning("%s %s", count, text)

    def _fault(self) -> str | None:
        if not self._drops_seen_s or time.monotonic() - self._drops_seen_s > _FAULT_S:
            return None
        return (
            f"the kernel dropped {self._source.dropped} packets because this process was too slow. "
            "Capture fewer ports, or give it a CPU of its own"
        )

    def _stats(self) -> dict[str, int]:
        found = {**self._counters, "dropped": self._source.dropped}
        return {CAPTURE + name: value for name, value in found.items()}

    async def _serve(self, started: Recording, address: str) -> Admin:
        async def report() -> Report:
            return started.report()

        hosts = AllowedHosts(self._allowed_hosts, listen_host=split_address(address)[0])
        server = Admin(report, lambda: self._ready, started.guards.faults, hosts)
        sock = bind(address, flag="--admin")
        self._content["admin"] = f"http://{join_address(*sock.getsockname()[:2])}"
        await server.start(sock)
        return server
