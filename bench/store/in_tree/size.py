"""Bytes an event of recorded streams and of chat streams, after upkeep. Called with EVENTS (of each kind)."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tree import is_current, module, report


def main(events: int) -> None:
    found = {}
    with tempfile.TemporaryDirectory() as name:
        for number, (kind, store) in enumerate(module("bench.analytics.mixture").KINDS.items()):
            stored = store(Path(name) / str(number), events)
            if stored is not None:
                catalog = stored.catalog_bytes if is_current() else 0
                found[kind] = {
                    "events": stored.events,
                    "streams": stored.streams,
                    "in_events": stored.event_table_bytes / stored.events,
                    "in_tables": stored.file_bytes / stored.events,
                    "in_all": (stored.file_bytes + catalog) / stored.events,
                }
    report(kinds=found)


if __name__ == "__main__":
    main(int(sys.argv[1]))
