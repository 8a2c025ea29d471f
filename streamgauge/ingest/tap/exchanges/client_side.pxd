"""Types of `client_side.py`."""

cimport cython
from libc.stdint cimport int64_t

from streamgauge.ingest.tap.exchanges.context cimport TapContext
from streamgauge.ingest.tap.exchanges.sides cimport Side
from streamgauge.ingest.tap.exchanges.states cimport after

cdef int64_t _MIN_FOLLOWED_BYTES


cdef class ClientSide(Side):
    cdef TapContext _context
    cdef object _clock_ns, _hangups, _watched
    cdef readonly object _buffer
    cdef public object draining
    cdef public str address, scheme
    cdef public int64_t last_byte_ns, ready_ns
    cdef readonly int state
    cdef int64_t _drained_ns, _written_bytes, _ended_exchanges_bytes
    cdef readonly bint _watching_drain

    cpdef _apply(self, int event)
    @cython.locals(context=TapContext)
    cpdef exchange_ended(self, exchange, int64_t now_ns, error, int then)
    cdef _unwritten_bytes(self)
    @cython.locals(now_ns=int64_t)
    cdef bint _check_drained(self)
    @cython.locals(drained_ns=int64_t)
    cdef _end_draining(self, delivered_ns, int64_t left_bytes=*)
    cdef _settle(self)
