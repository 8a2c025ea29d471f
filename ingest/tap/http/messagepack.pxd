"""Write MessagePack as msgspec does: each value in its shortest form."""

from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.mem cimport PyMem_Realloc
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

cdef extern from "Python.h":
    const char *PyUnicode_AsUTF8AndSize(object text, Py_ssize_t *size) except NULL

cdef struct Writer:
    uint8_t *data
    size_t size
    size_t capacity


cdef inline int put(Writer *out, const void *data, size_t size) except -1:
    cdef uint8_t *grown
    if out.capacity - out.size < size:
        grown = <uint8_t *>PyMem_Realloc(out.data, 2 * out.capacity + size)
        if grown == NULL:
            raise MemoryError
        out.data, out.capacity = grown, 2 * out.capacity + size
    memcpy(out.data + out.size, data, size)
    out.size += size
    return 0


cdef inline int put_tagged(Writer *out, uint8_t tag, uint64_t value, int size) except -1:
    """A tag and an integer of `size` bytes, the most significant first."""
    cdef uint8_t bytes_[9]
    cdef int i
    bytes_[0] = tag
    for i in range(size):
        bytes_[size - i] = <uint8_t>(value >> 8 * i)
    return put(out, bytes_, size + 1)


cdef inline int put_int(Writer *out, int64_t value) except -1:
    if value >= -32 and value < 128:
        return put_tagged(out, <uint8_t>value, 0, 0)
    if value >= 0:
        if value < 1 << 8:
            return put_tagged(out, 0xcc, value, 1)
        if value < 1 << 16:
            return put_tagged(out, 0xcd, value, 2)
        if value < 1ll << 32:
            return put_tagged(out, 0xce, value, 4)
        return put_tagged(out, 0xcf, value, 8)
    if value >= -(1 << 7):
        return put_tagged(out, 0xd0, value, 1)
    if value >= -(1 << 15):
        return put_tagged(out, 0xd1, value, 2)
    if value >= -(1ll << 31):
        return put_tagged(out, 0xd2, value, 4)
    return put_tagged(out, 0xd3, value, 8)


cdef inline int put_nil(Writer *out) except -1:
    return put_tagged(out, 0xc0, 0, 0)


cdef inline int put_bool(Writer *out, bint value) except -1:
    return put_tagged(out, 0xc3 if value else 0xc2, 0, 0)


cdef inline int put_array(Writer *out, size_t count) except -1:
    if count < 16:
        return put_tagged(out, 0x90 | count, 0, 0)
    return put_tagged(out, 0xdc, count, 2) if count < 1 << 16 else put_tagged(out, 0xdd, count, 4)


cdef inline int put_str(Writer *out, object text) except -1:
    """A `str`; None as nil."""
    cdef Py_ssize_t size
    cdef const char *data
    if text is None:
        return put_nil(out)
    data = PyUnicode_AsUTF8AndSize(text, &size)
    if size < 32:
        put_tagged(out, 0xa0 | size, 0, 0)
    elif size < 1 << 8:
        put_tagged(out, 0xd9, size, 1)
    elif size < 1 << 16:
        put_tagged(out, 0xda, size, 2)
    else:
        put_tagged(out, 0xdb, size, 4)
    return put(out, data, size)


cdef inline int put_bytes(Writer *out, bytes data) except -1:
    cdef size_t size = len(data)
    if size < 1 << 8:
        put_tagged(out, 0xc4, size, 1)
    elif size < 1 << 16:
        put_tagged(out, 0xc5, size, 2)
    else:
        put_tagged(out, 0xc6, size, 4)
    return put(out, <const char *>data, size)


cdef inline bytes take(Writer *out):
    """Return the written bytes and clear the writer."""
    cdef size_t size = out.size
    out.size = 0
    return PyBytes_FromStringAndSize(<char *>out.data, size)
