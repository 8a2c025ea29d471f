"""The types of `record_buffer.py` for the compiled build."""

cimport cython
from libc.stdint cimport int64_t

from streamgauge.ingest.recording.counters cimport Counters

cdef int64_t _HAND_OVER_BYTES, _ENCODED_BYTES


cpdef bint has_share(int64_t used_bytes, int64_t size_bytes, int64_t held_bytes, int64_t limit_bytes) noexcept nogil
cpdef int64_t held_bytes_of(int64_t new_bytes, int64_t passed_epochs) noexcept nogil


cdef class RecordBuffer:
    cdef public int64_t limit_bytes, used_bytes
    cdef public object relay
    cdef readonly Counters counters
    cdef readonly object sink, failures
    cdef readonly dict unreported
    cdef readonly list _ended
    cdef readonly dict _waiting, _waiting_longer
    cdef int64_t _margin_limit_bytes, _done_bytes, _granted_bytes, _pending_bytes, _put_bytes, _epoch, _epoch_ends_at, _unreported_count
    cdef object _clock_ns, _ended_batch, _loop, _timer
    cdef list _pending

    cpdef bint has_room(self, int64_t size_bytes, bint margin=*)
    cpdef bint reserve(self, int64_t size_bytes, bint margin=*)
    cpdef int64_t epoch(self)
    @cython.locals(encoded=bytes, size_bytes=int64_t)
    cpdef int64_t append(self, record)
    cpdef flush_later(self, recorder)
    cpdef end_later(self, recorder)
    @cython.locals(ended=list, count=Py_ssize_t)
    cpdef _end_recorders(self, int64_t until_ns)
