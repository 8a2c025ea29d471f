# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, binding=False, nonecheck=True
"""`deferred_recorder` in native code: encodes the records of a short exchange directly as MessagePack.

The same Python functions decide what may be recorded. They are skipped only for common methods, plain paths and absent fields,
for which their result is certain. Everything runs on the event loop.
"""

from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.object cimport PyObject
from cpython.tuple cimport PyTuple_GetItem
from libc.stdint cimport int64_t, uint8_t
from posix.time cimport CLOCK_REALTIME, clock_gettime, timespec

from streamgauge.ingest.tap.http.messagepack cimport Writer, put, put_array, put_bool, put_bytes, put_int, put_nil, put_str, put_tagged, take

import os

from streamgauge.ingest import identifiers
from streamgauge.ingest.tap.recording import body_capture as capture
from streamgauge.ingest.tap.http.receive_buffer import appended
from streamgauge.ingest.tap.http.client_identity import API_KEY_FIELDS, client_id
from streamgauge.ingest.tap.recording.deferred_recorder import MAX_UNCOUNTED_BODY_BYTES, replay
from streamgauge.ingest.tap.http.heads import NO_BODY
from streamgauge.ingest.tap.recording.record_buffer import RECORD_OVERHEAD_BYTES
from streamgauge.ingest.tap.recording.failures import ABANDONED
from streamgauge.ingest.tap.recording.stream_recorder import WAIT_BYTES, StreamRecorder

cdef enum:
    NEVER = -1
    UNKNOWN = -1
    PLAIN_SEGMENT_CHARS = 18  # as in streamgauge.ingest.identifiers
    MAX_PLAIN_PATH_CHARS = 256
    UUID_CHARS = 36
    UUID_RANDOM_BYTES = 11
    RANDOM_BYTES = 11 * 372
    ROOM_BYTES = 65536  # reserved in the record buffer at once

cdef int64_t MAX_KEPT_BYTES = MAX_UNCOUNTED_BODY_BYTES
cdef int64_t OVERHEAD_BYTES = RECORD_OVERHEAD_BYTES
cdef int64_t BYTES_OF_A_WAIT = WAIT_BYTES
cdef frozenset METHODS = frozenset({"GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH"})
cdef tuple KEY_FIELDS = API_KEY_FIELDS

cdef Writer out  # empty before and after each record
cdef bytes random_bytes = b""
cdef size_t random_at = 0


cdef inline object item(object values, Py_ssize_t i):
    """An item of a tuple, also of a named one."""
    # `values[i]` of a NamedTuple would go through its type's slots: Cython's fast path is for exact tuples only.
    cdef PyObject *found = PyTuple_GetItem(values, i)
    return <object>found


