"""Types of `exchange.py`."""

cimport cython
from libc.stdint cimport int64_t

from streamgauge.ingest.tap.exchanges.client_side cimport ClientSide
from streamgauge.ingest.tap.exchanges.forwarding cimport Forwarding
from streamgauge.ingest.tap.exchanges.sides cimport UpstreamSide
from streamgauge.ingest.tap.exchanges.states cimport after, cause_of_end
from streamgauge.ingest.tap.http.rewriting cimport request_for_upstream


cdef class Exchange(Forwarding):
    cpdef attach(self)
    cpdef start(self, int64_t now_ns)
    @cython.locals(client=ClientSide)
    cpdef on_connected(self, UpstreamSide upstream, int64_t now_ns)
