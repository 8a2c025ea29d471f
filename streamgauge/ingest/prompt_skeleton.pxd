"""The types of `prompt_skeleton.py` for the compiled build."""

cimport cython
from libc.stdint cimport int64_t, uint8_t

from streamgauge.ingest.prompt_segments cimport PromptSegments
from streamgauge.ingest.segment_hash cimport SegmentHash

cdef int64_t NONE, BODY, CONTENT, DEEP, GROUP, ID, INNER, LAST, MARK, MESSAGE, MESSAGES, MIME, NAME, POINT, ROLE, SEGMENT, SETTING
cdef int64_t SYSTEM_OBJECT, TEXT, TOOLS, TTL, TYPE
cdef int64_t DECLARATIONS, _MOST_NAME, _MOST_SCALAR, _DEEPEST
cdef uint8_t _SPACE, _COMMA
cdef dict BODY_NAMES, MESSAGE_NAMES, PART_NAMES, KINDS_BY_NAME, STRINGS, CONTAINERS
cdef tuple _NOTHING

@cython.final
cdef class PromptSkeleton:
    cdef int64_t watched, _name, _from, _base, _depth, _began, _scalar_from
    cdef bytearray _frames
    cdef bytes _data, _name_text, _setting, _type, _tool, _id, _mime, _mark, _scalar
    cdef bytes _role, _item_type, _item_tool, _item_id, _item_mark, _body_mark
    cdef SegmentHash _hash, _rest, _before, _text_hash
    cdef str _kind, _shape
    cdef bint _is_point, _is_first, _skips, _drops_comma, _in_text, _is_plain
    cdef PromptSegments _found

    cpdef tuple segments(self)
    cdef begin_read(self, bytes data)
    @cython.locals(text='const uint8_t *', size=int64_t, at=int64_t)
    cdef end_read(self, int64_t name_from)
    @cython.locals(text='const uint8_t *', start=int64_t)
    cdef int64_t _mark_from(self, int64_t at) except -1
    @cython.locals(text='const uint8_t *', one=SegmentHash)
    cdef _flush(self, int64_t to)
    @cython.locals(frame=int64_t, name=int64_t, kind=str)
    cdef string_begins(self, int64_t at, bint is_value)
    @cython.locals(frame=int64_t)
    cdef string_ends(self, bytes held, int64_t string_from, int64_t at, bint is_value)
    @cython.locals(text='const uint8_t *')
    cdef bytes _text(self, bytes held, int64_t string_from, int64_t at)
    cdef _value(self, int64_t frame, int64_t name, bytes text)
    cdef _name_ends(self, int64_t frame, bytes text, int64_t string_from, int64_t at)
    @cython.locals(at=int64_t)
    cdef _mark_begins(self, int64_t string_from)
    @cython.locals(frame=int64_t, name=int64_t, new=int64_t, opened=tuple)
    cdef opens(self, int64_t depth, int64_t at, bint is_array, bint is_value)
    @cython.locals(depth=int64_t, frame=int64_t, before=int64_t)
    cdef closes(self, int64_t at)
    cdef _begin(self, int64_t at, int64_t depth, str kind)
    @cython.locals(kind=str, name=bytes, size=int64_t, one=SegmentHash)
    cdef _end(self, int64_t at)
    @cython.locals(text=bytes)
    cdef _scalar_ends(self, int64_t at)
    cdef _message_begins(self, int64_t at)
    cdef _message_ends(self, int64_t at)
