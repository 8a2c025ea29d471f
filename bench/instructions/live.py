"""The cases with sockets: a tap under callgrind between a client and an upstream that take turns.

Each waits until what the other sent has arrived, so the same work is done at any speed of the machine. What depends on time is the
number of wake-ups of the log thread.
"""

from __future__ import annotations

import contextlib
import os
import socket
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from bench.instructions import callgrind
from bench.tap.servers import tap

RUNS = 5
IDLE_S = 10.0
"""The tap writes `Alive` every 2 s."""
START_S = 300.0
REAL_TIME = ["chrt", "--rr", "1"] if os.geteuid() == 0 else []
"""Valgrind runs one thread at a time. Beside other work the log thread, which has a low priority, would keep the loop waiting."""
WARM_UP = 20
SLOW_S = 0.1
"""Between chunks of a slow stream."""
HEAD_END = b"\r\n\r\n"
SHORT_RESPONSE = (
    b'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 200\r\n\r\n{"text":"%b@E"}'
    % (b"x" * 187)
)
STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
DELTA = b'"object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{"content":"%b"}}]}'
EVENT = b'data: {"id":"c",%b\n\n' % (DELTA % (b"x" * 91))
CHUNK = b"%x\r\n%b\r\n" % (len(EVENT), EVENT)
LAST = b"0\r\n\r\n"

COMPONENTS = {
    "/uvloop/": "uvloop with libuv",
    "/ingest/": "the tap's compiled code",
    "/msgspec/": "encoding of records (msgspec)",
    "/libpython": "Python",
    "/libc.so": "libc",
}
OTHER = "other libraries"
ALL, LOOP = "all threads", "loop thread"
Counts = dict[str, float]
"""Instructions of all threads, of the loop thread, and of its components."""


def component_of(library: str) -> str:
    """The component with this library."""
    return next((name for part, name in COMPONENTS.items() if part in library), OTHER)


class Stream:
    """A connection of the client, and the one that the tap has opened to the upstream for it."""

    def __init__(self, listener: socket.socket, port: int) -> None:
        self._listener = listener
        self._client = socket.create_connection(("127.0.0.1", port))
        self._client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._upstream: socket.socket | None = None

    def request(self, path: str) -> None:
        self._client.sendall(f"GET {path} HTTP/1.1\r\nHost: bench\r\nAccept: */*\r\n\r\n".encode())
        if self._upstream is None:
            self._upstream = self._listener.accept()[0]
            self._upstream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        _receive(self._upstream, HEAD_END)

    def respond(self, data: bytes) -> None:
        assert self._upstream is not None
        self._upstream.sendall(data)
        _receive(self._client, data[-8:])

    def close(self) -> None:
        self._client.close()
        if self._upstream is not None:
            self._upstream.close()


def _receive(sock: socket.socket, end: bytes) -> None:
    """Wait for data that ends with these bytes."""
    found = b""
    while not found.endswith(end):
        data = sock.recv(65536)
        if not data:
            raise callgrind.NotCounted("the tap has closed a connection")
        found = (found + data)[-len(end) :]


class Process:
    """A running tap under callgrind."""

    def __init__(self, pid: int, out: Path) -> None:
        self._pid, self._out = pid, out

    def control(self, *options: str) -> None:
        command = ["callgrind_control", *options, str(self._pid)]
        subprocess.run(command, env=callgrind.ENVIRONMENT, check=True, capture_output=True, timeout=START_S)

    def dump(self) -> Counts:
        """The instructions since the last call. Thread 1 runs the event loop."""
        self.control("-d")
        found = dict.fromkeys([ALL, LOOP, *COMPONENTS.values(), OTHER], 0.0)
        for file in self._out.parent.glob(f"{self._out.name}.*"):
            for library, count in callgrind.by_library(file).items():
                found[ALL] += count
                if file.name.endswith("-01"):
                    found[LOOP] += count
                    found[component_of(library)] += count
            file.unlink()
        return found


def stream_of_two(stream: Stream) -> None:
    stream.request("/v1/chat/completions")
    stream.respond(STREAM + CHUNK)
    stream.respond(CHUNK + LAST)


def short_request(stream: Stream) -> None:
    stream.request("/v1/models")
    stream.respond(SHORT_RESPONSE)


def chunk(stream: Stream) -> None:
    stream.respond(CHUNK)


def slow_chunk(stream: Stream) -> None:
    chunk(stream)
    time.sleep(SLOW_S)


def repeat(step: Callable[[Stream], None], streams: list[Stream], times: int) -> None:
    """The step on each stream in turn, that many times."""
    for _ in range(times):
        for stream in streams:
            step(stream)


def begin(stream: Stream) -> None:
    stream.request("/v1/chat/completions")
    stream.respond(STREAM + CHUNK)


SHORT = "short request"
Case = tuple[int, Callable[[Stream], None], Callable[[Stream], None], int]
CASES: dict[str, Case] = {
    SHORT: (1, short_request, short_request, 200),
    "stream of 2 chunks": (1, stream_of_two, stream_of_two, 100),
    "chunk of a busy stream": (1, begin, chunk, 4000),
    "chunk of one of 500 streams": (500, begin, chunk, 8),
    "chunk of one slow stream": (1, begin, slow_chunk, 50),
}
"""Name → number of connections, what happens on each before anything is counted, what is counted, how often on each."""
IDLE = "idle second"
LIVE = [*CASES, IDLE]
OF_LOOP = ", loop thread"


def counted(names: list[str]) -> dict[str, Counts]:
    """The median of some runs of each case per unit, without what an idle tap does in the same time. Raises NotCounted."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=1024))
        out = folder / "callgrind"
        prefix = [*REAL_TIME, *callgrind.command(out, "--instr-atstart=no", "--separate-threads=yes")]
        upstream = listener.getsockname()[1]
        patience = dict.fromkeys(("pool_idle_s", "head_timeout_s", "keep_alive_timeout_s"), 3600.0)
        target = stack.enter_context(
            tap("tap", folder / "data", upstream, prefix=prefix, start_timeout_s=START_S, **patience)
        )
        process = Process(target.pids[0], out)
        warm_up = Stream(listener, target.port)
        repeat(short_request, [warm_up], WARM_UP)
        repeat(stream_of_two, [warm_up], WARM_UP)
        warm_up.close()
        process.control("-i", "on")
        idle = _median(IDLE, process, partial(time.sleep, IDLE_S), IDLE_S)
        found = {IDLE: idle}
        for name in names:
            connections, opening, step, times = CASES[name]
            streams = [Stream(listener, target.port) for _ in range(connections)]
            repeat(opening, streams, 1)
            work = partial(repeat, step, streams, times)
            found[name] = _median(name, process, work, times * connections, idle)
            for stream in streams:
                stream.close()
        return found


def _median(
    name: str, process: Process, work: Callable[[], object], units: float, idle: Counts | None = None
) -> Counts:
    """Per unit. The first run also ends what the opening of connections began, so it does not count."""
    runs = []
    for _ in range(1 + RUNS):
        process.dump()
        began_s = time.monotonic()
        work()
        found = process.dump()
        took_s = time.monotonic() - began_s
        runs.append({key: (n - (idle[key] * took_s if idle else 0)) / units for key, n in found.items()})
    print(name, *(f"{key}: {[round(run[key]) for run in runs]}" for key in (LOOP, ALL)), sep=", ", flush=True)
    return {key: statistics.median(run[key] for run in runs[1:]) for key in runs[0]}
