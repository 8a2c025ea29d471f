"""Seconds of each public view and of a timeline. Called with FOLDER EVENTS; the first call fills the store in FOLDER."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

os.environ["POLARS_MAX_THREADS"] = "1"  # read when polars is imported

from tree import module, report


def main(folder: Path, events: int) -> None:
    stored = module("bench.analytics.stored")
    folder.mkdir(parents=True, exist_ok=True)
    data = folder / str(events)
    began_s = time.monotonic()
    if not data.exists():
        stored.fill(data, events)
    filled_s = time.monotonic() - began_s
    stored.bring_up_to_now(data)
    measured = stored.ask(data)
    report(
        events=measured.events,
        filled_s=filled_s,
        seconds=measured.seconds,
        bytes_an_event=measured.bytes_an_event,
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
