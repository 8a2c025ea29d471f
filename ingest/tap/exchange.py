"""One request and its response: the life between the two connections.

The rules: bytes go to the other side first, then the tap does its own work. A body is forwarded as it came, whatever it
is; only heads are rewritten (`headers`). Whoever pauses, pauses the other side. Whoever leaves first is noted as the cause,
and the other side is told at once. An exchange ends exactly once, through `_end`, and with one cause. What is recorded of
it is the `StreamRecorder`'s affair. A short exchange is one write to each side, and makes nothing that it does not need.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from ingest.records import Cause
from ingest.tap import header_rewrite as headers
from ingest.tap.error_responses import Answer, bad_gateway, timed_out, unreachable
from ingest.tap.http_body import BodyReader, request_reader, response_reader
from ingest.tap.http_head import (
    BadUpstream,
    Body,
    Refused,
    RequestHead,
    ResponseHead,
    read_response_head,
    response_body,
)
from ingest.tap.routing import Route
from ingest.tap.stream_recorder import StreamRecorder
from ingest.tap.trace_context import join_trace
from ingest.tap.tunnel import Tunnel

if TYPE_CHECKING:
    from ingest.tap.client_connection import ClientConnection
    from ingest.tap.upstream_connection import UpstreamConnection
    from ingest.tap.worker import TapWorker

_MAX_RESPONSE_HEAD_BYTES = 262_144
_MAX_UNSENT_BYTES = 262_144  # request bytes kept while the connection to the upstream is being made
_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
_monotonic_ns = time.monotonic_ns
_NO_BODY = Body.NONE


class Exchange:
    """One request and its response."""

    __slots__ = (
        "_client",
        "_close_delimited",
        "_connecting",
        "_head",
        "_held",
        "_held_until_ns",
        "_keep_client",
        "_last_ns",
        "_payload_only",
        "_recorder",
        "_request",
        "_request_over",
        "_response",
        "_response_head",
        "_retried",
        "_reused",
        "_route",
        "_trace",
        "_unsent",
        "_upstream",
        "_worker",
        "_write_client",
        "ended",
        "request_bytes",
        "response_bytes",
        "tunnel",
        "written_bytes",
    )

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
        self._last_ns = now_ns
        self._held_until_ns = 0
        """When the client last let the upstream go on: what is silent before that is not the upstream."""
        self.ended = False
        self.tunnel: Tunnel | None = None
        """What the exchange has become after a 101."""
        # the request's half
        self._request: BodyReader | None = None
        """None: the request has no body."""
        self._request_over = True
        if head.body is not _NO_BODY:
            self._request = request_reader(head.body, head.length)
            self._request_over = False
        self.request_bytes = 0
        self._unsent = b""
        self._retried = self._reused = False
        # the response's half
        self._response: BodyReader | None = None
        self._response_head: ResponseHead | None = None
        self._held = b""
        self._payload_only = self._close_delimited = self._keep_client = False
        self.response_bytes = 0
        self.written_bytes = 0
        """All that was written to the client's transport: heads and chunk framing too."""
        trace = self._trace = join_trace(head.known.get(b"traceparent"))
        factory = worker.recorder_factory
        self._recorder: StreamRecorder | None = (
            StreamRecorder(factory, head, route, trace, client_start_ns, now_ns)
            if factory is not None
            else None
        )

    # --- beginning -------------------------------------------------------------------------------------------

    def start(self, now_ns: int) -> None:
        """Turn to the upstream: take a connection or open one."""
        pool = self._worker.pools[self._route.place]
        idle = pool.take(look=self._request is not None or self._head.method not in _SAFE_METHODS)
        if idle is not None:
            self._worker.counters.upstream_reuses += 1
            self.upstream_connected(idle, now_ns)
        else:
            self._connecting = pool.connect(self)

    def upstream_connected(self, upstream: UpstreamConnection, now_ns: int) -> None:
        """A connection is there: send the head, and what of the body has come meanwhile."""
        self._connecting = None
        self._upstream = upstream
        upstream.exchange = self
        client, route = self._client, self._route
        head = headers.request_for_upstream(
            self._head,
            target=route.target,
            host_line=route.upstream.host_line,
            trace=self._trace,
            forwarding=self._worker.options.forwarding,
            client_address=client.address,
            client_scheme=client.scheme,
        )
        upstream.transport.write(head + self._unsent if self._unsent else head)
        self._unsent = b""
        if client.transport_paused_by_us and not upstream.write_paused:
            client.resume_reading()
        recorder = self._recorder
        if recorder is None:
            return
        if self._request is None and not upstream.write_paused:
            recorder.sent_at_once(now_ns)
        else:
            recorder.connected(now_ns)
            if self._request_over:
                self._request_sent(now_ns)

    def connect_failed(self, error: BaseException) -> None:
        """No connection to the upstream."""
        self._connecting = None
        name = self._route.upstream.name
        if isinstance(error, TimeoutError) and not getattr(error, "errno", None):
            answer = timed_out(name, "connect_timeout", "did not take the connection in time")
            self._fail("connect_timeout", None, answer)
        else:
            self._fail("connect_error", _word(error), unreachable(name, error))

    # --- the request's half ----------------------------------------------------------------------------------

    @property
    def request_open(self) -> bool:
        """The client still has to send something that belongs to this exchange."""
        return not self._request_over or self.tunnel is not None

    @property
    def method(self) -> str:
        return self._head.method

    def client_data(self, data: bytes) -> bytes:
        """Bytes of the request's body (or of the tunnel). Returns what comes after the request."""
        if self.tunnel is not None:
            self.tunnel.client_data(data)
            return b""
        reader = self._request
        assert reader is not None
        try:
            payload = reader.feed(data)
        except Refused as e:
            self._refuse(e)
            return b""
        rest = b""
        if reader.excess:
            rest = data[-reader.excess :]
            data = data[: -reader.excess]
        self.request_bytes += len(payload)
        limit = self._worker.options.max_request_bytes
        if limit and self.request_bytes > limit:
            self._refuse(Refused(413, "the request's body is too large"))
            return b""
        upstream = self._upstream
        if upstream is not None:
            upstream.transport.write(data)
        else:
            self._unsent += data
            if len(self._unsent) > _MAX_UNSENT_BYTES:
                self._client.pause_reading()
        now_ns = self._last_ns = _monotonic_ns()
        self._request_over = reader.over
        if self._recorder is not None:
            self._recorder.request_data(payload)
            if reader.over and upstream is not None:
                self._request_sent(now_ns)
        return rest

    def request_timed_out(self) -> None:
        """The client stopped in the middle of its request."""
        self._refuse(Refused(408, "the request's body did not come in time"))

    def _refuse(self, refusal: Refused) -> None:
        """The request's body is not acceptable: the upstream must not see its end."""
        self._worker.counters.requests_refused += 1
        self._fail("bad_request", None, Answer.refusal(refusal))

    def _request_sent(self, now_ns: int) -> None:
        """The request's last byte was handed over."""
        recorder, upstream = self._recorder, self._upstream
        if recorder is not None:
            if upstream is None or not upstream.write_paused:
                recorder.request_sent(now_ns)
            recorder.record_request(over=True)

    def upstream_write_paused(self) -> None:
        """The upstream takes the request slower than the client sends it."""
        self._client.pause_reading()

    def upstream_write_resumed(self) -> None:
        """It has taken what was waiting."""
        now_ns = self._last_ns = _monotonic_ns()
        if self._request_over and self._recorder is not None:
            self._recorder.request_sent(now_ns)
        self._client.resume_reading()

    # --- the response's half ---------------------------------------------------------------------------------

    def upstream_data(self, data: bytes, now_ns: int) -> None:
        """One read from the upstream, at `now_ns`."""
        self._last_ns = now_ns
        reader = self._response
        if reader is None:
            if self.tunnel is not None:
                self.tunnel.upstream_data(data)
            else:
                self._head_data(data, now_ns)
            return
        try:
            payload = reader.feed(data)
        except BadUpstream as e:
            self._bad_upstream(e)
            return
        if reader.excess:
            data = self._without_excess(data, reader.excess)
        if self._payload_only:
            data = payload
        self._write_client(data)
        self.written_bytes += len(data)
        if payload:
            self.response_bytes += len(payload)
            if self._recorder is not None:
                self._recorder.response_data(payload, now_ns)
        if reader.over:
            self._end("complete", None, now_ns)

    def _without_excess(self, data: bytes, excess: int) -> bytes:
        self._worker.counters.bad_upstream_excess_bytes += excess
        return data[:-excess]

    def _head_data(self, data: bytes, now_ns: int) -> None:
        if self._held:
            data = self._held + data
        while True:
            end = data.find(b"\r\n\r\n") + 4
            if end < 4:
                self._held = data
                if len(data) > _MAX_RESPONSE_HEAD_BYTES:
                    self._bad_upstream(BadUpstream("the response's head is too large"))
                return
            try:
                head = read_response_head(data[:end])
                if head.status == 101:
                    self._switch(head, data[end:])
                    return
                if head.status >= 200:
                    self._respond(head, data, end, now_ns)
                    return
            except BadUpstream as e:
                self._bad_upstream(e)
                return
            if self._head.minor == 1:
                self._write_client(data[:end])
                self.written_bytes += end
            data = data[end:]

    def _respond(self, head: ResponseHead, data: bytes, end: int, now_ns: int) -> None:
        """The final head is there, and ends at `end`: pass it on, with the body bytes that came with it."""
        request = self._head
        body, length = response_body(head, request.method)
        payload_only = body is Body.CHUNKED and request.minor == 0
        reader = response_reader(body, length)
        payload = b""
        if len(data) > end:
            payload = reader.feed(data[end:])
            if reader.excess:
                data = self._without_excess(data, reader.excess)
        if payload_only or body is Body.CLOSE:
            self._payload_only, self._close_delimited = payload_only, True
            keep_client = False
        else:
            keep_client = self._keep_client = request.keep_alive and not self._worker.stopping
        if not (head.plain and keep_client and request.minor == 1):
            sent = headers.response_for_client(
                head, keep_alive=keep_client, client_minor=request.minor, drop_chunked=payload_only
            )
            data = sent + (payload if payload_only else data[end:])
        self._write_client(data)
        self.written_bytes += len(data)
        self._response_head = head
        self._response = reader
        self._held = b""
        self.response_bytes = len(payload)
        recorder = self._recorder
        if recorder is not None:
            if not self._request_over:
                recorder.record_request(over=False)
            recorder.response_head(head, now_ns)
            if payload:
                recorder.response_data(payload, now_ns)
        if reader.over:
            self._end("complete", None, now_ns)

    def _switch(self, head: ResponseHead, rest: bytes) -> None:
        """101: from here on a blind tunnel."""
        upstream = self._upstream
        if upstream is None or not headers.asks_for_tunnel(self._head):
            raise BadUpstream("a switch of protocols that nobody asked for")
        self._held = b""
        sent = headers.switching_for_client(head)
        self._write_client(sent)
        self.written_bytes += len(sent)
        self._response_head = head
        if self._recorder is not None:
            self._recorder.response_head(head, self._last_ns)
        tunnel = self.tunnel = Tunnel(self, self._client, upstream)
        if rest:
            tunnel.upstream_data(rest)
        early = self._client.take_ahead()
        if early:
            tunnel.client_data(early)

    def tunnel_over(self, error: Exception | None, *, client_left: bool = False) -> None:
        """Both ends of the tunnel are done, or one broke."""
        cause: Cause = "complete" if error is None else "client_left" if client_left else "upstream_reset"
        self._end(cause, _word(error), _monotonic_ns())

    def upstream_eof(self, error: Exception | None) -> None:
        """The upstream closed (`error` None) or reset the connection."""
        if self.tunnel is not None:
            self.tunnel_over(error)
        elif self._response is None:
            self._upstream_gone_before_head(error)
        elif self._close_delimited and not self._payload_only and error is None:
            self._response.over = True
            self._end("complete", None, _monotonic_ns())
        else:
            self._end("upstream_reset", _word(error), _monotonic_ns())

    def _upstream_gone_before_head(self, error: Exception | None) -> None:
        upstream = self._upstream
        assert upstream is not None
        safe = self._head.method in _SAFE_METHODS and self._request is None
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
        self._held_until_ns = _monotonic_ns()
        if self._upstream is not None:
            self._upstream.resume_reading()

    def client_left(self, error: Exception | None) -> None:
        """The client closed or reset its connection before the response was over."""
        if self.tunnel is not None:
            self.tunnel_over(error, client_left=True)
        else:
            self._end("client_left", _word(error), _monotonic_ns())

    def stop(self) -> None:
        """The tap's drain time is over."""
        answer = bad_gateway(self._route.upstream.name, "tap_stopped", "was left: the tap stops")
        self._fail("tap_stopped", None, answer)

    # --- limits of time --------------------------------------------------------------------------------------

    def check_time(self, now_ns: int) -> None:
        """End the exchange if the upstream has been silent for too long. Called now and then."""
        if self._upstream is None or self.tunnel is not None:
            return
        options, recorder = self._worker.options, self._recorder
        limits: tuple[tuple[float, int, Cause], ...]
        if self._response is None:
            limits = ((options.headers_timeout_s, self._last_ns, "headers_timeout"),)
        elif self._client.write_paused:
            return  # a slow client holds the upstream back: the silence is not the upstream's
        else:
            output_ns = recorder.last_output_ns if recorder is not None else self._last_ns
            limits = (
                (options.idle_timeout_s, self._last_ns, "idle_bytes"),
                (options.idle_output_timeout_s, output_ns, "idle_output"),
            )
        for limit_s, since_ns, cause in limits:
            if limit_s and now_ns - max(since_ns, self._held_until_ns) > limit_s * 1e9:
                answer = timed_out(self._route.upstream.name, cause, "did not answer in time")
                self._fail(cause, None, answer)
                return

    # --- the end ---------------------------------------------------------------------------------------------

    def _fail(self, cause: Cause, detail: str | None, answer: Answer) -> None:
        """End without a whole response: the client gets `answer` if it has got nothing yet."""
        started = self._response_head is not None
        self._end(cause, detail, _monotonic_ns(), answer=None if started else answer)

    def _end(self, cause: Cause, detail: str | None, now_ns: int, *, answer: Answer | None = None) -> None:
        """The exchange is over; the one way out."""
        if self.ended:
            return
        self.ended = True
        if self._connecting is not None:
            self._connecting.cancel()
            self._connecting = None
        complete = cause == "complete"
        self._release_upstream(complete)
        counters, recorder = self._worker.counters, self._recorder
        counters.body_bytes += self.response_bytes
        counters.request_bytes += self.request_bytes
        if recorder is not None:
            if self._request is not None:
                recorder.record_request(over=self._request_over)
            recorder.ended(
                cause,
                detail,
                now_ns,
                self.request_bytes,
                self.response_bytes,
                reused=self._reused,
                tunnel=self.tunnel is not None,
            )
        self._client.exchange_over(
            self,
            recorder,
            now_ns,
            answer=answer,
            left=cause == "client_left",
            keep_alive=complete and self._keep_client and self._request_over,
            abort=not complete and answer is None and self._close_delimited,
        )

    def _release_upstream(self, complete: bool) -> None:
        upstream, self._upstream = self._upstream, None
        if upstream is None:
            return
        upstream.exchange = None
        self._reused = upstream.reused
        head, reader = self._response_head, self._response
        if (
            complete
            and head is not None
            and head.keep_alive
            and reader is not None
            and not reader.excess
            and self._request_over
            and (self._payload_only or not self._close_delimited)
        ):
            upstream.resume_reading()
            self._worker.pools[self._route.place].give(upstream)
        else:
            upstream.leave()


def _word(error: BaseException | None) -> str | None:
    return None if error is None else type(error).__name__
