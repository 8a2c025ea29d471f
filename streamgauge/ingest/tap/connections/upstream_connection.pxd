"""Types of `upstream_connection.py`."""

cimport cython
from libc.stdint cimport int64_t

from streamgauge.ingest.tap.exchanges.context cimport TapContext
from streamgauge.ingest.tap.exchanges.exchange cimport Exchange
from streamgauge.ingest.tap.exchanges.sides cimport Pool, UpstreamSide


cdef class UpstreamConnection(UpstreamSide):
    cdef UpstreamPool _pool
    cdef TapContext _context
    cdef object _clock_ns, _poll
    cdef bint _ending
    cdef public double idle_since_s

    @cython.locals(now_ns=int64_t, exchange=Exchange)
    cpdef data_received(self, bytes data)
    cpdef release(self)
    cpdef bint is_quiet(self)


cdef class UpstreamPool(Pool):
    cdef public TapContext context
    cdef readonly object _idle
    cdef public object tls
    cdef object _expiry_timer, _time_s, _upstream
    cdef Py_ssize_t _max_idle
    cdef double _max_idle_s

    @cython.locals(connection=UpstreamConnection, oldest_s=double)
    cpdef acquire(self)
    cpdef put(self, UpstreamConnection connection)
