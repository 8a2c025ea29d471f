"""Who owns a data folder's tables: the process that holds DATA/analyze.lock alone; readers of the file share it.

DuckDB opens a file either for one writer or for readers, and says so in many words; this lock says it first, and in one line.
"""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path
from typing import IO

LOCK = "analyze.lock"
READERS_WAIT_S = 35.0
"""A reader of the file is bounded in time (30 s), so whoever wants to own the tables can wait for it."""


def own(data: Path) -> IO[str]:
    """Make the folder if need be and own its tables until the returned file is closed or the process ends.

    Waits for readers of the file. Raises OSError with one line when another process owns the tables or the folder is not
    writable.
    """
    try:
        data.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = (data / LOCK).open("a+")
    except OSError as e:
        raise OSError(
            f"cannot write to the data folder {data} ({e.strerror}): choose another with --data"
        ) from None
    deadline_s = time.monotonic() + READERS_WAIT_S
    while not _locked(lock, fcntl.LOCK_EX):
        if not _locked(lock, fcntl.LOCK_SH) or time.monotonic() > deadline_s:
            lock.seek(0)
            owner = lock.read().strip() or "unknown"
            lock.close()
            raise OSError(
                f"another analytics (pid {owner}) owns the data folder {data}: stop it, or choose another with --data"
            )
        fcntl.flock(lock, fcntl.LOCK_UN)
        time.sleep(0.05)
    lock.truncate(0)
    lock.write(str(os.getpid()))
    lock.flush()
    return lock


def share(data: Path) -> IO[str] | None:
    """Keep owners away while the file is read, until the returned file is closed. None: somebody owns the tables."""
    lock = os.fdopen(os.open(data / LOCK, os.O_RDWR | os.O_CREAT, 0o600), "r+")
    if _locked(lock, fcntl.LOCK_SH):
        return lock
    lock.close()
    return None


def _locked(lock: IO[str], how: int) -> bool:
    try:
        fcntl.flock(lock, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def is_owned(data: Path, name: str = LOCK) -> bool:
    """Whether a living process holds the lock (`up.lock`: a supervisor that will start analytics again)."""
    try:
        lock = (data / name).open("r+")
    except OSError:
        return False
    with lock:
        return not _locked(lock, fcntl.LOCK_SH)
