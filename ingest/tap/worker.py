"""One worker of the tap: an event loop, its sockets, its partition of the log.

Order of a start: log, sockets, first `Alive`; of a stop: no new connections, open streams finish (up to the drain time), the
rest is ended as `tap_stopped`, the last `Alive` with `stopping`, the log is flushed and closed. As `python -m
ingest.tap.worker` it is a child of a tap with several workers: options come on stdin, and a control socket asks for
counters and is the way to tell that the parent is gone.
"""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import pickle
import signal
import socket
import sys
import time
import uuid
from collections.abc import Callable, Mapping

import uvloop

from ingest.ids import discard_random_block
from ingest.record_log.embedded_writer import EmbeddedWriter
from ingest.record_log.interface import LogInUse, LogWriter
from ingest.record_log.run_totals import RunTotals, RunTotalsFile, RunTotalsWriter
from ingest.records import Alive
from ingest.tap.client_connection import ClientConnection
from ingest.tap.counters import NAMES, Counters
from ingest.tap.exchange import Exchange
from ingest.tap.options import TapOptions, split_address
from ingest.tap.record_buffer import RecordBuffer
from ingest.tap.record_log_thread import LogThread
from ingest.tap.routing import Router
from ingest.tap.sockets import HangupWatch
from ingest.tap.stream_recorder import RecorderFactory
from ingest.tap.tls import client_context, upstream_context
from ingest.tap.upstream_connection import UpstreamPool

logger = logging.getLogger("streamgauge.tap")

_LAG_PERIOD_S = 0.1
_LAG_PERIOD_NS = 100_000_000
_STOP_POLL_S = 0.01
_LAST_WORDS_S = 1.0  # for the ends of streams to reach their clients after the drain time
_OF_WRITER = (
    "dropped_segments", "dropped_records", "dropped_bytes", "trimmed_segments", "corrupt_segments",
    "refused_entries", "failed_entries",
)  # fmt: skip

Stats = dict[str, int]


