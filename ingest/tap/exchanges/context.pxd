"""Types of `context.py`."""


cdef class TapContext:
    cdef public object clock_ns, counters, failures, guards, loop, loop_monitor, options, recorders, refusals, relay, router, timeouts
    cdef public set clients, exchanges
    cdef public bint stopping
    cdef list _next_iteration

    cpdef call_next_iteration(self, callback)
