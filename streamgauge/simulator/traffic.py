"""Clients that send mixed traffic in every dialect to a base URL (the tap) and record their own measurements.

Arrivals are a Poisson process of `rate_per_s`. Arrivals above `concurrency` are counted (`turned_away`) and not queued, because
a queue would look like latency of the system under test. Some clients abort. Some connections are reused. `draw_request` makes
a request in the format of each API.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import math
import time
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from urllib.parse import urlsplit

import httptools
import msgspec
from wsproto.events import Request as Upgrade
from wsproto.extensions import PerMessageDeflate

from streamgauge.simulator.incidents import SimulatedIncident
from streamgauge.simulator.ledger import LedgerRow
from streamgauge.simulator.profiles import HTTP_MODELS, PROFILES, Profile
from streamgauge.simulator.response_plan import words
from streamgauge.simulator.socket_traffic import converse, realtime_script, responses_script
from streamgauge.simulator.written_streams import WRITTEN_STREAMS

TEAMS = msgspec.toml.decode(Path(__file__).with_name("clients.toml").read_bytes(), type=dict[str, str])
"""API key of a client → its team, in the header `x-team`."""
KEYS = tuple(TEAMS)
MAX_READS = 200
"""Maximum number of reads recorded per response. The first output is among the first reads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficOptions:
    """Options of the traffic."""

    base_url: str
    seed: str = "traffic"
    run: str = "run"
    """Prefix of the request ids: `<run>-<number>`."""
    rate_per_s: float = 6.0
    concurrency: int = 64
    abort_share: float = 0.04
    abort_after_s: tuple[float, float] = (0.05, 2.5)
    """Range of the time from start to abort."""
    stream_share: float = 0.93
    reuse_share: float = 0.3
    models: tuple[str, ...] = HTTP_MODELS
    socket_share: float = 0.0
    """Share of the requests to Responses that are conversations on a WebSocket. Those of Realtime always are."""
    keys: tuple[str, ...] = KEYS
    timeout_s: float = 120.0
    max_rows: int = 200_000
    """Rows kept; the oldest are evicted."""


class ClientRow(msgspec.Struct, kw_only=True):
    """One request as measured by its client. Times are CLOCK_MONOTONIC, absolute."""

    request_id: str
    model: str
    path: str
    streamed: bool
    started_ns: int
    """Time before the request was written."""
    status: int | None = None
    first_byte_ns: int | None = None
    end_ns: int | None = None
    body_bytes: int = 0
    body_sha256: str | None = None
    aborted: bool = False
    error: str | None = None
    """Name of the exception if the exchange failed."""
    reads: list[tuple[int, int]] = []
    """(arrival, body bytes so far) of the first `MAX_READS` reads."""

    def ttft_ns(self, true_row: LedgerRow) -> int | None:
        """Time to first token: the read that completed the first output event."""
        if true_row.first_output_end_byte is None:
            return None
        for at_ns, so_far in self.reads:
            if so_far >= true_row.first_output_end_byte:
                return at_ns - self.started_ns
        return None


class _Response:
    """One response and its parser callbacks."""

    def __init__(self, row: ClientRow, kept: bytearray | None) -> None:
        self.row, self.kept = row, kept
        self.complete = False
        self.ends_with_connection = True
        """Whether the body ends when the connection closes (neither content-length nor chunked)."""
        self.keep_alive = False
        self.digest = hashlib.sha256()
        self.read_ns = 0
        self.parser = httptools.HttpResponseParser(self)

    def feed(self, data: bytes, at_ns: int) -> None:
        self.read_ns = at_ns
        before = self.row.body_bytes
        self.parser.feed_data(data)
        if self.row.body_bytes > before and len(self.row.reads) < MAX_READS:
            self.row.reads.append((at_ns, self.row.body_bytes))

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() in (b"content-length", b"transfer-encoding"):
            self.ends_with_connection = False

    def on_headers_complete(self) -> None:
        self.row.status = self.parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        if self.row.first_byte_ns is None:
            self.row.first_byte_ns = self.read_ns
        self.row.body_bytes += len(body)
        self.digest.update(body)
        if self.kept is not None:
            self.kept += body

    def on_message_complete(self) -> None:
        if self.row.status is not None and self.row.status >= 200:
            self.complete = True
            self.keep_alive = self.parser.should_keep_alive()


