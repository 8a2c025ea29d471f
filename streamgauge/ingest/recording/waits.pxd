"""Types of `waits.py`."""

from libc.stdint cimport int64_t

cdef int64_t LONG_SILENCE_NS


cdef class Waits:
    cdef object _blocks
    cdef readonly list found
    cdef int64_t _client_since_ns, _t0_ns

    cpdef begin(self, int64_t now_ns)
    cpdef end(self, int64_t now_ns)
    cpdef silence_ended(self, int64_t since_ns, int64_t now_ns)
