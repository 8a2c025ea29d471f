"""A real `streamgauge analyze` under a load: freshness of rows as a reader sees them, and CPU of its processes.

Called with RATE SECONDS DASHBOARD (0 or 1). RATE 0: nothing is written or read. The reader of this process queries every 50 ms
for new streams; with DASHBOARD 1 another process runs the Overview page's queries every 2 s (`overview`). Streams of the first
seconds are not counted. CPU counts from the first stream to the last.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

os.environ["POLARS_MAX_THREADS"] = "1"  # read when polars is imported

from tree import Ask, analytics, family_cpu_s, module, reading, report

ASK_EVERY_S = 0.05
WARM_UP_S = 3.0
CATCH_UP_S = 20.0
SETTLE_S = 3.0
"""Pause after the start, which is not measured."""
NEW = "SELECT stream_id::VARCHAR AS stream_id FROM streams WHERE stream_id > '{}'::UUID ORDER BY ALL"


def main(rate: float, seconds: float, dashboard: bool) -> None:
    with tempfile.TemporaryDirectory() as name, analytics(Path(name)) as pid, ExitStack() as closing:
        data = Path(name)
        if not rate:
            time.sleep(SETTLE_S)
            began = family_cpu_s(pid), time.monotonic()
            time.sleep(seconds)
            report(analytics_cores=(family_cpu_s(pid) - began[0]) / (time.monotonic() - began[1]))
            return
        observed = Observed(
            rate, seconds, time.monotonic_ns() + 1_500_000_000, {"analytics": pid, "reader": os.getpid()}
        )
        command = [
            sys.executable,
            "-m",
            "bench.analytics.load",
            name,
            str(rate),
            str(seconds),
            str(observed.start_ns),
        ]
        load = closing.enter_context(subprocess.Popen(command))
        observed.pids["load"] = load.pid
        if dashboard:
            script = str(Path(__file__).with_name("overview.py"))
            page = closing.enter_context(
                subprocess.Popen([sys.executable, script, name], stdin=subprocess.PIPE)
            )
            closing.callback(page.terminate)
            observed.pids["dashboard"] = page.pid
        ask = closing.enter_context(reading(data))
        time.sleep(max(0.0, observed.start_ns / 1e9 - time.monotonic()))
        observed.watch(ask, load)
        report(**observed.summary())


@dataclass
class Observed:
    """Delays and CPU of one load, measured by a reader."""

    rate: float
    seconds: float
    start_ns: int
    pids: dict[str, int]
    delays_s: list[float] = field(default_factory=list)
    spent: dict[str, float] = field(default_factory=dict)
    took_s: float = 0.0

    def _cpu_s(self) -> dict[str, float]:
        # This process is the parent of all others, so its children are excluded.
        return {
            name: time.process_time() if pid == os.getpid() else family_cpu_s(pid)
            for name, pid in self.pids.items()
        }

    def watch(self, ask: Ask, load: subprocess.Popen[bytes]) -> None:
        """Query until all streams were seen, at most `CATCH_UP_S` after the load has ended."""
        work = module("bench.analytics.load")
        between_ns = work.spacing_ns(self.rate)
        streams, first = (int(s * 1e9 / between_ns) for s in (self.seconds, WARM_UP_S))
        last, seen, over_s = "00000000-0000-0000-0000-000000000000", 0, float("inf")
        before, began_s = self._cpu_s(), time.monotonic()
        while seen < streams and time.monotonic() < over_s:
            queried_s = time.monotonic()
            if load.poll() is None:
                self.spent = {name: now - before[name] for name, now in self._cpu_s().items()}
                self.took_s = queried_s - began_s
            elif over_s == float("inf"):
                over_s = queried_s + CATCH_UP_S
            found = ask(NEW.format(last))["stream_id"].to_list()
            now_ns = time.monotonic_ns()
            for sid in found:
                number = work.number_of(sid)
                if number >= first:
                    self.delays_s.append((now_ns - self.start_ns - number * between_ns - work.LAST_NS) / 1e9)
            if found:
                last, seen = found[-1], seen + len(found)
            time.sleep(max(0.0, queried_s + ASK_EVERY_S - time.monotonic()))
        if seen < streams:
            raise RuntimeError(f"{seen} of {streams} streams were seen")

    def summary(self) -> dict[str, float]:
        """Quantiles in seconds, and cores by process."""
        cuts = statistics.quantiles(self.delays_s, n=100, method="inclusive")
        cores = {f"{name}_cores": spent / self.took_s for name, spent in self.spent.items()}
        return {
            "streams": len(self.delays_s), "p50_s": cuts[49], "p99_s": cuts[98], "max_s": max(self.delays_s), **cores,
        }  # fmt: skip


if __name__ == "__main__":
    main(float(sys.argv[1]), float(sys.argv[2]), sys.argv[3] == "1")