_USUAL_HEADERS = {"user-agent": "streamgauge-traffic", "accept": "*/*"}
_Pair = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Traffic:
    """Sends requests and keeps a `ClientRow` of each in `rows`."""

    def __init__(self, options: TrafficOptions) -> None:
        self.options = options
        parts = urlsplit(options.base_url)
        if parts.scheme != "http" or parts.hostname is None:
            raise ValueError(f"{options.base_url!r} is not an http URL")
        self._host, self._port = parts.hostname, parts.port or 80
        self._base_path = parts.path.rstrip("/")
        self._rng = Random(options.seed)  # noqa: S311
        self._idle: list[_Pair] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._next = 0
        self.rows: dict[str, ClientRow] = {}
        self.incident: SimulatedIncident | None = None
        """The incident that requests are part of from now on."""
        self.sent = self.turned_away = self.aborted = self.failed = 0

    @property
    def open_requests(self) -> int:
        return len(self._tasks)

    async def run(self, stop: asyncio.Event) -> None:
        """Send requests until `stop` is set, then wait for open requests."""
        loop = asyncio.get_running_loop()
        due = loop.time()
        while not stop.is_set():
            # From the time that was due, not from now: a late client would otherwise send less than the rate just when
            # the system is slow (coordinated omission).
            due += self._rng.expovariate(self.options.rate_per_s)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), max(0.0, due - loop.time()))
            if stop.is_set():
                break
            if len(self._tasks) >= self.options.concurrency:
                self.turned_away += 1
            else:
                self._start()
        await self.finish()

    async def send(self, count: int) -> None:
        """Send `count` requests, at most `concurrency` at once, and wait for all of them."""
        for _ in range(count):
            while len(self._tasks) >= self.options.concurrency:
                await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
            self._start()
        await self.finish()

    async def finish(self) -> None:
        """Wait for open requests and close idle connections."""
        while self._tasks:
            await asyncio.wait(self._tasks)
        while self._idle:
            self._idle.pop()[1].close()

    async def cancel(self) -> None:
        """Abort open requests."""
        for task in tuple(self._tasks):
            task.cancel()
        await self.finish()

    def _start(self) -> None:
        options, rng = self.options, self._rng
        request_id = f"{options.run}-{self._next:06d}"
        self._next += 1
        profile = PROFILES[rng.choice(options.models)]
        key = rng.choice(options.keys)
        request = draw_request(rng, profile, request_id, key, stream_share=options.stream_share)
        if profile.vendor == "realtime" or (
            profile.vendor == "responses" and rng.random() < options.socket_share
        ):
            request = replace(request, script_seed=request_id)
        abort_after_s = None
        if rng.random() < options.abort_share:
            abort_after_s = rng.uniform(*options.abort_after_s)
        reuse = rng.random() < options.reuse_share
        self._begin(request, key, abort_after_s, reuse)
        if (incident := self.incident) is not None and incident.more:
            free = options.concurrency - len(self._tasks)
            self.turned_away += max(0, incident.more - free)
            for number in range(min(incident.more, free)):
                more_id = f"{request_id}-{number}"
                # Not of `rng`, so that an incident does not change the other requests.
                of_more = Random(more_id)  # noqa: S311
                more = draw_request(of_more, PROFILES[incident.model], more_id, incident.value)
                self._begin(more, incident.value, None, reuse)

    async def ask(self, request: ClientRequest, key: str) -> tuple[int | None, bytes]:
        """Send a request and return status and body of the response. The status is None if the exchange failed."""
        request = replace(request, kept=bytearray())
        await self._begin(request, key, None, True)
        row = self.rows.get(request.request_id)
        return None if row is None or row.error else row.status, bytes(request.kept or b"")

    def _begin(
        self, request: ClientRequest, key: str, abort_after_s: float | None, reuse: bool
    ) -> asyncio.Task[None]:
        if self.incident is not None:
            # Not of `rng`, so that an incident does not change the other requests.
            rng = Random(request.request_id)  # noqa: S311
            forced = self.incident.header(rng, model=request.model, key=key)
            if forced is not None:
                request = request.with_header("x-simulate", forced)
        task = asyncio.get_running_loop().create_task(self._send_one(request, abort_after_s, reuse))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _send_one(self, request: ClientRequest, abort_after_s: float | None, reuse: bool) -> None:
        row = ClientRow(
            request_id=request.request_id,
            model=request.model,
            path=request.path,
            streamed=request.streamed,
            started_ns=time.monotonic_ns(),
            reads=[],
        )
        self._remember(row)
        response = _Response(row, request.kept)
        self.sent += 1
        pair: _Pair | None = None
        try:
            async with asyncio.timeout(self.options.timeout_s if abort_after_s is None else abort_after_s):
                pair = await self._connect(reuse)
                if request.script_seed is None:
                    await self._exchange(pair, request, response)
                else:
                    row.status = await self._converse(pair, request, Random(request.script_seed))  # noqa: S311
        except TimeoutError:
            row.error = "TimeoutError"
            if abort_after_s is not None:
                row.error, row.aborted = None, True
                self.aborted += 1
        except (OSError, httptools.HttpParserError, EOFError, asyncio.CancelledError) as e:
            row.error = type(e).__name__
            self.failed += 1
            if isinstance(e, asyncio.CancelledError):
                row.aborted = True
        finally:
            row.end_ns = time.monotonic_ns()
            row.body_sha256 = response.digest.hexdigest()
            if pair is not None:
                if response.complete and response.keep_alive and reuse and len(self._idle) < 8:
                    self._idle.append(pair)
                else:
                    pair[1].transport.abort()

    def _remember(self, row: ClientRow) -> None:
        self.rows[row.request_id] = row
        if len(self.rows) > self.options.max_rows:
            self.rows.pop(next(iter(self.rows)))

    async def _connect(self, reuse: bool) -> _Pair:
        while reuse and self._idle:
            pair = self._idle.pop()
            if not pair[0].at_eof() and not pair[1].is_closing():
                return pair
            pair[1].close()
        return await asyncio.open_connection(self._host, self._port)

    async def _converse(self, pair: _Pair, request: ClientRequest, rng: Random) -> int:
        body = msgspec.json.decode(request.body)
        body.pop("stream", None)
        if request.path == PROFILES["gpt-sim-realtime"].path:
            target = f"{request.path}?model={request.model}"
            script = realtime_script(rng, body["input"], body.get("tools", []))
        else:
            target, script = request.path, responses_script(rng, body)
        headers = [(name.encode(), value.encode()) for name, value in request.headers]
        host, extensions = f"{self._host}:{self._port}", [PerMessageDeflate()]
        upgrade = Upgrade(host, self._base_path + target, extensions=extensions, extra_headers=headers)
        return await converse(*pair, upgrade, script, close=rng.random() < 0.5)

    async def _exchange(self, pair: _Pair, request: ClientRequest, response: _Response) -> None:
        reader, writer = pair
        head = [
            f"POST {self._base_path}{request.path} HTTP/1.1",
            f"host: {self._host}:{self._port}",
            *(f"{name}: {value}" for name, value in (_USUAL_HEADERS | dict(request.headers)).items()),
            f"content-length: {len(request.body)}",
        ]
        writer.write(("\r\n".join(head) + "\r\n\r\n").encode() + request.body)
        await writer.drain()
        while not response.complete:
            data = await reader.read(65536)
            at_ns = time.monotonic_ns()
            if not data:
                if response.row.status is None or not response.ends_with_connection:
                    raise EOFError
                return
            response.feed(data, at_ns)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientRequest:
    """One request."""

    request_id: str
    model: str
    path: str
    """Path and query."""
    headers: tuple[tuple[str, str], ...]
    body: bytes
    streamed: bool
    script_seed: str | None = None
    """Seed of a conversation on a WebSocket that begins with the body; None for HTTP."""
    kept: bytearray | None = None
    """Gets the body of the response."""

    def with_header(self, name: str, value: str) -> ClientRequest:
        """The request with this value of the header and no other."""
        return replace(
            self, headers=(*(header for header in self.headers if header[0] != name), (name, value))
        )


