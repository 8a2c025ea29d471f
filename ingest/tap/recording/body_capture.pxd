"""Types of `body_capture.py`."""

cpdef capture_content(dict known)
cpdef request_limit(bytes content_type, limit_bytes)
