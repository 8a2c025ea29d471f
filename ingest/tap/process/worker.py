"""One worker of the tap: an event loop, its sockets and its partition of the record log.

Start: open the log, then the sockets, then write the first `Alive` record. Stop: refuse new connections, let open exchanges
finish within the drain time, end the others as `tap_stopped`, write a last `Alive` with `stopping`, flush and close the log.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import logging
import signal
import socket
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import cast

from streamgauge.ingest.listening import REPLACED
from streamgauge.ingest.log_lines import log_loop_errors
from streamgauge.ingest.record_log import run_totals
from streamgauge.ingest.record_log.embedded_writer import EmbeddedWriter
from streamgauge.ingest.record_log.interface import LogInUse, LogWriter
from streamgauge.ingest.records import MAX_WAITING_FOR_CLIENT, Alive
from streamgauge.ingest.tap import is_compiled
from streamgauge.ingest.tap.connections.client_connection import ClientConnection
from streamgauge.ingest.tap.connections.sockets import HangupWatch, limit_silence
from streamgauge.ingest.tap.connections.tls import TlsLayer, client_context, upstream_context
from streamgauge.ingest.tap.connections.upstream_connection import UpstreamPool
from streamgauge.ingest.tap.counters import NAMES
from streamgauge.ingest.tap.exchanges.context import TapContext
from streamgauge.ingest.tap.exchanges.timeouts import CLOSE_PATIENCE_S, FIRST_REQUEST_S, STOP_CHECK_S
from streamgauge.ingest.tap.options import TapOptions
from streamgauge.ingest.tap.process.metrics import Report
from streamgauge.ingest.tap.recording.log_thread import LogThread
from streamgauge.ingest.tap.recording.record_buffer import RecordBuffer
from streamgauge.ingest.tap.recording.recorder import Recorders
from streamgauge.ingest.tap.relay.body_relay import BodyRelay
from streamgauge.ingest.tap.relay.choice import uses_native_code

logger = logging.getLogger("streamgauge.tap")

_ALIVE_BYTES = 1024  # room reserved for one Alive record
_ALIVE_LATE_S = 5.0
_WRITER_COUNTERS = (
    "dropped_segments", "dropped_records", "dropped_bytes", "trimmed_segments", "corrupt_segments",
    "refused_entries", "failed_entries",
)  # fmt: skip

Stats = dict[str, int]


class TapWorker:
    """One worker. Create it inside its running event loop.

    Tests pass `open_log` to keep the log in memory and `clock_ns` (monotonic) to control time limits. A custom `clock_ns`
    disables the native relay, because the relay reads the system clock.
    """

    def __init__(
        self,
        options: TapOptions,
        *,
        client_key: bytes,
        open_log: Callable[[], LogWriter] | None = None,
        clock_ns: Callable[[], int] = time.monotonic_ns,
        wall_ns: Callable[[int], int] | None = None,
        more_stats: Callable[[], Mapping[str, int]] = dict,
    ) -> None:
        """`wall_ns`: the Unix time of a time of the exchanges, if `clock_ns` is not their clock."""
        self.options = options
        self.loop = asyncio.get_running_loop()
        self.context = TapContext(options, self.loop, clock_ns)
        self.counters = self.context.counters
        self.hangups = HangupWatch(self.loop, self.context.guards.guard("hang-ups"))
        self.incarnation = str(uuid.uuid4())
        self.ready = False
        self.address: tuple[str, int] = ("", 0)
        self._client_key = client_key
        self._wall_ns, self._more_stats = wall_ns, more_stats
        self._started_wall_ns = time.time_ns()
        self.open_log = open_log or self._open_embedded
        self._log: LogThread | None = None
        self._writer_stats: Callable[[], Mapping[str, int]] = dict
        self._buffer: RecordBuffer | None = None
        self._wrote_last_alive = False
        self._stop = asyncio.Event()
        self._skip_drain = False
        self._client_tls = client_context(options)
        tls = upstream_context(options) if any(u.scheme == "https" for u in options.upstreams) else None
        self._pools = [
            UpstreamPool(self.context, upstream, tls if upstream.scheme == "https" else None)
            for upstream in options.upstreams
        ]

    def _open_partition(self) -> EmbeddedWriter:
        """Open the partition of this worker. If a former tap still uses it, the worker takes its spare number."""
        options, log_dir = self.options, self.options.data / "log"
        numbers = [options.worker]
        if options.spare_partitions:
            numbers.append((options.worker + options.workers) % (2 * options.workers))
            # A run that has ended in one of them may have losses to report.
            numbers.sort(key=lambda number: not run_totals.has_unreported_run(log_dir / f"w{number}"))
        for number in numbers:
            try:
                writer = EmbeddedWriter(
                    log_dir,
                    f"w{number}",
                    cap_bytes=options.record_log_max_bytes,
                    max_age_s=options.record_log_max_age_s,
                )
            except LogInUse as e:
                error = e
            else:
                self.options = replace(options, worker=number)
                return writer
        raise LogInUse(
            f"{error}: another tap uses this data folder. Stop it, or choose another folder with --data."
        )

    def _open_embedded(self) -> LogWriter:
        writer, options = self._open_partition(), self.options
        with contextlib.ExitStack() as opened:  # LogThread opens the log again after any exception
            opened.callback(writer.close)
            folder = options.data / "log" / f"w{options.worker}"
            runs = run_totals.RunTotalsFile(
                folder, self.incarnation, tap=options.tap_name, started_wall_ns=self._started_wall_ns
            )
            opened.callback(runs.close)
            if runs.opened is not None:
                self._count_in(runs.opened.count)
            log = run_totals.RunTotalsWriter(writer, runs, self._run_totals, folder)
            opened.pop_all()
        self._writer_stats = writer.stats
        return log

    def _count_in(self, memory: memoryview) -> None:
        """On the log thread: the event loop may count a stream at any moment."""
        self.counters.survives = memory
        while memory[0] != self.counters.streams_opened:
            memory[0] = self.counters.streams_opened

    def _run_totals(self) -> run_totals.RunTotals:
        counters, log = self.counters, self._log
        assert log is not None
        is_reported = self._wrote_last_alive and not log.unappended_records
        return run_totals.RunTotals(
            streams_opened=counters.streams_opened,
            streams_in_log=log.packed_streams,
            records=counters.records,
            captured_bytes=counters.captured_bytes,
            lost_records=counters.lost_records,
            lost_bytes=counters.lost_bytes,
            wall_ns=time.time_ns(),
            mono_ns=time.monotonic_ns(),
            cause=run_totals.CAUSES.index(log.failing) if log.failing else 0,
            state=run_totals.REPORTED if is_reported else run_totals.RUNNING,
        )

    # --- start and stop

    async def start(self, sock: socket.socket) -> None:
        """Serve on a bound socket. Raises OSError or ValueError with one line if the log cannot be opened."""
        options, context = self.options, self.context
        log_loop_errors(logger)
        if uses_native_code(options.relay) and context.clock_ns is time.monotonic_ns:
            try:
                context.relay = BodyRelay(self.loop, context.failures)
            except OSError as e:
                if options.relay == "native":
                    raise
                logger.warning("the native relay cannot be used, so the tap uses its Python code: %s", e)
        if options.log:
            self.start_log()
        self._listening = sock
        limit_silence(sock, options.peer_timeout_s)
        self._server = await self.loop.create_server(self._accept, sock=sock, backlog=options.backlog)
        name = sock.getsockname()
        self.address = (name[0], name[1])
        context.loop_monitor.start()
        self.ready = True

    def start_log(self) -> None:
        """Open the log and record the exchanges that begin from now on. Raises LogInUse."""
        self._log = LogThread(self.open_log, self.context.guards)
        self.context.guards.check("record log", self._log_fault)
        self._log.start()
        self.context.guards.guard("start of recording").attempt(self._start_recording, self._log)

    def _start_recording(self, log: LogThread) -> None:
        """Record the exchanges that begin from now on. After an exception they are forwarded without a record."""
        context = self.context
        self._buffer = buffer = RecordBuffer(log, context.failures, queue_bytes=self.options.queue_bytes)
        recorders = Recorders(
            buffer,
            self.options,
            incarnation=self.incarnation,
            client_key=self._client_key,
            wall_ns=self._wall_ns or (lambda at_ns: time.time_ns() - context.clock_ns() + at_ns),
        )
        if context.relay is not None:
            context.relay.record_in(buffer)
        self._write_alive_periodically()
        context.refusals.recorders = context.recorders = recorders

    def _accept(self) -> asyncio.BaseProtocol:
        client = ClientConnection(self.context, self._pools, self.hangups)
        tls, timeout_s = self._client_tls, self.options.head_timeout_s or None
        if tls is None:
            return cast(asyncio.Protocol, client)
        return TlsLayer(self.loop, client, tls, None, server_side=True, ssl_handshake_timeout=timeout_s)

    def stop(self) -> None:
        """Begin to stop. A second call skips the drain time."""
        if self._stop.is_set():
            self._skip_drain = True
        self._stop.set()

    def hand_over(self) -> None:
        """Stop, because another tap has the listening sockets. Clients keep idle connections for the drain time, for one more request."""
        self.context.handed_over = True
        self._stop.set()

    async def serve(self) -> None:
        """Wait for `stop`, then drain and stop."""
        await self._stop.wait()
        context = self.context
        self.ready = False
        context.stopping = True
        guard = context.guards.guard("stop")
        attempt = guard.attempt  # each step is made, whatever the others raise
        if not context.handed_over:
            try:
                await self._accept_waiting()
            except Exception as e:
                guard.failed(e)
        attempt(self._server.close)
        await asyncio.sleep(FIRST_REQUEST_S)
        drain_s = context.timeouts.drain_s
        if context.handed_over:
            await self._wait_until(lambda: not context.clients or self._skip_drain, drain_s)
        for client in list(context.clients):
            attempt(client.close_if_idle)
        if not context.handed_over:
            await self._wait_until(lambda: not context.exchanges or self._skip_drain, drain_s)
        if context.exchanges:
            logger.warning("the drain time is over: ending %d open streams", len(context.exchanges))
        for exchange in list(context.exchanges):
            attempt(exchange.stop)
        await self._wait_until(lambda: not context.clients, CLOSE_PATIENCE_S)
        for client in list(context.clients):
            attempt(client.transport.abort)
        await self._wait_until(lambda: not context.clients, CLOSE_PATIENCE_S)
        for pool in self._pools:
            attempt(pool.close)
        await asyncio.sleep(0)
        attempt(self.hangups.close)
        self.close_log(attempt)
        if context.relay is not None:
            attempt(context.relay.close)

    async def _accept_waiting(self) -> None:
        """Accept the connections that wait in the kernel: closing the listening socket would reset them."""
        with contextlib.suppress(BlockingIOError):
            while True:
                connection, _ = self._listening.accept()
                connection.setblocking(False)
                await self.loop.connect_accepted_socket(self._accept, connection)

    async def _wait_until(self, met: Callable[[], bool], limit_s: float) -> None:
        deadline_s = self.loop.time() + limit_s
        while not met() and self.loop.time() < deadline_s:  # noqa: ASYNC110 - only during a stop
            await asyncio.sleep(STOP_CHECK_S)

    def close_log(self, attempt: Callable[..., bool]) -> None:
        """Write the last records and close the log. `attempt`: that of a guard."""
        if self._buffer is None or self._log is None:
            return
        attempt(self._buffer.flush_all)
        attempt(self._write_alive, True)
        attempt(self._buffer.flush_all)
        attempt(self._log.stop, self.options.log_stop_timeout_s)

    # --- counters

    def report(self) -> Report:
        """What the admin port shows."""
        guards = self.context.guards
        return Report(self.stats(), guards.faults(), guards.failures())

    def stats(self) -> Stats:
        """Values for /metrics and /ledger: totals, and gauges (`*_now`, `*_max_ns`)."""
        counters, context = self.counters, self.context
        stats: Stats = {name: value for name in NAMES if isinstance(value := getattr(counters, name), int)}
        stats.update({f"closed_{cause}": n for cause, n in counters.closed_by_cause.items()})
        stats["open_streams_now"] = len(context.exchanges)
        stats["client_connections_now"] = len(context.clients)
        relay = context.relay
        stats["native_relays_now"] = int(relay is not None)
        stats["compiled_workers_now"] = int(is_compiled())
        stats["relay_waits_dropped"] = relay.waits_dropped if relay is not None else 0
        stats["loop_lag_max_ns"] = context.loop_monitor.lag_max_ns
        stats["loop_lag_last_max_ns"] = context.loop_monitor.lag_ns
        stats["loop_blocked_ns"] = context.loop_monitor.blocked_ns
        stats["faults_now"] = len(context.guards.faults())
        stats.update(self._more_stats())
        if self._log is not None and self._buffer is not None:
            stats["queue_bytes_now"] = self._buffer.queued_bytes
            stats["log_append_errors"] = self._log.append_errors
            stats["log_entries"] = self._log.appended_entries
            stats["log_bytes"] = self._log.appended_bytes
            stats["log_failing_now"] = int(self._log.failing is not None)
            writer_stats = self._writer_stats()
            stats["log_size_bytes_now"] = writer_stats.get("log_bytes", 0)
            stats.update({f"log_{name}": writer_stats.get(name, 0) for name in _WRITER_COUNTERS})
        return stats

    def _log_fault(self) -> str | None:
        log = self._log
        if log is None or log.failing is None:
            return None
        path = self.options.data / "log"
        return f"cannot append to {path}: {log.failing_reason}. Streams are lost when the memory for waiting records is full"

    def _write_alive_periodically(self) -> None:
        alive_s = self.options.alive_s
        guard = self.context.guards.guard("alive records", silent_after_s=2 * alive_s + _ALIVE_LATE_S)
        if self.context.stopping:
            guard.end()
            return
        self.loop.call_later(alive_s, self._write_alive_periodically)
        guard.attempt(self._write_alive)

    def _waiting_for_client(self) -> list[str]:
        context = self.context
        try:
            relay_blocks = context.relay is not None and context.relay.blocks
            streams = (client.waiting_stream(relay_blocks) for client in context.clients)
            return list(itertools.islice(filter(None, streams), MAX_WAITING_FOR_CLIENT))
        except Exception as e:  # a bug; a tap without `Alive` counts as lost
            context.failures.count(e)
            return []

    def _write_alive(self, stopping: bool = False) -> None:
        buffer, options = self._buffer, self.options
        if buffer is None:
            return
        alive = Alive(
            tap=options.tap_name,
            tap_worker=options.worker,
            incarnation=self.incarnation,
            wall_ns=time.time_ns(),
            mono_ns=time.monotonic_ns(),
            started_wall_ns=self._started_wall_ns,
            stopping=stopping,
            counters=self.stats(),
            waiting_for_client=self._waiting_for_client(),
        )
        is_queued = buffer.has_room(_ALIVE_BYTES, True) and buffer.append(alive) > 0
        self._wrote_last_alive = stopping and is_queued


def stop_on_signals(stop: Callable[[], None], hand_over: Callable[[], None] | None = None) -> None:
    """Call `stop` at each SIGTERM and SIGINT, and `hand_over` at REPLACED."""
    loop = asyncio.get_running_loop()
    if hand_over is not None:
        loop.add_signal_handler(REPLACED, hand_over)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)


def reduce_gc() -> None:
    """Exempt imported objects from garbage collection and collect rarely.

    The hot path creates no reference cycles, and a full collection pauses every stream.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)
