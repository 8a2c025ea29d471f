"""Bytes per event of recorded streams and of chat streams, after upkeep. Arguments: EVENTS (of each kind)."""

from __future__ import annotations

import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tree import module, report

AGO_MS = 3_600_000


def store_chat(folder: Path, events: int) -> Any:
    """Chat streams of 100 events, stored by the code of the tree."""
    mixture, chat = module("bench.analytics.mixture"), module("bench.analytics.chat")
    rng, start_ms = random.Random(9), int(time.time() * 1000) - AGO_MS
    return mixture._stored(
        folder,
        (
            mixture._records(chat.body(rng), chat.TOLD, start_ms + number * 5, number, rng)
            for number in range(events // chat.EVENTS)
        ),
    )


def main(events: int) -> None:
    mixture = module("bench.analytics.mixture")
    kinds = {
        "chat streams of 100 events": store_chat,
        "every recorded stream": mixture.mixed,
        "recorded streams of 100 events and more": mixture.mixed_long,
    }
    found = {}
    with tempfile.TemporaryDirectory() as name:
        for number, (kind, store) in enumerate(kinds.items()):
            stored = store(Path(name) / str(number), events)
            if stored is not None:
                found[kind] = {
                    "events": stored.events,
                    "streams": stored.streams,
                    "in_events": stored.event_table_bytes / stored.events,
                    "in_tables": stored.file_bytes / stored.events,
                    "in_all": (stored.file_bytes + stored.catalog_bytes) / stored.events,
                }
    report(kinds=found)


if __name__ == "__main__":
    main(int(sys.argv[1]))
