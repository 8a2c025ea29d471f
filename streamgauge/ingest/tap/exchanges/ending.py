"""The end of an exchange: what ends it, with which cause, and what follows for its connections and its recorder.

`states` has the effect of each event. The exchange detaches from both connections, releases the upstream one and gives its end
to the recorder in `end` alone, once, with one cause. A recorder that raises is detached (`_recording_failed`); forwarding continues.
"""

from __future__ import annotations

import asyncio

from streamgauge.ingest.http1.bodies import BodyReader
from streamgauge.ingest.http1.heads import NO_BODY, BadRequest, RequestHead, ResponseHead
from streamgauge.ingest.http1.receive_buffer import ReceiveBuffer
from streamgauge.ingest.http1.trace_context import TraceContext
from streamgauge.ingest.http1.tunnel import Tunnel
from streamgauge.ingest.recording.recorder import Recorder
from streamgauge.ingest.recording.waits import Waits
from streamgauge.ingest.records import Cause
from streamgauge.ingest.tap.exchanges import states, upstream_errors
from streamgauge.ingest.tap.exchanges.client_side import ClientSide
from streamgauge.ingest.tap.exchanges.context import TapContext
from streamgauge.ingest.tap.exchanges.sides import Side, UpstreamSide
from streamgauge.ingest.tap.exchanges.states import (
    CONNECTING,
    DRAINED,
    DRAINING,
    KEEP_OPEN,
    RECEIVED,
    RECEIVING,
    RELAYED,
    REQUEST,
    RESPONSE,
    TUNNELING,
    after,
    cause_of_end,
)
from streamgauge.ingest.tap.exchanges.timeouts import expired
from streamgauge.ingest.tap.http.error_responses import ErrorResponse
from streamgauge.ingest.tap.http.routing import Route
from streamgauge.ingest.tap.relay.body_relay import BodyRelay

SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})


