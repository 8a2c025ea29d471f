"""Types of `websocket_close.py`."""

cimport cython
from libc.stdint cimport int64_t, uint8_t


cdef class CloseFrameFinder:
    cdef readonly bint found, gave_up
    cdef int64_t _skip_bytes
    cdef bytes _header

    @cython.locals(frames=int, at=int64_t, size=int64_t, end=int64_t, length=int64_t, extended=int, second=uint8_t)
    cpdef feed(self, bytes data)
