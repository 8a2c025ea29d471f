"""The types of `recorder.py` for the compiled build."""

cimport cython
from libc.stdint cimport int64_t

from streamgauge.ingest.condensed_body cimport CodedBody, CondensedBody
from streamgauge.ingest.generated_ids cimport uuid7
from streamgauge.ingest.recording.counters cimport Counters
from streamgauge.ingest.facts cimport FieldFacts, RequestFacts, ResponseFacts, RouteFacts
from streamgauge.ingest.http1.bodies cimport holds_only_comments
from streamgauge.ingest.http1.client_identity cimport client_id
from streamgauge.ingest.http1.trace_context cimport TraceContext
from streamgauge.ingest.recording cimport body_capture as capture
from streamgauge.ingest.recording.record_buffer cimport RecordBuffer, has_share, held_bytes_of

cdef int64_t _FLUSH_BYTES, _RECORD_BYTES, _FRAME_BYTES, _UNLIMITED, _FREE_BYTES, _MAX_RATIO
cdef int64_t _NOT_BEGUN
cdef int _COLON
cdef frozenset _METHODS


cdef class Recorders:
    cdef readonly RecordBuffer buffer
    cdef readonly object options, wall_ns
    cdef readonly str incarnation
    cdef bytes _client_key
    cdef object _session_headers, _labels
    cdef tuple _source, _clock
    cdef bint _has_labels
    cdef dict _session_names

    cpdef Recorder new(self, RequestFacts request, RouteFacts route, TraceContext trace, int64_t client_start_ns, int64_t t0_ns)
    @cython.locals(field=FieldFacts)
    cdef list _recorded_of_request(self, RequestFacts request, str target)


@cython.locals(field=FieldFacts, recorded=list)
cdef list _recorded(list fields)


cdef class Recorder:
    cdef public bint waiting
    cdef public int64_t last_output_ns
    cdef public object first_byte_ns
    cdef readonly str stream
    cdef Recorders _group
    cdef RecordBuffer _buffer
    cdef RequestFacts _request
    cdef CondensedBody _condenser
    cdef ResponseFacts _response
    cdef object _connected_ns, _request_sent_ns
    cdef object _body  # bytes or bytearray
    cdef capture.ResponseLook _look
    cdef tuple _end, _opening
    cdef list _frames, _from_client
    cdef bint _body_truncated, _event_stream
    cdef int64_t _t0_ns, _responded_ns, _seq, _body_left_bytes, _remaining_bytes, _uncaptured_bytes
    cdef int64_t _frame_bytes, _dropped_bytes, _held_bytes, _new_bytes, _epoch

    cpdef connected(self, int64_t now_ns)
    cpdef request_data(self, bytes payload)
    @cython.locals(limit_bytes=int64_t, start=bytes, condenser=CondensedBody)
    cdef tuple _condense(self, bytes payload, int64_t left_bytes)
    cdef CondensedBody _new_condenser(self, bytes start)
    cpdef request_sent(self, int64_t now_ns)
    cpdef record_request(self, bint over)
    cdef _body_ends(self, bint truncated)
    cpdef response_head(self, ResponseFacts head, int64_t now_ns)
    @cython.locals(remaining_bytes=int64_t, size=int64_t)
    cpdef response_data(self, bytes payload, int64_t now_ns)
    cdef _look_at(self, bytes payload)
    cpdef websocket_data(self, bytes data, int64_t now_ns, bint from_client)
    @cython.locals(buffer=RecordBuffer, size=int64_t)
    cdef _frame(self, int64_t at_ns, bytes body, bint from_client=*)
    @cython.locals(epoch=int64_t)
    cdef _hold(self, int64_t size_bytes)
    cdef _end_dropped_run(self)
    cpdef ended(self, cause, detail, now_ns, request_bytes, response_bytes, reused, tunnel, waits, refused_status=*)
    cpdef drained(self, now_ns, delivered_ns=*, left_ns=*, int64_t undelivered_bytes=*)
    cpdef flush(self)
    @cython.locals(buffer=RecordBuffer, t0_ns=int64_t)
    cpdef end(self)
    cdef _wait(self)
    cdef _write_waiting(self)
    @cython.locals(
        group=Recorders, request=RequestFacts, route=RouteFacts, trace=TraceContext, known=dict, method=str, target=str,
        client_start_ns=int64_t, wall_ns=int64_t
    )
    cdef _write_opened(self)
    @cython.locals(condenser=CondensedBody)
    cdef _write_request(self)
    @cython.locals(response=ResponseFacts, counters=Counters, frames=list, from_client=list, size_bytes=int64_t, reserved_bytes=int64_t, uncaptured_bytes=int64_t, written_bytes=int64_t)
    cdef _write_frames(self)
    @cython.locals(buffer=RecordBuffer, written_bytes=int64_t)
    cdef int64_t _write(self, record)
