"""The dashboard as its own process, as `streamgauge dashboard` runs it."""

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
class Site:
    """A dashboard that answers."""

    process: subprocess.Popen[bytes]
    announced: Path

    @property
    def said(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.announced.read_text())
        return found

    @property
    def url(self) -> str:
        return str(self.said["url"])


@contextlib.contextmanager
def running(data: Path) -> Iterator[Site]:
    """The dashboard over a data folder, ready; ended afterwards if it still runs."""
    command = [sys.executable, "-m", "dashboard.launch", str(data), "0"]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL)
    site = Site(process, data / "run" / "dashboard.json")
    try:
        until = time.monotonic() + READY_WITHIN_S
        while not site.announced.exists():
            assert process.poll() is None, "the dashboard ended instead of starting"
            assert time.monotonic() < until, "the dashboard did not become ready"
            time.sleep(0.05)
        yield site
    finally:
        if process.poll() is None:
            process.terminate()
        try:
            process.wait(timeout=STOPS_WITHIN_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
