# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, binding=False, nonecheck=True
"""`http_head` and `header_rewrite` in native code, for usual messages. All others are passed to the Python functions.

Both parse field lines with the same tables (`http_header_fields`) and start lines with the same functions. Only the
interpretation of valid lines is implemented twice. Invalid messages are refused by the Python functions alone.
"""

from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.dict cimport PyDict_GetItemWithError
from cpython.object cimport PyObject
from cpython.tuple cimport PyTuple_GetItem
from libc.stdint cimport int64_t, uint8_t
from libc.string cimport memchr

from streamgauge.ingest.tap.http.messagepack cimport Writer, put, take

from streamgauge.ingest.tap.http import rewriting as header_rewrite, heads as http_head
from streamgauge.ingest.tap.http.fields import REQUEST_FIELDS, RESPONSE_FIELDS, SPECIAL_IN_REQUESTS, SPECIAL_IN_RESPONSES, MalformedField

cdef extern from "Python.h":
    const char *PyUnicode_AsUTF8AndSize(object text, Py_ssize_t *size) except NULL

cdef enum:  # positions in `Field`
    LINE = 1
    VALUE = 2
    SPECIAL = 3
    NAME = 0

cdef enum:
    OWN = -1  # `Field.special` of the tap's own fields
    MAX_SPECIAL = 64
    MAX_CACHED_LINE_BYTES = 256
    MAX_LENGTH_DIGITS = 18

cdef int position(bytes name, tuple names) except -1:
    return names.index(name) + 1

cdef int HOST = position(b"host", SPECIAL_IN_REQUESTS)
cdef int CONTENT_LENGTH = position(b"content-length", SPECIAL_IN_REQUESTS)
cdef int TRANSFER_ENCODING = position(b"transfer-encoding", SPECIAL_IN_REQUESTS)
cdef int CONNECTION = position(b"connection", SPECIAL_IN_REQUESTS)
cdef int TRACEPARENT = position(b"traceparent", SPECIAL_IN_REQUESTS)
cdef int RESPONSE_TYPE = position(b"content-type", SPECIAL_IN_RESPONSES)
cdef int RESPONSE_LENGTH = position(b"content-length", SPECIAL_IN_RESPONSES)
cdef int RESPONSE_CODING = position(b"transfer-encoding", SPECIAL_IN_RESPONSES)
cdef int RESPONSE_CONNECTION = position(b"connection", SPECIAL_IN_RESPONSES)
cdef int TRAILER = position(b"trailer", SPECIAL_IN_RESPONSES)

cdef bint forwarded_as_received[MAX_SPECIAL]
for number, name in enumerate(SPECIAL_IN_REQUESTS, 1):
    forwarded_as_received[number] = name in header_rewrite.END_TO_END

cdef object RequestHead = http_head.RequestHead, ResponseHead = http_head.ResponseHead
cdef object cached_request_line = http_head.cached_request_line, request_line = http_head.request_line
cdef object status_line = http_head.status_line, options = http_head.connection_options
cdef object NEVER_DROPPED = header_rewrite.NEVER_DROPPED
cdef object NO_BODY = http_head.NO_BODY, LENGTH = http_head.LENGTH, NO_OPTIONS = frozenset()
cdef Writer out


cdef inline object item(object values, Py_ssize_t i):
    """An item of a tuple, also of a named one."""
    cdef PyObject *found = PyTuple_GetItem(values, i)
    return <object>found


cdef bytes next_line(bytes head, size_t *at):
    """The line at `at`, without its CRLF; None if it ends otherwise."""
    cdef const char *data = head
    cdef const char *start = data + at[0]
    cdef const char *end = <const char *>memchr(start, c'\n', len(head) - at[0])
    if end == NULL or end == start or (end - 1)[0] != c'\r':
        return None
    at[0] = end + 1 - data
    return PyBytes_FromStringAndSize(start, end - 1 - start)


cdef list read_fields(bytes head, size_t at, table, Py_ssize_t limit):
    """The fields from `at` to the blank line at the end. None if not all are valid."""
    cdef list fields = []
    cdef PyObject *found
    while True:
        line = next_line(head, &at)
        if line is None:
            return None
        if not line:
            return fields if at == <size_t>len(head) and len(fields) <= limit else None
        found = PyDict_GetItemWithError(table, line)
        if found != NULL:
            fields.append(<object>found)
        else:
            try:
                fields.append(table[line])
            except MalformedField:
                return None


cdef int64_t content_length(bytes value):
    """The number in a Content-Length; -1 if it is malformed or has more digits than are usual."""
    cdef const char *digits = value
    cdef Py_ssize_t i, count = len(value)
    cdef int64_t length = 0
    if count == 0 or count > MAX_LENGTH_DIGITS:
        return -1
    for i in range(count):
        if digits[i] < c'0' or digits[i] > c'9':
            return -1
        length = 10 * length + digits[i] - c'0'
    return length


def read_request_head(bytes head, limits):
    """See `http_head.read_request_head`."""
    found = request_head(head, limits)
    return http_head.read_request_head(head, limits) if found is None else found


