"""Types of `ending.py`."""

cimport cython
from libc.stdint cimport int64_t

from streamgauge.ingest.http1.bodies cimport BodyReader
from streamgauge.ingest.http1.heads cimport RequestHead, ResponseHead
from streamgauge.ingest.http1.trace_context cimport TraceContext
from streamgauge.ingest.http1.tunnel cimport Tunnel
from streamgauge.ingest.recording.recorder cimport Recorder
from streamgauge.ingest.recording.waits cimport Waits
from streamgauge.ingest.tap.exchanges.client_side cimport ClientSide
from streamgauge.ingest.tap.exchanges.context cimport TapContext
from streamgauge.ingest.tap.exchanges.sides cimport UpstreamSide
from streamgauge.ingest.tap.exchanges.states cimport after, cause_of_end
from streamgauge.ingest.tap.http.routing cimport Route


cdef class Ending:
    cdef TapContext _context
    cdef ClientSide _client
    cdef readonly UpstreamSide _upstream
    cdef Waits _waits
    cdef BodyReader _request_body, _response_body
    cdef RequestHead _head
    cdef ResponseHead _response_head
    cdef TraceContext _trace
    cdef Recorder _recorder
    cdef public object connecting
    cdef Route _route
    cdef object _received, _relay, _relay_number
    cdef Tunnel _tunnel
    cdef object _unsent
    cdef bint _close_delimited, _keep_client, _payload_only
    cdef int64_t _last_ns, _ready_ns
    cdef readonly int request, response
    cdef readonly int64_t request_bytes, response_bytes, written_bytes

    cdef _apply(self, int event)
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
