"""Analytics on a lake, with real Kafka and PostgreSQL: one consumer and two, and the small end of docs/scaling.md.

First a topic that is full already: consumers are started and share the partitions, are held while the topic is filled, and
let go together. Wall time, and CPU time of each process, until every stream is in the lake; the rows of all runs are compared.
Then live traffic of 1, 10 and 100 streams at a time: what the consumer, Kafka and PostgreSQL take, and how old rows are when
they can be seen.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from analytics.ask import LakeAsker, NotRunning
from analytics.lake import Lake
from bench._streams import WORKLOADS, reads_of
from ingest.log.kafka import KafkaWriter, ensure_topic
from ingest.records import Alive, AnyRecord, Closed, Frames, Opened, Request, ResponseHead, pack
from tests.kafka import Broker
from tests.postgres import Postgres

CHAT = WORKLOADS[0]
PARTITIONS = 4
SESSION_MS = 300_000
"""Consumers are held for longer than an ordinary session lasts."""
TICK_S = 0.1
TOKENS_S = 50.0
"""Events a second of one live stream: a fast model."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench scale", description=__doc__)
    parser.add_argument("--streams", type=int, default=4000, help="of 100 events each, in the full topic")
    parser.add_argument(
        "--rounds", type=int, default=3, help="of each number of consumers; the median counts"
    )
    parser.add_argument("--seconds", type=float, default=20, help="of live traffic at each level")
    parser.add_argument("--levels", type=int, nargs="*", default=[1, 10, 100], help="streams at a time")
    arguments = parser.parse_args()
    with servers() as (broker, postgres):
        if arguments.rounds:
            full_topic(broker, postgres, arguments.streams, arguments.rounds)
        for level in arguments.levels:
            live(broker, postgres, level, arguments.seconds)
    return 0


@contextmanager
def servers() -> Iterator[tuple[Broker, Postgres]]:
    with tempfile.TemporaryDirectory() as folder:
        broker, postgres = Broker(Path(folder) / "kafka"), Postgres(durable=True)
        try:
            broker.start()
            postgres.start()
            yield broker, postgres
        finally:
            broker.stop()
            postgres.stop()


