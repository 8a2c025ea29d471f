"""CPU, wall and memory of a job, in its own process, and an end to one that hears nothing. Standard library alone: it runs in
every contender's environment.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from pathlib import Path

SILENT_S = 60.0
"""To join a group takes seconds; a job that hears nothing for so long has not been given its partition, or has lost it."""
SILENT = 75
"""Exit code of a job that gave up for silence: it may be tried again."""


class Clock:
    """Runs from where it is made."""

    def __init__(self) -> None:
        self._wall_s, self._cpu_s = time.monotonic(), time.process_time()

    def tell(self) -> None:
        """Print what was taken since."""
        took = {
            "cpu_s": time.process_time() - self._cpu_s,
            "wall_s": time.monotonic() - self._wall_s,
            "peak_bytes": _peak_bytes(),
        }
        print(json.dumps(took), flush=True)


def _peak_bytes() -> int:
    """The most memory that this program had: `ru_maxrss` would be that of the process that started it, if it had more."""
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM:"))


class Watch:
    """Ends the process with `SILENT`, and says so, when nothing is heard for `SILENT_S`. `heard` counts what was."""

    def __init__(self) -> None:
        self.heard = 0
        threading.Thread(target=self._look, daemon=True).start()

    def _look(self) -> None:
        before = -1
        while self.heard != before:
            before = self.heard
            time.sleep(SILENT_S)
        what = (
            f"after {before} messages" if before else "at all: the group was not given the topic's partition"
        )
        print(f"nothing was heard for {SILENT_S:.0f} s {what}", file=sys.stderr, flush=True)
        os._exit(SILENT)
