"""Types of `generated_ids.py`."""

cimport cython
from libc.stdint cimport int64_t

cdef str _prefix, _digits
cdef Py_ssize_t _used
cdef int64_t _quarter
cdef list _PAIRS

@cython.locals(start=Py_ssize_t, end=Py_ssize_t)
cpdef str random_hex(Py_ssize_t count)
@cython.locals(millisecond=int64_t, quarter=int64_t)
cpdef str uuid7(int64_t wall_ns)
