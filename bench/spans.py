"""CPU cost of spans and metrics: consumers with and without them. `python -m bench spans`

Three consumers process the same entries (100 output events per stream) alternately, in commits of 150 streams, which equals
1,000 streams per second with a commit every 0.15 s. Each has its own store without upkeep. The share of a core at that rate
is the difference in CPU time per stream times 1,000, as median over commits and as mean including the close of the store.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

from streamgauge.analytics.assembly.assembler import Assembler
from streamgauge.analytics.consumer import CommitPolicy, Consumer, tune_gc
from streamgauge.analytics.measures.measure import measure
from streamgauge.analytics.storage.location import locate
from streamgauge.analytics.storage.store import Store
from streamgauge.analytics.telemetry.telemetry import Telemetry, TelemetryOptions
from streamgauge.ingest.record_log.interface import Entry
from tests.analytics.log_entries import MemoryLog, entries
from tests.options import telemetry_options

RATE = 1_000
PER_COMMIT = 150
WARM_UP = 3
"""Commits that are not counted."""


class Run:
    """One consumer and its CPU seconds per commit, for all threads of the process."""

    def __init__(self, folder: Path, options: TelemetryOptions | None) -> None:
        self._store = Store(locate("sqlite", folder))
        self._telemetry = Telemetry(options) if options is not None else None
        self._consumer = Consumer(
            MemoryLog({"w0": []}),
            self._store,
            Assembler(),
            measure,
            CommitPolicy(commit_interval_s=3600.0),
            hooks=[self._telemetry] if self._telemetry is not None else [],
        )
        self._consumer.start()
        self._offset = 0
        self.spent_s: list[float] = []
        self.closing_s = 0.0

    def commit(self, batch: list[bytes]) -> None:
        began_s = time.process_time()
        for payload in batch:
            self._consumer.feed(Entry("w0", self._offset, payload))
            self._offset += 1
        self._consumer.commit()
        self.spent_s.append(time.process_time() - began_s)

    def close(self) -> None:
        if self._telemetry is not None:
            self._telemetry.close()
        began_s = time.process_time()
        self._store.close()
        self.closing_s = time.process_time() - began_s


def _print(kind: str, run: Run, off: Run) -> None:
    per_stream = 1e6 / PER_COMMIT
    spent_s, off_s = run.spent_s[WARM_UP:], off.spent_s[WARM_UP:]
    median_us = statistics.median(a - b for a, b in zip(spent_s, off_s, strict=True)) * per_stream
    total_s = sum(spent_s) + run.closing_s - sum(off_s) - off.closing_s
    mean_us = total_s / len(spent_s) * per_stream
    print(
        f"{kind:<18} {statistics.median(spent_s) * per_stream:7.0f} us/stream   median {median_us:+5.0f} us = "
        f"{median_us * RATE / 1e4:5.1f} % of a core   mean {mean_us:+5.0f} us = {mean_us * RATE / 1e4:5.1f} %"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--commits", type=int, default=150)
    given = parser.parse_args()
    kinds: dict[str, TelemetryOptions | None] = {
        "off": None,
        "spans": telemetry_options(),
        "spans and metrics": telemetry_options(metrics="127.0.0.1:0"),
    }
    tune_gc()
    with tempfile.TemporaryDirectory() as name:
        runs = {}
        for kind, options in kinds.items():
            folder = Path(name) / kind.replace(" ", "-")
            folder.mkdir()
            runs[kind] = Run(folder, options)
        for number in range(given.commits + WARM_UP):
            first = 1 + number * PER_COMMIT
            batch = list(entries(range(first, first + PER_COMMIT), chunks=100, per_record=10, width=50))
            turn = list(runs.values())
            for run in turn[number % 3 :] + turn[: number % 3]:
                run.commit(batch)
        for run in runs.values():
            run.close()
    print(f"{given.commits} commits of {PER_COMMIT} streams; shares are of a core at {RATE:,} streams/s")
    for kind, run in runs.items():
        _print(kind, run, runs["off"])


if __name__ == "__main__":
    main()
