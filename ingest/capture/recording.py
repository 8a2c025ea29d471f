"""Record exchanges that no tap has forwarded: the recording part of a tap's worker, without its sockets.

A source of exchanges calls `worker.context.recorders` as `streamgauge.ingest.tap.facts` describes, within `recording`. The records
are in the embedded log when it ends. Each source has a partition of its own, so that it may run beside a tap and beside other sources.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import replace
from functools import partial

from streamgauge.ingest.keyed_ids import FILE, load_client_key
from streamgauge.ingest.private_files import prepare_data_folder
from streamgauge.ingest.record_log.interface import LogInUse, LogWriter
from streamgauge.ingest.tap.http.upstreams import Upstream
from streamgauge.ingest.tap.options import TapOptions
from streamgauge.ingest.tap.process.worker import TapWorker

FIRST_WORKER, MAX_SOURCES = 512, 64
"""Their numbers follow those of a tap's workers and their spare ones."""
NO_LIMIT_BYTES = 2**50
"""For `TapOptions.record_log_max_bytes` of a source that is a file: nothing of it is dropped while analytics does not run."""
QUEUED_BYTES = 8 * 2**20
_CHECK_S = 0.005
_NOWHERE = Upstream("none", "http", "localhost", 80, "")


@contextlib.asynccontextmanager
async def recording(
    options: TapOptions,
    more_stats: Callable[[], Mapping[str, int]] = dict,
    wall_ns: Callable[[int], int] | None = int,
    wrap_log: Callable[[LogWriter], LogWriter] = lambda writer: writer,
) -> AsyncIterator[TapWorker]:
    """A worker that records. Times are in ns since 1970, unless `wall_ns` makes these of them; None: those of CLOCK_MONOTONIC.

    `more_stats`: further counters of it. `wrap_log`: makes its writer from that of the embedded log.

    Raises OSError or ValueError, with one line, if it cannot start.
    """
    prepare_data_folder(options.data)
    key = options.client_key or load_client_key(options.data / FILE)
    options = replace(options, upstreams=(_NOWHERE,), tls_cert=None)
    for number in range(FIRST_WORKER, FIRST_WORKER + MAX_SOURCES):
        worker = TapWorker(
            replace(options, worker=number), client_key=key, wall_ns=wall_ns, more_stats=more_stats
        )
        worker.open_log = partial(_opened, worker.open_log, wrap_log)
        with contextlib.suppress(LogInUse):
            worker.start_log()
            break
    else:
        raise OSError(f"cannot record: {MAX_SOURCES} other sources use {options.data}. Stop one of them.")
    try:
        yield worker
    finally:
        worker.context.stopping = True
        worker.close_log(worker.context.guards.guard("stop").attempt)


def _opened(open_log: Callable[[], LogWriter], wrap_log: Callable[[LogWriter], LogWriter]) -> LogWriter:
    return wrap_log(open_log())


def flush(worker: TapWorker, most_bytes: int = QUEUED_BYTES) -> None:
    """Hand the records over to the log, and wait until at most this much is queued. Blocks. Raises OSError if the log cannot be written."""
    assert worker.context.recorders is not None
    buffer = worker.context.recorders.buffer
    buffer.flush_all()
    while buffer.queued_bytes > most_bytes:
        if buffer.sink.failing:
            raise OSError(f"cannot write to {worker.options.data / 'log'}: {buffer.sink.failing_reason}.")
        time.sleep(_CHECK_S)
