"""The simulated upstream: its routes, its life, and how to run it (alone, or in a loop).

    POST  any path that ends in /chat/completions, /completions, /responses, /messages, /api/v1/chat, /v2/chat,
          :streamGenerateContent or :generateContent, whatever stands before it
    GET   /v1/models               the models
    GET   /simulator/ledger        the ledger as JSON lines; ?after=SEQ, ?id=REQUEST_ID; header x-simulator-dropped
    GET   /simulator/status        counters
    GET   /healthz

The vendor is the model's (`profiles`); an unknown model is spoken for in the way of the path. `x-simulate` forces
anything (`plan.Instructions`).
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import msgspec
import uvloop

from ingest.private_files import write_json
from ingest.tap.options import split_address
from streamgauge.simulator.connection import Connection, Request
from streamgauge.simulator.ledger import Account, Ledger, LedgerRow
from streamgauge.simulator.perform import Performance
from streamgauge.simulator.plan import Plan, draw, instructions
from streamgauge.simulator.profiles import PROFILES, Profile
from streamgauge.simulator.speakers import SPEAKERS
from streamgauge.simulator.speakers.speaker import Speaker

log = logging.getLogger("streamgauge.simulator")


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatorOptions:
    """How the simulator runs."""

    listen: str = "127.0.0.1:4200"
    """HOST:PORT; port 0 = the OS chooses."""
    seed: str = "streamgauge"
    rate_faults: float = 0.05
    """Share of the requests that draw a fault (those that do not force one)."""
    time_scale: float = 1.0
    """Multiplies every drawn time; forced times are taken as they are."""
    keepalive_s: float = 1.0
    """Silence after which vendors that send heartbeats send one."""
    ledger_rows: int = 10_000
    max_streams: int = 8_000
    """Responses under way at once; above it requests are answered 503."""
    keep_text: bool = False
    """Keep what was said in the ledger."""
    announce: Path | None = None
    """File that is written with {"pid", "url"} once the simulator listens, and removed at the end."""


class Simulator:
    """The upstream in the running loop."""

    def __init__(self, options: SimulatorOptions | None = None) -> None:
        self.options = options or SimulatorOptions()
        self.ledger = Ledger(self.options.ledger_rows)
        self.url = ""
        self._server: asyncio.Server | None = None
        self._connections: set[Connection] = set()
        self._streams = self.refused = 0

    async def start(self) -> None:
        """Listen. Raises OSError with the way out when the address cannot be had."""
        host, port = split_address(self.options.listen)
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_server(
                lambda: Connection(self._handle, self._connections), host, port, backlog=4096
            )
        except OSError as e:
            reason = os.strerror(e.errno) if e.errno else str(e)
            raise OSError(
                f"cannot listen on {self.options.listen}: {reason}. Choose another with --listen HOST:PORT (port 0: any)"
            ) from None
        port = self._server.sockets[0].getsockname()[1]
        self.url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    async def stop(self) -> None:
        """End every response at once and close."""
        if self._server is not None:
            self._server.close()
        for connection in tuple(self._connections):
            connection.stop()
        await asyncio.sleep(0)

    # requests

    async def _handle(self, connection: Connection, request: Request) -> None:
        parts = urlsplit(request.target)
        if request.method == "GET":
            status, kind, body, more = self._get(parts.path, parse_qs(parts.query))
            connection.respond(status, [("content-type", kind), *more], body)
            return
        ledger_row = self._row(request, parts.path)
        account = Account(ledger_row, keep_text=self.options.keep_text)
        family = _family(parts.path)
        try:
            if family is None or request.method != "POST":
                raise _Refused(404, f"no such endpoint: {request.method} {parts.path}")
            if self._streams >= self.options.max_streams:
                self.refused += 1
                raise _Refused(503, "the simulator has as many streams as it may have")
            plan, speaker = self._plan(request, parts.path, family, ledger_row)
        except _Refused as refused:
            self._refuse(connection, request, account, family, refused)
            return
        account.planned(plan, speaker)
        self._streams += 1
        self.ledger.open += 1
        try:
            await Performance(connection, request, plan, speaker, account, self.options.keepalive_s).run()
        finally:
            self._streams -= 1
            self.ledger.open -= 1

    def _row(self, request: Request, path: str) -> LedgerRow:
        seq = self.ledger.next_seq()
        given = request.headers.get("x-request-id")
        trace = request.headers.get("traceparent", "").split("-")
        row = LedgerRow(
            seq=seq,
            request_id=given or f"sim-{self.options.seed}-{seq}",
            client_request_id=given is not None,
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

    def _plan(self, request: Request, path: str, family: str, row: LedgerRow) -> tuple[Plan, Speaker]:
        try:
            body = msgspec.json.decode(request.body)
        except msgspec.DecodeError:
            raise _Refused(400, "the body is not JSON") from None
        if not isinstance(body, dict):
            raise _Refused(400, "the body is not a JSON object")
        try:
            wish = instructions(request.headers.get("x-simulate"))
        except ValueError as e:
            raise _Refused(400, str(e)) from None
        if wish.speaker is not None and wish.speaker not in SPEAKERS:
            raise _Refused(400, f"x-simulate: unknown speaker {wish.speaker!r}: one of {', '.join(SPEAKERS)}")
        if family == "gemini":
            body = {**body, "model": path.rpartition("/")[2].partition(":")[0]}
            streamed = path.endswith(":streamGenerateContent")
        else:
            streamed = body.get("stream") is True
        profile = _profile(body.get("model"), path, family)
        kind = SPEAKERS[wish.speaker or profile.speaker]
        if not kind.many:
            body = {key: value for key, value in body.items() if key != "n"}
        plan = draw(
            seed=self.options.seed,
            request_id=row.request_id,
            profile=profile,
            body=body,
            streamed=streamed,
            wish=wish,
            rate_faults=self.options.rate_faults,
            time_scale=self.options.time_scale,
        )
        if plan.reasoning == "hidden" and not kind.hides_reasoning:
            plan = replace(plan, reasoning="visible")
        if plan.choices > 1:
            plan = replace(plan, tool_calls=0, refusal=False, reasoning="none", reasoning_tokens=0)
        if family == "completions":
            plan = replace(plan, tool_calls=0, refusal=False, reasoning="none", reasoning_tokens=0)
        return plan, kind(plan, int(time.time()))

    def _refuse(
        self,
        connection: Connection,
        request: Request,
        account: Account,
        family: str | None,
        refused: _Refused,
    ) -> None:
        row = account.row
        speaker = SPEAKERS[_DEFAULT_SPEAKER[family or "chat"]]
        body, kind = speaker.http_error(refused.status, refused.message)
        row.status, row.fault, row.error_type = (
            refused.status,
            f"http_{refused.status}",
            kind or str(refused.status),
        )
        row.head_ns = row.first_byte_ns = time.monotonic_ns()
        data = msgspec.json.encode(body)
        row.body_bytes = len(data)
        connection.respond(
            refused.status, [("content-type", "application/json"), ("x-request-id", row.request_id)], data
        )
        account.ended(time.monotonic_ns())

    def _get(self, path: str, query: dict[str, list[str]]) -> tuple[int, str, bytes, list[tuple[str, str]]]:
        if path == "/healthz":
            return 200, "text/plain", b"ok\n", []
        if path in ("/v1/models", "/models", "/api/v1/models", "/openai/v1/models"):
            data = [
                {"id": name, "object": "model", "created": 0, "owned_by": p.speaker}
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
        """Counters: requests so far, responses under way, rows dropped from the ledger, requests over the limit."""
        return {
            "requests": self.ledger.total,
            "open": self.ledger.open,
            "dropped": self.ledger.dropped,
            "refused": self.refused,
            "connections": len(self._connections),
        }


class _Refused(Exception):
    """A request that no model is asked about."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status, self.message = status, message


