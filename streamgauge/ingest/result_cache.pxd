"""Types of `result_cache.py`."""


cdef class ResultCache:
    cdef object _function
    cdef Py_ssize_t _size
    cdef dict _results
