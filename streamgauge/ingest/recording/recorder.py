"""Make the records of one exchange: `Opened`, `Request`, `Frames`, `Closed`, and `Lost` for dropped data.

The exchange calls the recorder after it has forwarded the bytes (`facts` has the order of the calls and the units). The recorder
keeps what it is given, and reserves room for it in the `RecordBuffer`. It makes the records when the buffer flushes it, or when
64 KiB of frames wait. A short exchange makes all its records at once, in a batch after its end: between two reads that code
would delay the first bytes of other streams, because it is not in the CPU's caches.

Guarantees
- The records of a stream are numbered without a gap: a lost record takes a number too, and a `Lost` record names it.
- Without room, response frames are dropped. Each contiguous run of dropped frames takes one number. A dropped request body
  and a dropped head take one number each.
- A stream may have half as many bytes in the log's queue as are free there (`RecordBuffer`). Without that share it loses frames
  while others have room.
- After an exception, `abandon` writes what is known and reports the rest as lost. Numbers are used up and reserved bytes are
  released before any step that could fail, or after it, so an abandoned stream leaves no gap and no reserved bytes. A later use
  of the recorder's buffer raises an exception, so that its callers detach it.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from typing import Any

from streamgauge.ingest import identifiers
from streamgauge.ingest.condensed_body import CodedBody, CondensedBody
from streamgauge.ingest.content_coding import BodyDecoder
from streamgauge.ingest.facts import FieldFacts, RequestFacts, ResponseFacts, RouteFacts
from streamgauge.ingest.generated_ids import uuid7
from streamgauge.ingest.http1.bodies import holds_only_comments
from streamgauge.ingest.http1.client_identity import client_id
from streamgauge.ingest.http1.receive_buffer import appended
from streamgauge.ingest.http1.trace_context import TraceContext
from streamgauge.ingest.keyed_ids import SessionHeaders
from streamgauge.ingest.labels import HeadLabels
from streamgauge.ingest.recording import body_capture as capture
from streamgauge.ingest.recording.body_capture import response_limits
from streamgauge.ingest.recording.failures import CAUSE
from streamgauge.ingest.recording.options import RecordingOptions
from streamgauge.ingest.recording.record_buffer import (
    RECORD_OVERHEAD_BYTES,
    RecordBuffer,
    has_share,
    held_bytes_of,
)
from streamgauge.ingest.recording.relayed import RelayedEnd, RelayedRecords
from streamgauge.ingest.records import (
    AnyRecord,
    Cause,
    Closed,
    Frames,
    Lost,
    Opened,
    Request,
    ResponseHeaders,
    Times,
    Wait,
    frames_head,
)
from streamgauge.ingest.result_cache import ResultCache

FLUSH_BYTES = 65_536
MAX_REQUEST_RATIO = 50
"""Decoding of a compressed request ends at 1 MiB + this ratio × its compressed size."""
# Typed in the .pxd. Compiled code reads other globals from the module's dict.
_FLUSH_BYTES = FLUSH_BYTES
_FREE_BYTES, _MAX_RATIO = 2**20, MAX_REQUEST_RATIO
_RECORD_BYTES = RECORD_OVERHEAD_BYTES
_FRAME_BYTES = 96  # a tuple, an int and the header of a bytes object
_UNLIMITED = capture.UNLIMITED
_ARGUMENTS_OF_ENDED = 9
_NOT_BEGUN = -1  # instead of a number of bytes: of a body, or of a run of dropped frames
# Most requests have the same few paths. One with a query, which may carry keys, is not cached.
_usual_paths = ResultCache(identifiers.path, 512)
_MAX_CACHED_CHARS = 256
_COLON = ord(":")
_METHODS = frozenset({"GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH"})


class Recorders:
    """Creates the recorders of one worker."""

    def __init__(
        self,
        buffer: RecordBuffer,
        options: RecordingOptions,
        *,
        incarnation: str,
        client_key: bytes,
        wall_ns: Callable[[int], int],
        times: Times = "reads",
    ) -> None:
        """`wall_ns`: the Unix time of a time of the exchanges' clock."""
        self.buffer = buffer
        self.options = options
        self.incarnation = incarnation
        self._client_key = client_key
        self._session_headers = SessionHeaders(options.session_headers, client_key)
        self._session_names = self._session_headers.names
        self._labels = HeadLabels(options.labels, client_key)
        self._has_labels = bool(self._labels)
        self.wall_ns = wall_ns
        self._source = options.tap_name, options.worker, incarnation
        self._clock = options.clock_id, times

    def new(
        self, request: RequestFacts, route: RouteFacts, trace: TraceContext, client_start_ns: int, t0_ns: int
    ) -> Recorder:
        """The recorder of an exchange that starts at `t0_ns`. `client_start_ns`: when the first byte of the request arrived."""
        return Recorder(self, request, route, trace, client_start_ns, t0_ns)

    def _recorded_of_request(self, request: RequestFacts, target: str) -> list[tuple[str, str]]:
        """The fields of a request's head to record, with its session id and labels."""
        recorded = _recorded(request.fields)
        for field in request.fields:
            # Nearly no request names a session. Only one that does is searched by rank.
            if field.name in self._session_names:
                recorded += self._session_headers.recorded(request.fields)
                break
        if self._has_labels:
            recorded += self._labels.recorded(request.fields, target)
        return recorded


