"""The commands whose start is counted. Each runs once before, so that its files are compiled."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from bench.instructions import callgrind
from bench.tap.servers import wait_for

HELP, SQL = "`--help`", '`sql "SELECT 1"`'
READY_WITHIN_S = 90.0


def counted(name: str) -> int:
    """The instructions of a command, from the start of Python to its end. Raises NotCounted."""
    with tempfile.TemporaryDirectory() as folder, _analytics(Path(folder), wanted=name == SQL):
        argv = ["sql", "SELECT 1", "--data", folder] if name == SQL else ["--help"]
        argv = ["-m", "streamgauge", *argv]
        first = [sys.executable, *argv]
        subprocess.run(first, cwd=callgrind.ROOT, env=callgrind.ENVIRONMENT, check=True, capture_output=True)
        callgrind.run(out := Path(folder, "callgrind"), argv)
        return callgrind.by_library(out).total()


@contextlib.contextmanager
def _analytics(data: Path, *, wanted: bool) -> Iterator[None]:
    """`sql` asks it."""
    if not wanted:
        yield
        return
    argv = [sys.executable, "-m", "streamgauge", "analyze", "--data", str(data), "--metrics="]
    process = subprocess.Popen(argv, cwd=callgrind.ROOT, stderr=subprocess.DEVNULL)
    try:
        wait_for((data / "run" / "analyze.json").exists, READY_WITHIN_S)
        yield
    finally:
        process.terminate()
        process.wait()