cdef int make_uuid7(int64_t wall_ns, uint8_t *text) except -1:
    """As `streamgauge.ingest.generated_ids.uuid7`."""
    global random_bytes, random_at
    cdef const char *digits = "0123456789abcdef"
    cdef const uint8_t *source
    cdef uint8_t nibbles[32]
    cdef int64_t millisecond = wall_ns // 1000000
    cdef int i, at = 0
    # One system call for 372 ids. Bytes are used once: an id must not share random bytes with the next one, or two ids
    # of one millisecond could collide.
    if random_at + UUID_RANDOM_BYTES > <size_t>len(random_bytes):
        random_bytes, random_at = os.urandom(RANDOM_BYTES), 0
    source = <const uint8_t *><const char *>random_bytes + random_at
    random_at += UUID_RANDOM_BYTES
    for i in range(12):
        nibbles[i] = millisecond >> 4 * (11 - i) & 15
    nibbles[12] = 7
    for i in range(3):
        nibbles[13 + i] = source[i] & 15
    nibbles[16] = 8
    for i in range(15):
        nibbles[17 + i] = source[3 + i // 2] >> 4 if i % 2 else source[3 + i // 2] & 15
    for i in range(32):
        if i == 8 or i == 12 or i == 16 or i == 20:
            text[at] = c'-'
            at += 1
        text[at] = digits[nibbles[i]]
        at += 1
    return 0


cdef bint is_plain_path(str path) except -1:
    """Whether `identifiers.path` returns it unchanged, which is certain for short segments without special characters."""
    # The rules of `identifiers` are regular expressions and cost more than the rest of the record. Segments too short
    # to be a key pass them in any case, and nearly all paths have only such segments.
    cdef bytes encoded = path.encode()
    cdef const uint8_t *data = encoded
    cdef size_t i, size = len(encoded), segment = 0
    cdef uint8_t c
    if size > MAX_PLAIN_PATH_CHARS or size == 0 or data[0] != c'/':
        return False
    for i in range(size):
        c = data[i]
        if c == c'/':
            segment = 0
            continue
        segment += 1
        if segment > PLAIN_SEGMENT_CHARS or not (
            (c >= c'a' and c <= c'z') or (c >= c'A' and c <= c'Z') or (c >= c'0' and c <= c'9')
            or c == c'.' or c == c'_' or c == c':' or c == c'@' or c == c'-'
        ):
            return False
    return True

# --- parts of records


cdef inline int put_start(int count, str tag, const uint8_t *stream, int64_t seq) except -1:
    """A record with so many elements, up to its seq."""
    put_array(&out, count)
    put_str(&out, tag)
    put_tagged(&out, 0xd9, UUID_CHARS, 1)
    put(&out, stream, UUID_CHARS)
    return put_int(&out, seq)


cdef inline int put_pair(pair) except -1:
    put_array(&out, 2)
    put_str(&out, item(pair, 0))
    return put_str(&out, item(pair, 1))


cdef int put_fields(list fields, session) except -1:
    """The fields of a head that may be recorded, and the one of the session."""
    cdef size_t count = session is not None
    for field in fields:
        count += field.recorded is not None
    put_array(&out, count)
    for field in fields:
        recorded = field.recorded
        if recorded is not None:
            put_pair(recorded)
    if session is not None:
        put_pair(session)
    return 0


cdef inline int put_time(int64_t at_ns, int64_t t0_ns) except -1:
    """A duration since t0, nil for what never happened."""
    return put_nil(&out) if at_ns == NEVER else put_int(&out, at_ns - t0_ns)


cdef inline int64_t not_before(int64_t at_ns, int64_t end_ns):
    return at_ns if at_ns == NEVER else max(at_ns, end_ns)


cdef class NativeDeferredRecorders:
    """See `DeferredRecorders`. Records wait here, in room that was reserved in the record buffer, until it calls `flush`."""

    def __init__(self, factory):
        self._factory = factory
        self._buffer = factory.buffer
        self._counters = factory.buffer.counters
        self._session_headers = factory.session_headers
        self._session_names = factory.session_headers.names
        self._records = []
        self._ends = {}
        self.recorder_class = NativeDeferredRecorder

    def new(self, head, route, trace, int64_t client_start_ns, int64_t t0_ns):
        """The recorder of an exchange."""
        cdef timespec now
        cdef NativeDeferredRecorder recorder
        # With a constant class, Cython allocates the object without a call.
        if self.recorder_class is NativeDeferredRecorder:  # not so in tests
            recorder = NativeDeferredRecorder.__new__(NativeDeferredRecorder)
        else:
            recorder = self.recorder_class.__new__(self.recorder_class)
        # `time.time_ns()` makes an int object and a call; this is one call into the vDSO.
        clock_gettime(CLOCK_REALTIME, &now)
        recorder._wall_ns = now.tv_sec * 1000000000 + now.tv_nsec
        recorder._group = self
        recorder._head = head
        recorder._route = route
        recorder._trace = trace
        recorder._client_start_ns, recorder._t0_ns = client_start_ns, t0_ns
        recorder._connected_ns = recorder._request_sent_ns = recorder._drained_ns = recorder._client_left_ns = NEVER
        recorder._body = b""
        recorder._request_over = UNKNOWN
        recorder._frames = []
        recorder.waiting = True
        self._buffer.flush_later(recorder)
        self._counters.streams_opened += 1  # last: a stream without a recorder is counted elsewhere
        return recorder

    def flush(self):
        """Give all records to the buffer."""
        # The reservation is returned before the records are appended, because `append_exchanges` counts their true
        # size. Nothing runs in between, so the room cannot go to somebody else.
        if self._reserved_bytes:
            self._buffer.release(self._reserved_bytes)
            self._reserved_bytes = 0
        if self._records:
            records, ends, self._records, self._ends = self._records, self._ends, [], {}
            frame_count, captured_bytes = self._frame_count, self._captured_bytes
            self._size_bytes = self._frame_count = self._captured_bytes = 0
            try:
                self._buffer.append_exchanges(records, frame_count, captured_bytes, ends)
            except Exception as e:
                self._buffer.lose_records(records, e)

    cdef bint reserve(self, int64_t size_bytes) except -1:
        """Whether records of this size have room."""
        if self._size_bytes + size_bytes <= self._reserved_bytes:
            return True
        self.flush()
        # 64 KiB at once, for dozens of exchanges: each would otherwise pay two attribute look-ups and a comparison of
        # big integers in Python.
        if self._buffer.unreported or not self._buffer.reserve(max(size_bytes, ROOM_BYTES)):
            return False
        self._reserved_bytes = max(size_bytes, ROOM_BYTES)
        return True

    cdef int add(self, list records, int64_t size_bytes, int64_t frame_count, int64_t captured_bytes, str cause) except -1:
        """Keep the records of one exchange, which has ended."""
        self._records += records
        self._size_bytes += size_bytes
        self._frame_count += frame_count
        self._captured_bytes += captured_bytes
        self._ends[cause] = self._ends.get(cause, 0) + 1
        return 0

    cdef session(self, list fields):
        """The field to record for the session that a request names, None without one."""
        for field in fields:
            # Nearly no request names a session. The search by rank in Python runs only if one of the names is there.
            if field.name in self._session_names:
                return self._session_headers.recorded(fields)
        return None


cdef class NativeDeferredRecorder:
    """See `DeferredRecorder`."""

    @property
    def recorder(self):
        """The recorder, with all that was kept."""
        if self._recorder is None:
            end = None
            if self._cause is not None:
                end = (
                    self._cause, self._detail, self._end_ns, self._request_bytes, self._response_bytes, bool(self._reused),
                    bool(self._tunnel), self._waits,
                )
            self._recorder = StreamRecorder(
                self._group._factory, self._head, self._route, self._trace, self._client_start_ns, self._t0_ns, self._wall_ns
            )
            replay(
                self._recorder,
                None if self._connected_ns == NEVER else self._connected_ns,
                None if self._request_sent_ns == NEVER else self._request_sent_ns,
                bytes(self._body), None if self._request_over == UNKNOWN else bool(self._request_over),
                self._response, self._responded_ns, self._frames, end,
            )
            self._body, self._frames, self._response = b"", [], None
        return self._recorder

    # --- the request

    cpdef connected(self, int64_t now_ns):
        if self._recorder is not None:
            self._recorder.connected(now_ns)
        elif self._connected_ns == NEVER:
            self._connected_ns = now_ns

    cpdef request_data(self, bytes payload):
        if self._recorder is None and self.keep(len(payload)):
            if self._request_over == UNKNOWN:
                self._body = appended(self._body, payload) if self._body else payload
        else:
            self.recorder.request_data(payload)

    cpdef request_sent(self, int64_t now_ns):
        if self._recorder is not None:
            self._recorder.request_sent(now_ns)
        elif self._request_sent_ns == NEVER:
            self._request_sent_ns = now_ns

    cpdef record_request(self, bint over):
        if self._recorder is not None:
            self._recorder.record_request(bool(over))
        elif self._request_over == UNKNOWN:
            self._request_over = over

    # --- the response

    cpdef response_head(self, head, int64_t now_ns):
        if self._recorder is not None:
            self._recorder.response_head(head, now_ns)
        else:
            self._response, self._responded_ns = head, now_ns

    cpdef response_data(self, bytes payload, int64_t now_ns):
        if self._recorder is None and self.keep(len(payload)):
            self._frames.append((now_ns, payload))
        else:
            self.recorder.response_data(payload, now_ns)

    # --- the end

    cpdef ended(
        self, str cause, detail, int64_t now_ns, int64_t request_bytes, int64_t response_bytes, bint reused, bint tunnel,
        list waits,
    ):
        if self._recorder is not None:
            self._recorder.ended(cause, detail, now_ns, request_bytes, response_bytes, bool(reused), bool(tunnel), waits)
        else:
            self._cause, self._detail, self._waits = cause, detail, waits
            self._end_ns, self._request_bytes, self._response_bytes = now_ns, request_bytes, response_bytes
            self._reused, self._tunnel = reused, tunnel

    def drained(self, now_ns):
        if now_ns is not None:
            self._drained_ns = now_ns
        self._group._buffer.end_later(self)

    def client_left(self, int64_t now_ns, int64_t undelivered_bytes):
        self._client_left_ns, self._undelivered_bytes = now_ns, undelivered_bytes
        self._group._buffer.end_later(self)

    # --- the records

    def flush(self):
        self.waiting = False
        self.recorder.flush()

    def end(self):
        if self._recorder is not None or not self.write_all():
            self.recorder.end(
                None if self._drained_ns == NEVER else self._drained_ns,
                None if self._client_left_ns == NEVER else self._client_left_ns,
                self._undelivered_bytes,
            )

    def abandon(self):
        try:
            recorder = self.recorder
        except Exception:
            if self._recorder is None:
                self._recorder = ABANDONED
                raise
            recorder = self._recorder
        recorder.abandon()

    cdef bint keep(self, int64_t size_bytes):
        """Whether so many more bytes of bodies may be kept."""
        self._kept_bytes += size_bytes
        return self._kept_bytes <= MAX_KEPT_BYTES

    cdef bint write_all(self) except -1:
        """As `DeferredRecorder._write_all`."""
        cdef uint8_t stream[UUID_CHARS]
        cdef list records, response_fields
        cdef bytes payload
        cdef int64_t size_bytes, captured_bytes = 0
        head, response = self._head, self._response
        size_bytes = 4 * OVERHEAD_BYTES + <int64_t>head.size_bytes + self._kept_bytes + BYTES_OF_A_WAIT * len(self._waits)
        if response is not None:
            size_bytes += <int64_t>response.size_bytes
            if capture.response_limit(response.content_type, response.status >= 400)[0] < self._kept_bytes:
                return False
        if not self._group.reserve(size_bytes):
            return False
        # An exception in an earlier record may have left a part of it.
        out.size = 0
        make_uuid7(self._wall_ns, stream)
        records = [self.opened(stream)]
        if self._body and head.body is not NO_BODY:
            captured = capture.RequestCapture(head, self._group._factory.options.request_capture_bytes)
            captured.feed(bytes(self._body))
            body = captured.take(over=self._request_over > 0)
            if body is not None:
                put_start(7, "request", stream, 1)
                put_bytes(&out, body)
                put_bool(&out, captured.truncated)
                put_bool(&out, False)
                put_nil(&out)
                records.append(take(&out))
        if response is not None:
            put_start(8, "frames", stream, len(records))
            put_array(&out, len(self._frames))
            for frame in self._frames:
                put_array(&out, 2)
                put_int(&out, <int64_t>frame[0] - self._t0_ns)
                payload = frame[1]
                put_bytes(&out, payload)
                captured_bytes += len(payload)
            put_array(&out, 3)
            put_int(&out, response.status)
            response_fields = response.fields
            put_fields(response_fields, None)
            put_int(&out, self._responded_ns - self._t0_ns)
            put_int(&out, 0)
            put_nil(&out)
            put_nil(&out)
            records.append(take(&out))
        records.append(self.closed(stream, len(records)))
        self._group.add(records, size_bytes, len(self._frames), captured_bytes, self._cause)
        return True

    cdef bytes opened(self, const uint8_t *stream):
        head, route, trace = self._head, self._route, self._trace
        factory = self._group._factory
        cdef dict known = head.known
        cdef list fields = head.fields
        cdef str method = head.method, target = route.target
        cdef bytes origin = factory.origin(route)
        put_start(23, "opened", stream, 0)
        # Six fields at once: see `RecorderFactory.origin`.
        put(&out, <const char *>origin, len(origin))
        put_str(&out, method if method in METHODS else identifiers.name(method) or "")
        put_str(&out, target if is_plain_path(target) else identifiers.path(target))
        put_int(&out, self._wall_ns)
        put_int(&out, self._t0_ns)
        put_int(&out, min(0, self._client_start_ns - self._t0_ns))
        put_str(&out, trace.trace_id)
        put_str(&out, trace.span_id)
        put_str(&out, trace.parent_span_id)
        put_int(&out, trace.flags)
        client = None
        # `client_id` hashes with BLAKE2; requests without any key field skip the call.
        for name in KEY_FIELDS:
            if name in known:
                client = client_id(known, factory.client_key)
                break
        put_str(&out, client)
        put_fields(fields, self._group.session(fields))
        if b"x-streamgauge-capture" in known and capture.capture_content(head) is not None:
            put_bool(&out, False)
        else:
            put_nil(&out)
        put_str(&out, identifiers.query_model(target) if "?" in target else None)
        put_str(&out, factory.options.clock_id)
        return take(&out)

    cdef bytes closed(self, const uint8_t *stream, int64_t seq):
        cdef int64_t t0_ns = self._t0_ns, end_ns = self._end_ns
        put_start(18, "closed", stream, seq)
        put_str(&out, self._cause)
        put_str(&out, self._detail)
        put_int(&out, end_ns - t0_ns)
        put_time(self._connected_ns, t0_ns)
        put_time(self._request_sent_ns, t0_ns)
        put_int(&out, self._request_bytes)
        put_int(&out, self._response_bytes)
        put_int(&out, max(0, self._response_bytes - self._undelivered_bytes))
        put_time(not_before(self._drained_ns, end_ns), t0_ns)
        put_time(not_before(self._client_left_ns, end_ns), t0_ns)
        put_bool(&out, self._reused)
        put_bool(&out, self._tunnel)
        put_nil(&out)
        put_nil(&out)
        if self._tunnel:
            put_nil(&out)
        else:
            put_array(&out, len(self._waits))
            for from_ns, until_ns, waited_for in self._waits:
                put_array(&out, 3)
                put_int(&out, from_ns)
                put_int(&out, until_ns)
                put_str(&out, waited_for)
        return take(&out)
