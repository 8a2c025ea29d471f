"""Events per second of CPU time from an embedded log to rows. Called with STREAMS; one warm-up, one measured run."""

from __future__ import annotations

import os
import sys
import tempfile
from functools import partial
from pathlib import Path

os.environ["POLARS_MAX_THREADS"] = "1"  # read when polars is imported

from tree import module, report


def main(streams: int) -> None:
    ours = module("bench.analytics.ours")
    reader = module("streamgauge.ingest.record_log.embedded_reader").EmbeddedReader
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        ours.write_log(folder / "log", streams)
        ours.write_log(folder / "warm-up", min(streams, 500))
        ours.end_to_end(folder, partial(reader, folder / "warm-up", "bench"), min(streams, 500))
        cpu_s = ours.end_to_end(folder, partial(reader, folder / "log", "bench"), streams)
    report(events_per_s=streams * module("bench.analytics.workload").EVENTS_A_STREAM / cpu_s)


if __name__ == "__main__":
    main(int(sys.argv[1]))
