"""Types of `body_capture.py`."""

cpdef capture_content(dict known)
