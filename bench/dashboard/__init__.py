"""How fast the dashboard's pages answer over 10 million events and 200,000 streams while data comes in; and its memory.

A store is filled by SQL, a real `streamgauge demo` runs over it (simulated gateway, tap, analytics that commits, dashboard),
and Debian's Chromium clicks from page to page as a reader does. Measured in the browser, from the click: *answered* is when the
page's script has ended on the server and all of it is sent, *drawn* when every chart stands. Everything shares the machine: the
browser, which draws without a graphics card, and the simulated traffic, too.

Memory is the resident size of the dashboard's process, before and after a number of refreshes of its first page by one reader,
each far enough from the one before that no answer is given twice.
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
from analytics.ready_file import read
from analytics.storage.location import CATALOG_FILE, locate
from bench.dashboard.browser_timing import PAGES, Took, clicked, refreshed, shown_stream
from bench.dashboard.generated_store import counted, fill
from tests.dashboard.browser import reader

ROOT = Path(__file__).resolve().parents[2]
READY_WITHIN_S = 120.0
TIMEOUT_S = 60.0
STREAMS = "SELECT count(*) FROM streams"
APART_S = 2.1
"""Between two refreshes: answers are shared for two seconds."""


@contextmanager
def running(data: Path, rate: float) -> Iterator[dict[str, object]]:
    """A demo over the data folder; what its dashboard announced."""
    command = [sys.executable, "-m", "streamgauge", "demo", "--data", str(data), "--rate", str(rate)]
    command += ["--dashboard-port", "0", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]
    announced = data / "run" / "dashboard.json"
    for part in (announced, data / "run" / "analyze.json"):
        part.unlink(missing_ok=True)
    demo = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        until_s = time.monotonic() + READY_WITHIN_S
        while not announced.exists() or read(data) is None:
            if demo.poll() is not None or time.monotonic() > until_s:
                raise SystemExit("the demo did not become ready")
            time.sleep(0.1)
        said: dict[str, object] = json.loads(announced.read_text())
        yield said
    finally:
        demo.terminate()
        demo.wait(60)


def resident_mib(pid: int) -> float:
    """Resident memory of a process, MiB."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmRSS")).split()[1]) / 1024


def pages(url: str, data: Path, ranges: list[str], rounds: int) -> None:
    """Print the median and the worst of every page and range."""
    store = Reader(locate("sqlite", data), lock_down=False)
    ids = store.query(f"""
        SELECT stream_id::VARCHAR AS id, request_id FROM streams WHERE outcome = 'ok' AND request_id LIKE 'req-%'
        ORDER BY hash(stream_id) LIMIT {(rounds + 1) * len(ranges)}""", 10_000, TIMEOUT_S).rows()  # fmt: skip
    began = store.query(STREAMS, 1, TIMEOUT_S).item()
    found: dict[tuple[str, str], list[Took]] = {}
    with reader(url, width=1440) as seen:
        for chosen in ranges:
            seen.open(f"{PAGES[-1].lower()}?range={chosen}")
            for number in range(rounds + 1):
                for page in PAGES:
                    took = clicked(seen.page, page)
                    if number:  # the first round warms up
                        found.setdefault((page, chosen), []).append(took)
            seen.open(f"stream?range={chosen}")
            for number in range(rounds + 1):
                took = shown_stream(seen.page, *ids.pop())
                if number:
                    found.setdefault(("Stream", chosen), []).append(took)
        wrong = len(seen.complaints)
    print("| page | " + " | ".join(f"{r}: answered | drawn | slowest" for r in ranges) + " |")
    print("|---|" + "--:|--:|--:|" * len(ranges))
    slowest_s = 0.0
    for page in (*PAGES, "Stream"):
        cells = []
        for chosen in ranges:
            all_took = found[page, chosen]
            answered_s = statistics.median(t.answered_s for t in all_took)
            drawn_s = statistics.median(t.drawn_s for t in all_took)
            slowest_s = max(slowest_s, drawn_s)
            cells.append(f"{answered_s:.2f} s | {drawn_s:.2f} s | {max(t.drawn_s for t in all_took):.2f} s")
        print(f"| {page} | " + " | ".join(cells) + " |")
    more = store.query(STREAMS, 1, TIMEOUT_S).item() - began
    store.close()
    print(
        f"slowest median {slowest_s:.2f} s; {more} streams came in meanwhile; complaints of the browser: {wrong}"
    )


def memory(url: str, pid: int, refreshes: int, chosen: str) -> None:
    """Print the resident size before and after the refreshes."""
    with reader(url, width=1440) as seen:
        seen.open(f"?range={chosen}&refresh=off")
        for _ in range(10):  # what is imported and kept at the first use is no growth
            refreshed(seen.page)
            time.sleep(APART_S)
        before = resident_mib(pid)
        for _ in range(refreshes):
            refreshed(seen.page)
            time.sleep(APART_S)
        after = resident_mib(pid)
    print(
        f"memory over {refreshes} refreshes: {before:.0f} MiB to {after:.0f} MiB ({after / before - 1:+.1%})"
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench dashboard", description=__doc__)
    parser.add_argument(
        "--data", type=Path, help="folder to keep; filled when it has no store. Default: a temporary one"
    )
    parser.add_argument("--streams", type=int, default=200_000)
    parser.add_argument("--hours", type=float, default=24.0)
    parser.add_argument("--rate", type=float, default=5.0, help="streams a second that come in meanwhile")
    parser.add_argument("--ranges", default="24h,15m")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--refreshes", type=int, default=100)
    parser.add_argument("--only", choices=("fill", "pages", "memory"))
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        data = given.data or Path(temporary)
        if not (data / CATALOG_FILE).exists():
            fill(data, streams=given.streams, hours=given.hours)
        print(", ".join(f"{n:,} {table}" for table, n in counted(data).items()), f"on {os.cpu_count()} cores")
        if given.only == "fill":
            return 0
        with running(data, given.rate) as said:
            if given.only in (None, "pages"):
                pages(str(said["url"]), data, given.ranges.split(","), given.rounds)
            if given.only in (None, "memory"):
                memory(str(said["url"]), int(str(said["pid"])), given.refreshes, given.ranges.split(",")[0])
    return 0
