"""Types of `generated_ids.py`."""

cimport cython
from libc.stdint cimport int64_t

cdef str _prefix
cdef int64_t _used, _minute
cdef list _PAIRS

@cython.locals(start=int64_t, end=int64_t, digits=str)
cpdef str random_hex(int64_t count)
@cython.locals(millisecond=int64_t, minute=int64_t, tail=str)
cpdef str uuid7(int64_t wall_ns)
cpdef str new_span_id()
