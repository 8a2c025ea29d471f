"""Types of `body_capture.py`."""

cimport cython
from libc.stdint cimport int64_t

from streamgauge.ingest.facts cimport FieldFacts

cpdef capture_content(dict known)
@cython.locals(line_end=int64_t, is_json=bint, text=bytes)
cpdef str body_kind(bytes start, bint more)
@cython.locals(field=FieldFacts)
cpdef bytes named_coding(list fields)


cdef class ResponseLook:
    cdef bint _is_post
    cdef bytes _coding, _start
    cdef int64_t _limit_bytes

    @cython.locals(start=bytes, plain=bytes, more=bint, kind=str)
    cpdef feed(self, bytes payload)