def draw_request(
    rng: Random, profile: Profile, request_id: str, key: str, *, stream_share: float = 0.93
) -> ClientRequest:
    """Draw a request to a model from the client with API key `key`."""
    stream = WRITTEN_STREAMS[profile.vendor]
    size = min(4000, 1 + int(rng.lognormvariate(math.log(150), 1.1)))
    prompt = words(rng, size).strip()
    streamed = rng.random() < stream_share
    tools = rng.random() < 0.4
    limit = rng.choice((None, None, None, 40, 300))
    options: dict[str, bool] = {}
    drawn = {
        "model": profile.model,
        "prompt": prompt,
        "streamed": streamed,
        "tools": tools,
        "limit": limit,
        "options": options,
    }
    drawn |= dict.fromkeys(("n", "logprobs"))
    if stream.api in ("chat", "completions") and streamed:
        if rng.random() < 0.9:
            options["include_usage"] = True
        if profile.vendor in ("vllm", "sglang") and rng.random() < 0.5:
            options["continuous_usage_stats"] = True
        if profile.vendor in ("openai", "vllm") and rng.random() < 0.04:
            drawn["n"] = rng.choice((2, 3))
        if stream.api == "chat" and rng.random() < 0.05:
            drawn["logprobs"] = True
    headers = [("content-type", "application/json"), ("x-request-id", request_id)]
    headers += [(name, value.replace("<key>", key)) for name, value in stream.header_lines("credential")]
    headers += [("x-team", TEAMS[key])] if key in TEAMS else []
    variant = rng.random()
    if variant < 0.02 and streamed:
        headers.append(("x-simulate", '{"coding":"gzip"}'))
    elif variant < 0.04 and streamed:
        headers.append(("x-simulate", '{"framing":"close"}'))
    path = profile.path
    if not streamed:
        path = path.replace(":streamGenerateContent?alt=sse", ":generateContent")
    return ClientRequest(
        request_id=request_id,
        model=profile.model,
        path=path,
        headers=tuple(headers),
        body=stream.write("request", drawn),
        streamed=streamed,
    )
