"""Locks of a data folder: one analytics process and one `streamgauge up` at a time. Readers need no lock."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import IO

from ingest.private_files import make_private_folder

ANALYTICS = "analyze.lock"
UP = "up.lock"
_HOLDERS = {ANALYTICS: "analytics", UP: "`streamgauge up`"}


def lock_data_folder(data: Path, name: str = ANALYTICS) -> IO[str]:
    """Lock the folder until the returned file is closed or the process ends. Creates the folder if it is missing.

    The lock file holds the process id. Raises OSError when another process holds the lock or the folder is not writable.
    """
    try:
        make_private_folder(data)
        lock = (data / name).open("a+")
    except OSError as e:
        raise OSError(
            f"cannot write to the data folder {data}: {e.strerror}. Choose another with --data"
        ) from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.seek(0)
        holder = lock.read().strip() or "unknown"
        lock.close()
        raise OSError(
            f"cannot lock the data folder {data}: another {_HOLDERS[name]} (pid {holder}) uses it. "
            "Stop it, or choose another folder with --data"
        ) from None
    lock.truncate(0)
    lock.write(str(os.getpid()))
    lock.flush()
    return lock
