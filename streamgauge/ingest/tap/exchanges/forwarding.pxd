"""Types of `forwarding.py`."""

cimport cython
from libc.stdint cimport int64_t

from streamgauge.ingest.tap.exchanges.context cimport TapContext
from streamgauge.ingest.tap.exchanges.states cimport after
from streamgauge.ingest.tap.exchanges.sides cimport ClientSide, Pool, UpstreamSide
from streamgauge.ingest.http1.tunnel cimport Tunnel
from streamgauge.ingest.recording.waits cimport Waits
from streamgauge.ingest.http1.bodies cimport BodyReader
from streamgauge.ingest.http1.heads cimport RequestHead, ResponseHead, read_response_head, response_body
from streamgauge.ingest.http1.trace_context cimport TraceContext
from streamgauge.ingest.recording.recorder cimport Recorder


cdef class Forwarding:
    cdef TapContext _context
    cdef ClientSide _client
    cdef Pool _pool
    cdef readonly UpstreamSide _upstream
    cdef Waits _waits
    cdef BodyReader _request_body, _response_body
    cdef RequestHead _head
    cdef ResponseHead _response_head
    cdef TraceContext _trace
    cdef Recorder _recorder
    cdef object _connect_task, _received, _relay, _relay_number, _route
    cdef Tunnel _tunnel
    cdef object _unsent
    cdef bint _close_delimited, _keep_client, _payload_only
    cdef int64_t _last_ns, _ready_ns
    cdef readonly int request, response
    cdef readonly int64_t request_bytes, response_bytes, written_bytes

    cdef _apply(self, int event)
    @cython.locals(upstream=UpstreamSide, now_ns=int64_t, waits=Waits, reader=BodyReader, payload=bytes, recorder=Recorder)
    cpdef on_client_bytes(self, bytes data)
    @cython.locals(upstream=UpstreamSide, recorder=Recorder)
    cdef _record_request(self, int64_t now_ns)
    @cython.locals(reader=BodyReader, payload=bytes, recorder=Recorder)
    cpdef on_upstream_bytes(self, bytes data, int64_t now_ns)
    cdef _write_client(self, bytes data)
    @cython.locals(end=Py_ssize_t, head=ResponseHead)
    cdef _head_data(self, bytes data, int64_t now_ns)
    @cython.locals(request=RequestHead, reader=BodyReader, payload=bytes)
    cdef _respond(self, ResponseHead head, bytes data, Py_ssize_t end, int64_t now_ns)
    @cython.locals(tunnel=Tunnel, recorder=Recorder)
    cdef _tunnel_data(self, bytes data, int64_t now_ns, bint from_client)
    @cython.locals(recorder=Recorder)
    cdef _record_response(self, ResponseHead head, bytes payload, int64_t now_ns)
    cdef _end_by(self, int event, detail, response, int64_t now_ns=*)
