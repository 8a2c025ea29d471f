"""Compare one consumer with two on a full topic, and kill one of two half-way.

The consumers start, share the partitions and are stopped while the topic is filled. Then they continue together, and the
time is measured until every stream is stored. Runs with one and with two consumers alternate in changing order, and each
pair gives one ratio. Every run reads the same messages. The rows of all runs, and of a SQLite store, are compared by
checksums over all columns.

Each consumer is pinned to one core. Kafka and PostgreSQL may use any core. On two cores they have an idle core only with a
single consumer.
"""

from __future__ import annotations

import os
import signal
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from bench.scale import page
from bench.scale.run import PARTITIONS, Run
from bench.scale.traffic import READS, record_of_topic, replay
from streamgauge.analytics.assembly.assembler import Assembler
from streamgauge.analytics.consumer import Consumer
from streamgauge.analytics.measures.measure import measure
from streamgauge.analytics.schema.stall_limit import StallLimit
from streamgauge.analytics.storage.location import locate
from streamgauge.analytics.storage.store import Store
from streamgauge.ingest.record_log.interface import Entry
from streamgauge.ingest.record_log.kafka_client import ensure_topic
from streamgauge.ingest.record_log.kafka_reader import KafkaReader
from tests.kafka import Broker
from tests.postgres import Postgres

POLL_S = 0.1
KILLED_SESSION_MS = 30_000
"""Session timeout after which a killed consumer is detected. Consumers are stopped for a shorter time."""
STORED_S = 240.0
"""Timeout of a run, far above its usual duration."""
"""The defaults of `analyze`."""


@dataclass
class Result:
    """Cost and rows of one run."""

    events: int
    took_s: float
    cpu_s: dict[str, float]
    slept: list[float]
    """Share of the time in which each consumer's main thread slept."""
    waited: list[float]
    """Share of the time in which it waited for a core."""
    rows: tuple[object, ...]

    HEAD: ClassVar = (
        "consumers", "events/s", "events per CPU second of the consumers", "CPU: consumers, Kafka, PostgreSQL",
        "main threads asleep", "waiting for a core",
    )  # fmt: skip

    @property
    def per_s(self) -> float:
        """Events per second of wall time."""
        return self.events / self.took_s

    @property
    def per_cpu_s(self) -> float:
        """Events per second of CPU time of the consumers."""
        return self.events / sum(s for name, s in self.cpu_s.items() if name.startswith("consumer"))

    def row(self) -> list[str]:
        """The cells of the columns `HEAD`."""
        consumers_s = sum(s for name, s in self.cpu_s.items() if name.startswith("consumer"))
        spent = f"{consumers_s:.1f} s, {self.cpu_s['Kafka']:.1f} s, {self.cpu_s['PostgreSQL']:.1f} s of {self.took_s:.1f} s"
        idle = (", ".join(f"{share:.0%}" for share in shares) for shares in (self.slept, self.waited))
        return [str(len(self.slept)), f"{self.per_s:,.0f}", f"{self.per_cpu_s:,.0f}", spent, *idle]

    def __str__(self) -> str:
        cpu = ", ".join(f"{name} {s:.1f} s" for name, s in self.cpu_s.items())
        threads = ", ".join(
            f"{s:.0%} asleep, {w:.0%} waiting for a core"
            for s, w in zip(self.slept, self.waited, strict=True)
        )
        return f"{self.events} events in {self.took_s:.1f} s, {self.per_s:,.0f} events/s; CPU {cpu}; main threads {threads}"


def compare(broker: Broker, postgres: Postgres, streams: int, rounds: int, *, pin: bool) -> list[str]:
    """Print each run. Returns the lines of the page."""
    cores = [{core} for core in sorted(os.sched_getaffinity(0))] if pin else []
    topic = f"scale-{os.getpid()}"
    ensure_topic(broker.address, topic, {}, partitions=PARTITIONS)
    entries = record_of_topic(broker.address, topic, streams, int(time.time() * 1000))
    sums = {"SQLite": _in_sqlite(broker, topic)}
    pairs: list[dict[int, Result]] = []
    for number in range(rounds):
        pair = {}
        for consumers in (1, 2) if number % 2 == 0 else (2, 1):
            pair[consumers] = _one_run(broker, postgres, entries, streams, cores[:consumers], consumers)
            print(f"round {number + 1}, {consumers} consumer(s): {pair[consumers]}", flush=True)
            sums[f"round {number + 1}, {consumers} consumer(s)"] = pair[consumers].rows
        pairs.append(pair)
    sums["two, one of them killed half-way"] = _one_is_killed(broker, postgres, entries, streams)
    same = len(set(sums.values())) == 1
    ratio = statistics.median(pair[2].per_s / pair[1].per_s for pair in pairs)
    return [
        *page.table(Result.HEAD, [_median([pair[n] for pair in pairs]) for n in (1, 2)]),
        "",
        f"**{ratio:.2f} ×** the throughput, the median of {rounds} pairs over {streams * len(READS):,} events"
        f"{', each consumer pinned to one core' if pin else ''}. "
        + (
            f"The rows of all {len(sums)} runs are equal, including the run in SQLite and the run with one of two "
            "consumers killed half-way."
            if same
            else f"ROWS DIFFER: {sums}"
        ),
    ]


