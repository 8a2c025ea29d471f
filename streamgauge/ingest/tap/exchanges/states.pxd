"""Types of `states.py`."""


cdef dict _CAUSES

cpdef after(tuple table, int state, int event)
cpdef cause_of_end(int response, int event)
