"""The types of `bodies.py` for the compiled build."""

cimport cython
from libc.stdint cimport int64_t, uint8_t

cdef bytes _next_states, _digits
cdef const uint8_t *_NEXT_STATES
cdef const uint8_t *_DIGITS
cdef uint8_t _LF, _CR, _COLON
cdef int _CHUNK, _PAYLOAD, _TRAILER, _OVER, _SIZE, _LONG_LINE, _LARGE_CHUNK, _LARGE_TRAILER, _LENGTH, _UNTIL_CLOSE
cdef int64_t _LINE_LIMIT_BYTES, _TRAILER_LIMIT_BYTES, _MAX_DIGITS, _TOO_LARGE_BYTES
cdef dict _LENGTHS

cdef class BodyReader:
    cdef int _state
    cdef int64_t _left_bytes, _chunk_bytes, _line_bytes, _line_limit_bytes
    cdef bint _of_request
    cdef bint is_payload
    cdef readonly bint until_close
    cdef public bint complete
    cdef public int64_t excess

    @cython.locals(size=int64_t, at=int64_t, start=int64_t, line_end=int64_t, end=int64_t, run_after=int64_t, run_bytes=int64_t, taken=int64_t, in_line=bint)
    cpdef bytes feed(self, bytes data)
    cpdef bint is_shorter_than(self, int64_t size_bytes)

    @cython.locals(start=int64_t, state=int, c=uint8_t)
    cdef int64_t advance(self, const uint8_t *data, int64_t at, int64_t size) noexcept nogil

@cython.locals(at=int64_t, before=uint8_t, c=uint8_t)
cpdef bint holds_only_comments(const uint8_t *payload, int64_t size) noexcept nogil

@cython.locals(count=int64_t)
cdef int64_t _take_run(bytes data, list payload)
