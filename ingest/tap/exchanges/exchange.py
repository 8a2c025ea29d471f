"""One request and its response: the state between a client connection and an upstream connection.

Contract:
- The tap forwards bytes before it records them. Bodies pass unchanged; only heads are rewritten (`http.rewriting`).
- Back-pressure on one side pauses reading on the other.
- An exchange ends once, in `_end`, with one cause: the event that ended it. `states` has the states before that.
- Times are monotonic, in ns. Recording is the task of `StreamRecorder`. Each block of calls that record contains its exceptions:
  `_recording_failed` detaches the recorder, and forwarding continues.
- A short exchange is one write to each side.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from streamgauge.ingest.records import Cause, WaitedFor
from streamgauge.ingest.tap.exchanges.connect_errors import (
    closed_problem,
    connect_problem,
    connect_timeout_problem,
)
from streamgauge.ingest.tap.exchanges.context import TapContext
from streamgauge.ingest.tap.exchanges.states import (
    ABORT,
    CLOSE,
    CONNECTING,
    ENDED,
    KEEP_OPEN,
    LINGER,
    RESET,
    RESPONDING,
    TUNNELING,
    WAITING,
    transition,
)
from streamgauge.ingest.tap.exchanges.tunnel import Tunnel
from streamgauge.ingest.tap.exchanges.waits import LONG_SILENCE_NS, Waits
from streamgauge.ingest.tap.http import rewriting as headers
from streamgauge.ingest.tap.http.bodies import BodyReader, request_reader, response_reader
from streamgauge.ingest.tap.http.error_responses import ErrorResponse, upstream_error
from streamgauge.ingest.tap.http.heads import (
    CHUNKED,
    NO_BODY,
    UNTIL_CLOSE,
    BadRequest,
    BadUpstream,
    RequestHead,
    ResponseHead,
    check_partial_response_head,
    response_body,
)
from streamgauge.ingest.tap.http.receive_buffer import ReceiveBuffer, appended
from streamgauge.ingest.tap.http.routing import Route
from streamgauge.ingest.tap.http.trace_context import TraceContext
from streamgauge.ingest.tap.recording.deferred_recorder import DeferredRecorder
from streamgauge.ingest.tap.recording.relayed import NOT_RECORDED, RelayedEnd
from streamgauge.ingest.tap.relay.body_relay import (
    CLIENT_LOST,
    COMPLETE,
    MALFORMED,
    UPSTREAM_LOST,
    BodyRelay,
)

_MAX_UNSENT_BYTES = 262_144  # request bytes buffered while the connection to the upstream opens
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})


class ClientSide(Protocol):
    """Interface of the client connection that an exchange uses."""

    transport: asyncio.Transport
    address: str
    scheme: str
    write_paused: bool
    read_paused: bool

    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...
    def end_writing(self) -> None: ...
    def take_buffered(self) -> bytes: ...
    def exchange_ended(
        self,
        exchange: Exchange,
        recorder: DeferredRecorder | None,
        now_ns: int,
        error: ErrorResponse | None,
        then: int,
    ) -> None: ...


class UpstreamSide(Protocol):
    """Interface of the upstream connection that an exchange uses."""

    transport: asyncio.Transport
    exchange: Exchange | None
    reused: bool
    write_paused: bool

    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...
    def end_writing(self) -> None: ...
    def abort(self) -> None: ...
    def close(self) -> None: ...
    def release(self) -> None: ...


class UpstreamPool(Protocol):
    """Interface of the pool of connections to one upstream."""

    def acquire(self) -> UpstreamSide | None: ...
    def connect(self, exchange: Exchange) -> asyncio.Task[None]: ...


class Exchange:
    """One request and its response."""

    __slots__ = (
        "_client",
        "_close_delimited",
        "_connect_task",
        "_context",
        "_head",
        "_keep_client",
        "_last_ns",
        "_payload_only",
        "_pool",
        "_ready_ns",
        "_received",
        "_recorder",
        "_relay",
        "_relay_number",
        "_request",
        "_request_complete",
        "_response",
        "_response_head",
        "_route",
        "_trace",
        "_tunnel",
        "_unsent",
        "_upstream",
        "_waits",
        "_write_client",
        "request_bytes",
        "response_bytes",
        "state",
        "written_bytes",
    )  # fmt: skip
    _response: BodyReader  # set with the state RESPONDING
    _tunnel: Tunnel  # set with the state TUNNELING

    def __init__(
        self,
        context: TapContext,
        client: ClientSide,
        pool: UpstreamPool,
        head: RequestHead,
        route: Route,
        trace: TraceContext,
        recorder: DeferredRecorder | None,
        now_ns: int,
    ) -> None:
        self._context = context
        self._client = client
        # Looked up once: it is called for every read.
        self._write_client = client.transport.write
        self._pool = pool
        self._head = head
        self._route = route
        self.state = CONNECTING
        self._upstream: UpstreamSide | None = None
        self._connect_task: asyncio.Task[None] | None = None
        self._last_ns = now_ns  # time of the last byte from either side
        self._ready_ns = 0  # when the client last resumed reading; the upstream's silence counts from then
        self._request: BodyReader | None = None  # None: the request has no body
        self._request_complete = True
        if head.body is not NO_BODY:
            self._request = request_reader(head.body, head.length, native=context.relay is not None)
            self._request_complete = False
        self.request_bytes = 0
        self._unsent: bytes | bytearray = b""
        self._response_head: ResponseHead | None = None
        self._received: ReceiveBuffer | None = None  # bytes of the response before its final head
        self._payload_only = self._close_delimited = self._keep_client = False
        self.response_bytes = 0
        self.written_bytes = 0  # to the client, including heads and chunk framing
        self._relay: BodyRelay | None = None  # it may forward the rest of the body
        self._relay_number = -1  # of the body while the relay forwards it
        self._waits = Waits(context.loop_monitor, now_ns)
        self._trace = trace
        self._recorder = recorder

    @property
    def ended(self) -> bool:
        return self.state == ENDED

    # --- connecting

    def start(self, now_ns: int) -> None:
        """Take an idle upstream connection or open one."""
        if not self._request_complete:
            self._waits.begin(now_ns)
        # Synchronously: a request over a pooled connection is on its way before the loop runs anything else.
        idle = self._pool.acquire()
        if idle is not None:
            self._context.counters.upstream_reuses += 1
            self.upstream_connected(idle, now_ns)
        else:
            self._connect_task = self._pool.connect(self)

    def upstream_connected(self, upstream: UpstreamSide, now_ns: int) -> None:
        """Send the request's head and the buffered part of its body."""
        self.state = transition(self.state, WAITING)
        self._connect_task = None
        self._upstream = upstream
        upstream.exchange = self
        # Blocks of the loop are looked for only in silences longer than 50 ms. Shorter ones cannot hold a stall, and the
        # search would run for every read.
        if now_ns - self._last_ns > LONG_SILENCE_NS:
            self._waits.silence_ended(self._last_ns, now_ns)
        client = self._client
        x_forwarded = self._context.options.x_forwarded
        head = self._context.heads.request_for_upstream(
            self._head, self._route, self._trace, x_forwarded, client.address, client.scheme
        )
        # One write, so head and body leave in one packet.
        upstream.transport.write(head + self._unsent if self._unsent else head)
        self._unsent = b""
        if client.write_paused:  # it has not read the response before
            self.client_write_paused()
        if client.read_paused and not upstream.write_paused:
            client.resume_reading()
            if not self._request_complete:
                self._waits.begin(now_ns)
        recorder = self._recorder
        if recorder is None:
            return
        try:
            # The usual case in one call: most requests have arrived whole.
            if self._request is None and not upstream.write_paused:
                recorder.sent_at_once(now_ns)
            else:
                recorder.connected(now_ns)
                if self._request_complete:
                    self._request_sent(now_ns)
        except Exception as e:
            self._recording_failed(e)

    def request_was_sent(self, upstream: UpstreamSide, request_bytes: int) -> None:
        """Continue an exchange whose whole request `native_exchange` has sent."""
        self.state = transition(self.state, WAITING)
        self._upstream = upstream
        upstream.exchange = self
        self._request_complete = True
        self.request_bytes = request_bytes

    def connect_failed(self, error: BaseException) -> None:
        self._connect_task = None
        upstream = self._route.upstream
        if isinstance(error, TimeoutError) and not getattr(error, "errno", None):
            problem = connect_timeout_problem(upstream, self._context.timeouts.connect_s)
            self._fail(
                "connect_timeout", None, upstream_error(504, upstream.name, "connect_timeout", problem)
            )
        else:
            problem = connect_problem(upstream, error)
            response = upstream_error(502, upstream.name, "connect_error", problem)
            self._fail("connect_error", _error_name(error), response)

    # --- the request

    @property
    def request_open(self) -> bool:
        """The client still has to send bytes that belong to this exchange."""
        return not self._request_complete or self.state == TUNNELING

    @property
    def request_body_open(self) -> bool:
        """The client is in the middle of its request's body."""
        return not self._request_complete and self.state != TUNNELING

    @property
    def method(self) -> str:
        return self._head.method

    def client_data(self, data: bytes) -> bytes:
        """Forward bytes of the request's body or of the tunnel. Returns the bytes after the request."""
        if self.state == TUNNELING:
            self._tunnel.client_data(data)
            return b""
        reader = self._request
        assert reader is not None
        try:
            payload = reader.feed(data)
        except BadRequest as e:
            self._refuse(e)
            return b""
        rest = b""
        if reader.excess:
            # Bytes of the next, pipelined request. They stay with the client connection and must not reach the
            # upstream: it would answer a request that no route was chosen for.
            rest = data[-reader.excess :]
            data = data[: -reader.excess]
        self.request_bytes += len(payload)
        limit = self._context.options.max_request_bytes
        if limit and self.request_bytes > limit:
            self._refuse(BadRequest(413, "the request's body is too large"))
            return b""
        upstream = self._upstream
        if upstream is not None:
            upstream.transport.write(data)
        else:
            # A body is sent as it arrives, without a copy, once there is a connection. Only these bytes wait for it.
            self._unsent = appended(self._unsent, data)
            if len(self._unsent) > _MAX_UNSENT_BYTES:
                # The kernel's buffers then hold back the client: the bound is the tap's memory, not the request's size.
                self._client.pause_reading()
        now_ns, waits = self._context.clock_ns(), self._waits
        if now_ns - self._last_ns > LONG_SILENCE_NS:
            waits.silence_ended(self._last_ns, now_ns)
        self._last_ns = now_ns
        self._request_complete = reader.complete
        if reader.complete or self._client.read_paused:
            waits.end(now_ns)
        if self._recorder is not None:
            try:
                self._recorder.request_data(payload)
                if reader.complete and upstream is not None:
                    self._request_sent(now_ns)
            except Exception as e:
                self._recording_failed(e)
        return rest

    def request_timed_out(self) -> None:
        self._refuse(BadRequest(408, "the request's body did not arrive in time"))

    def _refuse(self, error: BadRequest) -> None:
        """End a request with an unacceptable body, before the upstream has received all of it."""
        try:
            self._context.refusals.count(error.refusal, self._context.clock_ns())
        except Exception as e:
            self._context.failures.count(e)
        self._fail("bad_request", error.refusal, ErrorResponse.bad_request(error))

    def _request_sent(self, now_ns: int) -> None:
        recorder, upstream = self._recorder, self._upstream
        if recorder is not None:
            if upstream is None or not upstream.write_paused:
                recorder.request_sent(now_ns)
            recorder.record_request(True)

    def upstream_write_paused(self) -> None:
        self._client.pause_reading()
        self._waits.end(self._context.clock_ns())

    def upstream_write_resumed(self) -> None:
        now_ns = self._last_ns = self._context.clock_ns()
        if self._request_complete:
            if self._recorder is not None:
                try:
                    self._recorder.request_sent(now_ns)
                except Exception as e:
                    self._recording_failed(e)
        elif self.state == WAITING:
            self._waits.begin(now_ns)
        self._client.resume_reading()

    # --- the response

    def upstream_data(self, data: bytes, now_ns: int) -> None:
        """Forward one read from the upstream. The hot path."""
        if now_ns - self._last_ns > LONG_SILENCE_NS:
            self._waits.silence_ended(self._last_ns, now_ns)
        self._last_ns = now_ns
        if self.state != RESPONDING:
            if self.state == TUNNELING:
                self._tunnel.upstream_data(data, now_ns)
            else:
                self._head_data(data, now_ns)
            return
        reader = self._response
        try:
            # Parsed before it is forwarded, because the end of the body decides what of the read belongs to the client.
            payload = reader.feed(data)
        except BadUpstream as e:
            self._bad_upstream(e)
            return
        # A server that sends more than it announced: the client would take the surplus for the next response.
        if reader.excess:
            data = self._without_excess(data, reader.excess)
        if self._payload_only:
            data = payload
        # Forwarded before it is recorded: recording adds nothing to the latency that the client sees, and its
        # exceptions come after the bytes have left.
        self._write_client(data)
        self.written_bytes += len(data)
        if payload:
            self.response_bytes += len(payload)
            # A `try` that raises nothing is free since Python 3.11; a function around it would cost a call per read. So
            # each block of recording calls has its own.
            if self._recorder is not None:
                try:
                    self._recorder.response_data(payload, now_ns)
                except Exception as e:
                    self._recording_failed(e)
        if reader.complete:
            self._end("complete", None, now_ns)
        elif self._relay is not None:
            self._prepare_hand_over(self._relay)

    def _without_excess(self, data: bytes, excess: int) -> bytes:
        self._context.counters.bad_upstream_excess_bytes += excess
        return data[:-excess]

    def _head_data(self, data: bytes, now_ns: int) -> None:
        received = self._received
        try:
            if received is None:
                # Without a ReceiveBuffer: a response whose head is whole needs neither its object nor a copy of the
                # bytes behind the head.
                end = data.find(b"\r\n\r\n") + 4
                if end >= 4:  # most heads arrive in one read
                    head = self._context.heads.read_response_head(data[:end])
                    if head.status >= 200:
                        self._respond(head, data, end, now_ns)
                        return
                received = self._received = ReceiveBuffer(check_partial_response_head)
            received.add(data)
            while (section := received.head()) is not None:
                head = self._context.heads.read_response_head(section)
                if head.status >= 200:
                    self._respond(head, received.take(), head.size_bytes, now_ns)
                    return
                received.skip(head.size_bytes)
                if head.status == 101:
                    self._switch_protocols(head, received.take())
                    return
                # An HTTP/1.0 client does not know 1xx responses and would take the first one for the final head.
                if self._head.minor == 1:
                    self._write_client(section)
                    self.written_bytes += head.size_bytes
        except BadUpstream as e:
            self._bad_upstream(e)

    def _respond(self, head: ResponseHead, data: bytes, end: int, now_ns: int) -> None:
        """Forward the final head, `data[:end]`, and the body bytes that came with it."""
        if not self._request_complete:
            self._waits.end(now_ns)  # the upstream does not need the rest of the request
        request = self._head
        body, length = response_body(head, request.method)
        # HTTP/1.0 has no chunks. The client gets the payload, ended by the close of its connection.
        payload_only = body is CHUNKED and request.minor == 0
        relay = self._context.relay
        reader = response_reader(body, length, native=relay is not None)
        payload = b""
        if len(data) > end:
            payload = reader.feed(data[end:])
            if reader.excess:
                data = self._without_excess(data, reader.excess)
        if payload_only or body is UNTIL_CLOSE:
            self._payload_only, self._close_delimited = payload_only, True
            keep_client = False
        else:
            keep_client = self._keep_client = request.keep_alive and not self._context.stopping
        if not (head.plain and keep_client and request.minor == 1):
            rewritten = headers.response_for_client(
                head, keep_alive=keep_client, client_minor=request.minor, drop_chunked=payload_only
            )
            data = rewritten + (payload if payload_only else data[end:])
        self._write_client(data)
        self.written_bytes += len(data)
        self.state = transition(self.state, RESPONDING)
        self._response_head = head
        self._response = reader
        plain_tcp = self._route.upstream.scheme == self._client.scheme == "http"
        if relay is not None and plain_tcp and not payload_only:
            try:
                self._relay = relay if relay.accepts(reader) else None
            except Exception as e:
                self._context.failures.count(e)
        self._received = None
        self.response_bytes = len(payload)
        recorder = self._recorder
        if recorder is not None:
            try:
                if not self._request_complete:
                    recorder.record_request(False)
                recorder.response_head(head, now_ns)
                if payload:
                    recorder.response_data(payload, now_ns)
            except Exception as e:
                self._recording_failed(e)
        if reader.complete:
            self._end("complete", None, now_ns)

    # --- the native relay

    def _prepare_hand_over(self, relay: BodyRelay) -> None:
        """Pause reading from the upstream and try to hand the body over in the loop's next iteration."""
        if self._request_complete and self._upstream is not None and not self._client.write_paused:
            # Not handed over at once: libuv may read this socket several times in one callback. In the next iteration
            # nothing of it is left in user space.
            self._upstream.pause_reading()
            self._context.call_next_iteration(self._hand_over)

    def _hand_over(self) -> None:
        """Hand the rest of the body to the relay. If bytes for either side are unsent, resume reading and try again after the
        next read."""
        client, upstream, relay, recorder = self._client, self._upstream, self._relay, self._recorder
        if self.state != RESPONDING or upstream is None or relay is None or client.write_paused:
            return
        records = None
        # The relay writes to the descriptor itself. Bytes that still wait in the transport would arrive after those of
        # the relay.
        unsent = client.transport.get_write_buffer_size() or upstream.transport.get_write_buffer_size()
        if not unsent and not client.transport.is_closing():
            try:
                records = NOT_RECORDED if recorder is None else recorder.recorder.state_for_relay()
            except Exception as e:
                self._recording_failed(e)
        if records is None:
            upstream.resume_reading()
            return
        try:
            # While the relay writes, the event loop must not: a pipelined request is answered only after this body.
            # HangupWatch still reports a client that leaves.
            client.pause_reading()
            self._relay_number = relay.add(
                self, upstream.transport, client.transport, self._response, self._last_ns, records
            )
        except Exception as e:
            if not isinstance(e, (OSError, MemoryError)):  # these are the system's limits
                self._context.failures.count(e)
            # Not tried again: the system's limits will be reached at the next read too, and the Python code forwards as
            # well, only at a higher cost.
            self._relay = None
            client.resume_reading()
            upstream.resume_reading()
            return
        self._context.counters.streams_relayed += 1

    def relay_lost_frames(self, seq: int, size_bytes: int) -> None:
        """The relay dropped a run of frames for lack of room."""
        if self._recorder is not None:
            try:
                self._recorder.recorder.relay_lost_frames(seq, size_bytes)
            except Exception as e:
                self._recording_failed(e)

    def _take_back(self) -> None:
        """Forward the rest of the body on the event loop."""
        if self._relay is not None and self._relay_number >= 0:
            self._relay.take_back(self._relay_number, self._context.clock_ns())

    def relay_waited(self, from_ns: int, until_ns: int, waited_for: WaitedFor) -> None:
        """The relay waited for the client, or was delayed."""
        self._waits.add(from_ns, until_ns, waited_for)

    def relay_ended(self, end: RelayedEnd) -> None:
        """The relay no longer forwards the body: it is over, or this exchange has taken it back."""
        # After an exception the relay's report may come when the exchange is over.
        if self.ended:  # it could not take it back
            return
        self._relay_number = -1
        self._last_ns = end.last_ns
        self.response_bytes += end.payload_bytes
        self.written_bytes += end.wire_bytes
        # The reader did not see these bytes. `_release_upstream` reads it: a connection with surplus bytes is not
        # reused.
        self._response.excess = end.excess_bytes
        self._context.counters.bad_upstream_excess_bytes += end.excess_bytes
        if self._recorder is not None:
            try:
                self._recorder.recorder.relay_ended(end)
            except Exception as e:
                self._recording_failed(e)
        self._client.resume_reading()
        if end.unsent:
            self._write_client(end.unsent)
        if end.cause == COMPLETE:
            self._response.complete = True
            self._end("complete", None, end.last_ns)
        elif end.cause == UPSTREAM_LOST:
            self.upstream_lost(end.os_error)
        elif end.cause == CLIENT_LOST:
            self.client_lost(end.os_error)
        elif end.cause == MALFORMED:
            self._bad_upstream(BadUpstream("the chunked body is malformed"))
        elif self._upstream is not None and not self._client.write_paused:
            self._upstream.resume_reading()

    def _switch_protocols(self, head: ResponseHead, rest: bytes) -> None:
        """Forward a 101 and become a tunnel."""
        upstream = self._upstream
        if upstream is None or not headers.asks_for_tunnel(self._head):
            raise BadUpstream("it switched protocols without a request to do so")
        self._received = None
        rewritten = headers.switching_for_client(head)
        self._write_client(rewritten)
        self.written_bytes += len(rewritten)
        self.state = transition(self.state, TUNNELING)
        self._response_head = head
        if self._recorder is not None:
            try:
                self._recorder.response_head(head, self._last_ns)
            except Exception as e:
                self._recording_failed(e)
        websocket = (self._head.upgrade or b"").lower() == b"websocket"
        tunnel = self._tunnel = Tunnel(self._client, upstream, websocket=websocket)
        if rest:
            tunnel.upstream_data(rest, self._last_ns)
        early = self._client.take_buffered()
        if early:
            tunnel.client_data(early)

    def upstream_eof(self) -> bool:
        """The upstream sent its last byte. True: it still receives (half-closed tunnel)."""
        if self.state == TUNNELING:
            if not self._tunnel.upstream_eof():
                return True
            self._end(self._tunnel.cause(), None, self._context.clock_ns())
        elif self.state == RESPONDING and self._close_delimited and not self._payload_only:
            self._response.complete = True
            self._end("complete", None, self._context.clock_ns())
        else:
            self.upstream_lost(None)
        return False

    def upstream_lost(self, error: Exception | None) -> None:
        """The upstream connection closed (None) or broke before the exchange was complete."""
        if self.state == WAITING:
            self._upstream_lost_before_head(error)
            return
        cause: Cause = "upstream_reset"
        if self.state == TUNNELING:
            cause = self._tunnel.cause(cause)
        self._end(cause, _error_name(error), self._context.clock_ns())

    def _upstream_lost_before_head(self, error: Exception | None) -> None:
        upstream = self._upstream
        assert upstream is not None
        # POST is never repeated, even on a connection that may have been idle for too long: the server may have done
        # the work, and tokens are billed.
        safe = self._head.method in SAFE_METHODS and self._request is None
        if upstream.reused and safe and not self._received:
            # The server closed an idle connection while our request was on its way. The request is idempotent and has no
            # body, so we may repeat it on a new connection (RFC 9110 §9.2.2).
            self.state = transition(self.state, CONNECTING)
            self._context.counters.retries += 1
            self._upstream = None
            upstream.exchange = None
            self._connect_task = self._pool.connect(self)
            return
        fresh = not upstream.reused and not self._received
        problem = closed_problem(self._route.upstream, fresh=fresh)
        response = upstream_error(502, self._route.upstream.name, "upstream_reset", problem)
        self._fail("upstream_reset", _error_name(error), response)

    def _bad_upstream(self, error: BadUpstream) -> None:
        response = upstream_error(
            502, self._route.upstream.name, "bad_upstream", f"sent an invalid HTTP response: {error}."
        )
        self._fail("bad_upstream", None, response)

    # --- the client

    def client_write_paused(self) -> None:
        if self._upstream is not None:
            self._upstream.pause_reading()
            self._waits.begin(self._context.clock_ns())

    def client_write_resumed(self) -> None:
        now_ns = self._ready_ns = self._context.clock_ns()
        self._waits.end(now_ns)
        if self._upstream is not None:
            self._upstream.resume_reading()

    def client_eof(self) -> bool:
        """The client sent its last byte. True: it still receives (half-closed tunnel)."""
        if self.state == TUNNELING:
            over = self._tunnel.client_eof()
            if over:
                self._end(self._tunnel.cause(), None, self._context.clock_ns())
            return not over
        # Like nginx, treat a client that closes its side as disconnected. A half-close looks the same, but no LLM client
        # uses it, and an abandoned stream must end at once to save cost.
        self.client_lost(None)
        return False

    def client_lost(self, error: Exception | None) -> None:
        """The client's connection closed (None) or broke before the response was complete."""
        cause: Cause = "client_left"
        if self.state == TUNNELING:
            cause = self._tunnel.cause(cause)
        self._end(cause, _error_name(error), self._context.clock_ns())

    # --- time

    def check_timeouts(self, now_ns: int) -> None:
        """End the exchange if the upstream has been silent for too long while the tap was reading from it."""
        timeouts, cause = self._context.timeouts, None
        # Silence of an upstream that nobody reads says nothing about it.
        if self._client.write_paused:
            return  # the upstream is not read
        if self._relay is not None and self._relay_number >= 0:
            try:
                last_ns, output_ns, ready_ns, blocked = self._relay.progress(self._relay_number)
            except Exception as e:
                self._context.failures.count(e)
                return
            if not blocked:
                cause = timeouts.response_body_expired(now_ns, last_ns, output_ns, ready_ns)
            if cause is not None:
                self._fail_silent_upstream(cause)
            return
        if self.state == WAITING:
            cause = timeouts.response_head_expired(now_ns, self._last_ns, self._ready_ns)
        elif self.state == RESPONDING:
            output_ns = self._last_ns
            if self._recorder is not None:
                try:
                    output_ns = self._recorder.recorder.last_output_ns
                except Exception as e:
                    self._recording_failed(e)
            cause = timeouts.response_body_expired(now_ns, self._last_ns, output_ns, self._ready_ns)
        if cause is not None:
            self._fail_silent_upstream(cause)

    def _fail_silent_upstream(self, cause: Cause) -> None:
        self._fail(
            cause, None, upstream_error(504, self._route.upstream.name, cause, "did not respond in time")
        )

    # --- the end

    def stop(self) -> None:
        """The tap stops and its drain time is over."""
        response = upstream_error(
            502, self._route.upstream.name, "tap_stopped", "was disconnected: the tap is stopping"
        )
        self._fail("tap_stopped", None, response)

    def _fail(self, cause: Cause, detail: str | None, response: ErrorResponse) -> None:
        """End without a complete response. The client receives `response` unless it has received a head."""
        started = self._response_head is not None
        self._end(cause, detail, self._context.clock_ns(), error_response=None if started else response)

    def _end(
        self, cause: Cause, detail: str | None, now_ns: int, *, error_response: ErrorResponse | None = None
    ) -> None:
        """End the exchange. A second call does nothing: both connections may report the same end."""
        if self.state == ENDED:
            return
        if self._relay is not None and self._relay_number >= 0:
            try:
                self._relay.take_back(self._relay_number, now_ns)
            except Exception as e:  # closing the connections ends the relay's part
                self._context.failures.count(e)
                self._relay_number = -1
            # `take_back` reports what is in the relay's queue. That may be the end itself, which comes back here
            # through `relay_ended`.
            if self.ended:  # the body had already ended in the relay
                return
            # The relay's clock reads may be newer than the caller's: an end before the last byte would be a negative
            # duration.
            now_ns = max(now_ns, self._last_ns)
        if now_ns - self._last_ns > LONG_SILENCE_NS:
            self._waits.silence_ended(self._last_ns, now_ns)
        self._waits.end(now_ns)
        tunnel = self._tunnel if self.state == TUNNELING else None
        self.state = transition(self.state, ENDED)
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
        reused = self._release_upstream(complete, tunnel is not None and cause != "tap_stopped")
        counters, recorder = self._context.counters, self._recorder
        counters.body_bytes += self.response_bytes
        counters.request_bytes += self.request_bytes
        if recorder is not None:
            try:
                if self._request is not None:
                    recorder.record_request(self._request_complete)
                if cause == "bad_request" and error_response is not None:
                    recorder.recorder.refused_status = error_response.status
                if tunnel is not None:
                    recorder.recorder.first_byte_ns = tunnel.first_byte_ns
                recorder.ended(
                    cause, detail, now_ns, self.request_bytes, self.response_bytes, reused, tunnel is not None, self._waits.found
                )  # fmt: skip
            except Exception as e:
                self._recording_failed(e)
        if cause == "client_left" and (tunnel is None or detail is not None):
            then = ABORT
        elif complete and self._keep_client and self._request_complete:
            then = KEEP_OPEN
        # The client knows the end of such a body only by the close. A reset tells it that the body is cut; a close
        # would make it look whole.
        elif not complete and error_response is None and self._close_delimited:
            then = RESET
        else:
            then = LINGER if tunnel is not None or not self._request_complete else CLOSE
        self._client.exchange_ended(self, self._recorder, now_ns, error_response, then)

    def _recording_failed(self, error: Exception) -> None:
        """Detach the recorder. The exchange goes on without it."""
        recorder, self._recorder = self._recorder, None
        if recorder is not None:
            self._context.failures.failed(error, recorder)
        if self._relay_number >= 0:  # the relay would go on recording
            # Later: this may run within a report of the relay, which is still using its queue.
            self._context.call_next_iteration(self._take_back)

    def _release_upstream(self, reusable: bool, tunneled: bool) -> bool:
        """Return the upstream connection to the pool, close it after the last bytes of a tunnel, or abort it. True: it had
        served another exchange before."""
        upstream, self._upstream = self._upstream, None
        if upstream is None:
            return False
        upstream.exchange = None
        reused = upstream.reused
        head = self._response_head
        if tunneled:
            upstream.close()
        elif (
            reusable
            and head is not None
            and head.keep_alive
            and not self._response.excess
            and self._request_complete
            and (self._payload_only or not self._close_delimited)
        ):
            upstream.resume_reading()
            upstream.release()
        else:
            upstream.abort()
        return reused


def _error_name(error: BaseException | None) -> str | None:
    return None if error is None else type(error).__name__
