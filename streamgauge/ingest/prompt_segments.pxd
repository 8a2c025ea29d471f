"""The types of `prompt_segments.py` for the compiled build."""

cimport cython
from libc.stdint cimport int64_t

cdef int64_t _MOST, _MOST_NAME, _MOST_OPEN
cdef dict KINDS_BY_TYPE, _RANKS, _known_names
cdef frozenset _SETTING_KINDS, _SYSTEM_ROLES, _TOOL_ROLES

cdef _named(bytes raw)

@cython.final
cdef class PromptSegments:
    cdef int64_t messages_begun, _left_out
    cdef bint in_message
    cdef list _pending, _last, _settings, _tools, _system, _messages, _current
    cdef dict _calls

    cdef tuple all(self, bytes body_mark)
    cdef str kind_of(self, bytes type_)
    @cython.locals(rank=int64_t)
    cdef add(self, str place, str kind, bytes name, bytes call_id, int64_t size, bytes digest, bytes mark, bint is_current)
    cdef _store(self, list target, str kind, name, int64_t message, int64_t size, bytes digest, role, mark)
    cdef mark_last(self, bytes mark)
    cdef message_begins(self)
    @cython.locals(pending=list)
    cdef message_ends(self, bytes role_name, bytes type_, bytes name, bytes call_id, bytes mark, int64_t size, bytes digest)
