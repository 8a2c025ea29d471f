"""Freshness under load: time from the last byte of a stream to its row in SQL.

A log writer, a real `streamgauge analyze` and a reader in this process, which queries for new streams every 50 ms. The time
runs from when the last byte was due to the query result with the row, so it includes the reader's delay. Streams of the
first seconds are not counted.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bench.analytics.load import LAST_NS, number_of, spacing_ns
from streamgauge.analytics.query.reader import Reader
from streamgauge.analytics.storage.location import locate
from streamgauge.ingest.ready_file import read_ready_file

ASK_EVERY_S = 0.05
WARM_UP_S = 3.0
READY_S = 60.0
MOST_ROWS, TIMEOUT_S = 1_000_000, 20.0
CATCH_UP_S = 20.0
NEW = "SELECT stream_id::VARCHAR AS stream_id FROM streams WHERE stream_id > '{}'::UUID ORDER BY ALL"


@dataclass(frozen=True)
class Fresh:
    """One load: events per second, delays of its streams, CPU cores used by each process."""

    rate: float
    delays_s: list[float]
    streams: int
    """Expected number of delays."""
    analytics_cores: float
    load_cores: float

    def quantile(self, share: float) -> float:
        return statistics.quantiles(self.delays_s, n=1000, method="inclusive")[round(share * 1000) - 1]


def measure(rate: float, seconds: float) -> Fresh:
    """Raises RuntimeError if analytics does not become ready."""
    with tempfile.TemporaryDirectory() as name, analytics(Path(name)) as (pid, reader):
        start_ns = time.monotonic_ns() + 1_500_000_000
        between_ns = spacing_ns(rate)
        streams = int(seconds * 1e9 / between_ns)
        first = int(WARM_UP_S * 1e9 / between_ns)
        command = [sys.executable, "-m", "bench.analytics.load", name, str(rate), str(seconds), str(start_ns)]
        with subprocess.Popen(command) as load:
            time.sleep(1)
            before = cpu_s(pid), cpu_s(load.pid), time.monotonic()
            delays_s, spent = _watch(reader, load, streams, first, start_ns, between_ns, (pid, load.pid))
        took_s = spent[2] - before[2]
        return Fresh(
            rate, delays_s, streams - first, (spent[0] - before[0]) / took_s, (spent[1] - before[1]) / took_s
        )


def _watch(
    reader: Reader, load: subprocess.Popen[bytes], streams: int, first: int, start_ns: int, between_ns: float,
    pids: tuple[int, int],
) -> tuple[list[float], tuple[float, float, float]]:  # fmt: skip
    """Delays of the streams from `first`, and (analytics CPU s, load CPU s, time) when the load was last seen running."""
    delays_s: list[float] = []
    last, seen = "00000000-0000-0000-0000-000000000000", 0
    spent = (0.0, 0.0, 0.0)
    over_s = float("inf")
    while seen < streams and time.monotonic() < over_s:
        asked_s = time.monotonic()
        if load.poll() is None:
            spent = cpu_s(pids[0]), cpu_s(pids[1]), asked_s
        elif over_s == float("inf"):
            over_s = asked_s + CATCH_UP_S
        found = reader.query(NEW.format(last), MOST_ROWS, TIMEOUT_S)["stream_id"].to_list()
        now_ns = time.monotonic_ns()
        for sid in found:
            number = number_of(sid)
            if number >= first:
                delays_s.append((now_ns - start_ns - number * between_ns - LAST_NS) / 1e9)
        if found:
            last, seen = found[-1], seen + len(found)
        time.sleep(max(0.0, asked_s + ASK_EVERY_S - time.monotonic()))
    return delays_s, spent


@contextlib.contextmanager
def analytics(data: Path) -> Iterator[tuple[int, Reader]]:
    """Run `streamgauge analyze` with defaults but no metrics port. Yields its pid and a reader.

    Raises RuntimeError if it does not become ready.
    """
    environment = {**os.environ, "STREAMGAUGE_METRICS": ""}
    with (data / "analyze.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "streamgauge", "analyze", "--data", str(data)], env=environment, stderr=log
        )
    try:
        deadline_s = time.monotonic() + READY_S
        while read_ready_file(data / "run" / "analyze.json") is None:
            if process.poll() is not None or time.monotonic() > deadline_s:
                raise RuntimeError(f"analytics is not ready: {(data / 'analyze.log').read_text()}")
            time.sleep(0.1)
        with contextlib.closing(Reader(locate("sqlite", data), lock_down=False)) as reader:
            yield process.pid, reader
    finally:
        process.terminate()
        process.wait(60)


def cpu_s(pid: int) -> float:
    """CPU seconds used by a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
