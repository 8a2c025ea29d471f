"""One worker of the tap: an event loop, its sockets and its partition of the record log.

Start: open the log, then the sockets, then write the first `Alive` record. Stop: refuse new connections, let open exchanges
finish within the drain time, end the others as `tap_stopped`, write a last `Alive` with `stopping`, flush and close the log.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import socket
import time
from collections.abc import Callable
from typing import Any

from streamgauge.ingest.log_lines import log_loop_errors
from streamgauge.ingest.record_log.interface import LogWriter
from streamgauge.ingest.recording.recording import Recording, Stats
from streamgauge.ingest.records import MAX_WAITING_FOR_CLIENT
from streamgauge.ingest.tap import is_compiled
from streamgauge.ingest.tap.connections.client_connection import ClientConnection
from streamgauge.ingest.tap.connections.tls import TlsLayer, client_context, upstream_context
from streamgauge.ingest.tap.connections.upstream_connection import UpstreamPool
from streamgauge.ingest.tap.exchanges.context import TapContext
from streamgauge.ingest.tap.exchanges.timeouts import CLOSE_PATIENCE_S, FIRST_REQUEST_S, STOP_CHECK_S
from streamgauge.ingest.tap.options import TapOptions
from streamgauge.ingest.tap.relay.body_relay import BodyRelay
from streamgauge.ingest.tap.relay.choice import uses_native_code
from streamgauge.ingest.tap.sockets import HangupWatch, limit_silence

logger = logging.getLogger("streamgauge.tap")


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
    ) -> None:
        self.options = options
        self.loop = asyncio.get_running_loop()
        self.recording = Recording(
            options, client_key=client_key, open_log=open_log, clock_ns=clock_ns, more_stats=self._stats,
            waiting_for_client=self._waiting_for_client,
        )  # fmt: skip
        self.context = TapContext(options, self.loop, clock_ns, self.recording)
        self.hangups = HangupWatch(self.loop, self.context.guards.guard("hang-ups"))
        self.ready = False
        self.address: tuple[str, int] = ("", 0)
        self._stop = asyncio.Event()
        self._skip_drain = False
        self._client_tls = client_context(options)
        tls = upstream_context(options) if any(u.scheme == "https" for u in options.upstreams) else None
        self._pools = [
            UpstreamPool(self.context, upstream, tls if upstream.scheme == "https" else None)
            for upstream in options.upstreams
        ]

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
        if options.log and self.recording.start():
            context.guards.guard("start of recording").attempt(self._record)
        self._listening = sock
        limit_silence(sock, options.peer_timeout_s)
        self._server = await self.loop.create_server(self._accept, sock=sock, backlog=options.backlog)
        name = sock.getsockname()
        self.address = (name[0], name[1])
        context.loop_monitor.start()
        self.ready = True

    def _record(self) -> None:
        """Record the exchanges that begin from now on. After an exception they are forwarded without a record."""
        context, buffer = self.context, self.recording.buffer
        if context.relay is not None and buffer is not None:
            context.relay.record_in(buffer)
        context.refusals.recorders = context.recorders = self.recording.recorders

    def _accept(self) -> Any:
        """The `asyncio.Protocol` of a new connection. Compiled classes do not inherit from that class."""
        client = ClientConnection(self.context, self._pools, self.hangups)
        tls, timeout_s = self._client_tls, self.options.head_timeout_s or None
        if tls is None:
            return client
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
        self.recording.end_alive()
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
        self.recording.close()
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

    # --- counters

    def _stats(self) -> Stats:
        """The tap's part of the counters."""
        context, relay = self.context, self.context.relay
        return {
            "open_streams_now": len(context.exchanges),
            "client_connections_now": len(context.clients),
            "native_relays_now": int(relay is not None),
            "compiled_workers_now": int(is_compiled()),
            "relay_waits_dropped": relay.waits_dropped if relay is not None else 0,
            "loop_lag_max_ns": context.loop_monitor.lag_max_ns,
            "loop_lag_last_max_ns": context.loop_monitor.lag_ns,
            "loop_blocked_ns": context.loop_monitor.blocked_ns,
        }

    def _waiting_for_client(self) -> list[str]:
        context = self.context
        try:
            relay_blocks = context.relay is not None and context.relay.blocks
            streams = (client.waiting_stream(relay_blocks) for client in context.clients)
            return list(itertools.islice(filter(None, streams), MAX_WAITING_FOR_CLIENT))
        except Exception as e:  # a bug; a tap without `Alive` counts as lost
            context.failures.count(e)
            return []
