"""Measure CPU, wall time and memory of a job in its process, and end a job that receives nothing.

Standard library only, because it runs in every contender's environment.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from pathlib import Path

SILENT_S = 60.0
"""Joining a group takes seconds. A job that receives nothing for this long has no partition."""
SILENT = 75
"""Exit code of a job that received nothing. It can be retried."""


class Clock:
    """Measures from its creation."""

    def __init__(self) -> None:
        self._wall_s, self._cpu_s = time.monotonic(), time.process_time()

    def report(self) -> None:
        """Print the measurements as JSON."""
        took = {
            "cpu_s": time.process_time() - self._cpu_s,
            "wall_s": time.monotonic() - self._wall_s,
            "peak_bytes": _peak_bytes(),
        }
        print(json.dumps(took), flush=True)


def _peak_bytes() -> int:
    """Peak memory of this process. `ru_maxrss` includes that of the parent process."""
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM:"))


class Watch:
    """Ends the process with exit code `SILENT` if `received` does not change for `SILENT_S`."""

    def __init__(self) -> None:
        self.received = 0
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        before = -1
        while self.received != before:
            before = self.received
            time.sleep(SILENT_S)
        detail = f"after {before} messages" if before else "at all: the group has no partition of the topic"
        print(f"nothing received for {SILENT_S:.0f} s {detail}", file=sys.stderr, flush=True)
        os._exit(SILENT)
