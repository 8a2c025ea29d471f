"""One request and its response: the only owner of what connects a client connection with an upstream connection.

Contract:
- The connections report events (`on_*`). `ending` has the events that end the exchange.
- The tap forwards bytes before it records them. Bodies pass unchanged; only heads are rewritten (`http.rewriting`).
- Back-pressure on one side pauses reading on the other.
- Recording is the task of the recorder. An exception in it detaches it (`_recording_failed`), and forwarding continues.
- A short exchange is one write to each side.

Times are monotonic, in ns.
"""

from __future__ import annotations

from streamgauge.ingest.http1.bodies import BodyReader
from streamgauge.ingest.http1.heads import (
    CHUNKED,
    UNTIL_CLOSE,
    BadRequest,
    BadUpstream,
    ResponseHead,
    asks_for_tunnel,
    check_partial_response_head,
    read_response_head,
    response_body,
)
from streamgauge.ingest.http1.receive_buffer import BLANK_LINE, ReceiveBuffer, appended
from streamgauge.ingest.http1.tunnel import Tunnel
from streamgauge.ingest.recording.relayed import NOT_RECORDED, RelayedEnd
from streamgauge.ingest.records import WaitedFor
from streamgauge.ingest.tap.exchanges import states, upstream_errors
from streamgauge.ingest.tap.exchanges.ending import Ending
from streamgauge.ingest.tap.exchanges.sides import Side, UpstreamSide
from streamgauge.ingest.tap.exchanges.states import (
    CONNECTED,
    HEAD,
    LAST_BYTE,
    RECEIVING,
    RELAYED,
    REQUEST_COMPLETE,
    RESPONDING,
    TUNNELING,
)
from streamgauge.ingest.tap.http import rewriting
from streamgauge.ingest.tap.http.rewriting import request_for_upstream
from streamgauge.ingest.tap.relay import body_relay
from streamgauge.ingest.tap.relay.body_relay import MIN_BODY_BYTES

_MAX_UNSENT_BYTES = 262_144  # request bytes buffered while the connection to the upstream opens


