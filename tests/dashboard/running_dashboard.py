"""A running dashboard process."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
READY_WITHIN_S = 90
STOPS_WITHIN_S = 30


@dataclass(frozen=True)
class Dashboard:
    """A dashboard that is ready."""

    process: subprocess.Popen[bytes]
    ready_file: Path

    @property
    def ready(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.ready_file.read_text())
        return found

    @property
    def url(self) -> str:
        return str(self.ready["url"])


@contextlib.contextmanager
def running(data: Path, *arguments: str, listen: str = "127.0.0.1:0") -> Iterator[Dashboard]:
    """Run the dashboard over a data folder until the end of the block."""
    command = [
        sys.executable,
        "-m",
        "streamgauge",
        "dashboard",
        "--data",
        str(data),
        "--dashboard-listen",
        listen,
        *arguments,
    ]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL)
    dashboard = Dashboard(process, data / "run" / "dashboard.json")
    try:
        until = time.monotonic() + READY_WITHIN_S
        while not dashboard.ready_file.exists():
            assert process.poll() is None, "the dashboard ended instead of starting"
            assert time.monotonic() < until, "the dashboard did not become ready"
            time.sleep(0.05)
        yield dashboard
    finally:
        if process.poll() is None:
            process.terminate()
        try:
            process.wait(timeout=STOPS_WITHIN_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
