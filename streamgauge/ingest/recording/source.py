"""The recording of what no tap has forwarded: packets, files.

The records are in the embedded log when `recording` ends. Each source has a partition of its own, so that it may run beside a tap and
beside other sources.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import replace

from streamgauge.ingest.keyed_ids import FILE, load_client_key
from streamgauge.ingest.private_files import prepare_data_folder
from streamgauge.ingest.record_log.interface import LogInUse, LogWriter
from streamgauge.ingest.recording.options import RecordingOptions
from streamgauge.ingest.recording.recording import Recording

FIRST_WORKER, MAX_SOURCES = 512, 64
"""Their numbers follow those of a tap's workers and their spare ones."""
NO_LIMIT_BYTES = 2**50
"""For `RecordingOptions.record_log_max_bytes` of a source that is a file: nothing of it is dropped while analytics does not run."""
QUEUED_BYTES = 8 * 2**20
"""For `Recording.flush`."""


@contextlib.asynccontextmanager
async def recording(
    options: RecordingOptions,
    more_stats: Callable[[], Mapping[str, int]] = dict,
    wall_ns: Callable[[int], int] | None = int,
    wrap_log: Callable[[LogWriter], LogWriter] = lambda writer: writer,
) -> AsyncIterator[Recording]:
    """A recording that has started. Times are in ns since 1970, unless `wall_ns` makes these of them; None: those of CLOCK_MONOTONIC.

    `more_stats` and `wrap_log`: those of `Recording`. Raises OSError or ValueError, with one line, if it cannot start.
    """
    prepare_data_folder(options.data)
    key = options.client_key or load_client_key(options.data / FILE)
    options = replace(options, worker=FIRST_WORKER, spare_offsets=range(1, MAX_SOURCES))
    started = Recording(options, client_key=key, wall_ns=wall_ns, more_stats=more_stats, wrap_log=wrap_log)
    try:
        started.start()
    except LogInUse:
        raise OSError(
            f"cannot record: {MAX_SOURCES} other sources use {options.data}. Stop one of them."
        ) from None
    try:
        yield started
    finally:
        started.close()
