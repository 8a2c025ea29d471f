"""Types of `sides.py`."""

cimport cython
from libc.stdint cimport int64_t

from streamgauge.ingest.tap.exchanges.context cimport TapContext


cdef class Side:
    cdef public object exchange, reading, transport
    cdef public bint closed, read_paused, write_paused

    cpdef resume_reading(self)


cdef class UpstreamSide(Side):
    cdef Pool _pool
    cdef object _poll
    cdef readonly bint ending
    cdef public bint reused
    cdef public double idle_since_s

    cpdef release(self)
    cpdef bint is_quiet(self)


cdef class Pool:
    cdef public TapContext context
    cdef readonly list _idle
    cdef object _expiry_timer, _time_s
    cdef Py_ssize_t _max_idle
    cdef double _max_idle_s

    @cython.locals(connection=UpstreamSide, oldest_s=double)
    cpdef acquire(self)
    cpdef put(self, UpstreamSide connection)