def _recorded(fields: Sequence[FieldFacts]) -> list[tuple[str, str]]:
    recorded = []
    for field in fields:
        if field.recorded is not None:
            recorded.append(field.recorded)  # noqa: PERF401 - a comprehension has no typed variable
    return recorded


class Recorder:
    """Records one exchange.

    It has at most 30 attributes: with more, Python 3.11 would give each interpreted instance a hash table of 1.3 KiB.
    """

    def __init__(
        self,
        group: Recorders,
        request: RequestFacts,
        route: RouteFacts,
        trace: TraceContext,
        client_start_ns: int,
        t0_ns: int,
    ) -> None:
        self._group = group
        self._buffer = self._group.buffer
        self._request = request
        self._t0_ns = t0_ns
        self.stream = ""
        """Set with the first record: most of an id's cost then falls into the batch."""
        self._seq = 0
        self._opening: tuple[RouteFacts, TraceContext, int] | None = None
        """What `Opened` is made of, while room is reserved for it: until it is written."""
        self._connected_ns: int | None = None
        self._request_sent_ns: int | None = None
        self._body: bytes | bytearray = b""
        """Captured part of the request's body, until it is written."""
        self._body_left_bytes = _NOT_BEGUN
        """Bytes of it that may still be captured; 0: no more are."""
        self._body_truncated = False
        self._condenser: CondensedBody | None = None
        """Of a body that is longer than the limit."""
        self._response: ResponseFacts | None = None
        """The head of the response, until it is written with the first `Frames`."""
        self._responded_ns = 0
        self._remaining_bytes = 0
        """Bytes of the response's body that may still be captured."""
        self._event_stream = False
        self._look: capture.ResponseLook | None = None
        """Until the first bytes of the response's body have decided the two."""
        self._frames: list[tuple[int, bytes]] = []
        self._frame_bytes = 0
        self._from_client: list[int] | None = None
        """Indexes of the waiting frames that the client of a WebSocket sent. None before the first frame of one."""
        self._uncaptured_bytes = 0
        self._dropped_bytes = _NOT_BEGUN
        """Of the run of frames that is being dropped. No frames wait then."""
        self._held_bytes = self._new_bytes = self._epoch = 0
        """Bytes appended in this and the previous epoch of the buffer, and in this one: at least what the log still has to take."""
        self._end: tuple[Any, ...] = ()
        """The arguments of `ended`, then those of `drained`."""
        self.first_byte_ns: int | None = None
        """Arrival of the first byte that is counted but not captured."""
        self.last_output_ns = 0
        """Time of the last read that held more than heartbeats."""
        self.waiting = True
        """The buffer is going to flush this recorder."""
        # An exchange that never ends must be visible within 80 ms: `Opened` makes a stream appear as in flight.
        self._buffer.flush_later(self)
        # With the margin: `Opened` is small and gives all later records their meaning. A stream without it could not
        # even say that it lost something.
        if self._buffer.reserve(self._request.size_bytes + _RECORD_BYTES, True):
            self._opening = (route, trace, client_start_ns)
        else:
            self._lose(0)
        self._buffer.counters.open_stream()  # last: a stream without a recorder is counted elsewhere

    @property
    def abandoned(self) -> bool:
        """The recording has failed. Nothing more is recorded."""
        return self._buffer is None

    def __repr__(self) -> str:
        return f"<Recorder {self.stream or 'of a new stream'}: {self.state}, {self._seq} records, {len(self._frames)} frames wait>"

    @property
    def state(self) -> str:
        """Its step: `opening` (no record is made), `request`, `request body`, `response`, `dropping` (a run of frames), `ended` (the
        delivery is open), `delivered` or `abandoned`."""
        if self.abandoned:
            return "abandoned"
        if self._end:
            return "ended" if len(self._end) == _ARGUMENTS_OF_ENDED else "delivered"
        if self._dropped_bytes != _NOT_BEGUN:
            return "dropping"
        if self._responded_ns:
            return "response"
        if self._body_left_bytes != _NOT_BEGUN:
            return "request body"
        return "request" if self._opening is None else "opening"

    # --- the request

    def connected(self, now_ns: int) -> None:
        """The connection to the upstream is open."""
        if self._connected_ns is None:
            self._connected_ns = now_ns - self._t0_ns

    def request_data(self, payload: bytes) -> None:
        """Part of the request's body."""
        left_bytes = self._body_left_bytes
        if left_bytes == _NOT_BEGUN:
            request = self._request
            content_type = request.known.get(b"content-type")
            captured = capture.captures_request(content_type, request.fields, payload)
            left_bytes = self._body_left_bytes = self._group.options.request_capture_bytes if captured else 0
        if not left_bytes:
            return
        size = len(payload)
        if self._condenser is not None or size >= left_bytes:
            payload, left_bytes = self._condense(payload, left_bytes)
            size = len(payload)
        if size > left_bytes:
            payload, size = payload[:left_bytes], left_bytes
            if self._condenser is not None:
                self._body_truncated = True
        left_bytes -= size
        # The body is parsed to its end, even if only a part of it is kept.
        self._body_left_bytes = left_bytes if self._condenser is None else max(1, left_bytes)
        if size:
            if not self._buffer.reserve(size):
                self._buffer.used_bytes -= len(self._body)
                self._body, self._body_left_bytes = b"", 0
                self._lose_next()
                return
            self._body = appended(self._body, payload) if self._body else payload
            if not self._body_left_bytes:
                self._body_ends(True)

    def _condense(self, payload: bytes, left_bytes: int) -> tuple[bytes, int]:
        """What to keep of a part of a body above the limit, and how many bytes may be kept."""
        limit_bytes = self._group.options.request_capture_bytes
        if self._condenser is not None:
            return self._condenser.feed(payload), limit_bytes - len(self._body)
        start = bytes(self._body)
        condenser = self._condenser = self._new_condenser(start or payload)
        if condenser is None:
            return payload, left_bytes
        self._body = b""
        self._buffer.used_bytes -= len(start)
        return condenser.feed(start) + condenser.feed(payload), limit_bytes

    def _new_condenser(self, start: bytes) -> CondensedBody | None:
        """None: the body is not JSON. With a content coding, this is not known."""
        key = self._group._client_key
        if start[:1] == b"{":
            return CondensedBody(key)
        coding = capture.named_coding(self._request.fields).decode("latin-1")
        decoding = BodyDecoder(coding, free_bytes=_FREE_BYTES, max_ratio=_MAX_RATIO)
        return None if decoding.plain or decoding.broken else CodedBody(key, decoding)

    def request_sent(self, now_ns: int) -> None:
        """The request's last byte was written to the upstream."""
        if self._request_sent_ns is None:
            self._request_sent_ns = now_ns - self._t0_ns

    def record_request(self, over: bool) -> None:
        """Record the captured part of the request's body, once. `over`: the body has ended."""
        if self._body and self._body_left_bytes > 0:
            self._body_left_bytes = 0
            self._body_ends(not over)

    def _body_ends(self, truncated: bool) -> None:
        self._body_truncated = self._body_truncated or truncated
        if not self.waiting:
            self._wait()

    # --- the response

    def response_head(self, head: ResponseFacts, now_ns: int) -> None:
        """The final (not 1xx) head of the response."""
        self._remaining_bytes, self._event_stream = response_limits[head.content_type]
        if self._remaining_bytes != _UNLIMITED:
            if head.status < 400:
                coding = capture.named_coding(head.fields)
                self._look = capture.ResponseLook(self._request.method, coding, self._remaining_bytes)
            else:
                self._remaining_bytes = capture.MAX_PLAIN_BODY_BYTES
        self._responded_ns = self.last_output_ns = now_ns
        if self._buffer.reserve(head.size_bytes, True):
            self._response = head
            if not self.waiting:
                self._wait()
        else:
            self._lose_next()

    def response_data(self, payload: bytes, now_ns: int) -> None:
        """One read of the response's body."""
        if self._look is not None:
            self._look_at(payload)
        remaining_bytes = self._remaining_bytes
        # Event streams have no limit: they skip the subtraction and its result, a new int per read.
        if remaining_bytes == _UNLIMITED:
            self._frame(now_ns - self._t0_ns, payload)
        elif (size := len(payload)) <= remaining_bytes:
            self._frame(now_ns - self._t0_ns, payload)
            self._remaining_bytes = remaining_bytes - size
        else:
            if remaining_bytes:
                self._frame(now_ns - self._t0_ns, payload[:remaining_bytes])
                self._remaining_bytes = 0
            if self.first_byte_ns is None:
                self.first_byte_ns = now_ns
            self._uncaptured_bytes += size - remaining_bytes
            if not self.waiting:
                self._wait()
        # Cheap tests first: hardly any read of a stream starts with a colon. Comments do not count as output for the limit
        # `idle_output`, see `timeouts`.
        if not self._event_stream or payload[0] != _COLON or not holds_only_comments(payload, len(payload)):
            self.last_output_ns = now_ns

    def _look_at(self, payload: bytes) -> None:
        assert self._look is not None
        found = self._look.feed(payload)
        if found is None:
            self._remaining_bytes = len(payload)
        else:
            self._remaining_bytes, self._event_stream = found
            self._look = None

    def websocket_data(self, data: bytes, now_ns: int, from_client: bool) -> None:
        """One read of a WebSocket, from either side. Call after `response_head`."""
        if self._from_client is None:
            self._from_client = []
        self._frame(now_ns - self._t0_ns, data, from_client)

    def _frame(self, at_ns: int, body: bytes, from_client: bool = False) -> None:
        """One captured read. The hot path."""
        buffer = self._buffer
        size = len(body)
        # What is used and held may be of an earlier time, which can only refuse. It is renewed when the frame would be dropped.
        if not has_share(
            buffer.used_bytes, size, self._held_bytes, buffer.limit_bytes
        ) and not self._has_share(size):
            self._drop(size)
            return
        if self._dropped_bytes != _NOT_BEGUN:
            self._end_dropped_run()
        if from_client:
            assert self._from_client is not None
            self._from_client.append(len(self._frames))
        self._frames.append((at_ns, body))
        buffer.used_bytes += size + _FRAME_BYTES
        size += self._frame_bytes
        self._frame_bytes = size
        if size >= _FLUSH_BYTES:
            self._write_waiting()
        elif not self.waiting:
            self._wait()

    def _has_share(self, size_bytes: int) -> bool:
        self._buffer.take_done()
        self._hold(0)
        return has_share(self._buffer.used_bytes, size_bytes, self._held_bytes, self._buffer.limit_bytes)

    def _hold(self, size_bytes: int) -> None:
        """Count bytes that this stream has added to the log's queue."""
        epoch = self._buffer.epoch()
        if epoch != self._epoch:
            self._held_bytes = held_bytes_of(self._new_bytes, epoch - self._epoch)
            self._epoch, self._new_bytes = epoch, 0
        self._new_bytes += size_bytes
        self._held_bytes += size_bytes

    def _drop(self, size_bytes: int) -> None:
        """There is no room for this frame: add it to the run of dropped frames."""
        if self._dropped_bytes == _NOT_BEGUN:
            # Frames before the gap get their number now. A `Frames` record with frames of both sides would place the
            # gap nowhere.
            self._write_waiting()
            self._dropped_bytes = 0
        self._dropped_bytes += size_bytes

    def _end_dropped_run(self) -> None:
        """Give the run of dropped frames its number and report it."""
        if self._dropped_bytes != _NOT_BEGUN:
            self._lose(self._dropped_bytes)
            self._dropped_bytes = _NOT_BEGUN
            self._buffer.report(self.stream)

    # --- bodies that the relay forwards

    def state_for_relay(self) -> RelayedRecords | None:
        """Write all records that can be made now. Returns what the relay needs to make the next ones; None: losses must be
        reported first, or more bytes decide what is captured."""
        self._write_waiting()
        self._end_dropped_run()
        # The relay numbers its records itself. Until the loss has its number in the log, the relay's records would come
        # before it.
        if self.stream in self._buffer.unreported or self._look is not None:
            return None
        return RelayedRecords(
            frames_head(self.stream), self._seq, self._t0_ns, self._remaining_bytes, self._event_stream, self.last_output_ns
        )  # fmt: skip

    def relay_lost_frames(self, seq: int, size_bytes: int) -> None:
        """The relay dropped a run of frames, which takes this number."""
        self._seq = seq
        self._lose(size_bytes)
        self._buffer.report(self.stream)

    def relay_ended(self, end: RelayedEnd) -> None:
        """The relay makes no more records of this stream."""
        self._seq = end.seq
        self._remaining_bytes = end.capture_bytes
        self._dropped_bytes = end.dropped_bytes
        self.last_output_ns = end.last_output_ns
        if end.first_uncaptured_ns:
            self.first_byte_ns = self.first_byte_ns or end.first_uncaptured_ns
        self._uncaptured_bytes += end.uncaptured_bytes

    # --- the end

    def ended(
        self,
        cause: Cause,
        detail: str | None,
        now_ns: int,
        request_bytes: int,
        response_bytes: int,
        reused: bool,
        tunnel: bool,
        waits: list[Wait] | None,
        refused_status: int | None = None,
    ) -> None:
        """The exchange is over. `reused`: its upstream connection had served another one. `waits`: None if unknown.
        `refused_status`: of the tap's error response, if it refused the request."""
        self._end = (
            cause, detail, now_ns, request_bytes, response_bytes, reused, tunnel, waits, refused_status
        )  # fmt: skip

    def drained(
        self,
        now_ns: int | None,
        delivered_ns: int | None = None,
        left_ns: int | None = None,
        undelivered_bytes: int = 0,
    ) -> None:
        """The end of the delivery, the last call; None: this was not observed. `now_ns`: the client's socket had accepted the whole
        response. `delivered_ns`: the client's kernel had received it. `left_ns`: the client disconnected before.
        `undelivered_bytes`: what it had not received at this call."""
        self._end = (*self._end, now_ns, delivered_ns, left_ns, undelivered_bytes)
        self._buffer.end_later(self)

    # --- the records

    def flush(self) -> None:
        """Write all records that can be made now. Called by the buffer."""
        self.waiting = False
        self._write_waiting()

    def end(self) -> None:
        """Write the remaining records, `Closed` last. Called by the buffer."""
        self._write_waiting()
        self._end_dropped_run()
        buffer, t0_ns = self._buffer, self._t0_ns
        buffer.counters.streams_closed += 1
        (
            cause, detail, end_ns, request_bytes, response_bytes, reused, tunnel, waits, refused_status,
            drained_ns, delivered_ns, left_ns, undelivered_bytes,
        ) = self._end  # fmt: skip
        first_byte_ns = self.first_byte_ns
        buffer.counters.closed_by_cause[cause] += 1
        closed = Closed(
            self.stream,
            self._seq,
            cause,
            detail,
            end_ns - t0_ns,
            self._connected_ns,
            self._request_sent_ns,
            request_bytes,
            response_bytes,
            max(0, response_bytes - undelivered_bytes),
            None if drained_ns is None else max(end_ns, drained_ns) - t0_ns,
            None if left_ns is None else max(end_ns, left_ns) - t0_ns,
            reused,
            tunnel,
            refused_status,
            None if first_byte_ns is None else first_byte_ns - t0_ns,
            None if tunnel else waits,
            None if delivered_ns is None else max(end_ns, delivered_ns) - t0_ns,
        )
        # Only this record has no reserved room.
        if not buffer.has_room(_RECORD_BYTES, True) or not self._write(closed):
            self._lose(0, True)

    def abandon(self, cause: str = CAUSE, lost_bytes: int = 0) -> None:
        """After an exception, or a loss elsewhere: write what is known and report the rest as lost."""
        buffer = self._buffer
        # Written first, because these records are complete and only what follows is unknown.
        with contextlib.suppress(Exception):  # this may be what has failed
            self._write_waiting()
        # From here on every use of the buffer raises: no call can write after the last `Lost`.
        self._buffer = None  # type: ignore[assignment]
        buffer.used_bytes -= self._reserved_bytes()
        lost_bytes += self._frame_bytes + max(0, self._dropped_bytes)
        self._frames, self._body, self._response = [], b"", None
        # The failure may have come before `Opened`. The stream gets its id nevertheless, so that the loss is a row of
        # its own.
        now_ns = time.time_ns()
        stream, seq = self.stream or uuid7(now_ns), self._seq
        try:
            buffer.lose(Lost(stream, seq, seq, cause, now_ns, lost_bytes, True))
        except Exception:
            buffer.counters.lost_untold += 1

    def _reserved_bytes(self) -> int:
        """Bytes reserved for what is not written yet."""
        size_bytes = self._frame_bytes + _FRAME_BYTES * len(self._frames) + len(self._body)
        if self._opening is not None:
            size_bytes += self._request.size_bytes + _RECORD_BYTES
        if self._response is not None:
            size_bytes += self._response.size_bytes
        return size_bytes

    def _wait(self) -> None:
        self.waiting = True
        self._buffer.flush_later(self)

    def _write_waiting(self) -> None:
        """Write all waiting data as records, in the order of the protocol."""
        if self._opening is not None:
            self._write_opened()
        if self._body and not self._body_left_bytes:
            self._write_request()
        if self._frames or self._response is not None or self._uncaptured_bytes:
            self._write_frames()

    # Each of the following makes its record first. Then it gives up room and content, before the step that can fail:
    # `abandon` would otherwise release the room a second time.

    def _write_opened(self) -> None:
        assert self._opening is not None
        route, trace, client_start_ns = self._opening
        group, request, upstream, target = self._group, self._request, route.upstream, route.target
        (tap_name, worker, incarnation), (clock_id, times) = group._source, group._clock
        known, method = request.known, request.method
        wall_ns = group.wall_ns(self._t0_ns)
        stream = self.stream = uuid7(wall_ns)
        opened = Opened(
            stream,
            0,
            tap_name,
            worker,
            incarnation,
            upstream.name,
            upstream.host,
            upstream.port,
            method if method in _METHODS else identifiers.name(method) or "",
            _usual_paths[target]
            if len(target) <= _MAX_CACHED_CHARS and "?" not in target
            else identifiers.path(target),
            wall_ns,
            self._t0_ns,
            min(0, client_start_ns - self._t0_ns),
            trace.trace_id,
            trace.span_id,
            trace.parent_span_id,
            trace.flags,
            client_id(known, group._client_key),
            group._recorded_of_request(request, target),
            capture.capture_content(known),
            identifiers.query_model(target) if "?" in target else None,
            clock_id,
            times,
        )
        self._opening = None
        self._buffer.used_bytes -= request.size_bytes + _RECORD_BYTES
        if not self._write(opened):
            self._lose(0)

    def _write_request(self) -> None:
        body = bytes(self._body)
        condenser, anatomy, is_decoded = self._condenser, None, False
        if condenser is not None:
            anatomy = condenser.anatomy
            if condenser.error is not None:
                self._buffer.failures.count(condenser.error)
            if isinstance(condenser, CodedBody):
                decoding, is_decoded = condenser.decoding, True
                self._body_truncated |= decoding.broken or decoding.bomb or decoding.unfinished
        request = Request(
            self.stream, self._seq, body, self._body_truncated, is_decoded, condensed=condenser is not None, anatomy=anatomy
        )  # fmt: skip
        self._body = b""
        self._buffer.used_bytes -= len(body)
        if not self._write(request):
            self._lose(0)

    def _write_frames(self) -> None:
        frames, size_bytes, response = self._frames, self._frame_bytes, self._response
        reserved_bytes = size_bytes + _FRAME_BYTES * len(frames)
        counters = self._buffer.counters
        from_client = self._from_client
        # Most records of a stream have none of them. They skip the optional fields.
        if response is not None or self._uncaptured_bytes or from_client is not None:
            headers = None
            if response is not None:
                reserved_bytes += response.size_bytes
                headers = ResponseHeaders(
                    response.status, _recorded(response.fields), self._responded_ns - self._t0_ns
                )
                self._response = None
            uncaptured_bytes, self._uncaptured_bytes = self._uncaptured_bytes, 0
            counters.uncaptured_bytes += uncaptured_bytes
            record = Frames(
                self.stream, self._seq, frames, headers, uncaptured_bytes, from_client=from_client
            )
            if from_client is not None:
                self._from_client = []
        else:
            record = Frames(self.stream, self._seq, frames)
        self._frames, self._frame_bytes = [], 0
        self._buffer.used_bytes -= reserved_bytes
        written_bytes = self._write(record)
        if written_bytes:
            self._hold(written_bytes)
            counters.frames += len(frames)
            counters.captured_bytes += size_bytes
        else:
            self._lose(size_bytes)

    def _write(self, record: AnyRecord) -> int:
        """Write the next record. Returns its size in the log's queue; 0: it is lost."""
        # A stream's `Lost` comes before its next record, since numbers must reach the log in order. The record's data has
        # reserved its room, and to drop it now would count its bytes twice.
        buffer = self._buffer
        if buffer.unreported and not buffer.report(self.stream):
            return 0
        written_bytes = buffer.append(record)
        if written_bytes:
            self._seq += 1
        return written_bytes

    def _lose_next(self) -> None:
        """Report the next part of the exchange as lost, for lack of room. Data that waits is written before it."""
        self._write_waiting()
        self._lose(0)

    def _lose(self, size_bytes: int, last: bool = False) -> None:
        """Give the next number to lost data."""
        buffer, seq, now_ns = self._buffer, self._seq, time.time_ns()
        if not self.stream:  # `Opened` has no room
            self.stream = uuid7(self._group.wall_ns(self._t0_ns))
        cause = buffer.sink.failing or "queue_full"
        buffer.lose(Lost(self.stream, seq, seq, cause, now_ns, size_bytes, last))
        self._seq = seq + 1