@dataclass
class Run:
    """Some consumers on a topic and a lake of their own."""

    broker: Broker
    postgres: Postgres
    folder: Path
    consumers: int
    topic: str = field(default_factory=lambda: f"scale-{uuid.uuid4()}")
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)
    began: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        ensure_topic(self.broker.address, self.topic, {}, partitions=PARTITIONS)
        self.dsn = self.postgres.new_database()
        options = {"session_timeout_ms": SESSION_MS, "heartbeat_interval_ms": 1000, "retry_backoff_ms": 50}
        for number in range(self.consumers):
            environment = {
                **os.environ,
                "STREAMGAUGE_STORE": f"ducklake:postgres:{self.dsn}",
                "STREAMGAUGE_DATA_PATH": str(self.folder / "files"),
                "STREAMGAUGE_KAFKA_OPTIONS": json.dumps(options),
                "STREAMGAUGE_METRICS": "",
            }
            command = [
                sys.executable,
                "-m",
                "streamgauge",
                "analyze",
                "--data",
                str(self.folder / f"data{number}"),
            ]
            command += ["--kafka", self.broker.address, "--kafka-topic", self.topic]
            log = (self.folder / f"log{number}").open("wb")
            self.processes.append(subprocess.Popen(command, env=environment, stderr=log))
            self._until_shared(number + 1)

    def _until_shared(self, many: int) -> None:
        deadline_s = time.monotonic() + 120
        while True:
            assert time.monotonic() < deadline_s, "the consumers did not share the partitions"
            time.sleep(0.2)
            try:
                if not hasattr(self, "asker"):
                    self.asker = LakeAsker(Lake(self.dsn))
                found = self.asker.query("SELECT count(*) AS n FROM log_positions GROUP BY owner")[
                    "n"
                ].to_list()
            except NotRunning:
                continue
            if sorted(found) == [PARTITIONS // many] * many:
                return

    def ask(self, sql: str) -> list[tuple[object, ...]]:
        return self.asker.query(sql, max_rows=1_000_000, timeout_s=60).rows()

    def number(self, sql: str) -> float:
        return float(str(self.ask(sql)[0][0] or 0))

    def send(self, number: int) -> None:
        for process in self.processes:
            process.send_signal(number)

    def cpu_s(self) -> dict[str, float]:
        """CPU seconds of the consumers, Kafka and PostgreSQL so far."""
        assert self.postgres.process is not None
        return {
            **{f"consumer {n + 1}": cpu_of(process.pid) for n, process in enumerate(self.processes)},
            "Kafka": cpu_of(self.broker.pid),
            "PostgreSQL": sum(cpu_of(pid) for pid in family(self.postgres.process.pid)),
        }

    def close(self) -> None:
        for process in self.processes:
            process.terminate()
        for process in self.processes:
            process.wait(60)
        self.asker.close()


def full_topic(broker: Broker, postgres: Postgres, streams: int, rounds: int) -> None:
    """One consumer against two."""
    wall: dict[int, list[float]] = {1: [], 2: []}
    cpu: dict[int, list[float]] = {1: [], 2: []}
    sums: set[tuple[object, ...]] = set()
    start_ms = int(time.time() * 1000)
    for number in range(rounds):
        for consumers in (1, 2):
            with tempfile.TemporaryDirectory() as folder:
                run = Run(broker, postgres, Path(folder), consumers)
                try:
                    run.send(signal.SIGSTOP)
                    events = fill(broker, run.topic, streams, start_ms)
                    before, began_s = run.cpu_s(), time.monotonic()
                    run.send(signal.SIGCONT)
                    while run.number("SELECT count(*) FROM streams") < streams:
                        time.sleep(0.25)
                    took_s = time.monotonic() - began_s
                    spent = {name: s - before[name] for name, s in run.cpu_s().items()}
                    sums.add(tuple(run.ask(f"SELECT {checksum()}")[0]))
                finally:
                    run.send(signal.SIGCONT)
                    run.close()
            wall[consumers].append(events / took_s)
            cpu[consumers].append(events / sum(s for name, s in spent.items() if name.startswith("consumer")))
            shares = ", ".join(f"{name} {s:.1f} s" for name, s in spent.items())
            print(
                f"round {number + 1}, {consumers} consumer(s): {events} events in {took_s:.1f} s, "
                f"{events / took_s:,.0f} events/s; CPU {shares}",
                flush=True,
            )
    one, two = (statistics.median(wall[n]) for n in (1, 2))
    print(f"median: one {one:,.0f} events/s, two {two:,.0f}: {two / one:.2f} x by the clock")
    one, two = (statistics.median(cpu[n]) for n in (1, 2))
    print(
        f"median per CPU second of the consumers: one {one:,.0f} events, two {two:,.0f}: {two / one * 100:.0f} %"
    )
    print("the rows of all runs are the same" if len(sums) == 1 else f"ROWS DIFFER: {sums}")


def checksum() -> str:
    """One number a table, the same in whatever order its rows were written."""
    streams = "(SELECT count(*) || ' ' || sum(hash(streams)) FROM streams)"
    return f"{streams}, (SELECT count(*) || ' ' || sum(hash(events)) FROM events), (SELECT sum(streams) FROM stream_minutes)"


def fill(broker: Broker, topic: str, streams: int, start_ms: int) -> int:
    """Write whole streams, alike in each run; how many events are in them."""
    writer = KafkaWriter(broker.address, topic, {})
    for first in range(0, streams, 200):
        batch: list[AnyRecord] = []
        for number in range(first, min(first + 200, streams)):
            batch += whole_stream(number, start_ms)
        writer.append([pack(batch, compress=True)])
    writer.close()
    return streams * len(READS)


READS = reads_of(CHAT, 97, 1)
GAP_NS = 20_000_000


def whole_stream(number: int, start_ms: int) -> list[AnyRecord]:
    """A stream of 100 reads of one event each, in records of 100 ms."""
    sid = stream_id(number, start_ms)
    frames = [(100_000_000 + i * GAP_NS, data) for i, data in enumerate(READS)]
    records = opening(sid, start_ms)
    head = ResponseHead(200, [("content-type", "text/event-stream")], 50_000_000)
    for at in range(0, len(frames), 5):
        records.append(Frames(sid, len(records), frames[at : at + 5], head if at == 0 else None))
    return [*records, closing(sid, len(records), frames[-1][0], sum(map(len, READS)))]


def stream_id(number: int, ms: int) -> str:
    return str(uuid.UUID(int=(ms << 80) | (7 << 76) | (2 << 62) | number))


def opening(sid: str, ms: int) -> list[AnyRecord]:
    return [
        Opened(
            sid, 0, "tap-1", 0, "01a0c450-6c00-7000-8000-000000000000", "gateway", "127.0.0.1", 8000, "POST", CHAT.path,
            ms * 1_000_000, ms * 1_000_000, -1000, sid.replace("-", ""), sid[:16].replace("-", "0"), None, 1, None, [],
        ),
        Request(sid, 1, b'{"model":"m","stream":true,"messages":[]}', False),
    ]  # fmt: skip


def closing(sid: str, seq: int, end_ns: int, size: int) -> Closed:
    return Closed(sid, seq, "complete", None, end_ns + 1, 1_000_000, 2_000_000, 50, size, size, end_ns + 1)


def live(broker: Broker, postgres: Postgres, level: int, seconds: float) -> None:
    """`level` streams at a time, one after the other, as a ship would bring them."""
    with tempfile.TemporaryDirectory() as folder:
        run = Run(broker, postgres, Path(folder), 1)
        try:
            before, began_s = run.cpu_s(), time.monotonic()
            events, ages_s = play(run, level, seconds)
            took_s = time.monotonic() - began_s
            spent = {name: s - before[name] for name, s in run.cpu_s().items()}
            stored = run.number("SELECT count(*) FROM events")
            size = sum(path.stat().st_size for path in (Path(folder) / "files").rglob("*.parquet"))
        finally:
            run.close()
    cores = ", ".join(f"{name} {s / took_s:.3f}" for name, s in spent.items())
    print(
        f"{level} streams at a time: {events / took_s:,.0f} events/s; cores: {cores}; rows seen after "
        f"{statistics.median(ages_s):.2f} s (median); {stored:,.0f} rows of events, files {size / 2**20:.2f} MiB",
        flush=True,
    )


@dataclass
class Slot:
    """One of the streams at a time."""

    sid: str = ""
    seq: int = 0
    sent: int = len(READS)


def play(run: Run, level: int, seconds: float) -> tuple[int, list[float]]:
    """Live traffic for so long; how many events, and how old the newest finished stream was when it was seen."""
    writer = KafkaWriter(run.broker.address, run.topic, {})
    incarnation = "01a0c450-6c00-7000-8000-000000000000"
    slots = [Slot() for _ in range(level)]
    events, number, ages_s = 0, 0, []
    ended: dict[str, float] = {}
    began_s = asked_s = time.monotonic()
    ticks = 0
    while time.monotonic() - began_s < seconds:
        batch: list[AnyRecord] = []
        for place, slot in enumerate(slots):
            if slot.sent >= len(READS):
                number += 1
                ms = int(time.time() * 1000)
                # Streams begin one after the other, not all in one tick.
                slot.sid, slot.seq, slot.sent = (
                    stream_id(number, ms),
                    2,
                    0 if ticks else place * 7 % len(READS),
                )
                batch += opening(slot.sid, ms)
            reads = READS[slot.sent : slot.sent + int(TOKENS_S * TICK_S)]
            frames = [(100_000_000 + (slot.sent + i) * GAP_NS, data) for i, data in enumerate(reads)]
            head = ResponseHead(200, [("content-type", "text/event-stream")], 50_000_000)
            batch.append(Frames(slot.sid, slot.seq, frames, head if slot.seq == 2 else None))
            events += len(reads)
            slot.seq, slot.sent = slot.seq + 1, slot.sent + len(reads)
            if slot.sent >= len(READS):
                batch.append(closing(slot.sid, slot.seq, frames[-1][0], sum(map(len, READS))))
                ended[slot.sid] = time.monotonic()
        if ticks % 20 == 0:
            mono_ns = time.monotonic_ns()
            batch.append(Alive("tap-1", 0, incarnation, time.time_ns(), mono_ns, mono_ns))
        writer.append([pack(batch, compress=True)])
        ticks += 1
        if time.monotonic() - asked_s > 0.5:
            asked_s = time.monotonic()
            for (sid,) in run.ask(
                "SELECT stream_id::VARCHAR FROM streams ORDER BY started_at DESC LIMIT 500"
            ):
                if str(sid) in ended:
                    ages_s.append(time.monotonic() - ended.pop(str(sid)))
        time.sleep(max(0.0, began_s + ticks * TICK_S - time.monotonic()))
    time.sleep(2)
    writer.close()
    return events, ages_s or [float("nan")]


def cpu_of(pid: int) -> float:
    """CPU seconds of a process so far."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12]) + int(fields[13]) + int(fields[14])) / os.sysconf("SC_CLK_TCK")


def family(pid: int) -> Sequence[int]:
    """A process and its children. Those that have ended are in their parent's times."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *map(int, children)]


if __name__ == "__main__":
    sys.exit(main())
