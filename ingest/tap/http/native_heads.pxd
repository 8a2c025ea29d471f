"""The functions of `native_heads.pyx` for other native code."""

from libc.stdint cimport int64_t

cdef int64_t content_length(bytes value)
cdef response_head(bytes head)
cpdef request_for_upstream(head, route, trace, str x_forwarded, str address, str scheme)
