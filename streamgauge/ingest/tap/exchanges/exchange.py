"""One request and its response: the only owner of what connects a client connection with an upstream connection.

The connections report events (`on_*`); `states` says what follows from each. The exchange detaches from both connections,
releases the upstream one and gives its end to the recorder in `end` alone, once, with one cause. `Forwarding` has the rest.
"""

from __future__ import annotations

from streamgauge.ingest.http1.heads import BadRequest
from streamgauge.ingest.http1.tunnel import Tunnel
from streamgauge.ingest.records import Cause
from streamgauge.ingest.tap.exchanges import upstream_errors
from streamgauge.ingest.tap.exchanges.forwarding import Forwarding
from streamgauge.ingest.tap.exchanges.sides import Side, UpstreamSide
from streamgauge.ingest.tap.exchanges.states import (
    ABORT,
    CLIENT_END,
    CLIENT_LOST,
    CLOSE,
    CONNECT_FAILED,
    CONNECTED,
    DRAINED,
    DRAINING,
    EXPIRED,
    KEEP_OPEN,
    LAST_BYTE,
    LINGER,
    OUTPUT_EXPIRED,
    RECEIVING,
    RELAYED,
    RESET,
    RESPONDING,
    RETRIED,
    STOPPED,
    TUNNELING,
    UPSTREAM_END,
    UPSTREAM_LOST,
    WAITING,
    cause_of_end,
)
from streamgauge.ingest.tap.exchanges.timeouts import expired
from streamgauge.ingest.tap.http.error_responses import ErrorResponse
from streamgauge.ingest.tap.http.rewriting import request_for_upstream

SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})


