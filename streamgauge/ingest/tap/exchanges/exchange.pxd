"""Types of `exchange.py`."""

cimport cython
from libc.stdint cimport int64_t

from streamgauge.ingest.tap.exchanges.forwarding cimport Forwarding
from streamgauge.ingest.tap.exchanges.sides cimport ClientSide, UpstreamSide
from streamgauge.ingest.recording.waits cimport Waits
from streamgauge.ingest.http1.heads cimport ResponseHead
from streamgauge.ingest.tap.http.rewriting cimport request_for_upstream
from streamgauge.ingest.recording.recorder cimport Recorder


cdef class Exchange(Forwarding):
    cpdef attach(self)
    cpdef start(self, int64_t now_ns)
    @cython.locals(client=ClientSide)
    cpdef on_connected(self, UpstreamSide upstream, int64_t now_ns)
    cdef _end_by(self, int event, detail, response, int64_t now_ns=*)
    @cython.locals(waits=Waits, client=ClientSide, received=bint, reused=bint)
    cpdef end(self, cause, detail, int64_t now_ns, error_response=*)
    @cython.locals(upstream=UpstreamSide, head=ResponseHead)
    cdef _release_upstream(self, bint reusable, bint tunneled)
    @cython.locals(recorder=Recorder)
    cpdef on_drained(self, drained_ns, delivered_ns, left_ns, int64_t undelivered_bytes)
    cdef _drained(self)
    @cython.locals(recorder=Recorder)
    cdef _record_end(self, cause, detail, int64_t now_ns, bint reused, tunnel, refused_status)
