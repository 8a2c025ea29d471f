"""The simulated upstream: routes, start and stop.

    GET   /v1/responses, /v1/realtime   WebSockets
    POST  any path that ends in /chat/completions, /completions, /responses, /messages, /api/v1/chat, /v2/chat,
          :streamGenerateContent or :generateContent
    GET   /v1/models               models
    GET   /simulator/ledger        the ledger as JSON lines; ?after=SEQ, ?id=REQUEST_ID; header x-simulator-dropped
    GET   /simulator/status        counters
    GET   /healthz, /health        ready; load tools ask for /health before they send requests

The model's profile decides the vendor format. For an unknown model, the path decides it. The header `x-simulate` forces values
(`response_plan`).
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import click
import msgspec
import uvloop

from streamgauge.ingest.listening import bind, join_address, split_address
from streamgauge.ingest.private_files import write_json
from streamgauge.simulator.connection import Connection, Request
from streamgauge.simulator.ledger import Ledger, LedgerRow, RowBuilder
from streamgauge.simulator.profiles import DEFAULT_VENDOR, PROFILES, api_of_path, profile_for
from streamgauge.simulator.response_plan import ResponsePlan, draw_plan, read_simulate_header
from streamgauge.simulator.response_sender import ResponseSender
from streamgauge.simulator.response_writers import RESPONSE_WRITERS
from streamgauge.simulator.response_writers.response_writer import ResponseWriter
from streamgauge.simulator.response_writers.responses import Responses
from streamgauge.simulator.socket_sessions import RealtimeSession, ResponsesSession
from streamgauge.simulator.sockets import Socket
from streamgauge.values import Address, Duration, Number, WholeNumber

log = logging.getLogger("streamgauge.simulator")


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatorOptions:
    """Options of the simulator."""

    listen: str = "127.0.0.1:4200"
    """HOST:PORT; port 0 = any free port."""
    seed: str = "streamgauge"
    rate_faults: float = 0.05
    """Share of the requests without `x-simulate` that get a fault."""
    time_scale: float = 1.0
    """Multiplier of drawn times. Forced times are not scaled."""
    keepalive_s: float = 1.0
    """Silence before a keep-alive, for vendors that send them."""
    ledger_rows: int = 10_000
    websockets: bool = True
    """Accept WebSockets, or answer them with 426."""
    max_streams: int = 8_000
    """Maximum number of concurrent responses. Further requests get status 503."""
    keep_text: bool = False
    """Keep generated text in the ledger."""
    announce: Path | None = None
    """File for {"pid", "url"}, written when the simulator listens and removed at the end."""


class Simulator:
    """The simulated upstream, in the running event loop."""

    def __init__(self, options: SimulatorOptions | None = None) -> None:
        self.options = options or SimulatorOptions()
        self.ledger = Ledger(self.options.ledger_rows)
        self.url = ""
        self._server: asyncio.Server | None = None
        self._connections: set[Connection] = set()
        self._streams = self.refused = 0

    async def start(self) -> None:
        """Listen. Raises OSError when the address is not available."""
        sock = bind(self.options.listen, flag="--listen")
        self._server = await asyncio.get_running_loop().create_server(
            lambda: Connection(self._handle, self._connections), sock=sock, backlog=4096
        )
        host, _ = split_address(self.options.listen)
        self.url = f"http://{join_address(host, sock.getsockname()[1])}"

    async def stop(self) -> None:
        """Abort all responses and stop listening."""
        if self._server is not None:
            self._server.close()
        for connection in tuple(self._connections):
            connection.stop()
        await asyncio.sleep(0)

    # requests

    async def _handle(self, connection: Connection, request: Request) -> None:
        parts = urlsplit(request.target)
        if connection.upgraded is not None:
            await self._websocket(connection, request, parts.path, parse_qs(parts.query))
            return
        if request.method == "GET":
            status, kind, body, more = self._get(parts.path, parse_qs(parts.query))
            connection.respond(status, [("content-type", kind), *more], body)
            return
        ledger_row = self._row(request, parts.path)
        row_builder = RowBuilder(ledger_row, keep_text=self.options.keep_text)
        api = api_of_path(parts.path)
        try:
            if api is None or request.method != "POST":
                raise _Refused(404, f"no such endpoint: {request.method} {parts.path}")
            if self._streams >= self.options.max_streams:
                self.refused += 1
                raise _Refused(503, "too many concurrent streams")
            try:
                asked = msgspec.json.decode(request.body, type=dict[str, Any])
            except msgspec.DecodeError:
                raise _Refused(400, "the body is not a JSON object") from None
            plan, writer = self._plan(request, asked, parts.path, api, ledger_row)
        except _Refused as refused:
            self._refuse(connection, request, row_builder, api, refused)
            return
        row_builder.copy_plan(plan, writer)
        with self._open_stream():
            await ResponseSender(
                connection, request, plan, writer, row_builder, self.options.keepalive_s
            ).run()

    @contextmanager
    def _open_stream(self) -> Iterator[None]:
        self._streams += 1
        self.ledger.open += 1
        try:
            yield
        finally:
            self._streams -= 1
            self.ledger.open -= 1

    async def _websocket(
        self, connection: Connection, request: Request, path: str, query: dict[str, list[str]]
    ) -> None:
        api = "realtime" if path.endswith("/realtime") else api_of_path(path)
        if api not in ("responses", "realtime") or not self.options.websockets:
            row_builder = RowBuilder(self._row(request, path), keep_text=False)
            self._refuse(connection, request, row_builder, None, _Refused(426, "no WebSocket here"))
            row_builder.row.expected_outcome, row_builder.row.error_type = "refused", "websocket"
            connection.close()
            return
        request.headers.setdefault("x-request-id", f"sim-{self.options.seed}-socket-{request.received_ns}")

        def begin(
            request: Request, body: dict[str, Any], index: int
        ) -> tuple[ResponsePlan, Responses, RowBuilder]:
            row = self._row(request, path)
            row.response_index, row.status = index, 101
            row_builder = RowBuilder(row, keep_text=self.options.keep_text)
            try:
                plan, writer = self._plan(request, body, path, api, row)
                if not isinstance(writer, Responses):
                    raise _Refused(400, f"{writer.vendor} has no WebSockets")
            except _Refused:
                row.fault, row.error_type = "inband_error", "invalid_request_error"
                row_builder.fault_occurred(time.monotonic_ns())
                row_builder.ended(time.monotonic_ns())
                raise
            row_builder.copy_plan(plan, writer)
            return plan, writer, row_builder

        socket = Socket(connection, request)
        if api == "responses":
            await ResponsesSession(socket, request, begin, self._open_stream).run()
        else:
            model = query.get("model", ["gpt-sim-realtime"])[0]
            await RealtimeSession(socket, request, begin, self._open_stream, model=model).run()

    def _row(self, request: Request, path: str) -> LedgerRow:
        seq = self.ledger.next_seq()
        client_id = request.headers.get("x-request-id")
        trace = request.headers.get("traceparent", "").split("-")
        row = LedgerRow(
            seq=seq,
            request_id=client_id or f"sim-{self.options.seed}-{seq}",
            client_request_id=client_id is not None,
            trace_id=trace[1] if len(trace) >= 4 else None,
            span_id=trace[2] if len(trace) >= 4 else None,
            method=request.method,
            path=path,
            wall_ns=request.wall_ns,
            received_ns=request.received_ns,
            complete_ns=request.complete_ns,
            outputs_ns=[],
        )
        self.ledger.add(row)
        return row

    def _plan(
        self, request: Request, body: dict[str, Any], path: str, api: str, row: LedgerRow
    ) -> tuple[ResponsePlan, ResponseWriter]:
        try:
            forced = read_simulate_header(request.headers.get("x-simulate"))
        except ValueError as e:
            raise _Refused(400, str(e)) from None
        if forced.speaker is not None and forced.speaker not in RESPONSE_WRITERS:
            raise _Refused(
                400, f"x-simulate: unknown speaker {forced.speaker!r}: one of {', '.join(RESPONSE_WRITERS)}"
            )
        if api == "gemini":
            body = {**body, "model": path.rpartition("/")[2].partition(":")[0]}
            streamed = path.endswith(":streamGenerateContent")
        else:
            streamed = body.get("stream") is True or row.response_index is not None
        profile = profile_for(body.get("model"), path, api)
        writer_class = RESPONSE_WRITERS[forced.speaker or profile.vendor]
        if not writer_class.supports_choices:
            body = {key: value for key, value in body.items() if key != "n"}
        plan = draw_plan(
            seed=self.options.seed,
            request_id=row.request_id
            if row.response_index is None
            else f"{row.request_id}/{row.response_index}",
            profile=profile,
            body=body,
            streamed=streamed,
            forced=forced,
            rate_faults=self.options.rate_faults,
            time_scale=self.options.time_scale,
        )
        if plan.reasoning == "hidden" and not writer_class.reports_hidden_reasoning:
            plan = replace(plan, reasoning="visible")
        if plan.choices > 1 or api == "completions":  # text only
            plan = replace(plan, tool_calls=0, refusal=False, reasoning="none", reasoning_tokens=0)
        return plan, writer_class(plan, int(time.time()))

    def _refuse(
        self,
        connection: Connection,
        request: Request,
        row_builder: RowBuilder,
        api: str | None,
        refused: _Refused,
    ) -> None:
        row = row_builder.row
        writer_class = RESPONSE_WRITERS[DEFAULT_VENDOR[api or "chat"]]
        body, kind = writer_class.http_error(refused.status, refused.message)
        row.status, row.fault = refused.status, f"http_{refused.status}"
        row.error_type = kind or str(refused.status)
        row.head_ns = row.first_byte_ns = time.monotonic_ns()
        data = msgspec.json.encode(body)
        row.body_bytes = len(data)
        connection.respond(
            refused.status, [("content-type", "application/json"), ("x-request-id", row.request_id)], data
        )
        row_builder.ended(time.monotonic_ns())

    def _get(self, path: str, query: dict[str, list[str]]) -> tuple[int, str, bytes, list[tuple[str, str]]]:
        if path in ("/healthz", "/health"):
            return 200, "text/plain", b"ok\n", []
        if path in ("/v1/models", "/models", "/api/v1/models", "/openai/v1/models"):
            data = [
                {"id": name, "object": "model", "created": 0, "owned_by": p.vendor}
                for name, p in PROFILES.items()
            ]
            return 200, "application/json", msgspec.json.encode({"object": "list", "data": data}), []
        if path == "/simulator/ledger":
            after = query.get("after", ["-1"])[0]
            lines = self.ledger.lines(
                int(after) if after.lstrip("-").isdigit() else -1, query.get("id", [None])[0]
            )
            return 200, "application/jsonl", lines, [("x-simulator-dropped", str(self.ledger.dropped))]
        if path == "/simulator/status":
            return 200, "application/json", msgspec.json.encode(self.status()), []
        return 404, "application/json", b'{"error":{"message":"no such page","type":"not_found"}}', []

    def status(self) -> dict[str, int]:
        """Counters: requests, open responses, rows evicted from the ledger, requests over `max_streams`."""
        return {
            "requests": self.ledger.total,
            "open": self.ledger.open,
            "dropped": self.ledger.dropped,
            "refused": self.refused,
            "connections": len(self._connections),
        }


class _Refused(ValueError):
    """An invalid request, answered with an error response."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status, self.message = status, message


