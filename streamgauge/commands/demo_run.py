"""Run the demo: the simulator and `up` as child processes, clients in this process.

With `--seconds`, measured and simulated values are compared at the end (`simulator.measurement_check`); the exit code is 1 if
they differ. Stop order: clients, `up`, simulator.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import shutil
import signal
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import click
import uvloop

from streamgauge.analytics.query.query_errors import QueryError
from streamgauge.analytics.query.query_pool import QueryPool
from streamgauge.analytics.schema.outcomes import IS_ERROR
from streamgauge.analytics.storage.location import SQLITE, locate
from streamgauge.commands.background import Background
from streamgauge.ingest.keyed_ids import FILE, keyed_hash, load_client_key
from streamgauge.ingest.listening import bind
from streamgauge.ingest.private_files import prepare_data_folder
from streamgauge.simulator import agents, measurement_check
from streamgauge.simulator.incidents import INCIDENT_MODELS, INCIDENTS
from streamgauge.simulator.ledger import LedgerRow, RemoteLedger
from streamgauge.simulator.profiles import PROFILES
from streamgauge.simulator.router import port_of, start_router
from streamgauge.simulator.traffic import KEYS, ClientRow, Traffic, TrafficOptions

STORED_TIMEOUT_S = 60.0
"""Time limit for the last streams to be stored. It usually takes a second."""
MORE_OF_INCIDENT_MODELS = 8
"""Each model with incidents gets this many times more requests than others, so that an incident is clear after seconds."""
CLIENT_NAMES = {key: key.rpartition("-")[2] for key in (*KEYS, agents.KEY)}
"""API key → name."""
MOST_COMPARED = 10_000
"""Without --seconds, so many responses are compared, the newest."""
EDGE = timedelta(minutes=10)
"""How much earlier than the first of them their streams may have begun."""
LIMIT_OF_RATE = 41.0
"""The rate limit per minute, as a multiple of the requests per second. A client stays well below it, except in the incident
limit-nears, which uses most of it within its two minutes."""
GATEWAY, ROUTER = "sim", "router"
"""Names of the upstreams. The router sends its requests through the tap to the simulator, so each has two streams."""
ROUTED_SHARE = 0.08
"""Rate of requests through the router, as a multiple of the rate of the others."""
ROUTED_MODELS = ("qwen-sim-32b", "mistral-sim")
"""No model of an incident: the router would receive only a part of its streams."""
CONFIG = Path(__file__).with_name("demo.toml")
"""Labels, objectives and budgets of the demo."""
PRICES = Path(__file__).with_name("demo_prices.csv")


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoOptions:
    """Options of the demo. `streamgauge.commands.demo` has their defaults."""

    listen: str
    admin: str
    dashboard_listen: str
    no_dashboard: bool
    simulator: str | None
    """HOST:PORT of the simulator; None = 127.0.0.1:4200, or a free port if that is in use."""
    data: Path | None
    """Data folder; None = a temporary folder, removed at the end."""
    seconds: float | None
    seed: str | None
    rate_per_s: float
    concurrency: int
    agents: int
    """Coding agents."""
    rate_faults: float
    incident: str
    """Key of `INCIDENTS`, "all" or "none"."""
    incident_after_s: float
    incident_length_s: float
    time_scale: float
    up_flags: tuple[str, ...]
    """Additional flags of `streamgauge up`."""


@dataclass
class Demo:
    """One run of the demo."""

    options: DemoOptions
    write: Callable[[str], None] = click.echo
    discrepancies: int = 0

    def __post_init__(self) -> None:
        self.background = Background(self.write)
        self._tap_url = ""

    def run(self) -> int:
        """Run until stopped. Returns 0, or 1 if measured and simulated values differ. Raises OSError if it cannot start."""
        self._check_ports()  # before the folder exists, so that a failed start leaves nothing behind
        temporary = self.options.data is None
        data = self.options.data or Path(tempfile.mkdtemp(prefix="streamgauge-demo-"))
        try:
            return uvloop.run(self._run(data))
        finally:
            # `up` first: the tap drains streams that the simulator still sends.
            self.background.stop("up", "simulator")
            # The tables are needed to find out why a value differs.
            if temporary and self.discrepancies:
                self.write(f"Keeping the data folder {data}")
            elif temporary:
                shutil.rmtree(data, ignore_errors=True)

    async def _run(self, data: Path) -> int:
        stop, ends_at_once = asyncio.Event(), asyncio.Event()
        loop = asyncio.get_running_loop()

        def end_at_once() -> None:
            ends_at_once.set()
            stop.set()

        loop.add_signal_handler(signal.SIGINT, stop.set)
        loop.add_signal_handler(signal.SIGTERM, end_at_once)
        started_at = datetime.now(UTC)
        router = await start_router(lambda: f"{self._tap_url}/{GATEWAY}")
        simulator_url = await self._start(data, port_of(router), stop)
        if stop.is_set():
            return 0
        name = f"demo-{self.options.seed or uuid.uuid4().hex[:8]}"
        most_rows = 1_000_000 if self.options.seconds else MOST_COMPARED
        usual = TrafficOptions(
            base_url=f"{self._tap_url}/{GATEWAY}",
            seed=self.options.seed or name,
            run=name,
            rate_per_s=self.options.rate_per_s,
            models=(*PROFILES, *(INCIDENT_MODELS * MORE_OF_INCIDENT_MODELS)),
            socket_share=0.5,
            concurrency=self.options.concurrency,
            max_rows=most_rows,
        )
        traffic = Traffic(usual)
        routed = Traffic(
            replace(
                usual,
                base_url=f"{self._tap_url}/{ROUTER}",
                run=f"{name}-routed",
                rate_per_s=usual.rate_per_s * ROUTED_SHARE,
                models=ROUTED_MODELS,
                abort_share=0.0,
            )
        )
        ledger = RemoteLedger(simulator_url, most_rows=most_rows)
        interrupted = await self._drive(traffic, routed, ledger, stop, data)
        if ends_at_once.is_set():
            return 0
        if interrupted:
            self.write("Comparing measured with simulated values. Ctrl-C again skips it.")
        comparing = asyncio.create_task(self._compare([traffic, routed], ledger, data, started_at))
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, comparing.cancel)
        try:
            return await comparing
        except asyncio.CancelledError:
            self.write("Interrupted before the comparison.")
            return 130

    def _check_ports(self) -> None:
        """Raise OSError if a port is in use, before any process starts."""
        bind(self.options.listen, flag="--listen").close()
        bind(self.options.admin, flag="--admin").close()
        if not self.options.no_dashboard:
            bind(self.options.dashboard_listen, flag="--dashboard-listen, or pass --no-dashboard").close()

    async def _start(self, data: Path, router_port: int, stop: asyncio.Event) -> str:
        """Returns the URL of the simulator."""
        prepare_data_folder(data)
        simulator_url = await self._start_simulator(data / "run" / "simulator.json", stop)
        ready = await self._start_up(
            data, [f"{GATEWAY}={simulator_url}", f"{ROUTER}=http://127.0.0.1:{router_port}"], stop
        )
        self._tap_url = str(ready["tap"].get("listen"))
        if not stop.is_set():
            self._welcome(data, simulator_url, ready)
        return simulator_url

    async def _start_simulator(self, ready_file: Path, stop: asyncio.Event) -> str:
        address = self.options.simulator
        if address is None:
            address = "127.0.0.1:0"
            with contextlib.suppress(OSError):  # the usual port may be in use
                bind("127.0.0.1:4200").close()
                address = "127.0.0.1:4200"
        flags = [
            "--listen", address, "--announce", str(ready_file), "--rate-faults", str(self.options.rate_faults),
            "--time-scale", str(self.options.time_scale),
            "--rate-limit", str(max(60.0, LIMIT_OF_RATE * self.options.rate_per_s) / min(1.0, self.options.time_scale)),
        ]  # fmt: skip
        if self.options.seed is not None:
            flags += ["--seed", self.options.seed]
        self.background.spawn("simulator", ["simulate", *flags], [ready_file])
        return str((await self._ready("simulator", ready_file, stop)).get("url"))

    async def _start_up(
        self, data: Path, upstreams: list[str], stop: asyncio.Event
    ) -> dict[str, dict[str, Any]]:
        options = self.options
        flags = [
            *(word for upstream in upstreams for word in ("--upstream", upstream)),
            "--data", str(data), "--listen", options.listen, "--admin", options.admin,
            "--dashboard-listen", options.dashboard_listen,
            "--config", str(CONFIG), "--price-file", str(PRICES),
            "--metrics", "127.0.0.1:0",  # the default port may belong to another instance
            *_client_flags(data),
            *(["--no-dashboard"] if options.no_dashboard else []), *options.up_flags,
        ]  # fmt: skip
        parts = ["tap", "analyze", *([] if options.no_dashboard else ["dashboard"])]
        files = {part: data / "run" / f"{part}.json" for part in parts}
        self.background.spawn("up", ["up", *flags], files.values())
        return {part: await self._ready("up", file, stop) for part, file in files.items()}

    async def _ready(self, process: str, path: Path, stop: asyncio.Event) -> dict[str, Any]:
        """Wait for a ready file and return its content; {} if the demo is stopped first. Raises OSError for a part that fails."""
        while not stop.is_set():
            if (content := self.background.ready(process, path)) is not None:
                return content
            await asyncio.sleep(0.05)
        return {}

    def _welcome(self, data: Path, simulator: str, ready: dict[str, dict[str, Any]]) -> None:
        tap, dashboard = ready["tap"], ready.get("dashboard")
        self.write("")
        if dashboard:
            self.write(click.style(f"  Dashboard   {dashboard.get('url')}", bold=True))
        self.write(
            f"  Tap         {tap.get('listen')}   (accepts your own clients too: any key, models below)"
        )
        self.write(f"  Metrics     {tap.get('admin')}/metrics   {ready['analyze'].get('metrics')}")
        self.write(
            f"  Simulator   {simulator}   models: {simulator}/v1/models, ground truth: {simulator}/simulator/ledger"
        )
        self.write(
            f'  SQL         {_command()} sql --data {data} "SELECT outcome, count(*) FROM streams GROUP BY 1"'
        )
        removes = "" if self.options.data else ", and removes the data folder"
        self.write(f"  Ctrl-C      stops, and compares measured with simulated values{removes}")
        self.write("")

    async def _drive(
        self, traffic: Traffic, routed: Traffic, ledger: RemoteLedger, stop: asyncio.Event, data: Path
    ) -> bool:
        """Send traffic for `seconds`, or until stopped. Returns whether it was interrupted."""
        options = self.options
        ends_s = None if self.options.seconds is None else time.monotonic() + self.options.seconds
        traffic_ends = asyncio.Event()
        coding = agents.run_agents(traffic, options.agents, traffic_ends, time_scale=options.time_scale)
        sending = asyncio.gather(traffic.run(traffic_ends), routed.run(traffic_ends), coding)
        # Queries of the progress line run in another process: this one must send requests at their times.
        tables = QueryPool(locate(SQLITE, data), untrusted=False)
        progress = Progress(self.write)
        staging = asyncio.create_task(self._stage_incidents(traffic, progress))
        try:
            while not stop.is_set() and (ends_s is None or time.monotonic() < ends_s):
                # The simulator keeps a bounded number of rows, so they are fetched meanwhile.
                with contextlib.suppress(OSError):  # _check_alive reports a simulator that exited
                    await asyncio.to_thread(ledger.refresh)
                if progress.due():
                    progress.show([traffic, routed], await asyncio.to_thread(measured_text, tables), ends_s)
                self.background.check_alive()
                wait_s = 1.0 if ends_s is None else max(0.0, min(1.0, ends_s - time.monotonic()))
                try:
                    await asyncio.wait_for(stop.wait(), wait_s)
                except TimeoutError:
                    continue
            traffic_ends.set()
            if stop.is_set():
                await asyncio.gather(traffic.cancel(), routed.cancel())
            await sending
        finally:
            traffic_ends.set()  # an agent goes on after its request is cancelled
            staging.cancel()
            progress.end()
            tables.close()
        return stop.is_set()

    async def _stage_incidents(self, traffic: Traffic, progress: Progress) -> None:
        options = self.options
        kinds = {"all": list(INCIDENTS), "none": []}.get(options.incident, [options.incident])
        if not kinds:
            return
        await asyncio.sleep(options.incident_after_s)
        for kind in itertools.cycle(kinds):
            traffic.incident = incident = INCIDENTS[kind]
            place = f"{incident.dimension} {CLIENT_NAMES.get(incident.value, incident.value)}"
            progress.note(f"incident {kind} begins: {place}: {incident.text}")
            await asyncio.sleep(options.incident_length_s)
            traffic.incident = None
            progress.note(f"incident {kind} ends: {place}")
            await asyncio.sleep(options.incident_length_s)

    async def _compare(
        self, traffic: Sequence[Traffic], ledger: RemoteLedger, data: Path, since: datetime
    ) -> int:
        if ledger.forgotten:
            since = datetime.fromtimestamp(ledger.rows()[0].wall_ns / 1e9, UTC) - EDGE
        with contextlib.closing(QueryPool(locate(SQLITE, data), untrusted=False)) as tables:
            streams = await self._stored_streams(tables, ledger, since)
        rows = ledger.rows()
        if ledger.forgotten:
            # Of a WebSocket, the first answer may be forgotten.
            whole = {row.request_id for row in rows if not row.response_index}
            rows = [row for row in rows if row.request_id in whole]
            streams = [stream for stream in streams if stream["request_id"] in whole]
            self.write(f"Compared are the last {len(rows)} responses.")
        clients = [row for each in traffic for row in each.rows.values()]
        discrepancies = measurement_check.check_measurements(rows, streams, clients=clients)
        if ledger.dropped:
            discrepancies.append(
                measurement_check.Discrepancy(
                    kind="ledger", request_id="–", simulated=0, measured=ledger.dropped, note="rows evicted"
                )
            )
        self.discrepancies = len(discrepancies)
        self._report(traffic, clients, rows, streams, discrepancies)
        return 1 if discrepancies else 0

    async def _stored_streams(
        self, tables: QueryPool, ledger: RemoteLedger, since: datetime
    ) -> list[dict[str, Any]]:
        """The rows of `streams` when all simulated requests are stored, or after `STORED_TIMEOUT_S`."""
        deadline_s = time.monotonic() + STORED_TIMEOUT_S
        while True:
            await asyncio.to_thread(ledger.refresh)
            expected_ids = {row.request_id for row in ledger.rows()}
            try:
                streams = await asyncio.to_thread(measurement_check.streams_since, tables, since, GATEWAY)
            except QueryError as e:
                if time.monotonic() > deadline_s:
                    raise OSError(f"cannot read the measured streams: {e}") from None
                streams = []
            if not ledger.open_rows and expected_ids <= {stream["request_id"] for stream in streams}:
                # Wait for a possible duplicate row.
                await asyncio.sleep(1.0)
                return await asyncio.to_thread(measurement_check.streams_since, tables, since, GATEWAY)
            if time.monotonic() > deadline_s:
                return streams
            await asyncio.sleep(0.3)

    def _report(
        self,
        traffic: Sequence[Traffic],
        clients: list[ClientRow],
        rows: list[LedgerRow],
        streams: list[dict[str, Any]],
        discrepancies: list[measurement_check.Discrepancy],
    ) -> None:
        compared = measurement_check.pairs(rows, streams, clients)
        for line in measurement_check.comparison_table(compared):
            self.write(line)
        faults = sum(row.fault_ns is not None for row in rows)
        self.write("")
        self.write(
            f"{len(rows)} responses simulated ({faults} with a fault, {sum(t.aborted for t in traffic)} aborted by the client), "
            f"{len(streams)} streams measured, {sum(row.events for row in rows)} events."
        )
        if (overhead := measurement_check.ttft_overhead(compared)) is not None:
            self.write(
                f"Measured TTFT exceeds simulated TTFT by {overhead.median_ns / 1e6:.1f} ms (median), {overhead.largest_ns / 1e6:.0f} ms "
                "(maximum): the time between tap and simulator on this machine."
            )
        if discrepancies:
            measurement_check.report_discrepancies(discrepancies, write=self.write)
            count = "1 value differs" if len(discrepancies) == 1 else f"{len(discrepancies)} values differ"
            self.write(click.style(f"{count} from the simulation.", fg="red"))
        else:
            self.write(
                click.style("Every stream was measured exactly once, with the simulated values.", fg="green")
            )


def _command() -> str:
    """The command to print. After `make demo` it is in .venv, not on the PATH."""
    here = Path(sys.executable).parent / "streamgauge"
    if shutil.which("streamgauge") or not here.exists():
        return "streamgauge"
    return str(here.relative_to(Path.cwd()) if here.is_relative_to(Path.cwd()) else here)


def _client_flags(data: Path) -> list[str]:
    """Flags that name the clients. Their ids depend on the key of the data folder."""
    key = load_client_key(data / FILE)
    return [
        word
        for secret, name in CLIENT_NAMES.items()
        for word in ("--clients", f"{keyed_hash(secret.encode(), key)}={name}")
    ]


class Progress:
    """Updates one line each second on a terminal, or writes a line every ten seconds otherwise."""

    def __init__(self, write: Callable[[str], None]) -> None:
        self._write = write
        self._terminal = sys.stdout.isatty()
        self._next_s = 0.0

    def due(self) -> bool:
        """Whether the next update is due."""
        now_s = time.monotonic()
        if now_s < self._next_s:
            return False
        self._next_s = now_s + (1 if self._terminal else 10)
        return True

    def show(self, traffic: Sequence[Traffic], measured: str, ends_s: float | None) -> None:
        remaining = "" if ends_s is None else f"   {max(0.0, ends_s - time.monotonic()):.0f} s left"
        sent, open_now, aborted = map(
            sum, zip(*((t.sent, t.open_requests, t.aborted) for t in traffic), strict=True)
        )
        line = f"sent {sent} requests   open {open_now}   aborted {aborted}{measured}{remaining}"
        if self._terminal:
            click.echo(f"\r\x1b[K{line}", nl=False)
        else:
            self._write(line)

    def note(self, text: str) -> None:
        """Write a line that stays, with the time."""
        begin = "\r\x1b[K" if self._terminal else ""
        self._write(f"{begin}{click.style(f'{datetime.now().astimezone():%H:%M:%S}  {text}', bold=True)}")

    def end(self) -> None:
        if self._terminal:
            click.echo()


def measured_text(tables: QueryPool) -> str:
    """All streams and errors, and the median TTFT of the last minute. Empty without tables."""
    sql = (
        f"SELECT count(*) AS n, count(*) FILTER ({IS_ERROR}) AS errors, "
        "quantile_cont(ttft_ns, 0.5) FILTER (started_at > now() - INTERVAL 1 MINUTE) / 1e6 AS ttft_ms "
        f"FROM streams WHERE gateway = '{GATEWAY}'"
    )
    try:
        streams, errors, ttft_ms = tables.query(sql, timeout_s=5).row(0)
    except QueryError:
        return ""
    ttft = "–" if ttft_ms is None else f"{ttft_ms:.0f}"
    return f"   measured {streams} answers   errors {errors}   ttft p50 {ttft} ms"