class Exchange(Ending):
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
        if self.response >= states.DRAINING:
            upstream.abort()
            return
        self._apply(CONNECTED)
        self.connecting = None
        self._upstream = upstream
        upstream.exchange = self
        self._waits.silence_ended(self._last_ns, now_ns)
        client = self._client
        head = request_for_upstream(
            self._head, self._route, self._trace, self._context.x_forwarded, client.address, client.scheme
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
            self._end_by(states.EXPIRED, None, response)
        else:
            response = upstream_errors.connect_failed(upstream, error)
            self._end_by(states.CONNECT_FAILED, type(error).__name__, response)

    # --- the request

    def on_client_bytes(self, data: bytes) -> bytes:
        """Forward bytes of the request's body or of the tunnel. Returns the bytes after the request."""
        if self.response == TUNNELING:
            self._tunnel_data(data, self._context.clock_ns(), True)
            return b""
        reader = self._request_body
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
        waits.silence_ended(self._last_ns, now_ns)
        self._last_ns = now_ns
        if reader.complete:
            self._apply(REQUEST_COMPLETE)
        if reader.complete or self._client.read_paused:
            waits.end(now_ns)
        recorder = self._recorder
        if recorder is not None:
            try:
                recorder.request_data(payload)
            except Exception as e:
                self._recording_failed(e)
        if reader.complete and upstream is not None:
            self._record_request(now_ns)
        return rest

    def _record_request(self, now_ns: int) -> None:
        """Record that the upstream is connected and, if the request is whole, that it was sent. Only the first time counts."""
        recorder, upstream = self._recorder, self._upstream
        if recorder is not None:
            try:
                recorder.connected(now_ns)
                if self.request != RECEIVING:
                    if upstream is None or not upstream.write_paused:
                        recorder.request_sent(now_ns)
                    if self._request_body is not None:
                        recorder.record_request(True)
            except Exception as e:
                self._recording_failed(e)

    # --- back-pressure

    def on_full(self, side: Side) -> None:
        """A side takes no more bytes at the moment: do not read from the other one."""
        if side is not self._client:
            self._client.pause_reading()
            self._waits.end(self._context.clock_ns())
        elif self._upstream is not None:
            self._upstream.pause_reading()
            self._waits.begin(self._context.clock_ns())

    def on_writable(self, side: Side) -> None:
        """A side takes bytes again."""
        now_ns = self._context.clock_ns()
        if side is self._client:
            self._ready_ns = now_ns
            self._waits.end(now_ns)
            if self._upstream is not None:
                self._upstream.resume_reading()
            return
        self._last_ns = now_ns
        if self._request_body is None or self._request_body.complete:
            self._record_request(now_ns)
        elif self.response == states.WAITING:
            self._waits.begin(now_ns)
        self._client.resume_reading()

    # --- the response

    def on_upstream_bytes(self, data: bytes, now_ns: int) -> None:
        """Forward one read from the upstream. The hot path."""
        self._waits.silence_ended(self._last_ns, now_ns)
        self._last_ns = now_ns
        if self.response != RESPONDING:
            if self.response == TUNNELING:
                self._tunnel_data(data, now_ns, False)
                return
            if self.response != RELAYED:
                self._head_data(data, now_ns)
                return
            # The connection broke, and these are the last bytes that its socket holds.
            self.take_back()
            if self.response != RESPONDING:
                return
        reader = self._response_body
        try:
            # Parsed before it is forwarded, because the end of the body decides what of the read belongs to the client.
            payload = reader.feed(data)
        except BadUpstream as e:
            self._malformed(e)
            return
        # A server that sends more than it announced: the client would take the surplus for the next response.
        if reader.excess:
            data = self._without_excess(data, reader.excess)
        if self._payload_only:
            data = payload
        # Forwarded before it is recorded: recording adds nothing to the latency that the client sees, and its
        # exceptions come after the bytes have left.
        self._write_client(data)
        if payload:
            self.response_bytes += len(payload)
            recorder = self._recorder
            if recorder is not None:
                try:
                    recorder.response_data(payload, now_ns)
                except Exception as e:
                    self._recording_failed(e)
        if reader.complete:
            self._end_by(LAST_BYTE, None, None, now_ns)
        elif self._relay is not None:
            self._prepare_hand_over()

    def _write_client(self, data: bytes) -> None:
        self._client.transport.write(data)
        self.written_bytes += len(data)

    def _without_excess(self, data: bytes, excess: int) -> bytes:
        self._context.counters.bad_upstream_excess_bytes += excess
        return data[:-excess]

    def _head_data(self, data: bytes, now_ns: int) -> None:
        received = self._received
        try:
            if received is None:
                # Without a ReceiveBuffer: a response whose head is whole needs neither its object nor another copy.
                start, blank_line, rest = data.partition(BLANK_LINE)
                if blank_line:  # most heads arrive in one read
                    head = read_response_head(start + BLANK_LINE)
                    if head.status >= 200:
                        self._respond(head, data, rest, now_ns)
                        return
                received = self._received = ReceiveBuffer(check_partial_response_head)
            received.add(data)
            while (section := received.head()) is not None:
                head = read_response_head(section)
                if head.status >= 200:
                    data = received.take()
                    self._respond(head, data, data[head.size_bytes :], now_ns)
                    return
                received.skip(head.size_bytes)
                if head.status == 101:
                    self._switch_protocols(head, received.take())
                    return
                # An HTTP/1.0 client does not know 1xx responses and would take the first one for the final head.
                if self._head.minor == 1:
                    self._write_client(section)
        except BadUpstream as e:
            self._malformed(e)

    def _respond(self, head: ResponseHead, data: bytes, rest: bytes, now_ns: int) -> None:
        """Forward the final head and the body bytes that came with it. `data`: both; `rest`: without the head."""
        if self.request == RECEIVING:
            self._waits.end(now_ns)  # the upstream does not need the rest of the request
        request = self._head
        body, length = response_body(head, request.method)
        # HTTP/1.0 has no chunks. The client gets the payload, ended by the close of its connection.
        payload_only = body == CHUNKED and request.minor == 0
        reader = BodyReader(body, length)
        payload = b""
        if rest:
            payload = reader.feed(rest)
            if reader.excess:
                rest = rest[: -reader.excess]
                data = self._without_excess(data, reader.excess)
        if payload_only or body == UNTIL_CLOSE:
            self._payload_only, self._close_delimited = payload_only, True
        else:
            self._keep_client = request.keep_alive and not self._context.stopping
        if not (head.plain and self._keep_client and request.minor == 1):
            rewritten = rewriting.response_for_client(
                head, keep_alive=self._keep_client, client_minor=request.minor, drop_chunked=payload_only
            )
            data = rewritten + (payload if payload_only else rest)
        self._write_client(data)
        self._apply(HEAD)
        self._response_head = head
        self._response_body = reader
        if not payload_only and not reader.is_shorter_than(MIN_BODY_BYTES):
            plain_tcp = self._route.upstream.scheme == self._client.scheme == "http"
            self._relay = self._context.relay if plain_tcp else None
        self._received = None
        self.response_bytes = len(payload)
        self._record_response(head, payload, now_ns)
        if reader.complete:
            self._end_by(LAST_BYTE, None, None, now_ns)

    def _switch_protocols(self, head: ResponseHead, rest: bytes) -> None:
        """Forward a 101 and become a tunnel."""
        upstream = self._upstream
        if upstream is None or not asks_for_tunnel(self._head):
            raise BadUpstream("it switched protocols without a request to do so")
        self._received = None
        self._write_client(rewriting.switching_for_client(head))
        self._record_response(head, b"", self._last_ns)
        self._apply(states.SWITCH)
        self._response_head = head
        websocket = (self._head.upgrade or b"").lower() == b"websocket"
        half_close = self._client.transport.can_write_eof() and upstream.transport.can_write_eof()
        self._tunnel = Tunnel(websocket=websocket, half_close=half_close)
        if rest:
            self._tunnel_data(rest, self._last_ns, False)
        early = self._client.take_buffered()
        if early:
            self._tunnel_data(early, self._last_ns, True)

    def _tunnel_data(self, data: bytes, now_ns: int, from_client: bool) -> None:
        """Forward one read of a tunnel, and record it if it is a WebSocket."""
        tunnel, recorder, upstream = self._tunnel, self._recorder, self._upstream
        if not from_client:
            self._client.transport.write(data)
            tunnel.upstream_data(data, now_ns)
        elif upstream is not None:
            upstream.transport.write(data)
            tunnel.client_data(data)
        if recorder is not None and tunnel.websocket:
            try:
                recorder.websocket_data(data, now_ns, from_client)
            except Exception as e:
                self._recording_failed(e)

    # --- the relay

    def _prepare_hand_over(self) -> None:
        """Pause reading from the upstream and try to hand the body over in the loop's next iteration."""
        if self.request != RECEIVING and self._upstream is not None and not self._client.write_paused:
            # Not handed over at once: libuv may read this socket several times in one callback. In the next iteration
            # nothing of it is left in user space.
            self._upstream.pause_reading()
            self._context.call_next_iteration(self._hand_over)

    def _hand_over(self) -> None:
        """Hand the rest of the body to the relay. If bytes for either side are unsent, resume reading and try again after the
        next read."""
        client, upstream, relay, recorder = self._client, self._upstream, self._relay, self._recorder
        if self.response != RESPONDING or upstream is None or relay is None or client.write_paused:
            return
        records = None
        # The relay writes to the descriptor itself. Bytes that still wait in the transport would arrive after those of
        # the relay.
        unsent = client.transport.get_write_buffer_size() or upstream.transport.get_write_buffer_size()
        if not unsent and not client.transport.is_closing():
            try:
                records = NOT_RECORDED if recorder is None else recorder.state_for_relay()
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
                self, upstream.transport, client.transport, self._response_body, self._last_ns, records
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
        self._apply(states.HANDED_OVER)
        self._context.counters.streams_relayed += 1

    def relay_lost_frames(self, seq: int, size_bytes: int) -> None:
        """The relay dropped a run of frames for lack of room."""
        if self._recorder is not None:
            try:
                self._recorder.relay_lost_frames(seq, size_bytes)
            except Exception as e:
                self._recording_failed(e)

    def relay_waited(self, from_ns: int, until_ns: int, waited_for: WaitedFor) -> None:
        """The relay waited for the client, or was delayed."""
        self._waits.add(from_ns, until_ns, waited_for)

    def relay_ended(self, end: RelayedEnd) -> None:
        """The relay no longer forwards the body: it is over, or this exchange has taken it back."""
        # After an exception the relay's report may come when the exchange is over.
        if self.ended:  # it could not take it back
            return
        self._apply(states.TAKEN_BACK)
        self._last_ns = end.last_ns
        self.response_bytes += end.payload_bytes
        self.written_bytes += end.wire_bytes
        self._context.counters.bad_upstream_excess_bytes += self._response_body.excess
        if self._recorder is not None:
            try:
                self._recorder.relay_ended(end)
            except Exception as e:
                self._recording_failed(e)
        self._client.resume_reading()
        if end.unsent:
            self._client.transport.write(end.unsent)
        if end.cause == body_relay.COMPLETE:
            self._end_by(LAST_BYTE, None, None, end.last_ns)
        elif end.cause == body_relay.UPSTREAM_LOST:
            self._lost(states.UPSTREAM_LOST, end.os_error)
        elif end.cause == body_relay.CLIENT_LOST:
            self._lost(states.CLIENT_LOST, end.os_error)
        elif end.cause == body_relay.MALFORMED:
            self._malformed(self._response_body.fault())
        elif self._upstream is not None and not self._client.write_paused:
            self._upstream.resume_reading()

    # --- recording

    # A `try` that raises nothing is free since Python 3.11. A function around it would cost a call per use, and compiled code
    # would not call the recorder directly.

    def _record_response(self, head: ResponseHead, payload: bytes, now_ns: int) -> None:
        recorder = self._recorder
        if recorder is not None:
            try:
                if self.request == RECEIVING:
                    recorder.record_request(False)
                recorder.response_head(head, now_ns)
                if payload:
                    recorder.response_data(payload, now_ns)
            except Exception as e:
                self._recording_failed(e)