def _median(results: Sequence[Result]) -> list[str]:
    """The table row of the run with the median throughput."""
    result = sorted(results, key=lambda one: one.per_s)[len(results) // 2]
    return result.row()


def _in_sqlite(broker: Broker, topic: str) -> tuple[object, ...]:
    """The checksums of the rows after one process has read the topic into a SQLite store."""
    with tempfile.TemporaryDirectory() as folder:
        store = Store(locate("sqlite", Path(folder)), stall=StallLimit())
        reader = KafkaReader(broker.address, topic, {})
        consumer = Consumer(
            reader,
            store,
            Assembler(),
            lambda finished: measure(finished, StallLimit()),
        )
        try:
            while not reader.partitions():
                time.sleep(POLL_S)
            consumer.start()
            while consumer.health()["pipeline.lag"] or not consumer.commits:
                consumer.step(0.2)
            consumer.finish()
            found = store.cursor().execute(f"SELECT {CHECKSUM}").fetchall()
        finally:
            reader.close()
            store.close()
        return tuple(found[0])


def _one_is_killed(
    broker: Broker, postgres: Postgres, entries: Sequence[Entry], streams: int
) -> tuple[object, ...]:
    """The checksums of the rows of two consumers. One is killed when half of the streams are stored."""
    with (
        tempfile.TemporaryDirectory() as folder,
        Run(broker, postgres, Path(folder), 2, session_ms=KILLED_SESSION_MS) as run,
    ):
        run.send(signal.SIGSTOP)
        replay(broker.address, run.topic, entries)
        run.send(signal.SIGCONT)
        killed, began_s = False, time.monotonic()
        while (stored := run.streams()) < streams:
            _check(began_s, stored, streams)
            if stored >= streams // 2 and not killed:
                killed = True
                run.processes[0].kill()
            time.sleep(POLL_S)
        if not killed:
            raise RuntimeError(
                "all streams were stored before one consumer could be killed. Pass more --streams"
            )
        print(f"two consumers, one of them killed half-way: {stored} streams", flush=True)
        return run.ask(f"SELECT {CHECKSUM}")[0]


def _one_run(
    broker: Broker,
    postgres: Postgres,
    entries: Sequence[Entry],
    streams: int,
    cores: list[set[int]],
    consumers: int,
) -> Result:
    with (
        tempfile.TemporaryDirectory() as folder,
        Run(broker, postgres, Path(folder), consumers, cores) as run,
    ):
        run.send(signal.SIGSTOP)
        replay(broker.address, run.topic, entries)
        cpu_before_s, threads_before, began_s = run.cpu_s(), run.main_threads(), time.monotonic()
        run.send(signal.SIGCONT)
        while (stored := run.streams()) < streams:
            _check(began_s, stored, streams)
            time.sleep(POLL_S)
        took_s = time.monotonic() - began_s
        threads = list(zip(threads_before, run.main_threads(), strict=True))
        cpu_s = {name: s - cpu_before_s[name] for name, s in run.cpu_s().items()}
        return Result(
            streams * len(READS),
            took_s,
            cpu_s,
            [1 - (b.ran_s - a.ran_s + b.waited_s - a.waited_s) / took_s for a, b in threads],
            [(b.waited_s - a.waited_s) / took_s for a, b in threads],
            run.ask(f"SELECT {CHECKSUM}")[0],
        )


def _check(began_s: float, stored: int, streams: int) -> None:
    """Raise RuntimeError after the timeout."""
    if time.monotonic() - began_s > STORED_S:
        raise RuntimeError(f"{stored} of {streams} streams were stored after {STORED_S:.0f} s")


CHECKSUM = (
    "(SELECT count(*) || ' ' || sum(hash(streams::VARCHAR)) FROM streams), "
    "(SELECT count(*) || ' ' || sum(hash(events::VARCHAR)) FROM events), (SELECT sum(streams)::VARCHAR FROM stream_minutes)"
)
"""One checksum per table, independent of the order of rows."""
