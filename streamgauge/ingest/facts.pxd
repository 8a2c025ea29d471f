"""Types of `facts.py`."""

cimport cython
from libc.stdint cimport int64_t


@cython.no_gc
cdef class FieldFacts:
    cdef readonly bytes name, value
    cdef readonly tuple recorded


@cython.no_gc
cdef class RequestFacts:
    cdef readonly str method
    cdef readonly list fields
    cdef readonly dict known
    cdef readonly int64_t size_bytes


@cython.no_gc
cdef class ResponseFacts:
    cdef readonly int status
    cdef readonly list fields
    cdef readonly bytes content_type
    cdef readonly int64_t size_bytes


@cython.no_gc
cdef class RouteFacts:
    cdef readonly object upstream
    cdef readonly str target
