"""Types of `routing.py`."""

cimport cython

from streamgauge.ingest.tap.http.heads cimport RequestHead


@cython.final
@cython.no_gc
cdef class Route:
    cdef readonly int upstream_index
    cdef readonly object upstream
    cdef readonly str target


@cython.final
cdef class Router:
    cdef tuple _upstreams
    cdef object _default, _only
    cdef dict _by_name
    cdef frozenset _lower_names
    cdef readonly list names

    @cython.locals(target=str)
    cpdef Route route(self, RequestHead head)
