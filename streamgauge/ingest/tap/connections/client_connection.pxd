"""Types of `client_connection.py`."""

cimport cython
from libc.stdint cimport int64_t

from streamgauge.ingest.http1.heads cimport RequestHead, read_request_head
from streamgauge.ingest.http1.trace_context cimport join_trace
from streamgauge.ingest.tap.connections.upstream_connection cimport UpstreamPool
from streamgauge.ingest.tap.exchanges.client_side cimport ClientSide
from streamgauge.ingest.tap.exchanges.context cimport TapContext
from streamgauge.ingest.tap.exchanges.exchange cimport Exchange
from streamgauge.ingest.tap.http.routing cimport Route


cdef class ClientConnection(ClientSide):
    cdef object _pools, _timer
    cdef int64_t _buffer_since_ns, _lingered_bytes

    @cython.locals(now_ns=int64_t, exchange=Exchange, full=bint, head=bytes, blank_line=bytes, rest=bytes)
    cpdef data_received(self, bytes data)
    @cython.locals(context=TapContext, pool=UpstreamPool, exchange=Exchange, head=RequestHead, route=Route)
    cdef _start_request(self, bytes received, bytes rest, int64_t now_ns)
    cpdef resume_reading(self)
