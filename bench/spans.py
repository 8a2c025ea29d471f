"""What spans cost: CPU seconds of a consumer that stores streams with their spans, and without. `python -m bench.spans`

Both read the same entries (100 output events each) into a fresh DuckDB, in commits of 150 streams: what 1,000 streams a second
make of a commit every 0.15 s. The share of a core at that rate is the difference of CPU time per stream times 1,000: the median
of the differences between runs that followed one another, after a first round that is not counted.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

from analytics.assemble import Assembler
from analytics.consumer import Consumer, Pace
from analytics.measure import measure
from analytics.store import Store
from analytics.telemetry import Telemetry, TelemetryOptions
from ingest.log import Entry
from tests.analytics.traffic import MemoryLog, entries

RATE = 1_000
PER_COMMIT = 150


def cpu_s(batches: list[list[bytes]], options: TelemetryOptions | None) -> float:
    """CPU seconds of all threads of this process to commit the batches."""
    with tempfile.TemporaryDirectory() as folder:
        store = Store(Path(folder) / "streamgauge.duckdb")
        telemetry = Telemetry(options) if options is not None else None
        run = Consumer(
            MemoryLog({"w0": []}),
            store,
            Assembler(),
            measure,
            Pace(commit_interval_s=3600.0),
            witness=telemetry,
        )
        run.start()
        began_s, offset = time.process_time(), 0
        for batch in batches:
            for payload in batch:
                run.feed(Entry("w0", offset, payload))
                offset += 1
            run.commit()
        spent_s = time.process_time() - began_s
        if telemetry is not None:
            telemetry.close()
        store.close()
        return spent_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=3_000)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    batches = [
        list(entries(range(first, first + PER_COMMIT), chunks=100, per_record=10, width=50))
        for first in range(1, given.streams, PER_COMMIT)
    ]
    streams = len(batches) * PER_COMMIT
    kinds: dict[str, TelemetryOptions | None] = {
        "off": None,
        "spans": TelemetryOptions(),
        "spans and metrics": TelemetryOptions(metrics="127.0.0.1:0"),
    }
    found: dict[str, list[float]] = {name: [] for name in kinds}
    for number in range(given.rounds + 1):
        for name, options in kinds.items():
            spent_s = cpu_s(batches, options)
            if number:
                found[name].append(spent_s)
    for name, times in found.items():
        more_s = statistics.median(t - off for t, off in zip(times, found["off"], strict=True))
        more_us = more_s / streams * 1e6
        print(
            f"{name:<18} {statistics.median(times) / streams * 1e6:7.0f} us/stream  "
            f"{more_us:+5.0f} us = {more_us * RATE / 1e4:5.1f} % of a core at {RATE} streams/s"
        )


if __name__ == "__main__":
    main()
