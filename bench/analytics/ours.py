"""Streamgauge's pipeline: by stage, and end to end from the embedded log to committed rows."""

from __future__ import annotations

import os
import resource
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

os.environ.setdefault("POLARS_MAX_THREADS", "1")  # read when polars is imported

import polars as pl

from bench.analytics.workload import EVENTS_A_STREAM, entries
from streamgauge.analytics.assembly.assembler import Assembler
from streamgauge.analytics.assembly.finished_stream import FinishedStream
from streamgauge.analytics.consumer import CommitPolicy, Consumer, tune_gc
from streamgauge.analytics.measures.measure import measure
from streamgauge.analytics.measures.minute_rows import rollups
from streamgauge.analytics.storage.commit import Commit
from streamgauge.analytics.storage.location import locate
from streamgauge.analytics.storage.store import Store
from streamgauge.ingest.record_log.embedded_reader import EmbeddedReader
from streamgauge.ingest.record_log.embedded_writer import EmbeddedWriter
from streamgauge.ingest.record_log.interface import LogReader
from streamgauge.ingest.records import AnyRecord, unpack

COMMIT_STREAMS = CommitPolicy().commit_events // EVENTS_A_STREAM
DUCKDB_BYTES = 256 * 2**20
"""DuckDB's memory limit in the long run. Low, so that its caches are full early and do not hide other growth."""


@contextmanager
def timed(into: dict[str, float], name: str) -> Iterator[None]:
    """Add the CPU time of this process (all its threads) to `into[name]`."""
    began_s = time.process_time()
    yield
    into[name] = into.get(name, 0.0) + time.process_time() - began_s


def write_log(folder: Path, streams: int, first: int = 0) -> None:
    """Write an embedded log with that many streams."""
    with EmbeddedWriter(folder, "w0", cap_bytes=64 * 2**30) as writer:
        for payload in entries(streams, first):
            writer.append([payload])


def stages(streams: int) -> dict[str, float]:
    """CPU seconds of each stage, run one after another over whole commits."""
    spent: dict[str, float] = {}
    tune_gc()  # as every consumer does
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_log(folder / "log", streams)
        reader = EmbeddedReader(folder / "log", "bench", sole=True)
        store = Store(locate("sqlite", folder))
        assembler = Assembler()
        finished: list[FinishedStream] = []
        while True:
            with timed(spent, "read the log"):
                found = reader.poll(0)
            if not found:
                break
            with timed(spent, "unpack records"):
                unpacked: list[tuple[int, list[AnyRecord]]] = [
                    (e.offset, unpack(e.payload)[0]) for e in found
                ]
            with timed(spent, "assemble and decode"):
                for offset, records in unpacked:
                    assembler.feed("w0", offset, records)
            finished += assembler.take_finished()
            if len(finished) >= COMMIT_STREAMS:
                _commit(store, finished, spent)
                finished = []
        if finished:
            _commit(store, finished, spent)
        reader.close()
        store.close()
    return spent


def _commit(store: Store, finished: list[FinishedStream], spent: dict[str, float]) -> None:
    with timed(spent, "measure"):
        tables: dict[str, pl.DataFrame] = measure(finished)
    with timed(spent, "roll up"):
        rollups(tables)
    with timed(spent, "commit (rolls up too)"):
        store.commit(Commit("log", tables=tables))


def end_to_end(folder: Path, open_reader: Callable[[], LogReader], streams: int) -> float:
    """CPU seconds from an existing log to committed rows.

    Raises ValueError when a row is missing.
    """
    reader = open_reader()
    data = folder / str(time.monotonic_ns())
    store = Store(locate("sqlite", data))
    consumer = Consumer(reader, store, Assembler(), measure, CommitPolicy())
    tune_gc()
    began_s, began_wall_s = time.process_time(), time.monotonic()
    consumer.start()
    rows = 0
    while rows < streams and time.monotonic() - began_wall_s < 280:
        consumer.step(0.05)
        if consumer.commits:
            rows = store.totals().get("streams_rows", 0)
    consumer.finish()
    took_s = time.process_time() - began_s
    reader.close()
    found = store.totals()
    store.close()
    shutil.rmtree(data)
    if found["streams_rows"] != streams or found["events_rows"] != streams * EVENTS_A_STREAM:
        raise ValueError(f"rows are missing: {found}")
    return took_s


def embedded_rates(streams: int, runs: int = 5) -> list[float]:
    """Events per second of CPU time from the embedded log. Each run reads the same log, after a warm-up."""
    events, rates = streams * EVENTS_A_STREAM, []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_log(folder / "log", streams)
        for number in range(runs + 1):
            cpu_s = end_to_end(folder, partial(EmbeddedReader, folder / "log", f"bench-{number}"), streams)
            if number:
                rates.append(events / cpu_s)
    return rates


def resident(streams: int, parts: int = 10) -> Iterator[tuple[int, int, int]]:
    """(events so far, resident bytes, DuckDB's bytes) after each tenth of one run, to detect growth."""
    tune_gc()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        store = Store(locate("sqlite", folder), memory_limit_bytes=DUCKDB_BYTES)
        reader = EmbeddedReader(folder / "log", "bench", sole=True)
        consumer: Consumer | None = None
        a_part = streams // parts
        for part in range(1, parts + 1):
            write_log(folder / "log", a_part, first=(part - 1) * a_part)
            if consumer is None:
                consumer = Consumer(reader, store, Assembler(), measure, CommitPolicy())
                consumer.start()
            while store.totals().get("streams_rows", 0) < part * a_part:
                consumer.step(0.05)
            pages = int(Path("/proc/self/statm").read_text().split()[1])
            row = (
                store.cursor()
                .execute("SELECT sum(memory_usage_bytes)::BIGINT FROM duckdb_memory()")
                .fetchone()
            )
            duckdb_bytes = row[0] if row else 0
            yield part * a_part * EVENTS_A_STREAM, pages * resource.getpagesize(), duckdb_bytes
        reader.close()
        store.close()
