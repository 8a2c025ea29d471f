"""Measure a Kafka outage: growth of the local log, memory of each process, and the time to catch up.

`python -m bench outage [--seconds 180] [--rate 5000]`

Real processes (`up --kafka` and the broker of deploy/kafka), with 100 concurrent simulated chat streams through the tap. The
broker is stopped before the traffic begins and started when it ends. Then all events must arrive: the tables are compared
with the simulator's count. Needs Java and Maven for the broker.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import tempfile
import threading
import time
from pathlib import Path

from streamgauge.analytics.query.query_errors import QueryError
from streamgauge.analytics.query.reader import Reader
from streamgauge.analytics.storage.location import locate
from streamgauge.ingest.record_log.segments import log_bytes
from streamgauge.simulator.ledger import RemoteLedger
from tests.e2e.running import Up, simulator, up
from tests.kafka import Broker

STREAMS = 100
TOKENS = 400
CATCH_UP_S = 600.0
HOUR_EVENTS = 5_000 * 3600


async def _stream(port: int, gap_ms: float, until_s: float, number: int) -> None:
    """One client, which requests one stream after another."""
    body = b'{"model": "m", "stream": true, "messages": [{"role": "user", "content": "x"}]}'
    forced = json.dumps({"tokens": TOKENS, "gap_ms": gap_ms, "ttft_ms": 5, "fault": "none"})
    while time.monotonic() < until_s:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        head = (
            f"POST /v1/chat/completions HTTP/1.1\r\nHost: bench\r\nConnection: close\r\nx-simulate: {forced}\r\n"
            f"x-request-id: outage-{number}-{time.monotonic_ns()}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        writer.write(head.encode() + body)
        with contextlib.suppress(OSError):
            while await reader.read(65_536):
                pass
        writer.close()


def _traffic(port: int, rate: float, seconds: float) -> None:
    gap_ms = STREAMS / rate * 1e3
    until_s = time.monotonic() + seconds

    async def run_clients() -> None:
        async with asyncio.TaskGroup() as group:
            for number in range(STREAMS):
                group.create_task(_stream(port, gap_ms, until_s, number))
                await asyncio.sleep(gap_ms / 1e3)

    asyncio.run(run_clients())


class _Memory:
    """Peak resident memory of each part, by sampling."""

    def __init__(self, running: Up, parts: tuple[str, ...]) -> None:
        self._pids = {part: int(running.part(part)["pid"]) for part in parts}
        self.idle = self._now()
        self.peak = dict(self.idle)

    def _now(self) -> dict[str, int]:
        page = os.sysconf("SC_PAGE_SIZE")
        return {
            part: int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * page
            for part, pid in self._pids.items()
        }

    def sample(self) -> None:
        self.peak = {part: max(self.peak[part], size) for part, size in self._now().items()}

    def summary(self) -> str:
        return ", ".join(
            f"{part} {size >> 20} MiB (idle {self.idle[part] >> 20})" for part, size in self.peak.items()
        )


def _number(data: Path, sql: str) -> int:
    """One number from the store; -1 when the store cannot be read."""
    try:
        with contextlib.closing(Reader(locate("sqlite", data), lock_down=False)) as reader:
            return int(reader.query(sql, 1, 20.0).item())
    except QueryError:
        return -1


def _stored(data: Path) -> int:
    return _number(data, "SELECT coalesce(sum(event_count), 0)::BIGINT FROM streams")


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench outage", description=__doc__)
    parser.add_argument("--seconds", type=float, default=180.0)
    parser.add_argument("--rate", type=float, default=5_000.0, help="events per second")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        broker = Broker(Path(folder) / "kafka")
        try:
            address = broker.start()
            broker.stop()
            return _measure(Path(folder), broker, address, arguments.rate, arguments.seconds)
        finally:
            broker.stop()


def _measure(folder: Path, broker: Broker, address: str, rate: float, seconds: float) -> int:
    data = folder / "data"
    with (
        simulator("--seed", "outage", "--ledger-rows", "200000") as upstream,
        up(f"sim={upstream}", data, "--kafka", address) as running,
    ):
        memory = _Memory(running, ("tap", "ship", "analyze"))
        port = int(running.tap.rpartition(":")[2])
        began_s = time.monotonic()
        clients = threading.Thread(target=_traffic, args=(port, rate, seconds))
        clients.start()
        while clients.is_alive():
            clients.join(1.0)
            memory.sample()
        took_s = time.monotonic() - began_s
        time.sleep(1.0)  # until the last frames are in the log
        size = log_bytes(data / "log")
        ledger = RemoteLedger(upstream, keep_times_of=0)
        ledger.refresh()
        rows = ledger.rows()
        events, body = sum(r.events for r in rows), sum(r.body_bytes for r in rows)
        print(
            f"outage: {took_s:.0f} s, {len(rows)} streams, {events} events ({events / took_s:.0f}/s) of "
            f"{body / events:.0f} bytes; the log has {size / 2**20:.1f} MiB = {size / events:.1f} bytes per event"
        )
        print(f"an hour at 5,000 events/s: {HOUR_EVENTS * size / events / 2**30:.2f} GiB of the cap of 2 GiB")
        print(f"peak memory during the outage: {memory.summary()}", flush=True)
        memory.peak = memory._now()
        broker.start()
        began_s = time.monotonic()
        while _stored(data) < events and time.monotonic() - began_s < CATCH_UP_S:
            time.sleep(0.25)
            memory.sample()
        took_s = time.monotonic() - began_s
        stored = _stored(data)
        lost = _number(data, "SELECT count(*) FROM losses")
        print(
            f"caught up in {took_s:.1f} s ({events / took_s:.0f} events/s, including the broker's start): "
            f"{stored} of {events} events stored, {lost} losses"
        )
        print(f"peak memory while catching up: {memory.summary()}")
    return 0 if (stored, lost) == (events, 0) else 1
