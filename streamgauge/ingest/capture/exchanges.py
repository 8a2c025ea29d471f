"""The HTTP/1.x exchanges of one connection, from the bytes that both sides sent.

Grammar, body framings, tunnels and recorder are those of the tap; only the order of the calls is decided here. Times are in ns.

- The response's time is that of the packet that completed it, and t0 that of the packet that completed the request's head.
- After a gap, the exchanges whose bytes are missing are lost from there on (`Lost`), never measured over it. The next request whose
  start is seen is recorded again.
- A client that ends its direction within a response may still receive. How the connection ends decides.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Concatenate, ParamSpec

from streamgauge.ingest.capture.tcp_reassembly import Endpoint
from streamgauge.ingest.facts import RouteFacts
from streamgauge.ingest.generated_ids import uuid7
from streamgauge.ingest.http1 import heads
from streamgauge.ingest.http1.bodies import BodyReader
from streamgauge.ingest.http1.heads import BadUpstream, HeadLimits, RequestHead
from streamgauge.ingest.http1.receive_buffer import ReceiveBuffer
from streamgauge.ingest.http1.trace_context import join_trace
from streamgauge.ingest.http1.tunnel import Tunnel
from streamgauge.ingest.http1.upstreams import Upstream
from streamgauge.ingest.recording.recorder import Recorder, Recorders
from streamgauge.ingest.recording.waits import Waits
from streamgauge.ingest.records import Cause, Lost

PACKETS_MISSING = "packets_missing"
"""`Lost.cause` of exchanges with a gap."""
EVICTED = "capture_evicted"
"""`Lost.cause` of exchanges that were dropped because of the limits of memory."""
Given = ParamSpec("Given")
_LIMITS = HeadLimits(head_bytes=262_144, target_bytes=65_536, fields=1000)
"""Those of the server apply: a request that it accepts is recorded."""


class _Exchange:
    def __init__(self, head: RequestHead, waits: Waits, *, reused: bool, starts_at: int) -> None:
        self.head = head
        self.waits = waits
        self.reused = reused
        self.starts_at = starts_at
        """Position at which the response begins, at the earliest: a client mostly acknowledges a response before its next request."""
        self.recorder: Recorder | None = None
        self.body: BodyReader | None = None
        """Of the response; None before its head."""
        self.tunnel: Tunnel | None = None
        self.request_bytes = self.response_bytes = 0


class Exchanges:
    """The exchanges of one connection. Calls raise `BadRequest` if what a client sends is not HTTP/1.x."""

    def __init__(self, recorders: Recorders, server: Upstream, sent: Endpoint) -> None:
        """`server`: the side that answers. `sent`: the bytes that it sends."""
        self._recorders, self._failures = recorders, recorders.buffer.failures
        self._server = server
        self._sent = sent
        self.count = 0
        self._buffer = self._new_buffer()
        self._since_ns = 0  # the first byte of the request in the buffer
        self._sending: _Exchange | None = None  # its request's body is being received
        self._request_body: BodyReader | None = None
        self._open: deque[_Exchange] = deque()
        """Those whose response is not complete, the one that is being answered first."""
        self._head_buffer: ReceiveBuffer | None = None  # of the response
        self._out_of_step = False
        """After a gap, it is unknown which request the server answers."""
        self._unseen_ns: int | None = None
        """Time of a gap that hides a request, until that is reported as lost."""
        self._unseen_reported = False
        """A request after the last captured one is already reported as lost."""
        self._guessed = False
        """The next response is assumed to begin with the server's next byte."""
        self._client_ended_ns = 0
        self._delivering: tuple[Recorder, int] | None = None
        """The last ended exchange, and how many bytes the server had sent then."""
        self._last_ns = 0

    @property
    def is_open(self) -> bool:
        """An exchange is in progress."""
        return bool(self._open) or self._sending is not None

    @property
    def held_bytes(self) -> int:
        head_bytes = len(self._head_buffer) if self._head_buffer is not None else 0
        return len(self._buffer) + head_bytes

    @staticmethod
    def _new_buffer() -> ReceiveBuffer:
        return ReceiveBuffer(partial(heads.check_partial_head, _LIMITS), skip_empty_line=True)

    # --- the request

    def client_data(self, data: bytes, now_ns: int) -> None:
        self._last_ns = now_ns
        if self._open and self._open[0].tunnel is not None:
            self._open[0].tunnel.client_data(data)
            self._record_websocket(self._open[0], data, now_ns, True)
            return
        while data:
            if self._sending is not None:
                data = self._body_data(self._sending, data, now_ns)
                continue
            if not self._buffer:
                self._since_ns = now_ns
            self._buffer.add(data)
            section = self._buffer.head()
            if section is None:
                return
            self._buffer.skip(len(section))
            data = self._buffer.take()
            self._start(section, now_ns)

    def _start(self, section: bytes, now_ns: int) -> None:
        head = heads.read_request_head(section, _LIMITS)
        exchange = _Exchange(
            head, Waits(None, now_ns), reused=self.count > 0, starts_at=self._sent.acknowledged
        )
        self.count += 1
        self._end_delivery(None)
        self._report_gap()
        try:
            route, trace = RouteFacts(self._server, head.target), join_trace(head.known.get(b"traceparent"))
            exchange.recorder = self._recorders.new(head, route, trace, self._since_ns, now_ns)
        except Exception as e:
            self._failures.not_started(e)
        self._call(exchange.recorder, Recorder.connected, now_ns)
        if head.body != heads.NO_BODY:
            self._sending = exchange
            self._request_body = BodyReader(head.body, head.length, of_request=True)
            exchange.waits.begin(now_ns)
        else:
            self._call(exchange.recorder, Recorder.request_sent, now_ns)
        if not self._out_of_step:
            self._open.append(exchange)
        elif self._open:  # pipelined, after a gap
            self._lose(exchange)
        else:
            self._open.append(exchange)
            self._out_of_step, self._guessed = False, True
            self._sent.skip_to(exchange.starts_at)

    def _body_data(self, exchange: _Exchange, data: bytes, now_ns: int) -> bytes:
        """Part of the request's body. Returns the bytes after it."""
        reader = self._request_body
        assert reader is not None
        payload = reader.feed(data)
        exchange.request_bytes += len(payload)
        self._call(exchange.recorder, Recorder.request_data, payload)
        if not reader.complete:
            return b""
        self._sending = self._request_body = None
        exchange.waits.end(now_ns)
        self._call(exchange.recorder, Recorder.request_sent, now_ns)
        self._call(exchange.recorder, Recorder.record_request, True)
        return data[-reader.excess :] if reader.excess else b""

    # --- the response

    def server_data(self, data: bytes, now_ns: int) -> None:
        now_ns = self._last_ns = max(now_ns, self._last_ns)
        while data:
            if not self._open:
                if self._out_of_step and data.startswith(b"HTTP/1."):
                    self._lose_unseen(now_ns)  # which this response shows to be missing
                return
            exchange = self._open[0]
            if exchange.tunnel is not None:
                exchange.tunnel.upstream_data(data, now_ns)
                self._record_websocket(exchange, data, now_ns, False)
                return
            try:
                if exchange.body is None:
                    data = self._head_data(exchange, data, now_ns)
                else:
                    data = self._payload(exchange, exchange.body, data, now_ns)
            except BadUpstream:
                if not self._guessed:  # else the guess was wrong
                    self._end("bad_upstream", None, now_ns)
                self.lose_all()
                self._out_of_step = True
                return

    def _head_data(self, exchange: _Exchange, data: bytes, now_ns: int) -> bytes:
        """Bytes before the response's body. Returns those after the final head."""
        if self._head_buffer is None:
            self._head_buffer = ReceiveBuffer(heads.check_partial_response_head)
        received = self._head_buffer
        received.add(data)
        while (section := received.head()) is not None:
            head = heads.read_response_head(section)
            received.skip(head.size_bytes)
            if 101 != head.status < 200:
                continue
            if head.status == 101 and not heads.asks_for_tunnel(exchange.head):
                raise BadUpstream("it switched protocols without a request to do so")
            rest, self._head_buffer, self._guessed = received.take(), None, False
            if self._sending is exchange:
                self._call(exchange.recorder, Recorder.record_request, False)
                exchange.waits.end(now_ns)
            self._call(exchange.recorder, Recorder.response_head, head, now_ns)
            if head.status == 101:
                websocket = (exchange.head.upgrade or b"").lower() == b"websocket"
                exchange.tunnel = Tunnel(websocket=websocket, half_close=True)
                return rest
            exchange.body = BodyReader(*heads.response_body(head, exchange.head.method))
            if exchange.body.complete:
                self._end("complete", None, now_ns)
            return rest
        return b""

    def _payload(self, exchange: _Exchange, reader: BodyReader, data: bytes, now_ns: int) -> bytes:
        """Part of the response's body. Returns the bytes after it. The hot path."""
        payload = reader.feed(data)
        if payload:
            exchange.response_bytes += len(payload)
            self._call(exchange.recorder, Recorder.response_data, payload, now_ns)
        if not reader.complete:
            return b""
        self._end("complete", None, now_ns)
        return data[-reader.excess :] if reader.excess else b""

    def _record_websocket(self, exchange: _Exchange, data: bytes, now_ns: int, from_client: bool) -> None:
        if exchange.tunnel is not None and exchange.tunnel.websocket:
            self._call(exchange.recorder, Recorder.websocket_data, data, now_ns, from_client)

    # --- evidence for blame

    def client_window(self, is_open: bool, now_ns: int) -> None:
        """The client's kernel has room for more of the response, or has none because the client does not read."""
        if self._open and self._sending is None:
            exchange = self._open[0]
            if is_open:
                exchange.waits.end(now_ns)
            else:
                exchange.waits.begin(now_ns)

    def acknowledged(self, now_ns: int) -> None:
        """The client has acknowledged bytes of the server."""
        if self._delivering is not None and self._sent.acknowledged >= self._delivering[1]:
            self._end_delivery(now_ns)

    def _end_delivery(self, at_ns: int | None, left_ns: int | None = None) -> None:
        """`at_ns`: when the client's kernel had the last response. `left_ns`: when the client left before. None: unknown."""
        delivering, self._delivering = self._delivering, None
        if delivering is not None:
            recorder, end = delivering
            undelivered_bytes = max(0, end - self._sent.acknowledged) if left_ns is not None else 0
            self._call(recorder, Recorder.drained, None, at_ns, left_ns, undelivered_bytes)

    # --- the end

    def client_ended(self, now_ns: int) -> None:
        """The client has sent its last byte. Further calls do nothing."""
        self._client_ended_ns = self._client_ended_ns or now_ns
        if self._open and (tunnel := self._open[0].tunnel) is not None and tunnel.client_eof():
            self._end(tunnel.cause(), None, now_ns)

    def server_ended(self, now_ns: int) -> None:
        """The server has sent its last byte. Further calls do nothing."""
        at_ns = max(now_ns, self._last_ns)
        while self._open:
            exchange = self._open[0]
            if exchange.tunnel is not None:
                if not exchange.tunnel.upstream_eof():
                    return
                self._end(exchange.tunnel.cause(), None, at_ns)
            elif self._client_ended_ns:
                self._end("client_left", None, max(self._client_ended_ns, self._last_ns))
            elif exchange.body is not None and exchange.body.until_close:
                self._end("complete", None, at_ns)
            else:
                self._end("upstream_reset", None, at_ns)

    def reset(self, now_ns: int, *, by_client: bool) -> None:
        """One side has broken the connection."""
        by_client = by_client or self._client_ended_ns > 0
        cause: Cause = "client_left" if by_client else "upstream_reset"
        while self._open:
            tunnel = self._open[0].tunnel
            self._end(cause if tunnel is None else tunnel.cause(cause), "ConnectionResetError", now_ns)
        self._end_delivery(None, now_ns if by_client else None)

    def stop(self) -> None:
        """The capture ends here."""
        while self._open:
            self._end("tap_stopped", None, self._last_ns)
        self._end_delivery(None)
        self._report_gap()

    def client_gap(self, size_bytes: int) -> None:
        """Bytes of the client are missing, perhaps whole requests."""
        if self._sending is not None:
            self._lose(self._sending, size_bytes)
            self._sending = self._request_body = None
        elif self._open and self._open[0].tunnel is not None:
            self._lose(self._open.popleft(), size_bytes)
        elif size_bytes and self._unseen_ns is None and not self._unseen_reported:
            self._unseen_ns = self._last_ns
        self._buffer = self._new_buffer()
        self._out_of_step = True

    def server_gap(self, size_bytes: int) -> None:
        """The next bytes of the server are missing. Goes on with the first response that begins after them."""
        end = self._sent.at + size_bytes
        while self._open and self._open[0].starts_at < end:
            self._lose(self._open.popleft(), size_bytes)
        self._head_buffer = None
        self._end_delivery(None)
        if self._open:
            self._guessed = True
            self.server_data(self._sent.skip_to(self._open[0].starts_at), self._last_ns)
        else:
            self._out_of_step = True
            self._sent.skip_gap()

    def _report_gap(self) -> None:
        if self._unseen_ns is not None:
            self._lose_unseen(self._unseen_ns)
        self._unseen_reported = False

    def lose_all(self, cause: str = PACKETS_MISSING) -> None:
        """The rest of all open exchanges is lost."""
        for exchange in self._open:
            self._lose(exchange, cause=cause)
        self._open.clear()
        self._head_buffer = None
        self._end_delivery(None)

    def _lose(self, exchange: _Exchange, size_bytes: int = 0, cause: str = PACKETS_MISSING) -> None:
        recorder, exchange.recorder = exchange.recorder, None
        if recorder is not None and not recorder.abandoned:
            self._failures.attempt(recorder.abandon, cause, size_bytes)

    def _lose_unseen(self, at_ns: int) -> None:
        """Report an exchange whose request was not seen."""
        self._unseen_ns, self._unseen_reported = None, True
        self._failures.counters.open_stream()
        lost = Lost(uuid7(self._recorders.wall_ns(at_ns)), 0, 0, PACKETS_MISSING, time.time_ns(), 0, True)
        self._failures.attempt(self._recorders.buffer.lose, lost)

    def _end(self, cause: Cause, detail: str | None, now_ns: int) -> None:
        """End the exchange that is being answered."""
        exchange = self._open.popleft()
        self._head_buffer = None
        tunnel, recorder = exchange.tunnel, exchange.recorder
        exchange.recorder = None
        if tunnel is not None:
            exchange.request_bytes += tunnel.client_bytes
            exchange.response_bytes += tunnel.upstream_bytes
        counters = self._failures.counters
        counters.request_bytes += exchange.request_bytes
        counters.body_bytes += exchange.response_bytes
        if recorder is None:
            return
        exchange.waits.end(now_ns)
        if self._sending is exchange:
            self._call(recorder, Recorder.record_request, False)
        if tunnel is not None:
            recorder.first_byte_ns = tunnel.first_byte_ns
        self._call(
            recorder, Recorder.ended, cause, detail, now_ns, exchange.request_bytes, exchange.response_bytes, exchange.reused,
            tunnel is not None, exchange.waits.found,
        )  # fmt: skip
        self._end_delivery(None)
        self._delivering = recorder, self._sent.at
        if cause == "client_left":
            self._end_delivery(None, now_ns)
        else:
            self.acknowledged(now_ns)

    def _call(
        self,
        recorder: Recorder | None,
        step: Callable[Concatenate[Recorder, Given], object],
        *args: Given.args,
        **more: Given.kwargs,
    ) -> None:
        """Call a method of the recorder, if there is one. After an exception it takes no more calls."""
        if recorder is not None:
            try:
                step(recorder, *args, **more)
            except Exception as e:
                self._failures.failed(e, recorder)
