"""The types of `condensed_body.py` for the compiled build."""

cimport cython
from libc.stdint cimport int64_t, uint8_t

cdef uint8_t _QUOTE, _ESCAPE, _BRACE, _END_BRACE, _BRACKET, _END_BRACKET
cdef int64_t _DEEPEST, _SHORT, _LONG, _LEVELS

cdef class CondensedBody:
    cdef int64_t _depth
    cdef bint _in_string, _escaped
    cdef bytes _held

    @cython.locals(
        depth=int64_t, in_string=bint, escaped=bint, held=bytes, kept=bytearray, start=int64_t, string_from=int64_t, at=int64_t,
        size=int64_t, c=uint8_t, is_long=bint
    )
    cpdef bytes feed(self, bytes data)

cdef int64_t _text_end(const uint8_t *data, int64_t at, int64_t size) noexcept nogil