async def _serve(options: SimulatorOptions, ready: Callable[[Simulator], None] | None) -> int:
    simulator = Simulator(options)
    await simulator.start()
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    if options.announce is not None:
        write_json(options.announce, {"pid": os.getpid(), "url": simulator.url})
    if ready is not None:
        ready(simulator)
    log.info("simulator at %s, %d models, seed %r", simulator.url, len(PROFILES), options.seed)
    try:
        await stop.wait()
    finally:
        await simulator.stop()
        if options.announce is not None:
            options.announce.unlink(missing_ok=True)
    return 0


def run(options: SimulatorOptions, ready: Callable[[Simulator], None] | None = None) -> int:
    """Serve until SIGTERM or SIGINT. Calls `ready` when listening. Raises OSError when the address is not available."""
    return uvloop.run(_serve(options, ready))


_DEFAULTS = SimulatorOptions()


@click.command("simulate")
@click.option(
    "--listen", type=Address(), metavar="HOST:PORT", default=_DEFAULTS.listen, show_default=True,
    help="Address to listen on; port 0 = any free port.",
)  # fmt: skip
@click.option("--seed", metavar="TEXT", default=_DEFAULTS.seed, show_default=True, help="Random seed.")
@click.option(
    "--rate-faults",
    type=Number(0, 1),
    metavar="SHARE",
    default=_DEFAULTS.rate_faults,
    show_default=True,
    help="Share of requests with a fault.",
)
@click.option(
    "--time-scale",
    type=Number(0, 1000),
    metavar="N",
    default=_DEFAULTS.time_scale,
    show_default=True,
    help="Multiplier of simulated times; 0.1 = ten times faster.",
)
@click.option(
    "--keepalive",
    "keepalive_s",
    type=Duration(0.01),
    metavar="DURATION",
    default="1s",
    show_default=True,
    help="Silence before a keep-alive, for vendors that send them.",
)
@click.option(
    "--ledger-rows",
    type=WholeNumber(1),
    metavar="N",
    default=_DEFAULTS.ledger_rows,
    show_default=True,
    help="Maximum number of requests in the ledger.",
)
@click.option(
    "--no-websockets", "websockets", is_flag=True, flag_value=False, default=True, help="Refuse WebSockets with 426."
)  # fmt: skip
@click.option("--keep-text", is_flag=True, help="Keep generated text in the ledger.")
@click.option(
    "--announce", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE", help="Write pid and URL to this file when ready."
)  # fmt: skip
def simulate_command(**options: Any) -> int:
    """Run a simulated LLM upstream.

    The model of a request selects the dialect; GET /v1/models lists the models. The header x-simulate forces values, such as
    x-simulate: {"ttft_ms": 200, "gap_ms": 10, "tokens": 50, "fault": "truncate"}. GET /simulator/ledger returns the ground
    truth.
    """
    return run(SimulatorOptions(**options), _welcome)


def _welcome(simulator: Simulator) -> None:
    click.echo(f"The simulator listens at {simulator.url}. Ctrl-C stops.")
    click.echo(f"  models   {simulator.url}/v1/models")
    click.echo(f"  truth    {simulator.url}/simulator/ledger")