class TapWorker:
    """Everything that one worker owns. `open_log` is given by tests that keep the log in memory."""

    def __init__(
        self,
        options: TapOptions,
        *,
        client_key: bytes,
        open_log: Callable[[], LogWriter] | None = None,
    ) -> None:
        self.options = options
        self.client_key = client_key
        self.router = Router(options.upstreams)
        self.incarnation = str(uuid.uuid4())
        self.counters = Counters()
        self.clients: set[ClientConnection] = set()
        self.exchanges: set[Exchange] = set()
        self.recorder_factory: RecorderFactory | None = None
        """None when nothing is recorded."""
        self.stopping = False
        self.ready = False
        self.address: tuple[str, int] = ("", 0)
        self._started_wall_ns = time.time_ns()
        self._open_log = open_log or self._open_embedded
        self._log: LogThread | None = None
        self._writer_stats: Callable[[], Mapping[str, int]] = dict
        self._buffer: RecordBuffer | None = None
        self._lag_max_ns = 0
        self._lag_last_ns = 0
        self._stop = asyncio.Event()
        self._hurry = False
        self.look_every_s = _look_every_s(options)
        """How often a connection looks at its limits of time; 0 when there is none."""
        self._after_turn: list[Callable[[], None]] = []
        self.pools: list[UpstreamPool] = []
        self._tls = client_context(options)
        tls = upstream_context(options) if any(u.scheme == "https" for u in options.upstreams) else None
        self._upstream_tls = [tls if u.scheme == "https" else None for u in options.upstreams]

    def _open_embedded(self) -> LogWriter:
        options = self.options
        partition = f"w{options.worker}"
        try:
            writer = EmbeddedWriter(
                options.data / "log",
                partition,
                cap_bytes=options.record_log_max_bytes,
                max_age_s=options.record_log_max_age_s,
            )
        except LogInUse as e:
            raise OSError(
                f"{e}: a tap runs on this data folder; stop it, or choose another with --data"
            ) from None
        self._writer_stats = writer.stats
        try:
            runs = RunTotalsFile(options.data / "log" / partition, self.incarnation)
        except OSError as e:  # a full disk: what is known of this run ends with its last `Alive` then
            logger.warning("the totals of this run cannot be kept: %s", e)
            return writer
        return RunTotalsWriter(writer, runs, self._run_totals)

    def _run_totals(self) -> RunTotals:
        counters = self.counters
        return RunTotals(
            streams_opened=counters.streams_opened,
            streams_in_log=self._log.packed_streams if self._log is not None else 0,
            records=counters.records,
            captured_bytes=counters.captured_bytes,
            lost_records=counters.lost_records,
            lost_bytes=counters.lost_bytes,
        )

    # --- what connections use

    def after_turn(self, call: Callable[[], None]) -> None:
        """Call this in the loop's next turn, when what was written has been handed to the kernel."""
        if not self._after_turn:
            self.loop.call_soon(self._turn_over)
        self._after_turn.append(call)

    def _turn_over(self) -> None:
        calls, self._after_turn = self._after_turn, []
        for call in calls:
            call()

    # --- life

    async def start(self, sock: socket.socket) -> None:
        """Begin to serve on a bound socket. Raises OSError or ValueError in one line when the log cannot be opened."""
        self.loop = asyncio.get_running_loop()
        options = self.options
        self.pools = [
            UpstreamPool(self, upstream, tls, max_idle=options.pool_idle, max_idle_s=options.pool_idle_s)
            for upstream, tls in zip(options.upstreams, self._upstream_tls, strict=True)
        ]
        if options.log:
            self._log = LogThread(self._open_log)
            self._log.start()
            self._buffer = RecordBuffer(self._log, self.counters, queue_bytes=options.queue_bytes)
            self.recorder_factory = RecorderFactory(
                self._buffer, options, incarnation=self.incarnation, client_key=self.client_key
            )
            self._alive()
        self.hangups = HangupWatch(self.loop)
        self._server = await self.loop.create_server(
            lambda: ClientConnection(self), sock=sock, ssl=self._tls, backlog=options.backlog
        )
        name = sock.getsockname()
        self.address = (name[0], name[1])
        self._lag_due_ns = time.monotonic_ns() + _LAG_PERIOD_NS
        self.loop.call_later(_LAG_PERIOD_S, self._measure_lag)
        self.ready = True

    def stop(self) -> None:
        """Begin to stop; asked twice, do not wait for open streams."""
        if self._stop.is_set():
            self._hurry = True
        self._stop.set()

    async def serve(self) -> None:
        """Until told to stop; then drain and stop."""
        await self._stop.wait()
        self.ready = False
        self.stopping = True
        self._server.close()
        for client in list(self.clients):
            client.close_if_idle()
        deadline_s = self.loop.time() + self.options.drain_timeout_s
        await self._until(lambda: not self.exchanges or self._hurry, deadline_s)
        if self.exchanges:
            logger.warning("%d open streams are ended: the drain time is over", len(self.exchanges))
        for exchange in list(self.exchanges):
            exchange.stop()
        await self._until(lambda: not self.clients, self.loop.time() + _LAST_WORDS_S)
        for client in list(self.clients):
            client.transport.abort()
        await self._until(lambda: not self.clients, self.loop.time() + _LAST_WORDS_S)
        for pool in self.pools:
            pool.close()
        await asyncio.sleep(0)
        self.hangups.close()
        self._close_log()

    async def _until(self, met: Callable[[], bool], deadline_s: float) -> None:
        while not met() and self.loop.time() < deadline_s:  # noqa: ASYNC110 - once in a life, not worth events
            await asyncio.sleep(_STOP_POLL_S)

    def _close_log(self) -> None:
        if self._buffer is None or self._log is None:
            return
        self._buffer.flush_all()
        self._record_alive(stopping=True)
        self._buffer.flush_all()
        self._log.stop(self.options.log_stop_timeout_s)

    # --- what is told of the worker

    def stats(self) -> Stats:
        """The ledger's numbers: totals, and gauges (`*_now`, `*_max_ns`)."""
        counters = self.counters
        stats: Stats = {name: value for name in NAMES if isinstance(value := getattr(counters, name), int)}
        stats.update({f"closed_{cause}": n for cause, n in counters.closed_by_cause.items()})
        stats["open_streams_now"] = len(self.exchanges)
        stats["client_connections_now"] = len(self.clients)
        stats["loop_lag_max_ns"] = self._lag_max_ns
        stats["loop_lag_last_max_ns"] = self._lag_last_ns
        if self._log is not None and self._buffer is not None:
            stats["queue_bytes_now"] = self._buffer.queued_bytes
            stats["log_append_errors"] = self._log.append_errors
            stats["log_entries"] = self._log.appended_entries
            stats["log_bytes"] = self._log.appended_bytes
            stats["log_failing_now"] = int(self._log.failing is not None)
            of_writer = self._writer_stats()
            stats["log_size_bytes_now"] = of_writer.get("log_bytes", 0)
            stats.update({f"log_{name}": of_writer.get(name, 0) for name in _OF_WRITER})
        return stats

    def _alive(self) -> None:
        self._record_alive()
        if not self.stopping:
            self.loop.call_later(self.options.alive_s, self._alive)

    def _record_alive(self, *, stopping: bool = False) -> None:
        buffer = self._buffer
        if buffer is None:
            return
        options = self.options
        alive = Alive(
            tap=options.tap_name,
            tap_worker=options.worker,
            incarnation=self.incarnation,
            wall_ns=time.time_ns(),
            mono_ns=time.monotonic_ns(),
            started_wall_ns=self._started_wall_ns,
            stopping=stopping,
            counters=self.stats(),
        )
        buffer.add(alive, 1024)

    def _measure_lag(self) -> None:
        """How late the loop runs what is due: what every stream here waited for at worst."""
        now_ns = time.monotonic_ns()
        lag_ns = max(0, now_ns - self._lag_due_ns)
        self._lag_last_ns = lag_ns
        self._lag_max_ns = max(self._lag_max_ns, lag_ns)
        self._lag_due_ns = now_ns + _LAG_PERIOD_NS
        self.loop.call_later(_LAG_PERIOD_S, self._measure_lag)


