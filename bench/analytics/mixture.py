"""Bytes per stored event after assembling, measuring, commit and upkeep, for chat streams and a mixture of all formats.

Files are flushed and merged as often as upkeep does it at 20,000 events/s, and once more at the end.

The mixture is every recorded stream of the corpus, repeated in random order, each with different times: the first byte
after 0.2 to 2 s, then gaps of 15 ms (log-normal, a spread of 2 x), every fiftieth read ten times as late, every tenth read with
two events. The corpus is where the tests have it (STREAMGAUGE_CORPUS).
"""

from __future__ import annotations

import json
import math
import os
import random
import re
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

os.environ.setdefault("POLARS_MAX_THREADS", "1")  # read when polars is imported

from bench._stored import bytes_by_table, catalog_bytes, maintain, upkeep_of
from bench.analytics.chat import EVENTS as CHAT_EVENTS
from bench.analytics.chat import TOLD, body
from streamgauge.analytics.assembly.assembler import Assembler
from streamgauge.analytics.assembly.finished_stream import FinishedStream
from streamgauge.analytics.measures.measure import measure
from streamgauge.analytics.storage.commit import Commit
from streamgauge.analytics.storage.location import locate
from streamgauge.analytics.storage.store import Store
from streamgauge.ingest.records import AnyRecord, Closed, Frames, Opened, Request, ResponseHeaders
from tests.analytics.corpus import recordings

COMMIT_EVENTS = 3_000
"""150 ms at 20,000 events/s."""
UPKEEP_EVENTS = 400_000
"""The 20 s between two rounds of upkeep at 20,000 events/s."""
AGO_MS = 3_600_000
"""Start of the streams before now, so that the minutes of their roll-ups are over."""
_BLANK_LINE = re.compile(rb"(?<=\n\n)|(?<=\n\r\n)|(?<=\r\r)")


@dataclass(frozen=True)
class Stored:
    """Bytes of a store."""

    events: int
    streams: int
    event_table_bytes: int
    file_bytes: int
    """All Parquet files."""
    catalog_bytes: int


def chat(folder: Path, events: int) -> Stored:
    """Chat streams of 100 events with different words and times."""
    rng, start_ms = random.Random(9), int(time.time() * 1000) - AGO_MS
    return _stored(
        folder,
        (
            _records(body(rng), TOLD, start_ms + number * 5, number, rng)
            for number in range(events // CHAT_EVENTS)
        ),
    )


def mixed(folder: Path, events: int, least: int = 1) -> Stored | None:
    """The mixture of streams with at least `least` events. None without a corpus."""
    found = [one for one in recordings() if one.found["n_events"] >= least]
    if not found:
        return None
    kinds = [(_BLANK_LINE.split(one.body.read_bytes()), one.found) for one in found]
    return _stored(folder, _mixture(kinds, events))


def mixed_long(folder: Path, events: int) -> Stored | None:
    """Only streams of 100 events and more, because the corpus has mostly short streams."""
    return mixed(folder, events, 100)


def _mixture(kinds: list[tuple[list[bytes], dict[str, object]]], events: int) -> Iterator[list[AnyRecord]]:
    rng = random.Random(8)
    made = number = 0
    start_ms = int(time.time() * 1000) - AGO_MS
    while made < events:
        rng.shuffle(kinds)
        for parts, metadata in kinds:
            yield _records(parts, metadata, start_ms + number * 5, number, rng)
            number += 1
            made += len(parts)


def _records(
    parts: list[bytes], metadata: dict[str, object], start_ms: int, number: int, rng: random.Random
) -> list[AnyRecord]:
    sid = str(
        uuid.UUID(
            int=(start_ms << 80) | (7 << 76) | (rng.getrandbits(12) << 64) | (2 << 62) | rng.getrandbits(62)
        )
    )
    at_ns = int(rng.uniform(0.2, 2.0) * 1e9)
    frames: list[tuple[int, bytes]] = []
    for part in parts:
        if frames and rng.random() < 0.1:
            frames[-1] = (frames[-1][0], frames[-1][1] + part)
            continue
        at_ns += int(15e6 * math.exp(rng.gauss(0, 0.7)) * (10 if rng.random() < 0.02 else 1))
        frames.append((at_ns, part))
    size = sum(map(len, parts))
    head = ResponseHeaders(
        int(str(metadata.get("http_status") or 200)),
        [("content-type", str(metadata.get("content_type")))],
        frames[0][0] - 1,
    )
    return [
        Opened(
            sid, 0, "tap-1", number % 4, "i", f"gateway-{number % 3}", "10.0.0.1", 443, "POST", str(metadata.get("url")),
            start_ms * 1_000_000, start_ms * 1_000_000, -rng.randrange(50_000, 5_000_000), f"{rng.getrandbits(128):032x}",
            f"{rng.getrandbits(64):016x}", None, 1, f"client-{rng.randrange(200)}", [],
        ),
        Request(sid, 1, json.dumps(metadata.get("request") or {}).encode(), False),
        Frames(sid, 2, frames, head),
        Closed(sid, 3, "complete", None, at_ns + 200_000, 9_000_000, 9_500_000, 900, size, size, at_ns + 300_000),
    ]  # fmt: skip


def _stored(folder: Path, batches: Iterator[list[AnyRecord]]) -> Stored:
    location = locate("sqlite", folder)
    store = Store(location)
    with upkeep_of(store) as upkeep:
        since_upkeep = 0
        for finished, events in _commits(batches):
            store.commit(Commit("log", tables=measure(finished)))
            since_upkeep += events
            if since_upkeep >= UPKEEP_EVENTS:
                upkeep.flush()
                upkeep.merge()
                since_upkeep = 0
    maintain(store)
    cursor = store.cursor()
    [(events, streams)] = cursor.execute(
        "SELECT (SELECT count(*) FROM events), (SELECT count(*) FROM streams)"
    ).fetchall()
    cursor.close()
    size = bytes_by_table(store)
    store.close()
    return Stored(events, streams, size["events"], sum(size.values()), catalog_bytes(location))


def _commits(batches: Iterator[list[AnyRecord]]) -> Iterator[tuple[list[FinishedStream], int]]:
    """The finished streams of each commit and their number of events."""
    assembler = Assembler()
    finished: list[FinishedStream] = []
    events = 0
    for offset, records in enumerate(batches):
        assembler.feed("w0", offset, records)
        for stream in assembler.take_finished():
            finished.append(stream)
            events += len(stream.body.events) if stream.body is not None else 0
        if events >= COMMIT_EVENTS:
            yield finished, events
            finished, events = [], 0
    if finished:
        yield finished, events


KINDS: dict[str, Callable[[Path, int], Stored | None]] = {
    "chat streams of 100 events": chat,
    "every recorded stream": mixed,
    "recorded streams of 100 events and more": mixed_long,
}