_DEFAULT_SPEAKER = {
    "chat": "openai", "completions": "completions", "responses": "responses", "messages": "anthropic",
    "lmstudio": "lmstudio", "cohere": "cohere", "gemini": "gemini",
}  # fmt: skip

_FIREWORKS = {"chat": "fireworks", "completions": "fireworks_completions", "messages": "fireworks_messages"}


def _family(path: str) -> str | None:
    for ending, family in (
        ("/chat/completions", "chat"), ("/completions", "completions"), ("/responses", "responses"),
        ("/messages", "messages"), ("/api/v1/chat", "lmstudio"), ("/v2/chat", "cohere"),
        (":streamGenerateContent", "gemini"), (":generateContent", "gemini"),
    ):  # fmt: skip
        if path.endswith(ending):
            return family
    return None


def speaker_family(name: str) -> str:
    """The family whose endpoint a speaker answers at."""
    for family in ("completions", "messages"):
        if name.endswith(f"_{family}"):
            return family
    for family, default in _DEFAULT_SPEAKER.items():
        if name == default:
            return family
    return "messages" if name == "friendli" else "chat"


def _profile(model: Any, path: str, family: str) -> Profile:
    """The model's profile, in the way of speaking that the path asks for."""
    profile = PROFILES.get(model) if isinstance(model, str) else None
    if profile is not None and speaker_family(profile.speaker) == family:
        return profile
    fireworks = "/inference/" in path or (profile is not None and profile.speaker == "fireworks")
    speaker = _FIREWORKS.get(family) if fireworks else None
    base = profile or PROFILES["gpt-sim-mini"]
    return replace(base, speaker=speaker or _DEFAULT_SPEAKER[family])


# life


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
    """Serve until SIGTERM or SIGINT; `ready` is called once it listens. Raises OSError, in one line, when it cannot."""
    return uvloop.run(_serve(options, ready))
