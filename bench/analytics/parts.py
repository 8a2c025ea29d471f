"""The parts of the benchmark. Each returns its results as Markdown lines."""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path

from bench.analytics.page import table
from bench.analytics.workload import EVENTS_A_STREAM

Given = argparse.Namespace
LOADS = (1_000, 5_000, 10_000, 20_000)
SIZES = (1_000_000, 10_000_000, 100_000_000)
MOST_MADE = 10_000_000
"""Larger stores take minutes to create, so they need --folder."""


def stages(given: Given) -> list[str]:
    """CPU time of each stage from the embedded log to the commit, median of the rounds."""
    from bench.analytics import ours

    runs = [ours.stages(given.streams) for _ in range(given.rounds)]
    events = given.streams * EVENTS_A_STREAM
    rows = [[name, f"{events / statistics.median(run[name] for run in runs):,.0f}"] for name in runs[0]]
    return table(["stage", "events per CPU second"], rows)


def embedded(given: Given) -> list[str]:
    """End to end from the embedded log."""
    from bench.analytics import ours

    rates = ours.embedded_rates(given.streams, given.rounds)
    return [
        f"From the embedded log to committed rows: {statistics.median(rates):,.0f} events per CPU second "
        f"({min(rates):,.0f} … {max(rates):,.0f} in {len(rates)} runs)."
    ]


def kafka(given: Given) -> list[str]:
    """From real Kafka, compared with Quix Streams and a plain script."""
    from bench.analytics import brokered

    found = brokered.race(given.streams, given.rounds)
    rates = {name: statistics.median(run.events / run.cpu_s for run in runs) for name, runs in found.items()}
    base = rates[brokered.QUIX.name]
    rows = [
        [
            name,
            f"{rates[name]:,.0f}",
            f"{rates[name] / base:.2f}",
            f"{statistics.median(run.events / run.wall_s for run in runs):,.0f}",
            f"{max(run.peak_bytes for run in runs) / 2**20:,.0f}",
        ]
        for name, runs in found.items()
    ]
    return table(["from Kafka", "events per CPU second", "× Quix", "events/s", "peak MiB"], rows)


def freshness(given: Given) -> list[str]:
    """From the last byte to the row in SQL, at several loads."""
    from bench.analytics import freshness

    rows = []
    for rate in LOADS:
        found = freshness.measure(rate, given.seconds)
        if len(found.delays_s) < found.streams:
            raise RuntimeError(
                f"{len(found.delays_s)} of {found.streams} streams were seen at {rate} events/s"
            )
        quantiles = [f"{found.quantile(share):.2f} s" for share in (0.5, 0.95, 0.99)]
        cores = [f"{found.analytics_cores:.2f}", f"{found.load_cores:.2f}"]
        rows.append([f"{rate:,}", f"{found.streams:,}", *quantiles, f"{max(found.delays_s):.2f} s", *cores])
    head = ["events/s", "streams", "p50", "p95", "p99", "max", "cores of analytics", "of the load"]
    return table(head, rows)


def sizes(given: Given) -> list[str]:
    """Bytes per stored event."""
    from bench.analytics import mixture

    rows = []
    with tempfile.TemporaryDirectory() as name:
        for number, (kind, store) in enumerate(mixture.KINDS.items()):
            stored = store(Path(name) / str(number), given.events)
            if stored is not None:
                sizes = [
                    stored.event_table_bytes,
                    stored.file_bytes,
                    stored.file_bytes + stored.catalog_bytes,
                ]
                shares = [f"{size / stored.events:.1f}" for size in sizes]
                rows.append([kind, f"{stored.events:,}", f"{stored.streams:,}", *shares])
    head = ["stored", "events", "streams", "bytes per event in `events`", "in all tables", "with the catalog"]
    return table(head, rows)


def queries(given: Given) -> list[str]:
    """Each public view, and a stream's timeline."""
    from bench.analytics import stored

    results = []
    with tempfile.TemporaryDirectory() as temporary:
        for events in SIZES:
            folder = (given.folder or Path(temporary)) / str(events)
            if not folder.exists():
                if given.folder is None and events > MOST_MADE:
                    continue
                stored.fill(folder, events)
            stored.bring_up_to_now(folder)
            results.append(stored.ask(folder))
    rows = [[name, *(f"{one.seconds[name] * 1e3:,.0f} ms" for one in results)] for name in stored.QUERIES]
    rows += [
        [f"bytes per event, {name}", *(f"{one.bytes_an_event[name]:.2f}" for one in results)]
        for name in results[0].bytes_an_event
    ]
    return table(["over", *(f"{one.events:,} events" for one in results)], rows)


def memory(given: Given) -> list[str]:
    """Memory of one long run."""
    from bench.analytics import ours

    found = ours.resident(given.long_events // EVENTS_A_STREAM)
    rows = [
        [f"{events:,}", f"{size / 2**20:,.0f}", f"{cached / 2**20:,.0f}", f"{(size - cached) / 2**20:,.0f}"]
        for events, size, cached in found
    ]
    limit = f"of them DuckDB's (limit {ours.DUCKDB_BYTES // 2**20})"
    return table(["events so far, in one process", "MiB resident", limit, "all else"], rows)


PARTS: dict[str, Callable[[Given], list[str]]] = {
    "stages": stages,
    "embedded": embedded,
    "kafka": kafka,
    "freshness": freshness,
    "queries": queries,
    "sizes": sizes,
    "memory": memory,
}
