"""The classes of `native_recorder.pyx` for other native code."""

from libc.stdint cimport int64_t, uint8_t


cdef class NativeDeferredRecorders:
    cdef public type recorder_class
    cdef object _factory, _buffer, _counters, _session_headers
    cdef dict _session_names
    cdef list _records
    cdef dict _ends
    cdef int64_t _reserved_bytes, _size_bytes, _frame_count, _captured_bytes

    cdef bint reserve(self, int64_t size_bytes) except -1
    cdef int add(self, list records, int64_t size_bytes, int64_t frame_count, int64_t captured_bytes, str cause) except -1
    cdef session(self, list fields)


cdef class NativeDeferredRecorder:
    cdef public bint waiting
    cdef NativeDeferredRecorders _group
    cdef object _head, _route, _trace, _response, _recorder, _detail
    cdef str _cause
    cdef object _body  # bytes or bytearray
    cdef list _frames, _waits
    cdef int64_t _client_start_ns, _t0_ns, _wall_ns, _connected_ns, _request_sent_ns, _responded_ns, _end_ns, _drained_ns
    cdef int64_t _client_left_ns, _request_bytes, _response_bytes, _undelivered_bytes, _kept_bytes
    cdef int _request_over
    cdef bint _reused, _tunnel

    cpdef connected(self, int64_t now_ns)
    cpdef request_data(self, bytes payload)
    cpdef request_sent(self, int64_t now_ns)
    cpdef record_request(self, bint over)
    cpdef response_head(self, head, int64_t now_ns)
    cpdef response_data(self, bytes payload, int64_t now_ns)
    cpdef ended(
        self, str cause, detail, int64_t now_ns, int64_t request_bytes, int64_t response_bytes, bint reused, bint tunnel,
        list waits,
    )
    cdef bint keep(self, int64_t size_bytes)
    cdef bint write_all(self) except -1
    cdef bytes opened(self, const uint8_t *stream)
    cdef bytes closed(self, const uint8_t *stream, int64_t seq)
