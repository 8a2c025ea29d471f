"""Ownership of a data folder: the process that holds DATA/analyze.lock. Readers need no lock."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import IO

LOCK = "analyze.lock"


def own(data: Path) -> IO[str]:
    """Create the folder if need be and own its tables until the returned file is closed or the process ends.

    Raises OSError with one line when another process owns the tables or the folder is not writable.
    """
    try:
        data.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = (data / LOCK).open("a+")
    except OSError as e:
        raise OSError(
            f"cannot write to the data folder {data}: {e.strerror}. Choose another with --data"
        ) from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.seek(0)
        owner = lock.read().strip() or "unknown"
        lock.close()
        raise OSError(
            f"another analytics (pid {owner}) owns the data folder {data}. Stop it, or choose another with --data"
        ) from None
    lock.truncate(0)
    lock.write(str(os.getpid()))
    lock.flush()
    return lock
