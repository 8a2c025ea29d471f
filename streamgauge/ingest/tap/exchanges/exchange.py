"""One request and its response: the only owner of what connects a client connection with an upstream connection.

The connections report events (`on_*`). `forwarding` has what it forwards between them, `ending` how it ends.
"""

from __future__ import annotations

from streamgauge.ingest.http1.heads import BadRequest
from streamgauge.ingest.tap.exchanges import upstream_errors
from streamgauge.ingest.tap.exchanges.forwarding import Forwarding
from streamgauge.ingest.tap.exchanges.sides import Side, UpstreamSide
from streamgauge.ingest.tap.exchanges.states import (
    CLIENT_END,
    CLIENT_LOST,
    CONNECT_FAILED,
    CONNECTED,
    EXPIRED,
    HALF_CLOSED,
    LAST_BYTE,
    OUTPUT_EXPIRED,
    RECEIVING,
    RELAYED,
    RESPONDING,
    RESPONSE,
    UPSTREAM_END,
    UPSTREAM_LOST,
    WAITING,
    after,
    cause_of_end,
)
from streamgauge.ingest.tap.exchanges.timeouts import expired
from streamgauge.ingest.tap.http.rewriting import request_for_upstream


class Exchange(Forwarding):
    """One request and its response."""

    # --- connecting

    def attach(self) -> None:
        """Take its place at the client connection."""
        self._client.exchange = self
        self._context.exchanges.add(self)

    def start(self, now_ns: int) -> None:
        """From now on it needs an upstream connection, and waits for the rest of its request."""
        if self.request == RECEIVING:
            self._waits.begin(now_ns)

    def on_connected(self, upstream: UpstreamSide, now_ns: int) -> None:
        """Send the request's head and the buffered part of its body."""
        if self.ended:
            upstream.abort()
            return
        self._apply(CONNECTED)
        self.connecting = None
        self._upstream = upstream
        upstream.exchange = self
        self._waits.silence_ended(self._last_ns, now_ns)
        client = self._client
        x_forwarded = self._context.options.x_forwarded
        head = request_for_upstream(
            self._head, self._route, self._trace, x_forwarded, client.address, client.scheme
        )
        # One write, so head and body leave in one packet.
        upstream.transport.write(head + self._unsent if self._unsent else head)
        self._unsent = b""
        if client.write_paused:  # it has not read the response before
            self.on_full(client)
        if client.read_paused and not upstream.write_paused:
            client.resume_reading()
            if self.request == RECEIVING:
                self._waits.begin(now_ns)
        self._record_request(now_ns)

    def on_connect_failed(self, error: BaseException) -> None:
        self.connecting = None
        upstream = self._route.upstream
        if isinstance(error, TimeoutError) and not error.errno:
            response = upstream_errors.connect_timed_out(upstream, self._context.timeouts.connect_s)
            self._end_by(EXPIRED, None, response)
        else:
            response = upstream_errors.connect_failed(upstream, error)
            self._end_by(CONNECT_FAILED, type(error).__name__, response)

    # --- what ends an exchange

    def on_end(self, side: Side) -> bool:
        """A side sent its last byte. True: it still receives (half-closed tunnel)."""
        from_client = side is self._client
        if after(RESPONSE, self.response, CLIENT_END if from_client else UPSTREAM_END) is HALF_CLOSED:
            tunnel = self._tunnel
            over = tunnel.client_eof() if from_client else tunnel.upstream_eof()
            other = self._upstream if from_client else self._client
            if other is not None:
                other.end_writing()
            if over:
                self.end(tunnel.cause(), None, self._context.clock_ns())
            return not over
        if from_client:
            # Like nginx, treat a client that closes its side as disconnected. A half-close looks the same, but no LLM
            # client uses it, and an abandoned stream must end at once to save cost.
            self._lost(CLIENT_END, None)
        elif self.response == RESPONDING and self._close_delimited and not self._payload_only:
            self._response_body.complete = True
            self._end_by(LAST_BYTE, None, None)
        else:
            self._lost(UPSTREAM_END, None)
        return False

    def on_lost(self, side: Side, error: Exception | None) -> None:
        """A side's connection closed (None) or broke before the exchange was complete."""
        self._lost(CLIENT_LOST if side is self._client else UPSTREAM_LOST, error)

    def on_deadline(self, now_ns: int) -> None:
        """Called regularly. End if a peer was silent for too long while the tap was ready to receive from it."""
        client, timeouts = self._client, self._context.timeouts
        silent_client = expired(timeouts.request_body_ns, now_ns, client.last_byte_ns, client.ready_ns)
        if silent_client and self.request == RECEIVING and not client.read_paused:
            self._refuse(BadRequest(408, "the request's body did not arrive in time"))
            return
        # While the tap does not read, silence is no sign of a failed upstream.
        if client.write_paused:
            return
        if self.response == WAITING:
            if expired(timeouts.response_head_ns, now_ns, self._last_ns, self._ready_ns):
                self._expired(EXPIRED)
            return
        last_ns = output_ns = self._last_ns
        ready_ns = self._ready_ns
        if self.response == RESPONDING:
            if self._recorder is not None:
                output_ns = self._recorder.last_output_ns
        elif self.response == RELAYED and self._relay is not None:
            try:
                last_ns, output_ns, ready_ns, blocked = self._relay.progress(self._relay_number)
            except Exception as e:
                self._context.failures.count(e)
                return
            if blocked:
                return
        else:
            return
        if expired(timeouts.idle_ns, now_ns, last_ns, ready_ns):
            self._expired(EXPIRED)
        elif expired(timeouts.idle_output_ns, now_ns, output_ns, ready_ns):
            self._expired(OUTPUT_EXPIRED)

    def _expired(self, event: int) -> None:
        cause = cause_of_end(self.response, event)
        if cause is not None:
            self._end_by(event, None, upstream_errors.silent(self._route.upstream, cause))
