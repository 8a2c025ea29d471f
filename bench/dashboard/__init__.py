"""Response times of the dashboard's pages over 10 million events and 200,000 streams, and its memory.

The bench fills a store by SQL and runs a `streamgauge demo` over it, so new streams arrive meanwhile. Chromium clicks from page
to page. *answered* is the time from the click until the script of the page has ended and everything is sent; *drawn* is the
time until all charts are drawn. All processes share the machine, including the browser, which has no graphics card.

Memory is the resident size of the dashboard's process before and after many refreshes of the overview. Refreshes are far enough
apart that no result is reused.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from analytics.query.reader import Reader
from analytics.storage.location import CATALOG_FILE, locate
from bench.dashboard.browser_timing import PAGES, Timing, click_page, look_up_stream, refresh_page
from bench.dashboard.generated_store import fill, row_counts
from ingest.ready_file import read_ready_file
from tests.dashboard.browser import reader

ROOT = Path(__file__).resolve().parents[2]
READY_WITHIN_S = 120.0
TIMEOUT_S = 60.0
STREAMS = "SELECT count(*) FROM streams"
REFRESH_INTERVAL_S = 2.1
"""Results are shared for 2 s."""


@contextmanager
def running(data: Path, rate: float) -> Iterator[dict[str, object]]:
    """Run a demo over the data folder; yields the content of run/dashboard.json."""
    command = [sys.executable, "-m", "streamgauge", "demo", "--data", str(data), "--rate", str(rate)]
    command += ["--dashboard-port", "0", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]
    ready_file, analyze_file = data / "run" / "dashboard.json", data / "run" / "analyze.json"
    for file in (ready_file, analyze_file):
        file.unlink(missing_ok=True)
    demo = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        until_s = time.monotonic() + READY_WITHIN_S
        while not ready_file.exists() or read_ready_file(analyze_file) is None:
            if demo.poll() is not None or time.monotonic() > until_s:
                raise SystemExit("the demo did not become ready")
            time.sleep(0.1)
        dashboard: dict[str, object] = json.loads(ready_file.read_text())
        yield dashboard
    finally:
        demo.terminate()
        demo.wait(60)


def resident_mib(pid: int) -> float:
    """Resident memory of a process, MiB."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmRSS")).split()[1]) / 1024


def pages(url: str, data: Path, ranges: list[str], rounds: int) -> None:
    """Print the median and the maximum of every page and range."""
    store = Reader(locate("sqlite", data), lock_down=False)
    ids = store.query(f"""
        SELECT stream_id::VARCHAR AS id, request_id FROM streams WHERE outcome = 'ok' AND request_id LIKE 'req-%'
        ORDER BY hash(stream_id) LIMIT {(rounds + 1) * len(ranges)}""", 10_000, TIMEOUT_S).rows()  # fmt: skip
    began = store.query(STREAMS, 1, TIMEOUT_S).item()
    found: dict[tuple[str, str], list[Timing]] = {}
    with reader(url, width=1440) as seen:
        for chosen in ranges:
            seen.open(f"{PAGES[-1].lower()}?range={chosen}")
            for number in range(rounds + 1):
                for page in PAGES:
                    timing = click_page(seen.page, page)
                    if number:  # the first round is a warm-up
                        found.setdefault((page, chosen), []).append(timing)
            seen.open(f"stream?range={chosen}")
            for number in range(rounds + 1):
                timing = look_up_stream(seen.page, *ids.pop())
                if number:
                    found.setdefault(("Stream", chosen), []).append(timing)
        problems = len(seen.problems)
    print("| page | " + " | ".join(f"{r}: answered | drawn | slowest" for r in ranges) + " |")
    print("|---|" + "--:|--:|--:|" * len(ranges))
    slowest_s = 0.0
    for page in (*PAGES, "Stream"):
        cells = []
        for chosen in ranges:
            timings = found[page, chosen]
            answered_s = statistics.median(t.answered_s for t in timings)
            drawn_s = statistics.median(t.drawn_s for t in timings)
            slowest_s = max(slowest_s, drawn_s)
            cells.append(f"{answered_s:.2f} s | {drawn_s:.2f} s | {max(t.drawn_s for t in timings):.2f} s")
        print(f"| {page} | " + " | ".join(cells) + " |")
    more = store.query(STREAMS, 1, TIMEOUT_S).item() - began
    store.close()
    print(
        f"slowest median {slowest_s:.2f} s; {more} streams arrived meanwhile; problems in the browser: {problems}"
    )


def memory(url: str, pid: int, refreshes: int, chosen: str) -> None:
    """Print the resident size before and after the refreshes."""
    with reader(url, width=1440) as seen:
        seen.open(f"?range={chosen}&refresh=off")
        for _ in range(10):  # warm-up: imports and caches are not growth
            refresh_page(seen.page)
            time.sleep(REFRESH_INTERVAL_S)
        before = resident_mib(pid)
        for _ in range(refreshes):
            refresh_page(seen.page)
            time.sleep(REFRESH_INTERVAL_S)
        after = resident_mib(pid)
    print(
        f"memory over {refreshes} refreshes: {before:.0f} MiB to {after:.0f} MiB ({after / before - 1:+.1%})"
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench dashboard", description=__doc__)
    parser.add_argument(
        "--data", type=Path, help="data folder, filled if it has no store (default: a temporary folder)"
    )
    parser.add_argument("--streams", type=int, default=200_000)
    parser.add_argument("--hours", type=float, default=24.0)
    parser.add_argument("--rate", type=float, default=5.0, help="new streams per second")
    parser.add_argument("--ranges", default="24h,15m")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--refreshes", type=int, default=100)
    parser.add_argument("--only", choices=("fill", "pages", "memory"))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        data = options.data or Path(temporary)
        if not (data / CATALOG_FILE).exists():
            fill(data, streams=options.streams, hours=options.hours)
        print(
            ", ".join(f"{n:,} {table}" for table, n in row_counts(data).items()), f"on {os.cpu_count()} cores"
        )
        if options.only == "fill":
            return 0
        with running(data, options.rate) as dashboard:
            if options.only in (None, "pages"):
                pages(str(dashboard["url"]), data, options.ranges.split(","), options.rounds)
            if options.only in (None, "memory"):
                memory(
                    str(dashboard["url"]),
                    int(str(dashboard["pid"])),
                    options.refreshes,
                    options.ranges.split(",")[0],
                )
    return 0
