"""Response times of the dashboard's pages and of `streamgauge top` over 10 million events and 200,000 streams, and memory.

The bench fills a store by SQL and runs a `streamgauge demo` over it, so new streams arrive meanwhile. Chromium clicks from page
to page. *answered* is the time from the click until the script of the page has ended and everything is sent; *drawn* is the
time until all charts are drawn. The row *verdict* is the time until Overview shows the diagnosis, *verdict, first* that without
a recent diagnosis: the store ends with an incident. All processes share the machine, including the browser, which has no graphics card.

`streamgauge top --once` is timed as a process, and its report in a running process.

Memory is the resident size of the dashboard's process before and after many refreshes of the overview. Refreshes are far enough
apart that no result is reused.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from pathlib import Path

from bench.dashboard.browser_timing import PAGES, Timing, click_page, look_up_stream, refresh_page
from bench.dashboard.generated_store import fill, row_counts
from streamgauge.analytics.diagnosis.report import read_report
from streamgauge.analytics.query.query_pool import QueryPool
from streamgauge.analytics.query.reader import Reader
from streamgauge.analytics.reports.selection import Selection
from streamgauge.analytics.storage.location import CATALOG_FILE, SQLITE, locate
from streamgauge.commands.top.command import MAX_ROWS
from streamgauge.ingest.ready_file import read_ready_file
from streamgauge.settings.values import parse_duration_s
from tests.dashboard.browser import reader

ROOT = Path(__file__).resolve().parents[2]
READY_WITHIN_S = 120.0
TIMEOUT_S = 60.0
STREAMS = "SELECT count(*) FROM streams"
ERRORS = "[data-testid=stAlertContentError], [data-testid=stException]"
REFRESH_INTERVAL_S = 2.1
"""Results are shared for 2 s."""


@contextmanager
def running(data: Path, rate: float) -> Iterator[dict[str, object]]:
    """Run a demo over the data folder; yields the content of run/dashboard.json."""
    command = [sys.executable, "-m", "streamgauge", "demo", "--data", str(data), "--rate", str(rate)]
    command += ["--dashboard-listen", "127.0.0.1:0", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]
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
    first: dict[str, list[float | None]] = {}
    errors = 0
    with reader(url, width=1440) as seen:
        for chosen in ranges:
            seen.open(f"{PAGES[-1].lower()}?range={chosen}")
            for number in range(rounds + 1):
                for page in PAGES:
                    timing = click_page(seen.page, page)
                    errors += seen.page.locator(ERRORS).count()
                    if number:  # the first round is a warm-up
                        found.setdefault((page, chosen), []).append(timing)
            seen.open(f"stream?range={chosen}")
            for number in range(rounds + 1):
                timing = look_up_stream(seen.page, *ids.pop())
                if number:
                    found.setdefault(("Stream", chosen), []).append(timing)
            length_s = parse_duration_s(chosen) or 0.0
            for number in range(1, rounds + 1):
                # A range of its own, of which there is no diagnosis.
                seen.open(f"{PAGES[-1].lower()}?range={length_s / 60 - number:.0f}m")
                first.setdefault(chosen, []).append(click_page(seen.page, PAGES[0]).verdict_s)
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
    verdicts = [_verdict_cells([t.verdict_s for t in found[PAGES[0], chosen]]) for chosen in ranges]
    print("| verdict | " + " | ".join(verdicts) + " |")
    print("| verdict, first | " + " | ".join(_verdict_cells(first[chosen]) for chosen in ranges) + " |")
    more = store.query(STREAMS, 1, TIMEOUT_S).item() - began
    store.close()
    print(
        f"slowest median {slowest_s:.2f} s; {more} streams arrived meanwhile; errors on pages: {errors}; "
        f"problems in the browser: {problems}"
    )


def _verdict_cells(seconds: Sequence[float | None]) -> str:
    known = [s for s in seconds if s is not None]
    return f"{statistics.median(known):.2f} s | | {max(known):.2f} s" if known else "– | | –"


def top(data: Path, ranges: Sequence[str], rounds: int) -> None:
    """Print the median and maximum of `streamgauge top --once` and of its report in a running process."""
    print(
        "| `top` | once, median | slowest | report, median | slowest | headline |\n|---|--:|--:|--:|--:|---|"
    )
    with contextlib.closing(QueryPool(locate(SQLITE, data), untrusted=False)) as tables:
        for chosen in ranges:
            command = [
                sys.executable,
                "-m",
                "streamgauge",
                "top",
                "--once",
                "--format",
                "json",
                "--range",
                chosen,
                "--data",
                str(data),
            ]
            once_s, report_s, headline = [], [], ""
            for _ in range(rounds + 1):
                began_s = time.monotonic()
                done = subprocess.run(command, cwd=ROOT, capture_output=True, check=False, timeout=TIMEOUT_S)
                if done.returncode:
                    raise SystemExit(f"{' '.join(command)}: {done.stderr.decode().strip()}")
                once_s.append(time.monotonic() - began_s)
                found = json.loads(done.stdout)
                since, until = (datetime.fromisoformat(found[name]) for name in ("since", "until"))
                began_s = time.monotonic()
                chosen_time = Selection(since=since, until=until)
                read_report(partial(tables.query, max_rows=MAX_ROWS, timeout_s=TIMEOUT_S), chosen_time)
                report_s.append(time.monotonic() - began_s)
                headline = found["headline"]
            cells = (f"{f(s[1:]):.2f} s" for s in (once_s, report_s) for f in (statistics.median, max))
            print(f"| {chosen} | {' | '.join(cells)} | {headline} |")


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
    parser.add_argument(
        "--label-values", type=int, default=0, help="values of the label `user` in an hour, such as 20000"
    )
    parser.add_argument("--rate", type=float, default=5.0, help="new streams per second")
    parser.add_argument(
        "--ranges", default="24h,6h,30d", help="6h has a previous period to compare with; 30d uses roll-ups"
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--refreshes", type=int, default=100)
    parser.add_argument("--only", choices=("fill", "pages", "top", "memory"))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        data = options.data or Path(temporary)
        if not (data / CATALOG_FILE).exists():
            fill(data, streams=options.streams, hours=options.hours, label_values=options.label_values)
        print(
            ", ".join(f"{n:,} {table}" for table, n in row_counts(data).items()), f"on {os.cpu_count()} cores"
        )
        if options.only == "fill":
            return 0
        if options.label_values:  # analytics of the demo stores the labels of its settings
            os.environ["STREAMGAUGE_LABELS"] = "team=header:x-team:plain user=body:user"
        with running(data, options.rate) as dashboard:
            if options.only in (None, "pages"):
                pages(str(dashboard["url"]), data, options.ranges.split(","), options.rounds)
            if options.only in (None, "top"):
                top(data, options.ranges.split(","), options.rounds)
            if options.only in (None, "memory"):
                memory(
                    str(dashboard["url"]),
                    int(str(dashboard["pid"])),
                    options.refreshes,
                    options.ranges.split(",")[0],
                )
    return 0
