"""Types of `routing.py`."""

cimport cython

from streamgauge.ingest.facts cimport RouteFacts
from streamgauge.ingest.http1.heads cimport RequestHead


@cython.final
@cython.no_gc
cdef class Route(RouteFacts):
    cdef readonly int upstream_index


@cython.locals(found=Route)
cdef Route _route(int upstream_index, upstream, str target)


@cython.final
cdef class Router:
    cdef tuple _upstreams
    cdef object _default, _only
    cdef dict _by_name, _by_host
    cdef frozenset _lower_names
    cdef readonly list names
    cdef str _only_prefix

    @cython.locals(target=str)
    cpdef Route route(self, RequestHead head)
