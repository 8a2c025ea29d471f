"""Types of `context.py`."""


from streamgauge.ingest.recording.counters cimport Counters
from streamgauge.ingest.tap.http.routing cimport Router


cdef class TapContext:
    cdef public object clock_ns, failures, guards, head_limits, loop, loop_monitor, options, recorders, refusals, relay, timeouts
    cdef public Router router
    cdef public str x_forwarded
    cdef readonly Counters counters
    cdef public set clients, exchanges
    cdef public bint handed_over, stopping
    cdef list _next_iteration

    cpdef call_next_iteration(self, callback)
