"""Types of `client_connection.py`."""

cimport cython
from libc.stdint cimport int64_t

from streamgauge.ingest.tap.exchanges.context cimport TapContext
from streamgauge.ingest.tap.exchanges.exchange cimport Exchange
from streamgauge.ingest.tap.exchanges.sides cimport ClientSide, Pool
from streamgauge.ingest.http1.heads cimport RequestHead, read_request_head
from streamgauge.ingest.http1.trace_context cimport join_trace

cdef int64_t _MIN_FOLLOWED_BYTES


cdef class ClientConnection(ClientSide):
    cdef TapContext _context
    cdef readonly object _buffer
    cdef object _clock_ns, _hangups, _pools, _timer, _watched
    cdef int64_t _buffer_since_ns, _ended_exchanges_bytes, _lingered_bytes
    cdef bint _close_when_delivered
    cdef int64_t _drained_ns
    cdef readonly bint _lingering, _watching_drain

    @cython.locals(now_ns=int64_t, exchange=Exchange, full=bint, end=Py_ssize_t)
    cpdef data_received(self, bytes data)
    @cython.locals(context=TapContext, pool=Pool, exchange=Exchange, head=RequestHead)
    cdef _start_request(self, bytes received, bytes rest, int64_t now_ns)
    @cython.locals(context=TapContext)
    cpdef exchange_ended(self, exchange, int64_t now_ns, error, int then)
    cdef _unwritten_bytes(self)
    @cython.locals(exchange=Exchange, now_ns=int64_t)
    cdef bint _check_drained(self)
    @cython.locals(exchange=Exchange, drained_ns=int64_t)
    cdef _end_draining(self, delivered_ns, int64_t left_bytes=*)
    cdef _settle(self)
    cpdef resume_reading(self)
