"""Run the pipeline under steady traffic: simulator, tap, ship and analytics are processes, the clients run in this process.

Rules
 1. Faults are injected while streams are open. Tests wait for progress (requests done, rows, pids), never for a fixed time.
 2. Every run ends the same way: traffic stops, the log is read to its end, the simulator's ledger is compared with `streams`,
    and `streamgauge status` must reconcile with nothing in flight.
 3. The cores are busy, so the upper bounds of times are wide. The lower bounds are exact: nothing is earlier than it was sent.
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

from streamgauge.analytics.query.query_errors import QueryError
from streamgauge.commands.status import pipeline_status
from streamgauge.ingest.record_log.kafka_reader import KafkaReader
from streamgauge.settings.model import Settings
from streamgauge.simulator.ledger import LedgerRow, RemoteLedger
from streamgauge.simulator.measurement_check import Bounds, Discrepancy, check_measurements, streams_since
from streamgauge.simulator.traffic import ClientRow, Traffic, TrafficOptions
from tests.deadline import DEADLINE_S, until
from tests.e2e.running import Up, simulator, up
from tests.ports import free_port
from tests.tables import tables

BOUNDS = Bounds(
    ttft_each_ns=60 * 10**9, ttft_median_ns=30 * 10**9, span_each_ns=60 * 10**9, span_median_ns=30 * 10**9
)
LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)


@dataclass
class Run:
    """A running pipeline with its traffic and the simulator's ledger."""

    running: Up
    upstream: str
    traffic: Traffic
    ledger: RemoteLedger
    kafka: str | None = None
    topic: str = ""
    kills_ns: list[int] = field(default_factory=list)
    """When the tap was killed (CLOCK_MONOTONIC)."""
    bursts: list[ClientRow] = field(default_factory=list)
    """Results of the clients of `send`."""
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
        """Kill a part (with SIGKILL by default) and wait until `up` has restarted it."""
        pid = self.pid(part)
        assert pid is not None, f"{part} is not running"
        if part == "tap":
            self.kills_ns.append(time.monotonic_ns())
        os.kill(pid, number)
        self.wait_restarted(part, pid)

    def wait_restarted(self, part: str, former: int | None) -> None:
        until(lambda: self.pid(part) not in (None, former), f"{part} to restart\n{self.log_tail()}")

    def wait_for_requests(self, requests: int) -> None:
        """Wait until this many more requests are done."""
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
        """The tap's current counters."""
        with urllib.request.urlopen(f"{self.running.admin}/ledger", timeout=DEADLINE_S) as answer:
            counters: dict[str, int] = json.load(answer)
        return counters

    def stop_traffic(self) -> None:
        self._stop()

    def log_tail(self) -> str:
        return self.running.log.read_text()[-5000:]

    def status(self) -> dict[str, Any]:
        """`streamgauge status`; {} while analytics does not answer."""
        try:
            return pipeline_status(Settings(data=self.data, kafka=self.kafka, kafka_topic=self.topic))
        except QueryError:
            return {}

    def wait_until_stored(self, deadline_s: float = 90.0) -> dict[str, Any]:
        """Wait until nothing is in flight and the simulator has no open request. Returns the last status.

        The tap's heartbeats go on, so that few instants have no unread entry: those of the first instant are waited for.
        """
        last: dict[str, Any] = {}
        end: int | None = None

        def all_stored() -> bool:
            nonlocal last, end
            self.ledger.refresh()
            if self.ledger.open_rows:
                return False
            last = self.status()
            if not last or last["in_flight"]:
                return False
            read = sum(partition["high"] for partition in last["log"]["partitions"].values())
            if end is None:
                end = read + last["log"]["unread_entries"]
            return read >= end

        try:
            until(all_stored, "everything to be stored", deadline_s)
        except AssertionError as e:
            raise AssertionError(f"{e}\n{json.dumps(last, indent=1)[:4000]}\n{self.log_tail()}") from None
        return last

    def check_measurements(self, *, may_lose: bool = False) -> dict[str, Any]:
        """Check all stored measurements at the end of a scenario. Returns the status."""
        self.stop_traffic()
        status = self.wait_until_stored()
        streams = streams_since(tables(self.data), LONG_AGO)
        rows = self.ledger.rows()
        assert self.ledger.dropped == 0
        if may_lose:  # ignore lost streams without their request id
            known = {row.request_id for row in rows}
            streams = [s for s in streams if s["outcome"] != "tap_lost" or s["request_id"] in known]
        found = check_measurements(
            rows,
            streams,
            clients=[*self.traffic.rows.values(), *self.bursts],
            bounds=BOUNDS,
            tap_may_lose=may_lose,
        )
        assert not found, _report(found, rows, self.log_tail())
        assert len({s["stream_id"] for s in streams}) == len(streams)
        doubled = tables(self.data).query("SELECT count(*) - count(DISTINCT (stream_id, seq)) FROM events")
        assert doubled.item() == 0
        assert status["reconciles"], json.dumps(status, indent=1)
        if not may_lose:
            losses = tables(self.data).query("SELECT count(*) FROM losses WHERE stream_id IS NOT NULL").item()
            assert (status["lost"], losses) == (0, 0), json.dumps(status, indent=1)
        assert len(rows) > 0
        return status


def _report(found: list[Discrepancy], rows: list[LedgerRow], log: str) -> str:
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
    """Run the pipeline with steady traffic. A restarted tap keeps its port."""
    port, topic = free_port(), f"chaos-{os.getpid()}-{time.monotonic_ns()}"
    options = ["--listen", f"127.0.0.1:{port}", *argv]
    if kafka is not None:
        options += ["--kafka", kafka, "--kafka-topic", topic]
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
        up(f"sim={upstream}", data, *options, dashboard=False, **(environment or {})) as running,
        traffic_of(running.tap, rate_per_s) as (traffic, stop),
    ):
        yield Run(running, upstream, traffic, RemoteLedger(upstream), kafka, topic, _stop=stop)


@contextmanager
def traffic_of(url: str, rate_per_s: float) -> Iterator[tuple[Traffic, Callable[[], None]]]:
    """Steady traffic, and a function that stops it and waits for open requests."""
    traffic = Traffic(TrafficOptions(base_url=url, rate_per_s=rate_per_s, concurrency=200))
    with _flowing(traffic) as stop:
        yield traffic, stop


@contextmanager
def _flowing(traffic: Traffic) -> Iterator[Callable[[], None]]:
    """Run the traffic in a thread. Yields a function that stops it and waits for open requests."""
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
    """Delete the topics of a stopped broker. It keeps its address."""
    shutil.rmtree(folder / "topics")