def _look_every_s(options: TapOptions) -> float:
    limits_s = (
        options.head_timeout_s,
        options.body_timeout_s,
        options.keep_alive_timeout_s,
        options.headers_timeout_s,
        options.idle_timeout_s,
        options.idle_output_timeout_s,
    )
    return min((s for s in limits_s if s), default=0.0) / 4


def bind(address: str, *, shared: bool) -> socket.socket:
    """A TCP socket bound to HOST:PORT; `shared`: several workers bind the same. Raises OSError in one line."""
    host, port = split_address(address)
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        # "localhost" has two addresses, and what we say is then 127.0.0.1: every client reaches that.
        family, _, _, _, where = min(found, key=lambda a: a[0] != socket.AF_INET)
        sock = socket.socket(family, socket.SOCK_STREAM)
    except OSError as e:
        raise OSError(f"cannot listen on {address}: {e.strerror or e}") from None
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        sock.bind(where)
        sock.setblocking(False)
    except OSError as e:
        sock.close()
        raise OSError(f"cannot listen on {address}: {e.strerror}; choose another address") from None
    return sock


def quieten_gc() -> None:
    """What was imported stays; collect seldom: the hot path makes no cycles, and a full collection is a pause."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


async def _child(options: TapOptions, client_key: bytes, control: socket.socket) -> None:
    worker = TapWorker(options, client_key=client_key)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, worker.stop)
    sock = bind(options.listen, shared=True)
    await worker.start(sock)
    reader, writer = await asyncio.open_connection(sock=control)
    writer.write(b"ready\n")

    async def answer() -> None:
        while await reader.readline():
            writer.write(json.dumps(worker.stats()).encode() + b"\n")
        worker.stop()  # the parent is gone
        worker.stop()

    task = asyncio.create_task(answer())
    await worker.serve()
    writer.write(json.dumps(worker.stats()).encode() + b"\n")
    task.cancel()
    writer.close()


def _log_as(formatter: logging.Formatter | None, level: int, worker: int) -> None:
    """Log in the parent's form, under a name of our own."""

    def name_worker(record: logging.LogRecord) -> bool:
        record.name = f"{record.name}.w{worker}"
        return True

    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter)
    handler.addFilter(name_worker)
    logging.basicConfig(level=level, handlers=[handler])
    logging.getLogger("streamgauge").setLevel(min(level, logging.INFO))


def main() -> int:
    """A child of a tap with several workers: argv[2] is the control socket's descriptor, stdin holds the options."""
    options, client_key, level, formatter = pickle.load(sys.stdin.buffer)  # noqa: S301 - from our parent
    _log_as(formatter, level, options.worker)
    discard_random_block()
    quieten_gc()
    control = socket.socket(fileno=int(sys.argv[2]))
    try:
        uvloop.run(_child(options, client_key, control))
    except (OSError, ValueError) as e:
        logger.error("worker %d cannot start: %s", options.worker, e)
        return 2
    return 0


if __name__ == "__main__":
    code = main()
    logging.shutdown()
    sys.stderr.flush()
    os._exit(code)  # the log is closed; a thread that hangs in a dead disk must not hold up the exit