class Ending:
    """The states of one exchange, and its end."""

    _response_body: BodyReader  # set with the state RESPONDING
    _tunnel: Tunnel  # set with the state TUNNELING

    def __init__(
        self,
        context: TapContext,
        client: ClientSide,
        head: RequestHead,
        route: Route,
        trace: TraceContext,
        recorder: Recorder | None,
        now_ns: int,
    ) -> None:
        self._context = context
        self._client = client
        self._head = head
        self._route = route
        self.request = RECEIVED
        """State of the request (`states`)."""
        self.response = CONNECTING
        """State of the response (`states`)."""
        self._upstream: UpstreamSide | None = None
        self.connecting: asyncio.Task[None] | None = None
        """Task that opens the upstream connection. It is set by the code that starts it."""
        self._last_ns = now_ns  # time of the last byte from either side
        self._ready_ns = 0  # when the client last resumed reading; the upstream's silence counts from then
        self._request_body: BodyReader | None = None  # None: the request has no body
        if self._head.body != NO_BODY:
            self._request_body = BodyReader(head.body, head.length, of_request=True)
            self.request = RECEIVING
        self.request_bytes = 0
        self._unsent: bytes | bytearray = b""
        self._response_head: ResponseHead | None = None
        self._received: ReceiveBuffer | None = None  # bytes of the response before its final head
        self._payload_only = self._close_delimited = self._keep_client = False
        self.response_bytes = 0
        self.written_bytes = 0  # to the client, including heads and chunk framing
        self._relay: BodyRelay | None = None  # it may forward the rest of the body
        self._relay_number = 0  # of the body in the state RELAYED
        self._waits = Waits(self._context.loop_monitor, now_ns)
        self._trace = trace
        self._recorder = recorder

    def __repr__(self) -> str:
        request, response = states.REQUEST_STATES[self.request], states.RESPONSE_STATES[self.response]
        return (
            f"<Exchange {self._head.method} to {self._route.upstream.name}: request {request} ({self.request_bytes} bytes), "
            f"response {response} ({self.response_bytes} bytes)>"
        )

    @property
    def ended(self) -> bool:
        return self.response >= DRAINING

    @property
    def takes_client_bytes(self) -> bool:
        """The client still has to send bytes that belong to this exchange."""
        return self.request == RECEIVING or self.response == TUNNELING

    def stream_waiting_for_client(self, relay_blocks: bool) -> str | None:
        """Id of its stream if the client does not read the response, has not received all of it, or still sends the request.
        `relay_blocks`: `BodyRelay.blocks`."""
        waits = self.response == DRAINING or self._waits.for_client
        if relay_blocks and self.response == RELAYED and self._relay is not None:
            waits = self._relay.progress(self._relay_number)[3]
        return self._recorder.stream if waits and self._recorder is not None else None

    @property
    def method(self) -> str:
        return self._head.method

    @property
    def needs_connection(self) -> bool:
        """It has no upstream connection, and none is being opened."""
        return self.response == CONNECTING and self.connecting is None

    def _apply(self, event: int) -> None:
        """Take the transitions of an event that does not end the exchange."""
        request = after(REQUEST, self.request, event)
        response = after(RESPONSE, self.response, event)
        if isinstance(request, int):
            self.request = request
        if isinstance(response, int):
            self.response = response

    def take_back(self) -> None:
        """Forward the rest of the body on the event loop."""
        if self.response == RELAYED and self._relay is not None:
            self._relay.take_back(self._relay_number, self._context.clock_ns())

    def _recording_failed(self, error: Exception) -> None:
        """Detach the recorder. The exchange goes on without it."""
        recorder, self._recorder = self._recorder, None
        if recorder is not None:
            self._context.failures.failed(error, recorder)
        if self.response == RELAYED:  # the relay would go on recording
            # Later: this may run within a report of the relay, which is still using its queue.
            self._context.call_next_iteration(self.take_back)

    # --- invalid bytes

    def _refuse(self, error: BadRequest) -> None:
        """End a request with an unacceptable body, before the upstream has received all of it."""
        context = self._context
        context.failures.attempt(context.refusals.count, error.refusal, context.clock_ns())
        self._end_by(states.REFUSED, error.refusal, ErrorResponse.bad_request(error))

    def _malformed(self, error: Exception) -> None:
        self._end_by(states.MALFORMED, None, upstream_errors.malformed(self._route.upstream, error))

    # --- what ends it

    def on_end(self, side: Side) -> bool:
        """A side sent its last byte. True: it still receives (half-closed tunnel)."""
        from_client = side is self._client
        if (
            after(RESPONSE, self.response, states.CLIENT_END if from_client else states.UPSTREAM_END)
            is states.HALF_CLOSED
        ):
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
            self._lost(states.CLIENT_END, None)
        elif self.response == states.RESPONDING and self._close_delimited and not self._payload_only:
            self._response_body.complete = True
            self._end_by(states.LAST_BYTE, None, None)
        else:
            self._lost(states.UPSTREAM_END, None)
        return False

    def on_lost(self, side: Side, error: Exception | None) -> None:
        """A side's connection closed (None) or broke before the exchange was complete."""
        self._lost(states.CLIENT_LOST if side is self._client else states.UPSTREAM_LOST, error)

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
        if self.response == states.WAITING:
            if expired(timeouts.response_head_ns, now_ns, self._last_ns, self._ready_ns):
                self._expired(states.EXPIRED)
            return
        last_ns = output_ns = self._last_ns
        ready_ns = self._ready_ns
        if self.response == states.RESPONDING:
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
            self._expired(states.EXPIRED)
        elif expired(timeouts.idle_output_ns, now_ns, output_ns, ready_ns):
            self._expired(states.OUTPUT_EXPIRED)

    def _expired(self, event: int) -> None:
        cause = cause_of_end(self.response, event)
        if cause is not None:
            self._end_by(event, None, upstream_errors.silent(self._route.upstream, cause))

    def _lost(self, event: int, error: Exception | None) -> None:
        response = None
        if self.response == states.WAITING and event in (states.UPSTREAM_END, states.UPSTREAM_LOST):
            upstream = self._upstream
            assert upstream is not None
            # POST is never repeated, even on a connection that may have been idle for too long: the server may have done
            # the work, and tokens are billed.
            safe = self._head.method in SAFE_METHODS and self._request_body is None
            if upstream.reused and safe and not self._received:
                # The server closed an idle connection while our request was on its way. The request is idempotent and
                # has no body, so we may repeat it on a new connection (RFC 9110 §9.2.2).
                self._apply(states.RETRIED)
                self._context.counters.retries += 1
                self._upstream = upstream.exchange = None
                return
            fresh = not upstream.reused and not self._received
            response = upstream_errors.closed_too_early(self._route.upstream, fresh=fresh)
        self._end_by(event, None if error is None else type(error).__name__, response)

    def stop(self) -> None:
        """The tap stops and its drain time is over."""
        self._end_by(states.STOPPED, None, upstream_errors.disconnected(self._route.upstream))

    # --- the end

    def _end_by(
        self, event: int, detail: str | None, response: ErrorResponse | None, now_ns: int = 0
    ) -> None:
        """End with the cause that the table names, if the event is an end in this state. The client receives `response` unless it
        has received a head. `now_ns`: 0 is now."""
        cause = cause_of_end(self.response, event)
        if cause is None:
            return
        if self.response == TUNNELING and event != states.STOPPED:
            cause = self._tunnel.cause(cause)
        started = self._response_head is not None
        self.end(cause, detail, now_ns or self._context.clock_ns(), None if started else response)

    def end(
        self, cause: Cause, detail: str | None, now_ns: int, error_response: ErrorResponse | None = None
    ) -> None:
        """Detach, release, record. A second call does nothing: both connections may report the same end."""
        if self.response == RELAYED and self._relay is not None:
            if not self._context.failures.attempt(self._relay.take_back, self._relay_number, now_ns):
                self.response = states.RESPONDING  # closing the connections ends the relay's part
            # `take_back` reports what is in the relay's queue. That may be the end itself, which comes back here
            # through `relay_ended`: the body had already ended in the relay.
            # The relay's clock reads may be newer than the caller's: an end before the last byte would be a negative
            # duration.
            now_ns = max(now_ns, self._last_ns)
        if self.response >= DRAINING:
            return
        waits = self._waits
        waits.silence_ended(self._last_ns, now_ns)
        waits.end(now_ns)
        tunnel = self._tunnel if self.response == TUNNELING else None
        self.response = DRAINING
        if self.connecting is not None:
            self.connecting.cancel()
            self.connecting = None
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
            then = states.ABORT
        elif complete and self._keep_client and received:
            then = KEEP_OPEN
        # The client knows the end of such a body only by the close. A reset tells it that the body is cut; a close
        # would make it look whole.
        elif not complete and error_response is None and self._close_delimited:
            then = states.RESET
        else:
            then = states.LINGER if tunnel is not None or not received else states.CLOSE
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
                    cause, detail, now_ns, self.request_bytes, self.response_bytes, reused, tunnel is not None, self._waits.found,
                    refused_status,
                )  # fmt: skip
            except Exception as e:
                self._recording_failed(e)
