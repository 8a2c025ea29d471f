"""Reach the tables of a data folder: through the analytics that runs there, or, when nobody owns them, in the file. Or a lake.

Never the file while analytics is only restarting: then the answer is worth a short wait. `up.lock` says that a supervisor
will start it again, `analyze.lock` that it is there but not ready.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from analytics.serving import endpoint as endpoints
from analytics.serving.ask import Asker, FileAsker, LocalAsker, NotRunning
from analytics.storage.folder import LOCK, is_owned, share
from analytics.storage.store import FILE

WAIT_S = 10.0
POLL_S = 0.1
UP_LOCK = "up.lock"


@contextmanager
def reach(data: Path, store: str = "duckdb", *, wait_s: float = WAIT_S) -> Iterator[Asker | LocalAsker]:
    """Something to ask. Raises NotRunning with one line when there is nothing, or not within `wait_s`.

    `store`: a lake (`ducklake:postgres:…`) is asked itself, wherever analytics runs.
    """
    if store != "duckdb":
        asker = Asker(store)
        try:
            yield asker
        finally:
            asker.close()
        return
    if not data.is_dir():
        raise NotRunning(
            f"there is no data folder {data}: name it with --data, or start with `streamgauge up`"
        )
    deadline_s = time.monotonic() + wait_s
    while True:
        if endpoints.read(data) is not None:
            asker = Asker(data)
            try:
                asker.query("SELECT 1", timeout_s=5)
            except NotRunning:
                asker.close()
            else:
                try:
                    yield asker
                finally:
                    asker.close()
                return
        if not (is_owned(data, LOCK) or is_owned(data, UP_LOCK)) and (lock := share(data)) is not None:
            with lock:
                reader = FileAsker(data / FILE)
                try:
                    yield reader
                finally:
                    reader.close()
            return
        if time.monotonic() > deadline_s:
            raise NotRunning(
                f"analytics of {data} is starting or restarting and did not answer within {wait_s:g} s"
            )
        time.sleep(POLL_S)
