"""Bytes an event of recorded streams and of chat streams, after upkeep. Called with EVENTS (of each kind).

The parent's bench has no chat streams whose words and times differ, so they are made here for both trees. The parent's upkeep
is a checkpoint.
"""

from __future__ import annotations

import importlib.util
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tree import is_current, module, report

AGO_MS = 3_600_000


def chat_module() -> Any:
    """`bench.analytics.chat` of the tree that this file is in."""
    spec = importlib.util.spec_from_file_location("chat", Path(__file__).parents[2] / "analytics" / "chat.py")
    assert spec is not None
    assert spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


def store_chat(folder: Path, events: int) -> Any:
    """Chat streams of 100 events, stored by the tree's own path."""
    mixture, chat = module("bench.analytics.mixture"), chat_module()
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
