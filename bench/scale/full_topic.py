"""One consumer against two on a topic that is full already.

Consumers are started and share the partitions, are held while the topic is filled, and let go together: from then on the
clock runs, until every stream is in the lake. One and two take turns, and the ratio is that of each pair. Every run gets the
very same messages, and the rows of all runs are compared, by a sum over all their columns.

On a machine of two cores a consumer that may use both is a different thing from one that shares them; so that like is
compared with like, each consumer has one core of its own (`--pin`), and Kafka and PostgreSQL go wherever there is room.
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

from bench.scale.run import PARTITIONS, Run
from bench.scale.traffic import READS, record_of_topic, replay
from ingest.log import Entry
from ingest.log.kafka import ensure_topic
from tests.kafka import Broker
from tests.postgres import Postgres

POLL_S = 0.05


@dataclass
class Result:
    """Of one run."""

    events: int
    took_s: float
    cpu_s: dict[str, float]
    slept: list[float]
    """Of each consumer's main thread: the share of the time in which it had nothing to run."""
    waited: list[float]
    """And the share in which it had, and no core to run on."""
    rows: tuple[object, ...]

    @property
    def per_s(self) -> float:
        """Events by the clock."""
        return self.events / self.took_s

    @property
    def per_cpu_s(self) -> float:
        """Events a CPU second of the consumers."""
        return self.events / sum(s for name, s in self.cpu_s.items() if name.startswith("consumer"))

    def __str__(self) -> str:
        cpu = ", ".join(f"{name} {s:.1f} s" for name, s in self.cpu_s.items())
        threads = ", ".join(
            f"{s:.0%} asleep, {w:.0%} without a core" for s, w in zip(self.slept, self.waited, strict=True)
        )
        return f"{self.events} events in {self.took_s:.1f} s, {self.per_s:,.0f} events/s; CPU {cpu}; main threads {threads}"


def compare(broker: Broker, postgres: Postgres, streams: int, rounds: int, *, pin: bool) -> None:
    """Print each run, and the medians."""
    cores = [{core} for core in sorted(os.sched_getaffinity(0))] if pin else []
    entries = _messages(broker, streams)
    pairs: list[tuple[Result, Result]] = []
    for number in range(rounds):
        found = []
        for consumers in (1, 2):
            found.append(_one_run(broker, postgres, entries, streams, cores[:consumers], consumers))
            print(f"round {number + 1}, {consumers} consumer(s): {found[-1]}", flush=True)
        pairs.append((found[0], found[1]))
    one, two = (statistics.median(pair[n].per_s for pair in pairs) for n in (0, 1))
    ratio = statistics.median(b.per_s / a.per_s for a, b in pairs)
    print(f"median: one {one:,.0f} events/s, two {two:,.0f}; of the pairs {ratio:.2f} x by the clock")
    one, two = (statistics.median(pair[n].per_cpu_s for pair in pairs) for n in (0, 1))
    print(f"median per CPU second of the consumers: one {one:,.0f} events, two {two:,.0f}: {two / one:.0%}")
    sums = {result.rows for pair in pairs for result in pair}
    print("the rows of all runs are the same" if len(sums) == 1 else f"ROWS DIFFER: {sums}")


def _messages(broker: Broker, streams: int) -> Sequence[Entry]:
    topic = f"scale-{os.getpid()}"
    ensure_topic(broker.address, topic, {}, partitions=PARTITIONS)
    return record_of_topic(broker.address, topic, streams, int(time.time() * 1000))


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
        while run.streams() < streams:
            time.sleep(POLL_S)
        took_s = time.monotonic() - began_s
        threads = list(zip(threads_before, run.main_threads(), strict=True))
        cpu_s = {name: s - cpu_before_s[name] for name, s in run.cpu_s().items()}
        assert run.number("SELECT count(*) FROM streams") == streams
        return Result(
            streams * len(READS),
            took_s,
            cpu_s,
            [1 - (b.ran_s - a.ran_s + b.waited_s - a.waited_s) / took_s for a, b in threads],
            [(b.waited_s - a.waited_s) / took_s for a, b in threads],
            run.ask(f"SELECT {CHECKSUM}")[0],
        )


CHECKSUM = (
    "(SELECT count(*) || ' ' || sum(hash(streams)) FROM streams), "
    "(SELECT count(*) || ' ' || sum(hash(events)) FROM events), (SELECT sum(streams) FROM stream_minutes)"
)
"""One number a table, the same in whatever order its rows were written."""
