"""One run of everything under steady traffic: simulator, tap, ship, analytics as processes; the clients in this one.

Rules
 1. Faults come while streams are open. What the test waits for is progress (requests done, rows, pids), never time.
 2. The end is the same for all: traffic stops, the log is read to its end, the simulator's ledger is held against
    `streams`, and `streamgauge status` must reconcile with nothing in flight.
 3. Two busy cores: times are held to what physics forbids (nothing earlier than it was sent), not to how late they may be.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from analytics.query.errors import QueryError
from ingest.record_log.kafka_reader import KafkaReader
from streamgauge.simulator.ledger import LedgerRow
from streamgauge.simulator.measured_streams import streams_since
from streamgauge.simulator.measurement_check import Bounds, Discrepancy, check_measurements
from streamgauge.simulator.remote_ledger import RemoteLedger
from streamgauge.simulator.traffic import ClientRow, Traffic, TrafficOptions
from streamgauge.status import pipeline_status
from tests.e2e.running import Up, simulator, until, up
from tests.ports import free_port
from tests.tables import tables

BOUNDS = Bounds(
    ttft_each_ns=60 * 10**9, ttft_median_ns=30 * 10**9, span_each_ns=60 * 10**9, span_median_ns=30 * 10**9
)
LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)


@dataclass
class Run:
    """A pipeline under load, and what is known of it."""

    running: Up
    upstream: str
    traffic: Traffic
    ledger: RemoteLedger
    kafka: str | None = None
    topic: str = ""
    kills_ns: list[int] = field(default_factory=list)
    """When the tap was killed (CLOCK_MONOTONIC)."""
    bursts: list[ClientRow] = field(default_factory=list)
    """What the clients of `send` saw."""
    _stop: Callable[[], None] = lambda: None

    @property
    def data(self) -> Path:
        return self.running.data

    def pid(self, part: str) -> int | None:
        try:
            return int(self.running.part(part)["pid"])
        except (OSError, ValueError):
            return None

    def kill(self, part: str, *, number: int = signal.SIGKILL) -> None:
        """kill -9 a part, and wait until `up` has it ready again."""
        pid = self.pid(part)
        assert pid is not None, f"{part} is not running"
        if part == "tap":
            self.kills_ns.append(time.monotonic_ns())
        os.kill(pid, number)
        self.back(part, pid)

    def back(self, part: str, former: int | None) -> None:
        until(lambda: self.pid(part) not in (None, former), f"{part} to be back\n{self.log_tail()}")

    def more(self, requests: int) -> None:
        """Wait until so many more requests are done."""
        goal = self.done + requests
        until(
            lambda: self.done >= goal,
            f"{requests} more requests ({self.done} done, {self.traffic.sent} sent)",
        )

    def send(self, requests: int) -> None:
        """Send a burst of requests in addition to the steady traffic, and wait for the responses."""
        base = TrafficOptions(
            base_url=self.running.tap, run=f"burst-{time.monotonic_ns()}", concurrency=12, abort_share=0.0
        )
        burst = Traffic(base)
        asyncio.run(burst.send(requests))
        self.bursts += burst.rows.values()

    @property
    def done(self) -> int:
        return self.traffic.sent - self.traffic.open_requests

    def rows(self) -> int:
        try:
            return int(tables(self.data).query("SELECT count(*) FROM streams").item())
        except QueryError:
            return -1

    def tap_ledger(self) -> dict[str, int]:
        """The tap's own numbers, now."""
        with urllib.request.urlopen(f"{self.running.admin}/ledger", timeout=10) as answer:
            said: dict[str, int] = json.load(answer)
        return said

    def stop_traffic(self) -> None:
        self._stop()

    def log_tail(self) -> str:
        return self.running.log.read_text()[-5000:]

    def status(self) -> dict[str, Any]:
        """`streamgauge status`; an empty one while analytics is away."""
        try:
            return pipeline_status(self.data, (self.kafka, self.topic, {}) if self.kafka else None)
        except QueryError:
            return {}

    def settle(self, deadline_s: float = 90.0) -> dict[str, Any]:
        """Until nothing is in flight and the simulator has nothing under way; the last status."""
        last: dict[str, Any] = {}

        def settled() -> bool:
            nonlocal last
            self.ledger.refresh()
            if self.ledger.open_rows:
                return False
            last = self.status()
            return bool(last) and last["in_flight"] == 0 and last["log"]["unread_entries"] == 0

        try:
            until(settled, "everything to be stored", deadline_s)
        except AssertionError as e:
            raise AssertionError(f"{e}\n{json.dumps(last, indent=1)[:4000]}\n{self.log_tail()}") from None
        return last

    def check_measurements(self, *, may_lose: bool = False) -> dict[str, Any]:
        """The audit that every scenario ends in; the status."""
        self.stop_traffic()
        said = self.settle()
        streams = streams_since(tables(self.data), LONG_AGO)
        rows = self.ledger.rows()
        assert self.ledger.dropped == 0
        if may_lose:  # of what the tap took and could not tell any more
            known = {row.request_id for row in rows}
            streams = [s for s in streams if s["outcome"] != "tap_lost" or s["request_id"] in known]
        found = check_measurements(
            rows,
            streams,
            clients=[*self.traffic.rows.values(), *self.bursts],
            bounds=BOUNDS,
            tap_may_lose=may_lose,
        )
        assert not found, _told(found, rows, self.log_tail())
        assert len({s["stream_id"] for s in streams}) == len(streams)
        doubled = tables(self.data).query("SELECT count(*) - count(DISTINCT (stream_id, seq)) FROM events")
        assert doubled.item() == 0
        assert said["reconciles"], json.dumps(said, indent=1)
        if not may_lose:
            assert (said["lost"], said["tables"]["losses"]) == (0, 0), json.dumps(said, indent=1)
        assert len(rows) > 0
        return said


