"""Query the tables of a data folder as `streamgauge sql` does, in a child process."""

from __future__ import annotations

import threading
from collections import OrderedDict
from pathlib import Path

from streamgauge.analytics.query.query_pool import QueryPool
from streamgauge.analytics.storage.location import locate

MAX_PROCESSES = 3
"""The least recently used one is closed first."""
_processes: OrderedDict[str, QueryPool] = OrderedDict()
_lock = threading.Lock()


def tables(data: Path, store: str = "sqlite") -> QueryPool:
    """The tables of this folder, or of a PostgreSQL store. Do not close it: tests share it."""
    key = f"{store} {data.absolute()}"
    with _lock:
        process = _processes.pop(key, None) or QueryPool(locate(store, data), untrusted=False)
        _processes[key] = process
        oldest = _processes.popitem(last=False)[1] if len(_processes) > MAX_PROCESSES else None
    if oldest is not None:
        oldest.close()
    return process
