"""The cases without sockets. Run under callgrind: `python -m bench.instructions.in_memory FOLDER NAME …`.

`prepare` fills the folder without valgrind, where it takes half a minute less.

Each case is prepared and run once before anything is counted. Time, ids and random choices of the work are the same in each run; the
collector begins each case with nothing to collect.
"""

from __future__ import annotations

import ctypes
import functools
import gc
import itertools
import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

import polars as pl

from bench._streams import RNG, WORKLOADS, Workload, reads_of
from bench.analytics import workload as chat
from bench.decode import STREAMS_PER_BATCH, decoding, measuring
from bench.instructions import callgrind
from streamgauge.analytics.assembly.assembler import Assembler
from streamgauge.analytics.assembly.partition import LogPosition
from streamgauge.analytics.consumer import tune_gc
from streamgauge.analytics.measures.measure import measure
from streamgauge.analytics.storage.commit import Commit
from streamgauge.analytics.storage.location import locate
from streamgauge.analytics.storage.store import Store
from streamgauge.ingest.condensed_body import CondensedBody
from streamgauge.ingest.records import Request, encode, unpack
from tests.dashboard.generated_store import filled
from tests.prompt_bodies import encoded, prompt, rendered

EVENTS = 100
"""Output events of a stream."""
DECODED_STREAMS, MEASURED_STREAMS = 4, STREAMS_PER_BATCH
COMMITS = {1: 3, 100: 3, 10_000: 1}
"""Number of commits counted, by their rows of `events`."""
DECODE, MEASURE = "decode: ", "decode and measure: "
OVERVIEW = "script run of Overview"
REQUESTS = "body of 100 KB in the tap"
REQUEST_DIALECTS, REQUEST_BYTES, READ_BYTES = (
    ("openai_chat", "anthropic", "openai_responses", "gemini"), 100_000, 65_536
)  # fmt: skip
LIBRARY, PAGES = "window.so", "pages"
TIMEOUT_S = 600
START_MS = 1_800_000_000_000

Work = Callable[[], object]
Case = Callable[[Path], tuple[Work, int]]
"""Prepares a case. Returns the work, and how many units it does."""


def events_of(
    workload: Workload, prepare: Callable[[Workload, list[list[bytes]], int], Work], streams: int, _: Path
) -> tuple[Work, int]:
    """The events of one dialect, one per read."""
    RNG.seed(7)
    bodies = [reads_of(workload, EVENTS, 1) for _ in range(DECODED_STREAMS)]
    return prepare(workload, bodies, streams), streams * EVENTS


@functools.cache
def opened(folder: Path) -> Store:
    store = Store(locate("sqlite", folder))
    store.acquire_partition("log", "w0")
    return store


def tables(first: int, rows: int) -> dict[str, pl.DataFrame]:
    """The measured tables of new streams, numbered from `first`."""
    assembler = Assembler()
    streams = max(1, rows // chat.EVENTS_A_STREAM)
    for offset, payload in enumerate(chat.entries(streams, first)):
        assembler.feed("w0", offset, unpack(payload)[0])
    found = measure(assembler.take_finished())
    return {**found, "events": found["events"].head(rows)}


def commits_of(rows: int, folder: Path) -> tuple[Work, int]:
    """Commit measured streams, with a position and a counter as in production."""
    count, store = COMMITS[rows], opened(folder)
    first = rows * 1000
    waiting = [(first + n, tables(first + n * 100, rows)) for n in range(2 * count)][::-1]

    def work() -> None:
        for _ in range(count):
            number, found = waiting.pop()
            positions = {"w0": LogPosition(number, number, ())}
            store.commit(Commit("log", positions=positions, tables=found, totals={"streams_finished": 1}))

    return work, count


def overview(folder: Path) -> tuple[Work, int]:
    """A script run of the page over a store with 400 streams. The processes of its queries are not counted."""
    os.environ["STREAMGAUGE_DATA"] = str(folder / PAGES)
    os.cpu_count = lambda: 2  # it decides the number of threads
    import streamlit as st
    from streamlit.testing.v1 import AppTest

    app = AppTest.from_file(callgrind.ROOT / "dashboard" / "app.py", default_timeout=TIMEOUT_S)

    def work() -> None:
        st.cache_data.clear()
        if (failed := app.run().exception) or not app.metric:
            raise ValueError(f"the page was not drawn: {failed}")

    return work, 1


def requests(_: Path) -> tuple[Work, int]:
    """What the tap makes of bodies of about 100 KB, each in two reads: condensed, with their anatomy, encoded as records."""
    rng, bodies = random.Random(3), list[bytes]()
    for dialect in REQUEST_DIALECTS:
        sizes = (encoded(rendered(prompt(rng, long=True), dialect)[0], rng) for _ in itertools.count())
        bodies.append(next(body for body in sizes if abs(len(body) - REQUEST_BYTES) < REQUEST_BYTES / 20))

    def work() -> None:
        for body in bodies:
            walk = CondensedBody(b"k" * 32)
            kept = walk.feed(body[:READ_BYTES]) + walk.feed(body[READ_BYTES:])
            encode(Request("-" * 36, 1, kept, False, condensed=True, anatomy=walk.anatomy))

    return work, len(bodies)


CASES: dict[str, Case] = {
    REQUESTS: requests,
    **{DECODE + w.name: partial(events_of, w, decoding, DECODED_STREAMS) for w in WORKLOADS},
    **{MEASURE + w.name: partial(events_of, w, measuring, MEASURED_STREAMS) for w in WORKLOADS},
    **{f"commit of {rows:,} rows": partial(commits_of, rows) for rows in COMMITS},
    OVERVIEW: overview,
}


def prepare(folder: Path, names: Iterable[str]) -> None:
    """Write what the cases read: the library of `window.c`, and stores."""
    library = [folder / LIBRARY, Path(__file__).with_name("window.c")]
    subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", *library], check=True)
    if any(name.startswith("commit") for name in names):
        Store(locate("sqlite", folder)).close()
    if OVERVIEW in names:
        (folder / PAGES).mkdir()
        filled(folder / PAGES, streams=400)


def counted(names: list[str]) -> dict[str, float]:
    """The instructions of each case per unit, all in one process; the least of several counts. Raises NotCounted."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        prepare(folder, names)
        argv = ["-m", "bench.instructions.in_memory", str(folder), *names]
        units = json.loads(callgrind.run(folder / "callgrind", argv, "--instr-atstart=no"))
        counts: dict[str, int] = {}
        for dump in folder.glob("callgrind.*"):
            case, count = callgrind.name_of(dump), callgrind.by_library(dump).total()
            counts[case] = min(count, counts.get(case, count))
        return {name: counts[name] / units[name] for name in names}


def main(folder: Path, names: list[str]) -> None:
    window = ctypes.CDLL(str(folder / LIBRARY))
    tune_gc()
    chat.START_MS = START_MS
    found = {name: CASES[name](folder) for name in names}
    for work, _ in found.values():
        work()
    window.start()
    # The cases of decoding are so small that what the threads of libraries do at times shows.
    for name in [*found, *(name for name in names if name.startswith(DECODE))]:
        work, _ = found[name]
        gc.collect()
        gc.freeze()
        window.zero()
        work()
        window.dump(name.encode())
    print(json.dumps({name: units for name, (_, units) in found.items()}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
