"""One run of the demo: a simulated gateway, the whole of Streamgauge in front of it, and traffic to look at.

The simulator and `up` are processes of their own, as they would be in earnest; the clients are in this one. With
`--seconds` the demo is also a proof: what was measured is compared with what was simulated, request by request
(`simulator.audit`), and one disagreement makes the exit code 1. It stops in the order of the stream: clients, `up`,
simulator.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
import uvloop

from analytics.query.errors import QueryError
from analytics.query.query_pool import QueryPool
from analytics.storage.location import SQLITE, locate
from ingest.tap.options import split_address
from streamgauge.demo_progress import Progress, glance
from streamgauge.simulator.comparison_table import comparison_table
from streamgauge.simulator.ledger import LedgerRow
from streamgauge.simulator.measured_streams import streams_since
from streamgauge.simulator.measurement_check import (
    Discrepancy,
    check_measurements,
    report_discrepancies,
    ttft_overhead,
)
from streamgauge.simulator.remote_ledger import RemoteLedger
from streamgauge.simulator.traffic import Traffic, TrafficOptions

READY_TIMEOUT_S = 120.0
SETTLE_TIMEOUT_S = 60.0
"""How long the last streams may take from their end to `streams`: far above the usual second, for busy machines."""
STOP_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoOptions:
    """How the demo runs."""

    listen: str = "127.0.0.1:4100"
    admin: str = "127.0.0.1:4101"
    dashboard_port: int = 8501
    no_dashboard: bool = False
    simulator: str | None = None
    """HOST:PORT of the simulator; None = 127.0.0.1:4200, or any free port when that is taken."""
    data: Path | None = None
    """Data folder; None = a temporary one, removed at the end."""
    seconds: float | None = None
    seed: str | None = None
    rate_per_s: float = 6.0
    concurrency: int = 64
    rate_faults: float = 0.08
    time_scale: float = 1.0
    up_flags: tuple[str, ...] = ()
    """More flags for `streamgauge up`."""


@dataclass
class Demo:
    """One run of the demo."""

    options: DemoOptions
    say: Callable[[str], None] = click.echo
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    discrepancies: int = 0

    def run(self) -> int:
        """0 when all went well, 1 when something measured was not what was simulated, 2 when it could not start."""
        self._check_ports()
        temporary = self.options.data is None
        data = self.options.data or Path(tempfile.mkdtemp(prefix="streamgauge-demo-"))
        try:
            return uvloop.run(self._run(data))
        finally:
            self._stop_processes()
            if temporary and self.discrepancies:
                self.say(f"The data is kept in {data}")
            elif temporary:
                shutil.rmtree(data, ignore_errors=True)

    async def _run(self, data: Path) -> int:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stop.set)
        started_at = datetime.now(UTC)
        simulator_url, tap_url = await self._start(data, stop)
        if stop.is_set():
            return 0
        name = f"demo-{self.options.seed or uuid.uuid4().hex[:8]}"
        traffic = Traffic(
            TrafficOptions(
                base_url=tap_url,
                seed=self.options.seed or name,
                run=name,
                rate_per_s=self.options.rate_per_s,
                concurrency=self.options.concurrency,
                # Nobody compares an endless demo.
                max_rows=1_000_000 if self.options.seconds else 1_000,
            )
        )
        ledger = RemoteLedger(simulator_url)
        interrupted = await self._drive(traffic, ledger, stop, data)
        if self.options.seconds is None:
            return 0
        if interrupted:
            self.say("Interrupted: nothing was compared.")
            return 130
        return await self._compare(traffic, ledger, data, started_at)

    # start

    def _check_ports(self) -> None:
        """Find ports that are taken before anything starts. Raises OSError with the way out."""
        wanted = [
            ("the tap", self.options.listen, "--listen 127.0.0.1:PORT"),
            ("the tap's admin page", self.options.admin, "--admin 127.0.0.1:PORT"),
        ]
        if not self.options.no_dashboard:
            port = self.options.dashboard_port
            wanted.append(("the dashboard", f"127.0.0.1:{port}", "--dashboard-port PORT, or --no-dashboard"))
        for what, address, flag in wanted:
            if (reason := taken(address)) is not None:
                raise OSError(f"{address}, for {what}: {reason}. Choose another with {flag} (port 0: any)")

    async def _start(self, data: Path, stop: asyncio.Event) -> tuple[str, str]:
        run_dir = data / "run"
        try:
            run_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as e:
            raise OSError(
                f"cannot write to {data} ({e.strerror}): choose another folder with --data"
            ) from None
        address = self.options.simulator
        if address is None:
            address = "127.0.0.1:0" if taken("127.0.0.1:4200") else "127.0.0.1:4200"
        announced = run_dir / "simulator.json"
        announced.unlink(missing_ok=True)
        flags = [
            "--listen",
            address,
            "--announce",
            str(announced),
            "--rate-faults",
            str(self.options.rate_faults),
            "--time-scale",
            str(self.options.time_scale),
        ]
        if self.options.seed is not None:
            flags += ["--seed", self.options.seed]
        self._spawn("simulator", ["-m", "streamgauge", "simulate", *flags])
        simulator = await self._ready("simulator", announced, "simulator", stop)
        url = str(simulator.get("url"))
        options = self.options
        flags = [
            "--upstream", f"sim={url}", "--data", str(data), "--listen", options.listen, "--admin", options.admin,
            "--dashboard-port", str(options.dashboard_port),
            "--metrics", "127.0.0.1:0",  # a demo beside an instance in earnest must not take its port
            *(["--no-dashboard"] if options.no_dashboard else []), *options.up_flags,
        ]  # fmt: skip
        for part in ("tap", "analyze", "dashboard"):
            (run_dir / f"{part}.json").unlink(missing_ok=True)
        self._spawn("up", ["-m", "streamgauge", "up", *flags])
        tap = await self._ready("up", run_dir / "tap.json", "tap", stop)
        analyze = await self._ready("up", run_dir / "analyze.json", "analyze", stop)
        dashboard = {}
        if not options.no_dashboard:
            dashboard = await self._ready("up", run_dir / "dashboard.json", "dashboard", stop)
        if not stop.is_set():
            self._welcome(data, url, {"tap": tap, "analyze": analyze, "dashboard": dashboard})
        return url, str(tap.get("listen"))

    def _spawn(self, name: str, arguments: list[str]) -> None:
        environment = dict(os.environ, STREAMGAUGE_PARENT=str(os.getpid()))
        # The demo is told everything by flags: a configuration file for real use is not meant for it.
        environment["STREAMGAUGE_CONFIG"] = os.devnull
        # A process group of its own: Ctrl-C reaches the demo alone, which then stops everything in order.
        self.processes[name] = subprocess.Popen(
            [sys.executable, *arguments],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            process_group=0,
        )

    async def _ready(self, process: str, path: Path, part: str, stop: asyncio.Event) -> dict[str, Any]:
        """What a part says of itself, once it is ready; {} when the demo is told to stop first."""
        deadline_s = time.monotonic() + READY_TIMEOUT_S
        while not stop.is_set():
            if (said := _said(path)) is not None:
                return said
            code = self.processes[process].poll()
            if code is not None:
                # Its own line on stderr has said why.
                raise SystemExit(code if code > 0 else 1)
            if time.monotonic() > deadline_s:
                raise OSError(f"{part} was not ready after {READY_TIMEOUT_S:.0f} s")
            await asyncio.sleep(0.05)
        return {}

    def _welcome(self, data: Path, simulator: str, said: dict[str, dict[str, Any]]) -> None:
        tap, dashboard = said["tap"], said["dashboard"]
        self.say("")
        if dashboard:
            self.say(click.style(f"  Dashboard   {dashboard.get('url')}", bold=True))
        self.say(f"  Tap         {tap.get('listen')}   (your own client may come too: any key, models below)")
        self.say(f"  Metrics     {tap.get('admin')}/metrics   {said['analyze'].get('metrics')}")
        self.say(
            f"  Simulator   {simulator}   models: {simulator}/v1/models, truth: {simulator}/simulator/ledger"
        )
        self.say(
            f'  SQL         {_command()} sql --data {data} "SELECT outcome, count(*) FROM streams GROUP BY 1"'
        )
        self.say("  Ctrl-C      ends it" + ("" if self.options.data else ", and removes what it wrote"))
        self.say("")

    # traffic

    async def _drive(self, traffic: Traffic, ledger: RemoteLedger, stop: asyncio.Event, data: Path) -> bool:
        """Make traffic for as long as asked; whether it was interrupted."""
        ends_s = None if self.options.seconds is None else time.monotonic() + self.options.seconds
        enough = asyncio.Event()
        making = asyncio.create_task(traffic.run(enough))
        tables = QueryPool(locate(SQLITE, data), untrusted=False)
        progress = Progress(self.say)
        try:
            while not stop.is_set() and (ends_s is None or time.monotonic() < ends_s):
                if ends_s is not None:
                    await asyncio.to_thread(_refresh, ledger)
                if progress.due():
                    progress.show(traffic, await asyncio.to_thread(glance, tables), ends_s)
                self._check_alive()
                wait_s = 1.0 if ends_s is None else max(0.0, min(1.0, ends_s - time.monotonic()))
                try:
                    await asyncio.wait_for(stop.wait(), wait_s)
                except TimeoutError:
                    continue
            enough.set()
            if stop.is_set():
                await traffic.cancel()
            await making
        finally:
            progress.end()
            tables.close()
        return stop.is_set()

    def _check_alive(self) -> None:
        for name, process in self.processes.items():
            if (code := process.poll()) is not None:
                raise OSError(f"{name} ended unexpectedly with exit code {code}")

    # proof

    async def _compare(self, traffic: Traffic, ledger: RemoteLedger, data: Path, since: datetime) -> int:
        tables = QueryPool(locate(SQLITE, data), untrusted=False)
        try:
            streams = await self._settled(tables, ledger, since)
        finally:
            tables.close()
        rows = ledger.rows()
        # The median bound tells a systematic delay; it needs more than a handful, which `audit` sees to.
        found = check_measurements(rows, streams, clients=list(traffic.rows.values()))
        if ledger.dropped:
            found.append(
                Discrepancy(
                    kind="ledger", request_id="–", simulated=0, measured=ledger.dropped, note="rows dropped"
                )
            )
        self.discrepancies = len(found)
        self._report(traffic, rows, streams, found)
        return 1 if found else 0

    async def _settled(
        self, tables: QueryPool, ledger: RemoteLedger, since: datetime
    ) -> list[dict[str, Any]]:
        """The rows of `streams`, once there are as many as were simulated (or time is up)."""
        deadline_s = time.monotonic() + SETTLE_TIMEOUT_S
        while True:
            await asyncio.to_thread(ledger.refresh)
            wanted = {row.request_id for row in ledger.rows()}
            try:
                streams = await asyncio.to_thread(streams_since, tables, since)
            except QueryError as e:
                if time.monotonic() > deadline_s:
                    raise OSError(f"cannot read the measured streams: {e}") from None
                streams = []
            if not ledger.open_rows and wanted <= {stream["request_id"] for stream in streams}:
                # A doubled row would come with or after the first: one more look, a moment later.
                await asyncio.sleep(1.0)
                return await asyncio.to_thread(streams_since, tables, since)
            if time.monotonic() > deadline_s:
                return streams
            await asyncio.sleep(0.3)

    def _report(
        self, traffic: Traffic, rows: list[LedgerRow], streams: list[dict[str, Any]], found: list[Discrepancy]
    ) -> None:
        for line in comparison_table(rows, streams):
            self.say(line)
        faults = sum(row.fault_ns is not None for row in rows)
        self.say("")
        self.say(
            f"{len(rows)} requests simulated ({faults} met a fault, {traffic.aborted} clients left), "
            f"{len(streams)} streams measured, {sum(row.events for row in rows)} events."
        )
        if (late := ttft_overhead(rows, streams)) is not None:
            self.say(
                f"Measured TTFT is {late.median_ns / 1e6:.1f} ms above the simulated at the median, "
                f"{late.largest_ns / 1e6:.0f} ms at most: the way from the tap to the simulator and back, on this machine."
            )
        if found:
            report_discrepancies(found, write=self.say)
            said = "1 measurement is" if len(found) == 1 else f"{len(found)} measurements are"
            self.say(click.style(f"{said} not what was simulated.", fg="red"))
        else:
            self.say(
                click.style("Every stream was measured exactly once, and as it was simulated.", fg="green")
            )

    # stop

    def _stop_processes(self) -> None:
        for name in ("up", "simulator"):
            process = self.processes.get(name)
            if process is None or process.poll() is not None:
                continue
            process.terminate()
            try:
                process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self.say(f"{name} did not stop in {STOP_TIMEOUT_S:.0f} s and was killed")
                process.kill()
                process.wait()


def _command() -> str:
    """How whoever reads this calls `streamgauge`: after `make demo` it is in .venv, and not on the PATH."""
    here = Path(sys.executable).parent / "streamgauge"
    if shutil.which("streamgauge") or not here.exists():
        return "streamgauge"
    return str(here.relative_to(Path.cwd()) if here.is_relative_to(Path.cwd()) else here)


def _said(path: Path) -> dict[str, Any] | None:
    try:
        said: dict[str, Any] = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return said


def _refresh(ledger: RemoteLedger) -> None:
    try:
        ledger.refresh()
    except OSError:
        return  # the next look tells whether the simulator is gone


def taken(address: str) -> str | None:
    """Why an address cannot be had; None when it can."""
    host, port = split_address(address)
    if port == 0:
        return None
    try:
        family, kind, proto, _, target = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, proto) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(target)
    except OSError as e:
        return (e.strerror or str(e)).lower()
    return None
