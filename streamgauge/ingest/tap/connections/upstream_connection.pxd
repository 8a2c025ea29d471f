"""Types of `upstream_connection.py`."""

cimport cython
from libc.stdint cimport int64_t

from streamgauge.ingest.tap.exchanges.context cimport TapContext
from streamgauge.ingest.tap.exchanges.exchange cimport Exchange
from streamgauge.ingest.tap.exchanges.sides cimport Pool, UpstreamSide


cdef class UpstreamConnection(UpstreamSide):
    cdef UpstreamPool _opener
    cdef TapContext _context
    cdef object _clock_ns

    @cython.locals(now_ns=int64_t, exchange=Exchange)
    cpdef data_received(self, bytes data)


cdef class UpstreamPool(Pool):
    cdef public object tls
    cdef object _upstream

    @cython.locals(connection=UpstreamSide)
    cpdef serve(self, Exchange exchange, int64_t now_ns)
