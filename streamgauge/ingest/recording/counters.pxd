"""Types of `counters.py`."""

from libc.stdint cimport int64_t


cdef class Counters:
    cdef readonly dict closed_by_cause
    cdef public object survives
    cdef public int64_t streams_opened, streams_closed, streams_relayed, records, frames, body_bytes, captured_bytes, uncaptured_bytes, lost_records, lost_bytes, lost_untold, recording_failed, request_bytes, requests_refused, requests_unrouted, refusals_unrecorded, retries, client_connections, upstream_connections, upstream_reuses, bad_upstream_excess_bytes

    cpdef open_stream(self)
