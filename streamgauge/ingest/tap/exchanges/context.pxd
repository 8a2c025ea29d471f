"""Types of `context.py`."""


from streamgauge.ingest.recording.counters cimport Counters


cdef class TapContext:
    cdef public object clock_ns, failures, guards, loop, loop_monitor, options, recorders, refusals, relay, router, timeouts
    cdef readonly Counters counters
    cdef public set clients, exchanges
    cdef public bint handed_over, stopping
    cdef list _next_iteration

    cpdef call_next_iteration(self, callback)
