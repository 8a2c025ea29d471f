"""Types of `trace_context.py`."""

cimport cython

from streamgauge.ingest.generated_ids cimport random_hex


@cython.final
@cython.no_gc
cdef class TraceContext:
    cdef readonly str header, trace_id, span_id, parent_span_id
    cdef readonly int flags


cpdef TraceContext join_trace(bytes traceparent)
