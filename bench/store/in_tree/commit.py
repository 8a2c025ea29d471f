"""Median milliseconds of one commit by its number of streams (100 events each). Arguments: COMMITS STREAMS…

`commit` is `Store.commit`. `insert` writes the same tables, roll-ups included, with DuckLake's INSERT in one transaction
and the same limit of inlined rows.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ["POLARS_MAX_THREADS"] = "1"  # read when polars is imported

from tree import module, open_store, report

WARM_UP = 3


@dataclass(frozen=True)
class At:
    """A position of the log."""

    high: int
    low: int
    open_stream_ids: tuple[str, ...] = ()


def batches(streams: int, commits: int) -> Iterator[dict[str, Any]]:
    """The measured tables of each commit, with new streams."""
    assembler = module("streamgauge.analytics.assembly.assembler").Assembler()
    measure, unpack = (
        module("streamgauge.analytics.measures.measure").measure,
        module("streamgauge.ingest.records").unpack,
    )
    for number in range(commits):
        for offset, payload in enumerate(
            module("bench.analytics.workload").entries(streams, number * streams)
        ):
            assembler.feed("w0", number * 1_000_000 + offset, unpack(payload)[0])
        yield measure(assembler.take_finished())


def timed(commit: Callable[[int, dict[str, Any]], None], streams: int, commits: int) -> dict[str, float]:
    """Median milliseconds: CPU of all threads, and wall."""
    cpu_ms, wall_ms = [], []
    for number, tables in enumerate(batches(streams, commits + WARM_UP)):
        began = time.process_time(), time.monotonic()
        commit(number, tables)
        cpu_ms.append((time.process_time() - began[0]) * 1e3)
        wall_ms.append((time.monotonic() - began[1]) * 1e3)
    return {"cpu_ms": statistics.median(cpu_ms[WARM_UP:]), "wall_ms": statistics.median(wall_ms[WARM_UP:])}


def by_our_commit(folder: Path, streams: int, commits: int) -> dict[str, float]:
    """`Store.commit`, with a position and a counter as in production."""
    store, Commit = open_store(folder), module("streamgauge.analytics.storage.commit").Commit
    store.acquire_partition("log", "w0")

    def commit(number: int, tables: dict[str, Any]) -> None:
        store.commit(
            Commit(
                "log",
                positions={"w0": At(number, number)},
                tables=tables,
                totals={"streams_finished": streams},
            )
        )

    took = timed(commit, streams, commits)
    store.close()
    return took


def by_insert(folder: Path, streams: int, commits: int) -> dict[str, float]:
    """DuckLake's INSERT into the same tables of a plain DuckLake."""
    rollups = module("streamgauge.analytics.measures.minute_rows").rollups
    location = module("streamgauge.analytics.storage.location").locate("sqlite", folder)
    module("streamgauge.analytics.storage.sqlite_catalog").create_file(location.catalog)
    database = module("streamgauge.analytics.storage.database")
    connection = database.new_database()
    database.attach(connection, location, read_only=False)
    options = {
        **module("streamgauge.analytics.storage.create_schema").OPTIONS,
        "data_inlining_row_limit": module("streamgauge.analytics.storage.store").INLINED_ROWS,
    }
    for option, value in options.items():
        connection.execute(f"CALL ducklake_set_option('lake', '{option}', '{value}')")
    connection.execute(module("streamgauge.analytics.schema.ddl").statements()[0])

    def commit(number: int, tables: dict[str, Any]) -> None:
        connection.execute("BEGIN TRANSACTION")
        for name, rows in {**tables, **rollups(tables)}.items():
            if rows.height:
                connection.register("rows", rows)
                connection.execute(f"INSERT INTO {name} BY NAME FROM rows")
                connection.unregister("rows")
        connection.execute("COMMIT")

    took = timed(commit, streams, commits)
    connection.close()
    return took


def main(commits: int, sizes: list[int]) -> None:
    ways = {"commit": by_our_commit, "insert": by_insert}
    with tempfile.TemporaryDirectory() as name:
        found = {
            way: {streams: run(Path(name) / f"{way}-{streams}", streams, commits) for streams in sizes}
            for way, run in ways.items()
        }
    report(**found)


if __name__ == "__main__":
    main(int(sys.argv[1]), [int(size) for size in sys.argv[2:]])
