"""Files whose calls differ between systems: files in memory, and writes that survive a power failure."""

from __future__ import annotations

import fcntl
import os
import sys
import tempfile


def file_in_memory(name: str) -> int:
    """The descriptor of a new file without a path, to be closed by the caller; without such memory, of a temporary file. `name`: for
    tools that list open files. Raises OSError."""
    if sys.platform == "linux":
        return os.memfd_create(name)
    else:
        with tempfile.TemporaryFile(prefix=name) as file:
            return os.dup(file.fileno())


def flush_data(descriptor: int) -> None:
    """Write the data of a file to the disk. Raises OSError."""
    if sys.platform == "linux":
        os.fdatasync(descriptor)
    elif sys.platform == "darwin":
        fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)  # `fsync` leaves the data in the disk's own memory
    else:
        os.fsync(descriptor)