class Exchange(Forwarding):
    """One request and its response."""

    # --- connecting

    def attach(self) -> None:
        """Take its place at the client connection."""
        self._client.exchange = self
        self._context.exchanges.add(self)

    def start(self, now_ns: int) -> None:
        """Take an idle upstream connection or open one."""
        if self.request == RECEIVING:
            self._waits.begin(now_ns)
        # Synchronously: a request over a pooled connection is on its way before the loop runs anything else.
        idle = self._pool.acquire()
        if idle is not None:
            self._context.counters.upstream_reuses += 1
            self.on_connected(idle, now_ns)
        else:
            self._connect_task = self._pool.connect(self)

    def on_connected(self, upstream: UpstreamSide, now_ns: int) -> None:
        """Send the request's head and the buffered part of its body."""
        if self.ended:
            upstream.abort()
            return
        self._apply(CONNECTED)
        self._connect_task = None
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
        self._connect_task = None
        upstream = self._route.upstream
        if isinstance(error, TimeoutError) and not getattr(error, "errno", None):
            response = upstream_errors.connect_timed_out(upstream, self._context.timeouts.connect_s)
            self._end_by(EXPIRED, None, response)
        else:
            response = upstream_errors.connect_failed(upstream, error)
            self._end_by(CONNECT_FAILED, _error_name(error), response)

    # --- what ends an exchange

    def on_end(self, side: Side) -> bool:
        """A side sent its last byte. True: it still receives (half-closed tunnel)."""
        from_client = side is self._client
        if self.response == TUNNELING:
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

    def _lost(self, event: int, error: Exception | None) -> None:
        response = None
        if self.response == WAITING and event in (UPSTREAM_END, UPSTREAM_LOST):
            upstream = self._upstream
            assert upstream is not None
            # POST is never repeated, even on a connection that may have been idle for too long: the server may have done
            # the work, and tokens are billed.
            safe = self._head.method in SAFE_METHODS and self._request_body is None
            if upstream.reused and safe and not self._received:
                # The server closed an idle connection while our request was on its way. The request is idempotent and
                # has no body, so we may repeat it on a new connection (RFC 9110 §9.2.2).
                self._apply(RETRIED)
                self._context.counters.retries += 1
                self._upstream = upstream.exchange = None
                self._connect_task = self._pool.connect(self)
                return
            fresh = not upstream.reused and not self._received
            response = upstream_errors.closed_too_early(self._route.upstream, fresh=fresh)
        self._end_by(event, _error_name(error), response)

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

    def stop(self) -> None:
        """The tap stops and its drain time is over."""
        self._end_by(STOPPED, None, upstream_errors.disconnected(self._route.upstream))

    # --- the end

    def _end_by(
        self, event: int, detail: str | None, response: ErrorResponse | None, now_ns: int = 0
    ) -> None:
        """End with the cause that the table names, if the event is an end in this state. The client receives `response` unless it
        has received a head. `now_ns`: 0 is now."""
        cause = cause_of_end(self.response, event)
        if cause is None:
            return
        if self.response == TUNNELING and event != STOPPED:
            cause = self._tunnel.cause(cause)
        started = self._response_head is not None
        self.end(cause, detail, now_ns or self._context.clock_ns(), None if started else response)

    def end(
        self, cause: Cause, detail: str | None, now_ns: int, error_response: ErrorResponse | None = None
    ) -> None:
        """Detach, release, record. A second call does nothing: both connections may report the same end."""
        if self.response == RELAYED and self._relay is not None:
            if not self._context.failures.attempt(self._relay.take_back, self._relay_number, now_ns):
                self.response = RESPONDING  # closing the connections ends the relay's part
            # `take_back` reports what is in the relay's queue. That may be the end itself, which comes back here
            # through `relay_ended`: the body had already ended in the relay.
            # The relay's clock reads may be newer than the caller's: an end before the last byte would be a negative
            # duration.
            now_ns = max(now_ns, self._last_ns)
        if self.ended:
            return
        waits = self._waits
        waits.silence_ended(self._last_ns, now_ns)
        waits.end(now_ns)
        tunnel = self._tunnel if self.response == TUNNELING else None
        self.response = DRAINING
        if self._connect_task is not None:
            self._connect_task.cancel()
            self._connect_task = None
        if tunnel is not None:
            self.request_bytes += tunnel.client_bytes
            self.response_bytes += tunnel.upstream_bytes
            self.written_bytes += tunnel.upstream_bytes
        # First the upstream, then the records, then the client: an upstream that is still generating costs money until
        # its connection is closed, and the client connection may start its next exchange in `exchange_ended`.
        complete = cause == "complete"
        received = self.request != RECEIVING
        context, reused = self._context, self._upstream is not None and self._upstream.reused
        try:
            self._release_upstream(complete and received, tunnel is not None and cause != "tap_stopped")
        except Exception as e:  # the client's part of the end must follow
            context.failures.count(e)
        context.counters.body_bytes += self.response_bytes
        context.counters.request_bytes += self.request_bytes
        refused_status = error_response.status if cause == "bad_request" and error_response else None
        self._record_end(cause, detail, now_ns, reused, tunnel, refused_status)
        if cause == "client_left" and (tunnel is None or detail is not None):
            then = ABORT
        elif complete and self._keep_client and received:
            then = KEEP_OPEN
        # The client knows the end of such a body only by the close. A reset tells it that the body is cut; a close
        # would make it look whole.
        elif not complete and error_response is None and self._close_delimited:
            then = RESET
        else:
            then = LINGER if tunnel is not None or not received else CLOSE
        client = self._client
        context.exchanges.discard(self)
        client.exchange = None
        client.draining = self
        if self._recorder is None:
            self._drained()
        client.exchange_ended(self, now_ns, error_response, then)

    def _release_upstream(self, reusable: bool, tunneled: bool) -> None:
        """Return the upstream connection to the pool, close it after the last bytes of a tunnel, or abort it."""
        upstream, self._upstream = self._upstream, None
        if upstream is None:
            return
        upstream.exchange = None
        head = self._response_head
        if tunneled:
            upstream.close()
        elif (
            reusable
            and head is not None
            and head.keep_alive
            and not self._response_body.excess
            and (self._payload_only or not self._close_delimited)
        ):
            upstream.resume_reading()
            upstream.release()
        else:
            upstream.abort()

    # --- after the end

    def on_drained(
        self, drained_ns: int | None, delivered_ns: int | None, left_ns: int | None, undelivered_bytes: int
    ) -> None:
        """The end of the delivery; None: this was not observed. `drained_ns`: the client's socket had accepted the whole response.
        `delivered_ns`: its kernel had received it. `left_ns`: it disconnected before. `undelivered_bytes`: what it lacks now."""
        recorder = self._recorder
        self._drained()
        if recorder is not None:
            try:
                recorder.drained(drained_ns, delivered_ns, left_ns, undelivered_bytes)
            except Exception as e:
                self._context.failures.failed(e, recorder)

    def _drained(self) -> None:
        self._apply(DRAINED)
        self._client.draining = None
        self._recorder = None

    def _record_end(
        self,
        cause: Cause,
        detail: str | None,
        now_ns: int,
        reused: bool,
        tunnel: Tunnel | None,
        refused_status: int | None,
    ) -> None:
        recorder = self._recorder
        if recorder is not None:
            try:
                if self._request_body is not None:
                    recorder.record_request(self.request != RECEIVING)
                if tunnel is not None:
                    recorder.first_byte_ns = tunnel.first_byte_ns
                recorder.ended(
                    cause,
                    detail,
                    now_ns,
                    self.request_bytes,
                    self.response_bytes,
                    reused,
                    tunnel is not None,
                    self._waits.found,
                    refused_status,
                )
            except Exception as e:
                self._recording_failed(e)


def _error_name(error: BaseException | None) -> str | None:
    return None if error is None else type(error).__name__
