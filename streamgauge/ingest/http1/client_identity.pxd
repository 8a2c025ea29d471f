"""Types of `client_identity.py`."""

cimport cython

cdef dict _ids

@cython.locals(secret=bytes)
cpdef str client_id(dict fields, bytes key)
