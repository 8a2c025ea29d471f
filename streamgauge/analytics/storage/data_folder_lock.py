"""Locks of a data folder: one analytics process, one `streamgauge up` and one `streamgauge run` at a time. Readers need no lock."""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path
from typing import IO

from streamgauge.ingest.private_files import prepare_data_folder

ANALYTICS = "analyze.lock"
UP = "up.lock"
RUN = "run.lock"
_HOLDERS = {ANALYTICS: "analytics", UP: "`streamgauge up`", RUN: "`streamgauge run`"}


def lock_data_folder(data: Path, name: str = ANALYTICS) -> IO[str]:
    """Prepare the folder, and lock it until the returned file is closed or the process ends.

    The lock file holds the process id. Raises OSError when another process holds the lock or the folder cannot be used.
    """
    prepare_data_folder(data)
    try:
        descriptor = os.open(data / name, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    except OSError as e:
        raise OSError(
            f"cannot lock the data folder {data}: cannot open {data / name}: {e.strerror}. "
            "Run as the user that owns the file, remove it, or choose another folder with --data"
        ) from None
    lock = os.fdopen(descriptor, "a+")
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
    with contextlib.suppress(OSError):  # the pid is only for messages; the disk may be full
        os.ftruncate(descriptor, 0)
        os.write(descriptor, str(os.getpid()).encode())
    return lock
