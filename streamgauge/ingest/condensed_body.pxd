"""The types of `condensed_body.py` for the compiled build."""

cimport cython
from libc.stdint cimport int64_t, uint8_t

from streamgauge.ingest.prompt_skeleton cimport PromptSkeleton
from streamgauge.ingest.request_anatomy cimport AnatomyReader

cdef uint8_t _QUOTE, _ESCAPE, _COLON, _SPACE, _BRACE, _END_BRACE, _BRACKET, _END_BRACKET
cdef int64_t _DEEPEST, _SHORT, _LONG, _LEVELS, _NAMED, _UNWATCHED
cdef bint _COMPILED

cdef class CondensedBody:
    cdef AnatomyReader _anatomy
    cdef PromptSkeleton _skeleton
    cdef readonly object error
    cdef int64_t _depth
    cdef bint _in_string, _escaped, _is_value, _is_read, _after_colon
    cdef bytes _held

    cpdef bytes feed(self, bytes data)

    @cython.locals(
        anatomy=AnatomyReader, skeleton=PromptSkeleton, watched=int64_t, escaped=bint, depth=int64_t, in_string=bint, held=bytes,
        text='const uint8_t *', is_value=bint, is_read=bint, after_colon=bint,
        kept=bytearray, start=int64_t, string_from=int64_t, text_from=int64_t, raw_from=int64_t, before=int64_t, at=int64_t, size=int64_t, c=uint8_t,
        is_long=bint
    )
    cdef bytes _walk(self, bytes data, bint reads)

cdef class CodedBody(CondensedBody):
    cdef readonly object decoding

    cpdef bytes feed(self, bytes data)

cdef extern from *:
    """
    #include <string.h>
    static inline int64_t next_byte(const uint8_t *text, uint8_t byte, int64_t at, int64_t size) {
        const uint8_t *found = memchr(text + at, byte, size - at);
        return found ? found - text : size;
    }
    """
    int64_t next_byte(const uint8_t *text, uint8_t byte, int64_t at, int64_t size) noexcept

@cython.locals(text='const uint8_t *', start=int64_t, before=int64_t)
cdef int64_t _text_end(bytes data, int64_t at, int64_t size)

@cython.locals(text='const uint8_t *', c=uint8_t)
cdef int64_t _mark(bytes data, int64_t at, int64_t size)

cdef bint _ends_with_colon(const uint8_t *data, int64_t start, int64_t end, bint before) noexcept
