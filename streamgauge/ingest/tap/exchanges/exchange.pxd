"""Types of `exchange.py`."""

cimport cython
from libc.stdint cimport int64_t

from streamgauge.ingest.http1.bodies cimport BodyReader
from streamgauge.ingest.http1.heads cimport RequestHead, ResponseHead, read_response_head, response_body
from streamgauge.ingest.http1.tunnel cimport Tunnel
from streamgauge.ingest.recording.recorder cimport Recorder
from streamgauge.ingest.recording.waits cimport Waits
from streamgauge.ingest.tap.exchanges.client_side cimport ClientSide
from streamgauge.ingest.tap.exchanges.ending cimport Ending
from streamgauge.ingest.tap.exchanges.sides cimport UpstreamSide
from streamgauge.ingest.tap.http.rewriting cimport request_for_upstream


cdef class Exchange(Ending):
    cpdef attach(self)
    cpdef start(self, int64_t now_ns)
    @cython.locals(client=ClientSide)
    cpdef on_connected(self, UpstreamSide upstream, int64_t now_ns)
    @cython.locals(upstream=UpstreamSide, now_ns=int64_t, waits=Waits, reader=BodyReader, payload=bytes, recorder=Recorder)
    cpdef on_client_bytes(self, bytes data)
    @cython.locals(upstream=UpstreamSide, recorder=Recorder)
    cdef _record_request(self, int64_t now_ns)
    @cython.locals(reader=BodyReader, payload=bytes, recorder=Recorder)
    cpdef on_upstream_bytes(self, bytes data, int64_t now_ns)
    cdef _write_client(self, bytes data)
    @cython.locals(start=bytes, blank_line=bytes, rest=bytes, head=ResponseHead)
    cdef _head_data(self, bytes data, int64_t now_ns)
    @cython.locals(request=RequestHead, reader=BodyReader, payload=bytes)
    cdef _respond(self, ResponseHead head, bytes data, bytes rest, int64_t now_ns)
    @cython.locals(tunnel=Tunnel, recorder=Recorder)
    cdef _tunnel_data(self, bytes data, int64_t now_ns, bint from_client)
    @cython.locals(recorder=Recorder)
    cdef _record_response(self, ResponseHead head, bytes payload, int64_t now_ns)
