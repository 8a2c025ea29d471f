"""Types of `sides.py`."""

from libc.stdint cimport int64_t


cdef class Side:
    cdef public object exchange, reading, transport
    cdef public bint closed, read_paused, write_paused

    cpdef resume_reading(self)


cdef class ClientSide(Side):
    cdef public object draining
    cdef public str address, scheme
    cdef public int64_t last_byte_ns, ready_ns

    cpdef exchange_ended(self, exchange, int64_t now_ns, error, int then)


cdef class UpstreamSide(Side):
    cdef public bint reused

    cpdef release(self)


cdef class Pool:
    cpdef acquire(self)
