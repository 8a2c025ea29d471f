"""Types of `rewriting.py`."""

cimport cython

from streamgauge.ingest.http1.fields cimport Field
from streamgauge.ingest.http1.heads cimport RequestHead
from streamgauge.ingest.tap.http.routing cimport Route
from streamgauge.ingest.http1.trace_context cimport TraceContext


cpdef bint adds_x_forwarded(str choice, object upstream) except -1

@cython.locals(value=bytes)
cpdef frozenset signed_names(RequestHead head)

@cython.locals(
    field=Field, name=bytes, line=bytes, lines=list, received=dict, trailers=bint, had_host=bint, x_forwarded=bint, named=frozenset,
    signed=frozenset, trace_is_signed=bint
)
cpdef bytes request_for_upstream(RequestHead head, Route route, TraceContext trace, str choice, str address, str scheme)
