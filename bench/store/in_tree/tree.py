"""Modules, stores and processes of the tree that a script runs in.

The scripts of this folder run in the current tree and in its parent: the working directory is the tree, and it is first on
PYTHONPATH. Each script prints one line of JSON.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import polars as pl

Ask = Callable[[str], pl.DataFrame]
READY_S = 60.0
MOST_ROWS, TIMEOUT_S = 1_000_000, 20.0


def module(name: str) -> Any:
    """A module of the tree. Raises ImportError when it comes from another folder."""
    found = importlib.import_module(name)
    origin = Path(str(found.__file__)).resolve()
    if not origin.is_relative_to(Path.cwd().resolve()):
        raise ImportError(f"{name} comes from {origin}, not from {Path.cwd()}")
    return found


def open_store(folder: Path) -> Any:
    """A `Store`, created if it does not exist."""
    return module("streamgauge.analytics.storage.store").Store(_location(folder))


def _location(data: Path) -> Any:
    return module("streamgauge.analytics.storage.location").locate("sqlite", data)


@contextlib.contextmanager
def reading(data: Path) -> Iterator[Ask]:
    """Queries on a store that analytics is writing, in this process."""
    reader = module("streamgauge.analytics.query.reader").Reader(_location(data), lock_down=False)
    try:
        yield lambda sql: reader.query(sql, MOST_ROWS, TIMEOUT_S)
    finally:
        reader.close()


@contextlib.contextmanager
def reading_as_dashboard(data: Path) -> Iterator[Ask]:
    """Queries as the dashboard runs them, in a child process."""
    pool = module("streamgauge.analytics.query.query_pool").QueryPool(_location(data), untrusted=False)
    try:
        yield lambda sql: pool.query(sql, max_rows=MOST_ROWS, timeout_s=TIMEOUT_S)
    finally:
        pool.close()


@contextlib.contextmanager
def analytics(data: Path) -> Iterator[int]:
    """A ready `streamgauge analyze`: its process id. Raises RuntimeError when it does not become ready."""
    environment = {**os.environ, "STREAMGAUGE_METRICS": ""}
    command = [sys.executable, "-m", "streamgauge", "analyze", "--data", str(data)]
    with (data / "analyze.log").open("wb") as log:
        process = subprocess.Popen(command, env=environment, stderr=log)
    try:
        deadline_s = time.monotonic() + READY_S
        while not (data / "run" / "analyze.json").exists():
            if process.poll() is not None or time.monotonic() > deadline_s:
                raise RuntimeError(f"analytics is not ready: {(data / 'analyze.log').read_text()}")
            time.sleep(0.1)
        yield process.pid
    finally:
        process.terminate()
        process.wait(60)


def family_cpu_s(pid: int) -> float:
    """CPU seconds of a process, of its children that have ended, and of those that run, at any depth."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        children = [
            child
            for task in Path(f"/proc/{pid}/task").iterdir()
            for child in (task / "children").read_text().split()
        ]
    except OSError:  # it has ended, and its parent counts it
        return 0.0
    used_s = sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    return used_s + sum(family_cpu_s(int(child)) for child in children)


def report(**values: Any) -> None:
    """Print the result."""
    print(json.dumps(values), flush=True)
