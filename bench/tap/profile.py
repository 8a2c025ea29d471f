"""Profile nginx and the tap with and without its log: CPU time of a chunk and of a short request by component.

`python -m bench tap profile` samples each target with `perf` (CPU clock) during a run and divides the CPU time from `measure`
among the components below, in µs per chunk or request. Takes two minutes.
"""

from __future__ import annotations

import collections
import contextlib
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

from bench.tap.measure import Load, measure, wait_until_quiet
from bench.tap.servers import Target, mock_upstream, nginx, tap

LOADS = {
    "a chunk (500 streams × 20 chunks/s)": Load("paced", 500, 50_000),
    "a short request (32 connections)": Load("short", 32),
}
SECONDS = 6.0
COMPONENTS = {
    "kernel": "system calls",
    "own": "nginx's own code",
    "loop": "event loop (uvloop, libuv, libc)",
    "relay": "native relay",
    "native": "the tap's other compiled code",
    "python": "Python",
    "msgspec": "encoding of records (msgspec)",
    "log": "the log's thread (zstd, SQLite, disk, its Python)",
}


def component_of(library: str) -> str:
    """The component of a sample in the thread of the event loop or of the relay, by its binary."""
    if "kernel" in library or library == "[vdso]":
        return "kernel"
    name = library.rpartition("/")[2]
    if name.startswith(("libpython", "python3")):
        return "python"
    if "/msgspec/" in library:
        return "msgspec"
    if "/ingest/" in library:
        return "relay" if name.startswith("native_relay") else "native"
    return "own" if name == "nginx" else "loop"


@contextlib.contextmanager
def sampled(pid: int, data: Path) -> Iterator[None]:
    """Sample all threads of a process while the block runs."""
    command = ["perf", "record", "-q", "-F", "2000", "-e", "cpu-clock", "-p", str(pid), "-o", str(data)]
    perf = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        perf.send_signal(signal.SIGINT)
        perf.wait()


def shares(pid: int, data: Path) -> dict[str, float]:
    """The share of each component in the samples."""
    command = ["perf", "script", "-i", str(data), "-F", "comm,tid,ip,dso"]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    counts: collections.Counter[str] = collections.Counter()
    for line in text.splitlines():
        name, thread, *_, library = line.split()
        watched = int(thread) == pid or name == "tap-relay"
        counts[component_of(library.strip("()")) if watched else "log"] += 1
    return {part: count / counts.total() for part, count in counts.items()}


def profile(folder: Path) -> str:
    """The tables in Markdown. Raises SystemExit without perf."""
    if shutil.which("perf") is None:
        raise SystemExit("bench tap profile: perf is not installed. On Debian: apt-get install linux-perf")
    tables = []
    with mock_upstream(folder) as upstream, contextlib.ExitStack() as stack:
        found: list[Target | None] = [stack.enter_context(nginx(folder, upstream))]
        found.append(stack.enter_context(tap("tap, log off", folder / "off", upstream, log=False)))
        found.append(stack.enter_context(tap("tap", folder / "on", upstream)))
        targets = [target for target in found if target is not None]
        for what, load in LOADS.items():
            columns = {}
            for target in targets:
                wait_until_quiet(targets)
                data = folder / "perf.data"
                with sampled(target.pids[0], data):
                    run = measure(folder, target, load, SECONDS)
                component_shares = shares(target.pids[0], data)
                columns[target.name] = {
                    part: share * run["cpu_s_per_million"] for part, share in component_shares.items()
                }
            tables.append(_table(what, columns))
    return "\n".join(tables)


def _table(what: str, columns: dict[str, dict[str, float]]) -> str:
    lines = ["| " + " | ".join([f"µs CPU of {what}", *columns]) + " |", "|---" + "|--:" * len(columns) + "|"]
    for part, name in COMPONENTS.items():
        if any(column.get(part) for column in columns.values()):
            cells = [f"{column[part]:.1f}" if part in column else "–" for column in columns.values()]
            lines.append("| " + " | ".join([name, *cells]) + " |")
    sums = [f"{sum(column.values()):.1f}" for column in columns.values()]
    return "\n".join([*lines, "| " + " | ".join(["all", *sums]) + " |"]) + "\n"
