"""Types of `tunnel.py`."""

from libc.stdint cimport int64_t

from streamgauge.ingest.http1.websocket_close cimport CloseFrameFinder


cdef class Tunnel:
    cdef readonly bint websocket
    cdef readonly int64_t client_bytes, upstream_bytes
    cdef readonly object first_byte_ns
    cdef CloseFrameFinder _client_close, _upstream_close
    cdef bint _client_ended, _half_close, _upstream_ended
    cdef object _first_to_end

    cpdef client_data(self, bytes data)
    cpdef upstream_data(self, bytes data, int64_t now_ns)
