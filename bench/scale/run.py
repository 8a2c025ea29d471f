"""Run `streamgauge analyze` processes with a new topic and store, a real broker and a real PostgreSQL."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

from bench.scale.processes import Spent, cpu_s_of, family, main_thread
from streamgauge.analytics.query.query_errors import StoreUnavailable
from streamgauge.analytics.query.reader import Reader
from streamgauge.analytics.storage.catalog import Catalog
from streamgauge.analytics.storage.database import new_database
from streamgauge.analytics.storage.location import POSTGRES, StoreLocation
from streamgauge.ingest.record_log.kafka_client import ensure_topic
from tests.kafka import Broker
from tests.postgres import Postgres

PARTITIONS = 4
SESSION_MS = 60_000
"""Consumers are stopped for longer than the default session timeout."""
SHARED_S = 120.0


@contextmanager
def servers() -> Iterator[tuple[Broker, Postgres]]:
    """A broker, and a PostgreSQL with durable commits."""
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
    """A context manager. On entry it starts consumers and waits until they share the partitions. On exit it stops them.

    `cores`: the cores that each consumer may use, set with `taskset`. Empty: all.
    """

    broker: Broker
    postgres: Postgres
    folder: Path
    consumers: int
    cores: Sequence[set[int]] = ()
    session_ms: int = SESSION_MS
    topic: str = field(default_factory=lambda: f"scale-{uuid.uuid4()}")
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def __enter__(self) -> Run:
        ensure_topic(self.broker.address, self.topic, {}, partitions=PARTITIONS)
        self.dsn = self.postgres.new_database()
        try:
            for number in range(self.consumers):
                self._start(number)
                self._until_shared(number + 1)  # a member that fails while joining would block the others
            self._database = new_database()
            self._catalog = Catalog(self._database, StoreLocation(dsn=self.dsn))
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _start(self, number: int) -> None:
        options = {
            "session_timeout_ms": self.session_ms,
            "heartbeat_interval_ms": 1000,
            "retry_backoff_ms": 50,
        }
        environment = {
            **os.environ,
            "STREAMGAUGE_STORE": f"{POSTGRES}{self.dsn}",
            "STREAMGAUGE_LAKE_PATH": str(self.folder / "files"),
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
        if self.cores:
            command = ["taskset", "--cpu-list", ",".join(map(str, sorted(self.cores[number]))), *command]
        with (self.folder / f"log{number}").open("wb") as output:
            self.processes.append(subprocess.Popen(command, env=environment, stderr=output))

    def _until_shared(self, consumers: int) -> None:
        deadline_s, owners = time.monotonic() + SHARED_S, None
        while True:
            if time.monotonic() > deadline_s:
                outputs = [
                    (self.folder / f"log{number}").read_text()[-2000:]
                    for number in range(len(self.processes))
                ]
                raise RuntimeError(
                    "\n".join(["the consumers do not share the partitions:", str(owners), *outputs])
                )
            time.sleep(0.2)
            try:
                if not hasattr(self, "reader"):
                    self.reader = Reader(StoreLocation(dsn=self.dsn), lock_down=False)
                owners = self.reader.query("SELECT count(*) AS n FROM log_positions GROUP BY owner", 100, 20)
            except StoreUnavailable:
                continue
            if owners["n"].to_list() == [PARTITIONS // consumers] * consumers:
                return

    def ask(self, sql: str) -> list[tuple[object, ...]]:
        """Rows of the store."""
        return self.reader.query(sql, max_rows=1_000_000, timeout_s=60).rows()

    def number(self, sql: str) -> float:
        """One number of the store."""
        return float(str(self.ask(sql)[0][0] or 0))

    def streams(self) -> int:
        """Number of stored streams, from the catalog's statistics, which are cheap to read."""
        count = (
            "SELECT record_count FROM ducklake_table_stats JOIN ducklake_table USING (table_id) "
            "WHERE table_name = 'streams'"
        )
        found = self._catalog.query(count)
        return int(str(found[0][0])) if found else 0

    def send(self, number: signal.Signals) -> None:
        """Send a signal to every consumer."""
        for process in self.processes:
            process.send_signal(number)

    def cpu_s(self) -> dict[str, float]:
        """CPU seconds by process."""
        assert self.postgres.process is not None
        return {
            **{f"consumer {n + 1}": cpu_s_of(process.pid) for n, process in enumerate(self.processes)},
            "Kafka": cpu_s_of(self.broker.pid),
            "PostgreSQL": sum(cpu_s_of(pid) for pid in family(self.postgres.process.pid)),
            "bench": time.process_time(),
        }

    def main_threads(self) -> list[Spent]:
        """Times of the consumers' main threads."""
        return [main_thread(process.pid) for process in self.processes]

    def close(self) -> None:
        """Stop the consumers and close the connections."""
        for process in self.processes:
            process.send_signal(signal.SIGCONT)
            process.terminate()
        for process in self.processes:
            process.wait(60)
        for opened in ("reader", "_catalog", "_database"):
            if hasattr(self, opened):
                getattr(self, opened).close()
