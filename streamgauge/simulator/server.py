"""The simulated upstream: routes, start and stop.

    GET   /v1/responses, /v1/realtime, /v1/live/sessions, …BidiGenerateContent   WebSockets
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
from wsproto.utilities import RemoteProtocolError

from streamgauge.ingest.listening import bind, join_address, split_address
from streamgauge.ingest.private_files import write_json
from streamgauge.settings.values import Address, Duration, Number, WholeNumber
from streamgauge.simulator.connection import Connection, Request
from streamgauge.simulator.ledger import Ledger, LedgerRow, RowBuilder
from streamgauge.simulator.live_sessions import GeminiLiveSession, OpenAILiveSession
from streamgauge.simulator.profiles import (
    PROFILES,
    SOCKET_API_BY_PATH_END,
    api_of_path,
    default_vendor,
    profile_for,
)
from streamgauge.simulator.rate_limits import RateLimits
from streamgauge.simulator.response_plan import draw_plan, read_simulate_header
from streamgauge.simulator.response_sender import Planned, ResponseSender
from streamgauge.simulator.response_writer import ResponseWriter
from streamgauge.simulator.socket_sessions import RealtimeSession, ResponsesSession, Session
from streamgauge.simulator.sockets import Socket
from streamgauge.simulator.written_streams import WRITTEN_STREAMS

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
    rate_limit: float = 0
    """Requests per minute of each API key to each model, above which it gets status 429; 0 = no limit, and no headers about it."""
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
        self._rate_limits = RateLimits(self.options.rate_limit) if self.options.rate_limit else None
        self.url = ""
        self._server: asyncio.Server | None = None
        self._connections: set[Connection] = set()
        self.refused = 0

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
        parts = urlsplit(request.target.replace("//", "/", 1))  # Google's client begins a path with both
        if connection.upgraded is not None:
            await self._websocket(connection, request, parts.path, parse_qs(parts.query))
            return
        if request.method == "GET":
            status, kind, body, more = self._get(parts.path, parse_qs(parts.query))
            connection.respond(status, [("content-type", kind), *more], body)
            return
        row_builder = self._row(request, parts.path)
        api = api_of_path(parts.path)
        try:
            if api is None or request.method != "POST":
                raise _Refused(404, f"no such endpoint: {request.method} {parts.path}")
            if self.ledger.open >= self.options.max_streams:
                self.refused += 1
                raise _Refused(503, "too many concurrent streams")
            try:
                asked = msgspec.json.decode(request.body, type=dict[str, Any])
            except msgspec.DecodeError:
                raise _Refused(400, "the body is not a JSON object") from None
            planned = self._plan(request, asked, parts.path, api, row_builder)
        except _Refused as refused:
            self._refuse(connection, row_builder, api, refused)
            return
        with self._open_stream():
            await ResponseSender(connection, planned, self.options.keepalive_s).run()

    @contextmanager
    def _open_stream(self) -> Iterator[None]:
        self.ledger.open += 1
        try:
            yield
        finally:
            self.ledger.open -= 1

    async def _websocket(
        self, connection: Connection, request: Request, path: str, query: dict[str, list[str]]
    ) -> None:
        socket_api = api_of_path(path, SOCKET_API_BY_PATH_END)
        if socket_api is None or not self.options.websockets:
            row_builder = self._row(request, path)
            self._refuse(connection, row_builder, None, _Refused(426, "no WebSocket here"))
            row_builder.row.expected_outcome, row_builder.row.error_type = "refused", "websocket"
            connection.close()
            return
        request.headers.setdefault("x-request-id", f"sim-{self.options.seed}-socket-{request.received_ns}")

        def begin(request: Request, body: dict[str, Any], index: int, api: str | None) -> Planned:
            row_builder = self._row(request, path)
            row = row_builder.row
            row.response_index, row.status = index, 101
            try:
                planned = self._plan(request, body, path, api or socket_api, row_builder)
                if not planned.writer.stream.has("websocket"):
                    raise _Refused(400, f"{planned.writer.stream.vendor} has no WebSockets")
            except _Refused:
                row.fault, row.error_type = "inband_error", "invalid_request_error"
                row_builder.fault_occurred(time.monotonic_ns())
                row_builder.ended(time.monotonic_ns())
                raise
            return planned

        try:
            socket = Socket(connection, request)
        except RemoteProtocolError:
            connection.close()
            return
        if socket_api == "realtime":
            model = query.get("model", ["gpt-sim-realtime"])[0]
            await RealtimeSession(socket, begin, self._open_stream, model=model).run()
            return
        socket.is_binary = socket_api == "gemini_live"  # as Google's server
        await _SESSIONS[socket_api](socket, begin, self._open_stream).run()

    def _row(self, request: Request, path: str) -> RowBuilder:
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
        return RowBuilder(row, keep_text=self.options.keep_text)

    def _plan(
        self, request: Request, body: dict[str, Any], path: str, api: str, row_builder: RowBuilder
    ) -> Planned:
        row = row_builder.row
        try:
            forced = read_simulate_header(request.headers.get("x-simulate"))
        except ValueError as e:
            raise _Refused(400, str(e)) from None
        if forced.speaker is not None and forced.speaker not in WRITTEN_STREAMS:
            raise _Refused(
                400, f"x-simulate: unknown speaker {forced.speaker!r}: one of {', '.join(WRITTEN_STREAMS)}"
            )
        if api == "gemini":
            body = {**body, "model": path.rpartition("/")[2].partition(":")[0]}
            streamed = path.endswith(":streamGenerateContent")
        else:
            streamed = body.get("stream") is True or row.response_index is not None
        profile = profile_for(body.get("model"), path, api)
        stream = WRITTEN_STREAMS[forced.speaker or profile.vendor]
        if not stream.has("choices"):
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
        if plan.reasoning == "hidden" and not stream.has("hidden_reasoning"):
            plan = replace(plan, reasoning="visible")
        if plan.choices > 1 or api == "completions":  # text only
            plan = replace(plan, tool_calls=0, refusal=False, reasoning="none", reasoning_tokens=0)
        # A drawn or forced 429 has no headers of the limit, which is not reached.
        if self._rate_limits is not None and row.response_index is None and plan.fault != "http_429":
            limit = self._rate_limits.take(
                request.headers, plan.model, plan.input_tokens, request.wall_ns / 1e9
            )
            plan = replace(plan, rate_limit=limit, fault="http_429" if limit["retry_s"] else plan.fault)
        writer = ResponseWriter(stream, plan, int(time.time()))
        row_builder.copy_plan(plan, writer)
        return Planned(request, plan, writer, row_builder)

    def _refuse(
        self, connection: Connection, row_builder: RowBuilder, api: str | None, refused: _Refused
    ) -> None:
        row = row_builder.row
        stream = WRITTEN_STREAMS[default_vendor(api or "chat")]
        data, kind = stream.http_error(refused.status, refused.message)
        row.status, row.fault = refused.status, f"http_{refused.status}"
        row.error_type = kind or str(refused.status)
        row.head_ns = row.first_byte_ns = time.monotonic_ns()
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


_SESSIONS: dict[str, type[Session]] = {
    "responses": ResponsesSession, "gemini_live": GeminiLiveSession, "openai_live": OpenAILiveSession,
}  # fmt: skip


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


def _option(field: str, kind: click.ParamType[Any] | None, metavar: str, text: str) -> Callable[..., Any]:
    """The option of a field of `SimulatorOptions`, with its default."""
    default = getattr(SimulatorOptions(), field)
    if isinstance(kind, Duration):
        default = f"{default:g}s"
    flag = "--" + field.removesuffix("_s").replace("_", "-")
    return click.option(
        flag, field, type=kind, metavar=metavar, default=default, show_default=True, help=text
    )


@click.command("simulate")
@_option("listen", Address(), "HOST:PORT", "Address to listen on; port 0 = any free port.")
@_option("seed", None, "TEXT", "Random seed.")
@_option("rate_faults", Number(0, 1), "SHARE", "Share of requests with a fault.")
@_option("time_scale", Number(0, 1000), "N", "Multiplier of simulated times; 0.1 = ten times faster.")
@_option(
    "keepalive_s", Duration(0.01), "DURATION", "Silence before a keep-alive, for vendors that send them."
)
@_option(
    "rate_limit",
    Number(0, 1e6),
    "REQUESTS/MIN",
    "Rate limit of each API key to each model; 0 = none, and no headers about it.",
)
@_option("ledger_rows", WholeNumber(1), "N", "Maximum number of requests in the ledger.")
@click.option(
    "--no-websockets", "websockets", flag_value=False, default=True, help="Refuse WebSockets with 426."
)
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
