"""Types of `fields.py`."""

cimport cython

from streamgauge.ingest.facts cimport FieldFacts


@cython.final
@cython.no_gc
cdef class Field(FieldFacts):
    cdef readonly bytes line
    cdef readonly int special


@cython.final
cdef class FieldTable:
    cdef readonly dict cached
    cdef dict _special
    cdef object _malformed, _recorded
    cdef bint _strict

    @cython.locals(cached=dict, line=bytes)
    cpdef list read(self, list lines)

    @cython.locals(field=Field, name=bytes, value=bytes, framing=bint)
    cdef Field _parse(self, bytes line)


cpdef bint reads_as_framing(bytes name) except -1
