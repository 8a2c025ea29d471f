"""One request and its response: the life between the two connections.

The rules: bytes go to the other side first, then the tap does its own work. A body is forwarded as it came, whatever it
is; only heads are rewritten (`headers`). Whoever pauses, pauses the other side. Whoever leaves first is noted as the cause,
and the other side is told at once. An exchange ends exactly once, through `_end`, and with one cause.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from ingest import capture, headers
from ingest.answers import Answer, bad_gateway, timed_out
from ingest.http_body import BodyReader, request_reader, response_reader
from ingest.http_head import (
    BadUpstream,
    Body,
    Refused,
    RequestHead,
    ResponseHead,
    read_response_head,
    response_body,
)
from ingest.records import Cause, Closed, Opened
from ingest.records import ResponseHead as MirroredHead
from ingest.routing import Route
from ingest.trace_context import join_trace

if TYPE_CHECKING:
    from ingest.client_connection import ClientConnection
    from ingest.tap_worker import TapWorker
    from ingest.upstream_connection import UpstreamConnection

_MAX_RESPONSE_HEAD_BYTES = 262_144
_MAX_UNSENT_BYTES = 262_144  # request bytes kept while the connection to the upstream is being made
_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})


class Exchange:
    """One request and its response."""

    def __init__(
        self,
        worker: TapWorker,
        client: ClientConnection,
        head: RequestHead,
        route: Route,
        client_start_ns: int,
        now_ns: int,
    ) -> None:
        self._worker = worker
        self._client = client
        self._write_client = client.transport.write
        self._head = head
        self._route = route
        self._upstream: UpstreamConnection | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.ended = False
        # times; t0 is the instant when the tap turns to the upstream
        self._t0_ns = now_ns
        self._connected_ns: int | None = None
        self._request_sent_ns: int | None = None
        self._last_ns = now_ns
        self._last_output_ns = now_ns
        # the request's half
        self._request: BodyReader = request_reader(head.body, head.length)
        self._request_bytes = 0
        self._unsent: list[bytes] = []
        self._unsent_bytes = 0
        self._retried = False
        self._reused = False
        # the response's half
        self._response: BodyReader | None = None
        self._response_head: ResponseHead | None = None
        self._held = b""
        self._payload_only = False
        self._close_delimited = False
        self._keep_client = False
        self.response_bytes = 0
        self.written_bytes = 0
        """All that was written to the client's transport: heads and chunk framing too."""
        self.tunnel = False
        self._upstream_ended = False
        self._client_ended = False
        # what is mirrored
        self._trace = join_trace(head.known.get(b"traceparent"))
        self._mirror = worker.mirror_stream()
        self._request_capture = capture.RequestCapture(head, worker.options.request_capture_bytes)
        self._response_capture: capture.ResponseCapture | None = None
        if self._mirror is not None:
            self._mirror.open(self._opened(client_start_ns))

    # --- beginning -------------------------------------------------------------------------------------------

    def _opened(self, client_start_ns: int) -> Opened:
        head, upstream, options = self._head, self._route.upstream, self._worker.options
        assert self._mirror is not None
        wanted = head.known.get(b"x-streamgauge-capture")
        return Opened(
            stream=self._mirror.stream,
            seq=0,
            tap=options.tap_name,
            tap_worker=options.worker,
            incarnation=self._worker.incarnation,
            gateway=upstream.name,
            server_address=upstream.host,
            server_port=upstream.port,
            method=head.method,
            path=headers.mirrored_path(self._route.target),
            wall_ns=time.time_ns(),
            mono_ns=self._t0_ns,
            client_start_ns=min(0, client_start_ns - self._t0_ns),
            trace_id=self._trace.trace_id,
            span_id=self._trace.span_id,
            parent_span_id=self._trace.parent_span_id,
            trace_flags=self._trace.flags,
            client_id=headers.client_id(head.known, self._worker.client_key),
            headers=headers.mirrored_request_fields(head.fields),
            capture_content=False if wanted is not None and wanted.lower() == b"none" else None,
        )

    def start(self) -> None:
        """Turn to the upstream: take a connection or open one."""
        pool = self._worker.pools[self._route.place]
        idle = pool.take()
        if idle is not None:
            self._worker.counters.upstream_reuses += 1
            self.upstream_connected(idle, self._t0_ns)
        else:
            self._connecting = pool.connect(self)

    def upstream_connected(self, upstream: UpstreamConnection, now_ns: int) -> None:
        """A connection is there: send the head, and what of the body has come meanwhile."""
        self._connecting = None
        self._upstream = upstream
        upstream.exchange = self
        if self._connected_ns is None:
            self._connected_ns = now_ns - self._t0_ns
        upstream.transport.write(self._head_for_upstream() + b"".join(self._unsent))
        self._unsent, self._unsent_bytes = [], 0
        if self._client.transport_paused_by_us and not upstream.write_paused:
            self._client.resume_reading()
        if self._request.over:
            self._request_over(now_ns)
        if self._timer is None:
            self._arm_timer()

    def _head_for_upstream(self) -> bytes:
        options = self._worker.options
        return headers.request_for_upstream(
            self._head,
            target=self._route.target,
            host=self._route.upstream.host_header,
            traceparent=self._trace.header,
            forwarding=options.forwarding,
            client_address=self._client.address,
            client_scheme=self._client.scheme,
        )

    def connect_failed(self, error: BaseException) -> None:
        """No connection to the upstream."""
        self._connecting = None
        name = self._route.upstream.name
        if isinstance(error, TimeoutError) and not getattr(error, "errno", None):
            self._fail(
                "connect_timeout",
                None,
                timed_out(name, "connect_timeout", "did not take the connection in time"),
            )
        else:
            word = type(error).__name__
            self._fail(
                "connect_error", word, bad_gateway(name, "connect_error", f"cannot be reached ({word})")
            )

    # --- the request's half ----------------------------------------------------------------------------------

    @property
    def request_open(self) -> bool:
        """The client still has to send something that belongs to this exchange."""
        return self.tunnel or not self._request.over

    def client_data(self, data: bytes) -> bytes:
        """Bytes of the request's body (or of the tunnel). Returns what comes after the request."""
        if self.tunnel:
            self._request_bytes += len(data)
            if self._upstream is not None and not self._upstream_ended:
                self._upstream.transport.write(data)
            return b""
        reader = self._request
        try:
            payload = reader.feed(data)
        except Refused as e:
            self._refuse(e)
            return b""
        rest = b""
        if reader.excess:
            rest = data[-reader.excess :]
            data = data[: -reader.excess]
        self._request_bytes += len(payload)
        limit = self._worker.options.max_request_bytes
        if limit and self._request_bytes > limit:
            self._refuse(Refused(413, "the request's body is too large"))
            return b""
        if self._upstream is not None:
            self._upstream.transport.write(data)
        else:
            self._unsent.append(data)
            self._unsent_bytes += len(data)
            if self._unsent_bytes > _MAX_UNSENT_BYTES:
                self._client.pause_reading()
        self._last_ns = time.monotonic_ns()
        self._request_capture.feed(payload)
        if reader.over and self._upstream is not None:
            self._request_over(self._last_ns)
        elif self._request_capture.full:
            self._record_request()
        return rest

    @property
    def method(self) -> str:
        return self._head.method

    def request_timed_out(self) -> None:
        """The client stopped in the middle of its request."""
        self._refuse(Refused(408, "the request's body did not come in time"))

    def _refuse(self, refusal: Refused) -> None:
        """The request's body is not acceptable: the upstream must not see its end."""
        self._worker.counters.requests_refused += 1
        self._fail("bad_request", None, Answer.refusal(refusal))

    def _request_over(self, now_ns: int) -> None:
        """The request's last byte was handed over."""
        if self._request_sent_ns is None:
            upstream = self._upstream
            if upstream is None or not upstream.write_paused:
                self._request_sent_ns = now_ns - self._t0_ns
        self._record_request()

    def _record_request(self) -> None:
        if self._mirror is not None:
            body = self._request_capture.take(over=self._request.over)
            if body is not None:
                self._mirror.request(body, truncated=self._request_capture.truncated)

    def upstream_write_paused(self) -> None:
        """The upstream takes the request slower than the client sends it."""
        self._client.pause_reading()

    def upstream_write_resumed(self) -> None:
        """It has taken what was waiting."""
        if self._request.over and self._request_sent_ns is None:
            self._request_sent_ns = time.monotonic_ns() - self._t0_ns
        self._client.resume_reading()

    # --- the response's half ---------------------------------------------------------------------------------

    def upstream_data(self, data: bytes, now_ns: int) -> None:
        """One read from the upstream, at `now_ns`."""
        reader = self._response
        if reader is None:
            self._upstream_head_data(data, now_ns)
            return
        self._last_ns = now_ns
        try:
            payload = reader.feed(data)
        except BadUpstream as e:
            self._bad_upstream(e)
            return
        if reader.excess:
            self._worker.counters.bad_upstream_excess_bytes += reader.excess
            data = data[: -reader.excess]
        if self._payload_only:
            data = payload
        self._write_client(data)
        self.written_bytes += len(data)
        size = len(payload)
        self.response_bytes += size
        if size and self._response_capture is not None:
            self._response_capture.feed(payload, now_ns - self._t0_ns, now_ns)
        if reader.over:
            self._response_over(now_ns)

    def _upstream_head_data(self, data: bytes, now_ns: int) -> None:
        if self.tunnel:
            self._last_ns = now_ns
            self._write_client(data)
            self.response_bytes += len(data)
            self.written_bytes += len(data)
            return
        if self._held:
            data = self._held + data
        while True:
            end = data.find(b"\r\n\r\n")
            if end < 0:
                self._held = data
                if len(data) > _MAX_RESPONSE_HEAD_BYTES:
                    self._bad_upstream(BadUpstream("the response's head is too large"))
                return
            try:
                head = read_response_head(data[: end + 4])
                rest = data[end + 4 :]
                if head.status >= 200:
                    body, length = response_body(head, self._head.method)
                    break
                if head.status == 101:
                    self._switch(head, rest, now_ns)
                    return
            except BadUpstream as e:
                self._bad_upstream(e)
                return
            if self._head.minor == 1:
                self._write_client(data[: end + 4])
                self.written_bytes += end + 4
            data = rest
        self._held = b""
        self._respond(head, body, length, rest, now_ns)

    def _respond(self, head: ResponseHead, body: Body, length: int, rest: bytes, now_ns: int) -> None:
        """The final head is there: pass it on, with the body bytes that came with it."""
        request = self._head
        self._response_head = head
        self._payload_only = body is Body.CHUNKED and request.minor == 0
        self._close_delimited = body is Body.CLOSE or self._payload_only
        self._keep_client = request.keep_alive and not self._close_delimited and not self._worker.stopping
        reader = self._response = response_reader(body, length)
        out = headers.response_for_client(
            head, keep_alive=self._keep_client, client_minor=request.minor, drop_chunked=self._payload_only
        )
        payload = b""
        if rest:
            try:
                payload = reader.feed(rest)
            except BadUpstream as e:
                self._bad_upstream(e)
                return
            if reader.excess:
                self._worker.counters.bad_upstream_excess_bytes += reader.excess
                rest = rest[: -reader.excess]
            out += payload if self._payload_only else rest
        self._write_client(out)
        self.written_bytes += len(out)
        self._last_ns = self._last_output_ns = now_ns
        at_ns = now_ns - self._t0_ns
        self.response_bytes = len(payload)
        mirror = self._mirror
        if mirror is not None:
            self._record_request()
            mirrored = MirroredHead(head.status, headers.mirrored_response_fields(head.fields), at_ns)
            mirror.respond(mirrored, now_ns)
            self._response_capture = capture.ResponseCapture(mirror, head)
            if payload:
                self._response_capture.feed(payload, at_ns, now_ns)
        if reader.over:
            self._response_over(now_ns)
        elif self._timer is None:
            self._arm_timer()

    def _switch(self, head: ResponseHead, rest: bytes, now_ns: int) -> None:
        """101: from here on a blind tunnel."""
        if not headers.asks_for_tunnel(self._head):
            raise BadUpstream("a switch of protocols that nobody asked for")
        self.tunnel = True
        self._held = b""
        out = headers.switching_for_client(head) + rest
        self._write_client(out)
        self.written_bytes += len(out)
        self.response_bytes = len(rest)
        self._response_head = head
        if self._mirror is not None:
            at_ns = now_ns - self._t0_ns
            self._mirror.respond(
                MirroredHead(head.status, headers.mirrored_response_fields(head.fields), at_ns), now_ns
            )
        early = self._client.take_ahead()
        if early:
            self.client_data(early)

    def _response_over(self, now_ns: int) -> None:
        self._end("complete", None, now_ns)

    def upstream_eof(self, error: Exception | None) -> None:
        """The upstream closed (`error` None) or reset the connection."""
        now_ns = time.monotonic_ns()
        if self.tunnel:
            self._end("complete" if error is None else "upstream_reset", _word(error), now_ns)
        elif self._response is None:
            self._upstream_gone_before_head(error)
        elif self._close_delimited and not self._payload_only and error is None:
            self._response.over = True
            self._end("complete", None, now_ns)
        else:
            self._end("upstream_reset", _word(error), now_ns)

    def _upstream_gone_before_head(self, error: Exception | None) -> None:
        upstream = self._upstream
        assert upstream is not None
        safe = self._head.method in _SAFE_METHODS and self._head.body is Body.NONE
        if upstream.reused and safe and not self._held and not self._retried and not self.ended:
            # The server closed an idle connection while our request was on its way; it is idempotent and has no
            # body, so asking again on a new connection can do no harm (RFC 9110 §9.2.2).
            self._retried = True
            self._worker.counters.retries += 1
            self._upstream = None
            upstream.exchange = None
            self._connecting = self._worker.pools[self._route.place].connect(self)
            return
        name = self._route.upstream.name
        answer = bad_gateway(name, "upstream_reset", "closed the connection before it answered")
        self._fail("upstream_reset", _word(error), answer)

    def _bad_upstream(self, error: BadUpstream) -> None:
        name = self._route.upstream.name
        self._fail(
            "bad_upstream", None, bad_gateway(name, "bad_upstream", f"did not answer in HTTP: {error}")
        )

    # --- the client's side of things -------------------------------------------------------------------------

    def client_write_paused(self) -> None:
        """The client takes the response slower than the upstream sends it."""
        if self._upstream is not None:
            self._upstream.pause_reading()

    def client_write_resumed(self) -> None:
        """It has taken what was waiting."""
        if self._upstream is not None:
            self._upstream.resume_reading()

    def client_half_closed(self) -> None:
        """A tunnel's client has sent its last byte."""
        self._client_ended = True
        if self._upstream_ended:
            self._end("complete", None, time.monotonic_ns())
        elif self._upstream is not None:
            self._upstream.end_writing()

    def upstream_half_closed(self) -> bool:
        """A tunnel's upstream has sent its last byte; True when the client may still send."""
        self._upstream_ended = True
        if self._client_ended:
            self._end("complete", None, time.monotonic_ns())
            return False
        self._client.end_writing()
        return True

    def client_left(self, error: Exception | None) -> None:
        """The client closed or reset its connection before the response was over."""
        self._end(
            "complete" if self.tunnel and error is None else "client_left", _word(error), time.monotonic_ns()
        )

    def stop(self) -> None:
        """The tap's drain time is over."""
        answer = bad_gateway(self._route.upstream.name, "tap_stopped", "was left: the tap stops")
        self._fail("tap_stopped", None, answer)

    # --- limits of time --------------------------------------------------------------------------------------

    def _arm_timer(self) -> None:
        """One lazy timer for each exchange: it looks at the last activity when it fires, and is set again."""
        shortest_s = self._worker.shortest_limit_s
        if shortest_s:
            self._timer = self._worker.loop.call_later(shortest_s, self._check_time)

    def _check_time(self) -> None:
        self._timer = None
        if self.ended or self.tunnel:
            return
        options = self._worker.options
        now_ns = time.monotonic_ns()
        name = self._route.upstream.name
        limits: list[tuple[float, int, Cause]] = []
        if self._response is None:
            if self._upstream is not None:
                limits.append((options.headers_timeout_s, self._last_ns, "headers_timeout"))
        elif not self._client.write_paused:
            # While a slow client holds the upstream back, silence is not the upstream's.
            limits.append((options.idle_timeout_s, self._last_ns, "idle_bytes"))
            if self._response_capture is not None:
                output_ns = max(self._response_capture.last_output_ns, self._last_output_ns)
                limits.append((options.idle_output_timeout_s, output_ns, "idle_output"))
        next_s = 0.0
        for limit_s, since_ns, cause in limits:
            if not limit_s:
                continue
            left_s = limit_s - (now_ns - since_ns) / 1e9
            if left_s <= 0:
                self._fail(cause, None, timed_out(name, cause, "did not answer in time"))
                return
            next_s = min(next_s or left_s, left_s)
        if not next_s:
            self._arm_timer()
        else:
            self._timer = self._worker.loop.call_later(next_s + 0.001, self._check_time)

    # --- the end ---------------------------------------------------------------------------------------------

    def _fail(self, cause: Cause, detail: str | None, answer: Answer) -> None:
        """End without a whole response: the client gets `answer` if it has got nothing yet."""
        if self.ended:
            return
        started = self._response_head is not None
        self._end(cause, detail, time.monotonic_ns(), answer=None if started else answer)

    def _end(self, cause: Cause, detail: str | None, now_ns: int, *, answer: Answer | None = None) -> None:
        """The exchange is over; the one way out."""
        if self.ended:
            return
        self.ended = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._connecting is not None:
            self._connecting.cancel()
            self._connecting = None
        complete = cause == "complete"
        self._release_upstream(complete)
        self._record_request()
        self._worker.counters.body_bytes += self.response_bytes
        self._worker.counters.request_bytes += self._request_bytes
        ending = Ending(self, cause, detail, now_ns)
        self._client.exchange_over(
            ending,
            answer=answer,
            keep_alive=complete and self._keep_client and self._request.over,
            abort=not complete and answer is None and self._close_delimited,
        )

    def _release_upstream(self, complete: bool) -> None:
        upstream, self._upstream = self._upstream, None
        if upstream is None:
            return
        upstream.exchange = None
        self._reused = upstream.reused
        head, reader = self._response_head, self._response
        reusable = (
            complete
            and not self.tunnel
            and head is not None
            and head.keep_alive
            and reader is not None
            and not reader.excess
            and self._request.over
            and not (self._close_delimited and not self._payload_only)
        )
        if reusable:
            upstream.resume_reading()
            self._worker.pools[self._route.place].give(upstream)
        else:
            upstream.leave()

    def closed(
        self, ending: Ending, *, drained_ns: int | None, left_ns: int | None, undelivered: int
    ) -> None:
        """The client's socket has taken the last byte, or never will: the last record."""
        mirror = self._mirror
        if mirror is None:
            return
        self._mirror = None
        t0_ns = self._t0_ns
        mirror.close(
            Closed(
                stream=mirror.stream,
                seq=mirror.end_frames(),
                cause=ending.cause,
                detail=ending.detail,
                end_ns=ending.at_ns - t0_ns,
                connected_ns=self._connected_ns,
                request_sent_ns=self._request_sent_ns,
                request_bytes=self._request_bytes,
                response_bytes=self.response_bytes,
                delivered_bytes=max(0, self.response_bytes - undelivered),
                client_drain_ns=None if drained_ns is None else drained_ns - t0_ns,
                client_left_ns=None if left_ns is None else left_ns - t0_ns,
                reused_connection=self._reused,
                tunnel=self.tunnel,
            )
        )


class Ending:
    """How an exchange ended. Kept until the client's socket has drained; then `close` writes the last record."""

    __slots__ = ("_exchange", "at_ns", "cause", "detail")

    def __init__(self, exchange: Exchange, cause: Cause, detail: str | None, at_ns: int) -> None:
        self._exchange = exchange
        self.cause = cause
        self.detail = detail
        self.at_ns = at_ns

    def close(
        self, *, drained_ns: int | None = None, left_ns: int | None = None, undelivered: int = 0
    ) -> None:
        self._exchange.closed(self, drained_ns=drained_ns, left_ns=left_ns, undelivered=undelivered)


def _word(error: BaseException | None) -> str | None:
    return None if error is None else type(error).__name__
