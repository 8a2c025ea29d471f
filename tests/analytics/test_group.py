"""Several analytics processes share a topic and a store, with real Kafka, real PostgreSQL and kills.

Together they must store the same rows as one process alone.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import polars as pl
import pytest
from kafka import KafkaAdminClient

from streamgauge.analytics.assembly.assembler import Assembler
from streamgauge.analytics.consumer import Consumer
from streamgauge.analytics.measures.measure import measure
from streamgauge.analytics.query.query_errors import StoreUnavailable
from streamgauge.analytics.query.reader import Reader
from streamgauge.analytics.schema.stall_limit import StallLimit
from streamgauge.analytics.storage.location import StoreLocation
from streamgauge.analytics.storage.store import Store
from streamgauge.ingest.record_log.kafka_client import ensure_topic
from streamgauge.ingest.record_log.kafka_reader import KafkaReader
from streamgauge.ingest.record_log.kafka_writer import KafkaWriter
from streamgauge.ingest.records import AnyRecord, pack
from tests.analytics.log_entries import stream
from tests.analytics.stores import new_store
from tests.analytics.stream_records import interleave
from tests.deadline import DEADLINE_S
from tests.postgres import Postgres

pytestmark = pytest.mark.slow

PARTITIONS = 4
GROUP_OPTIONS = {"session_timeout_ms": 6000, "heartbeat_interval_ms": 500, "retry_backoff_ms": 50}
"""The shortest session timeout that a broker allows by default."""
TABLES = {
    "streams": "stream_id",
    "events": "stream_id, seq",
    "usage_reports": "stream_id, seq",
    "server_stats": "stream_id, seq, name",
    "losses": "stream_id, first_seq",
}


@dataclass
class Scene:
    """A topic, a store, and the processes between them."""

    broker: str
    topic: str
    dsn: str
    folder: Path
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)
    reader: Reader | None = None

    def produce(self, records: Sequence[AnyRecord]) -> None:
        writer = KafkaWriter(self.broker, self.topic, {})
        for start in range(0, len(records), 200):
            writer.append([pack(list(records[start : start + 200]), compress=True)])
        writer.close()

    def analyze(self) -> subprocess.Popen[bytes]:
        number = len(self.processes)
        environment = {
            **os.environ,
            "STREAMGAUGE_STORE": f"postgres:{self.dsn}",
            "STREAMGAUGE_LAKE_PATH": str(self.folder / "files"),
            "STREAMGAUGE_KAFKA_OPTIONS": json.dumps(GROUP_OPTIONS),
            "STREAMGAUGE_METRICS": "",
        }
        command = ["analyze", "--data", self.folder / f"data{number}", "--kafka", self.broker]
        process = subprocess.Popen(
            [sys.executable, "-m", "streamgauge", *map(str, command), "--kafka-topic", self.topic],
            env=environment,
            stderr=(self.folder / f"log{number}").open("wb"),
        )
        self.processes.append(process)
        return process

    def ask(self, sql: str) -> pl.DataFrame:
        if self.reader is None:
            self.reader = Reader(StoreLocation(dsn=self.dsn), lock_down=True)
        return self.reader.query(sql, 1_000_000, 60)

    def until(self, condition: Callable[[], bool], description: str) -> None:
        deadline_s = time.monotonic() + DEADLINE_S
        while True:
            try:
                if condition():
                    return
            except StoreUnavailable:
                pass  # the first process creates the store
            assert time.monotonic() < deadline_s, f"{description}\n{self.logs()}"
            time.sleep(0.1)

    def owners(self) -> dict[str, int]:
        """Number of partitions by owner id."""
        found = self.ask("SELECT owner, count(*) AS n FROM log_positions GROUP BY owner")
        return dict(found.iter_rows())

    def stored(self) -> int:
        return int(self.ask("SELECT count(*) AS n FROM streams")["n"][0])

    def logs(self) -> str:
        return "\n".join((self.folder / f"log{n}").read_text() for n in range(len(self.processes)))


@pytest.fixture
def scene(kafka_broker: str, postgres: Postgres, tmp_path: Path) -> Iterator[Scene]:
    topic = f"group-{uuid.uuid4()}"
    ensure_topic(kafka_broker, topic, {}, partitions=PARTITIONS)
    found = Scene(kafka_broker, topic, postgres.new_database(), tmp_path)
    try:
        yield found
    finally:
        for process in found.processes:
            if process.poll() is None:
                process.kill()
            process.wait()
        if found.reader is not None:
            found.reader.close()


@contextmanager
def one_process(scene: Scene) -> Iterator[Store]:
    """The same topic, read by one process into another store."""
    store = new_store(scene.folder / "single", stall=StallLimit(500_000_000, 5.0))
    with closing(Store(StoreLocation(dsn=scene.dsn), instance="key")) as of_group:
        measured = partial(measure, fingerprint_key=of_group.fingerprint_key)
    reader = KafkaReader(scene.broker, scene.topic, {})
    consumer = Consumer(reader, store, Assembler(), measured)
    try:
        while not reader.partitions():
            time.sleep(0.05)
        consumer.start()
        while any(consumer._owned.high.get(p, 0) < reader.end(p) for p in reader.partitions()):
            consumer.step(0.2)
        consumer.finish()
        yield store
    finally:
        reader.close()
        store.close()


def assert_same(scene: Scene) -> None:
    """Compare all rows and columns of every table."""
    with one_process(scene) as store:
        for table, order in TABLES.items():
            sql = f"SELECT * REPLACE (stream_id::VARCHAR AS stream_id) FROM {table} ORDER BY {order}"
            alone = store.cursor().execute(sql).pl()
            together = scene.ask(sql)
            assert together.height == alone.height, table
            differing = [name for name in alone.columns if alone[name].to_list() != together[name].to_list()]
            assert differing == [], table


def halves(count: int, first: int = 0) -> tuple[list[AnyRecord], list[AnyRecord]]:
    """Concurrent streams, split in the middle of each."""
    rng = random.Random(count)
    whole = [stream(first + n, chunks=20, per_record=2) for n in range(count)]
    early = [records[: len(records) // 2] for records in whole]
    late = [records[len(records) // 2 :] for records in whole]
    return interleave(rng, early), interleave(rng, late)


def test_every_stream_is_stored_once_when_partitions_move(scene: Scene) -> None:
    early, late = halves(60)
    scene.produce(early)
    first = scene.analyze()
    scene.until(lambda: sum(scene.owners().values()) == PARTITIONS, "the first takes all partitions")
    second = scene.analyze()
    scene.until(lambda: sorted(scene.owners().values()) == [2, 2], "the second takes its half")
    scene.produce(late)
    scene.until(lambda: scene.stored() == 60, "all streams are stored")
    for process in (first, second):
        process.terminate()
        assert process.wait(DEADLINE_S) == 0, scene.logs()
    assert_same(scene)
    totals = dict(scene.ask("SELECT name, value FROM counters").iter_rows())
    assert (totals["streams_opened"], totals["streams_finished"]) == (60, 60)


def test_other_process_takes_over_after_a_kill(scene: Scene) -> None:
    early, late = halves(60)
    processes = [scene.analyze(), scene.analyze()]
    scene.until(lambda: sorted(scene.owners().values()) == [2, 2], "they share the partitions")
    scene.produce(early)
    scene.until(
        lambda: scene.ask("SELECT sum(len(open_stream_ids))::BIGINT AS n FROM log_positions")["n"][0] == 60,
        "all streams are in flight",
    )
    processes[0].kill()
    scene.produce(late)
    scene.until(lambda: scene.stored() == 60, "the one that is left stores all streams")
    processes[1].terminate()
    assert processes[1].wait(DEADLINE_S) == 0, scene.logs()
    assert_same(scene)


def test_the_topic_is_replaced(scene: Scene) -> None:
    scene.produce([*stream(0), *stream(1)[:3]])
    processes = [scene.analyze(), scene.analyze()]
    scene.until(lambda: scene.stored() == 1, "the first stream")
    admin = KafkaAdminClient(bootstrap_servers=scene.broker)
    admin.delete_topics([scene.topic])
    admin.close()
    ensure_topic(scene.broker, scene.topic, {}, partitions=PARTITIONS)
    scene.produce([*stream(1)[3:], *stream(2)])
    scene.until(lambda: scene.stored() == 3, "the streams of the new topic")
    assert scene.ask("SELECT outcome FROM streams ORDER BY stream_id")["outcome"].to_list() == [
        "ok",
        "tap_lost",
        "ok",
    ]
    assert scene.ask("SELECT DISTINCT cause FROM losses")["cause"].to_list() == ["log_gone"]
    assert [process.poll() for process in processes] == [None, None], scene.logs()
