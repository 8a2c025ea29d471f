"""CPU, wall and memory of a job, in its own process. Standard library alone: it runs in every contender's environment."""

from __future__ import annotations

import json
import resource
import time


class Clock:
    """Runs from where it is made."""

    def __init__(self) -> None:
        self._wall_s, self._cpu_s = time.monotonic(), time.process_time()

    def tell(self) -> None:
        """Print what was taken since."""
        took = {
            "cpu_s": time.process_time() - self._cpu_s,
            "wall_s": time.monotonic() - self._wall_s,
            "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        }
        print(json.dumps(took), flush=True)
