"""The types of `request_anatomy.py` for the compiled build."""

from libc.stdint cimport int64_t

cdef int64_t _LIST, _REQUEST, _ROLE, _PARTS, _TEXT, _CALL_ID, _RESPONSE, _ID, _CONTENT, _TOOL, _ARGUMENTS, _RESULT, _CALL, _FUNCTION
cdef int64_t _MOST_MESSAGES, _MOST_IDS, _MOST_BYTES, _MOST_OPEN, _MOST_KINDS, _MOST_MARK
cdef dict _NAMES

cdef class AnatomyReader:
    cdef bytes _key, _value, _raw
    cdef int64_t _name, _reading, _list_depth, _response_depth, _results
    cdef bint _in_request, _is_user, _has_role, _has_parts, _has_result
    cdef object _hasher
    cdef list _user_messages, _call_ids
    cdef int64_t raw_depth, _summed, _sum, _sum_bytes, _loose_calls, _loose_results, _most
    cdef bint _is_tool, _has_response, _hashes
    cdef bytes _item_id, _item_tool, _most_tool
    cdef tuple _item_call, _item_result
    cdef dict _calls, _repeats

    cpdef anatomy(self, list segments, int64_t left_out)
    cpdef bint reads_name(self, int64_t depth)
    cpdef name(self, bytes name, int64_t depth)
    cpdef opens(self, int64_t depth, bint is_array, bint is_value)
    cpdef closes(self, int64_t depth)
    cpdef bint value_begins(self, int64_t depth)
    cdef bint _may_be_user(self)
    cpdef read(self, bytes part)
    cpdef read_raw(self, bytes part)
    cdef _sum_raw(self, int64_t size)
    cpdef value_ends(self)
    cdef _begin_sum(self, int64_t depth, bint is_container)
    cdef _sum_ends(self)
    cdef _begin_item(self)
    cdef _item_ends(self)
    cdef _message_ends(self)