def _told(found: list[Discrepancy], rows: list[LedgerRow], log: str) -> str:
    lines = "\n".join(str(one) for one in found[:20])
    return f"{len(found)} discrepancies in {len(rows)} requests:\n{lines}\n{log}"


@contextmanager
def run(
    folder: Path,
    *argv: str,
    kafka: str | None = None,
    data: Path | None = None,
    rate_per_s: float = 12.0,
    faults: float = 0.05,
    time_scale: float = 0.3,
    environment: Mapping[str, str] | None = None,
) -> Iterator[Run]:
    """The pipeline with traffic flowing. The tap's port outlives its process."""
    port, topic = free_port(), f"chaos-{os.getpid()}-{time.monotonic_ns()}"
    more = ["--listen", f"127.0.0.1:{port}", *argv]
    if kafka is not None:
        more += ["--kafka", kafka, "--kafka-topic", topic]
    data = data or folder / "data"
    with (
        simulator(
            "--seed",
            "chaos",
            "--rate-faults",
            str(faults),
            "--time-scale",
            str(time_scale),
            "--ledger-rows",
            "100000",
        ) as upstream,
        up(f"sim={upstream}", data, *more, dashboard=False, **(environment or {})) as running,
        traffic_of(running.tap, rate_per_s) as (traffic, stop),
    ):
        yield Run(running, upstream, traffic, RemoteLedger(upstream), kafka, topic, _stop=stop)


@contextmanager
def traffic_of(url: str, rate_per_s: float) -> Iterator[tuple[Traffic, Callable[[], None]]]:
    """Steady traffic, and the function that ends it and waits for what is under way."""
    traffic = Traffic(TrafficOptions(base_url=url, rate_per_s=rate_per_s, concurrency=200))
    with _flowing(traffic) as stop:
        yield traffic, stop


@contextmanager
def _flowing(traffic: Traffic) -> Iterator[Callable[[], None]]:
    """Traffic in a thread until the function that is given is called (it waits for what is under way)."""
    loop = asyncio.new_event_loop()
    stop = asyncio.Event()
    failed: list[BaseException] = []

    def work() -> None:
        try:
            loop.run_until_complete(traffic.run(stop))
        except BaseException as e:
            failed.append(e)

    thread = threading.Thread(target=work)
    thread.start()

    def end() -> None:
        if thread.is_alive():
            loop.call_soon_threadsafe(stop.set)
            thread.join(150)
        assert not thread.is_alive(), "the clients did not end"
        assert not failed, failed

    try:
        yield end
    finally:
        end()
        loop.close()


def topic_read(run: Run) -> bool:
    """Whether analytics has read the topic to its end."""
    assert run.kafka is not None
    reader = KafkaReader(run.kafka, run.topic, {})
    try:
        until(lambda: reader.partitions() or None, "the topic")
        ends = {p: reader.end(p) for p in reader.partitions()}
        log_id = reader.log_id
    finally:
        reader.close()
    found = tables(run.data).query(f"SELECT partition, high FROM log_positions WHERE log_id = '{log_id}'")
    high = dict(found.iter_rows())
    return all(high.get(p, 0) >= end for p, end in ends.items())


def wipe(folder: Path) -> None:
    """What a broker holds, not its address."""
    shutil.rmtree(folder / "topics")
