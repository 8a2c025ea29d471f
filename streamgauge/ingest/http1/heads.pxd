"""Types of `heads.py`."""

cimport cython
from libc.stdint cimport int64_t, uint8_t

from streamgauge.ingest.facts cimport RequestFacts, ResponseFacts
from streamgauge.ingest.http1.fields cimport Field, FieldTable


@cython.final
@cython.no_gc
cdef class RequestHead(RequestFacts):
    cdef readonly str target
    cdef readonly int minor
    cdef readonly object body
    cdef readonly int64_t length
    cdef readonly bint keep_alive
    cdef readonly bytes host, upgrade
    cdef readonly frozenset connection


@cython.final
@cython.no_gc
cdef class ResponseHead(ResponseFacts):
    cdef readonly int minor
    cdef readonly bytes reason, transfer_coding
    cdef readonly list lengths
    cdef readonly frozenset connection
    cdef readonly bint keep_alive, plain


cdef unsigned char _QUESTION_MARK, _ZERO, _NINE
cdef Py_ssize_t _MAX_LENGTH_DIGITS, _MAX_CACHED_LINE_BYTES
cdef object _request_lines, _status_lines
cdef FieldTable _REQUEST_FIELDS, _RESPONSE_FIELDS
cdef list _lines(bytes head)

@cython.locals(
    lines=list, line=bytes, fields=list, field=Field, found=RequestHead, name=bytes, value=bytes, known=dict, connection=frozenset,
    host=bytes, most_bytes=Py_ssize_t, most_target_bytes=Py_ssize_t, most_fields=Py_ssize_t, cached=bint
)
cpdef RequestHead read_request_head(bytes head, object limits)

@cython.locals(
    lines=list, fields=list, field=Field, found=ResponseHead, name=bytes, value=bytes, coding=bytes, content_type=bytes,
    connection=frozenset, lengths=list, plain=bint
)
cpdef ResponseHead read_response_head(bytes head)

@cython.locals(length=int64_t, digit=uint8_t)
cdef int64_t _length_of(bytes value)

@cython.locals(lengths=list, size=int64_t)
cpdef tuple response_body(ResponseHead head, str method)