cdef request_head(bytes head, limits):
    cdef Py_ssize_t size = len(head)
    cdef size_t at = 0
    cdef list fields
    cdef dict known = {}
    cdef bytes line, name, value
    cdef int special
    cdef int64_t length = 0
    if size > item(limits, 0):
        return None
    line = next_line(head, &at)
    if not line or len(line) > item(limits, 1):
        return None
    read = request_line if len(line) > MAX_CACHED_LINE_BYTES or b"?" in line else cached_request_line
    try:
        method, target, minor, authority = read(line)
    except http_head.BadRequest:
        return None
    fields = read_fields(head, at, REQUEST_FIELDS, item(limits, 2))
    if fields is None:
        return None
    connection, body = NO_OPTIONS, NO_BODY
    for field in fields:
        special = item(field, SPECIAL)
        if special == 0:
            continue
        name, value = item(field, NAME), item(field, VALUE)
        if name not in known:
            known[name] = value
        elif special != CONNECTION:
            return None
        if special == CONTENT_LENGTH:
            length = content_length(value)
            if length < 0:
                return None
            body = LENGTH if length else NO_BODY
        elif special == CONNECTION:
            connection |= options(value)
        elif special == TRANSFER_ENCODING:
            return None
    host = known.get(b"host")
    if host is None:
        return None
    keep_alive, upgrade = minor == 1, None
    if connection:
        keep_alive = b"close" not in connection if minor else b"keep-alive" in connection
        if minor and b"upgrade" in connection:
            upgrade = known.get(b"upgrade") or None
    return RequestHead(
        method, target, minor, fields, body, length, keep_alive, authority or host, upgrade, connection, known, size
    )


def read_response_head(bytes head):
    """See `http_head.read_response_head`."""
    found = response_head(head)
    return http_head.read_response_head(head) if found is None else found


cdef response_head(bytes head):
    cdef size_t at = 0
    cdef list fields, lengths = []
    cdef bytes line, coding = b"", content_type = b""
    cdef int special
    line = next_line(head, &at)
    if not line:
        return None
    try:
        minor, status, reason = status_line(line)
    except http_head.BadUpstream:
        return None
    fields = read_fields(head, at, RESPONSE_FIELDS, len(head))
    if fields is None:
        return None
    connection, plain = NO_OPTIONS, minor == 1
    for field in fields:
        special = item(field, SPECIAL)
        if special == 0:
            continue
        if special == RESPONSE_TYPE:
            content_type = content_type or item(field, VALUE)
        elif special == RESPONSE_LENGTH:
            lengths.append(item(field, VALUE))
        elif special == RESPONSE_CODING:
            if coding:
                return None
            coding = item(field, VALUE).lower()
        elif special == RESPONSE_CONNECTION:
            connection |= options(item(field, VALUE))
            plain = False
        elif special != TRAILER:
            plain = False
    if len(lengths) + bool(coding) > 1:
        plain = False
    return ResponseHead(minor, status, reason, fields, connection, coding, lengths, content_type, plain, len(head))

# --- heads for the upstream


cdef inline int put_literal(bytes text) except -1:
    return put(&out, <const char *>text, len(text))


cdef inline int put_ascii(str text) except -1:
    cdef Py_ssize_t size
    cdef const char *data = PyUnicode_AsUTF8AndSize(text, &size)
    return put(&out, data, size)


cpdef request_for_upstream(head, route, trace, str x_forwarded, str address, str scheme):
    """See `header_rewrite.request_for_upstream`."""
    if (
        x_forwarded == "private"
        and head.upgrade is None
        and not header_rewrite.host_is_signed(head)
        and (not head.connection or head.connection <= NEVER_DROPPED)
        and put_request(head, route, trace, address, scheme, not route.upstream.is_public)  # as `adds_x_forwarded`
    ):
        return take(&out)
    return header_rewrite.request_for_upstream(head, route, trace, x_forwarded, address, scheme)


cdef bint put_request(head, route, trace, str address, str scheme, bint x_forwarded) except -1:
    """Write the head. False: it has fields that need the function in Python."""
    cdef bytes host = head.host
    cdef int special
    cdef bint had_host = False
    out.size = 0
    put_ascii(head.method)
    put_literal(b" ")
    put_ascii(route.target)
    put_literal(b" HTTP/1.1\r\n")
    for field in <list?>head.fields:
        special = item(field, SPECIAL)
        if special == 0 or (0 < special < MAX_SPECIAL and forwarded_as_received[special]):
            put_literal(item(field, LINE))
        elif special == HOST:
            had_host = True
            put_literal(route.upstream.host_line)
        elif special != TRACEPARENT and special != CONNECTION and special != OWN:
            return False
    if not had_host or not host:
        return False
    put_literal(b"traceparent: 00-")
    put_ascii(item(trace, 0))
    put_literal(b"-")
    put_ascii(item(trace, 1))
    put_literal(b"-01" if item(trace, 3) else b"-00")
    if x_forwarded:
        put_literal(b"\r\nX-Forwarded-For: ")
        put_ascii(address)
        put_literal(b"\r\nX-Forwarded-Proto: ")
        put_ascii(scheme)
        put_literal(b"\r\nX-Forwarded-Host: ")
        put_literal(host)
    put_literal(b"\r\n\r\n")
    return True
