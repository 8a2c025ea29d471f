"""Consume a full Kafka topic into committed rows: Streamgauge, Quix Streams and a plain script.

Each contender has a topic with the same streams in its own format. Streamgauge reads what `ship` writes. The others read
one JSON message per event, keyed by stream, or one message per five events (what a tap collects of a stream in 100 ms). All
topics have one partition. Each run is a new process with a new database. All contenders must produce the same rows. Rounds
are interleaved and medians are reported.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import uuid
import venv
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import duckdb
from kafka import KafkaProducer

from bench.analytics.jobs.measured import SILENT
from bench.analytics.workload import EVENTS_A_STREAM, entries, messages
from streamgauge.analytics.query.reader import Reader
from streamgauge.analytics.storage.location import locate
from streamgauge.ingest.record_log.kafka_client import ensure_topic
from streamgauge.ingest.record_log.kafka_writer import KafkaWriter
from streamgauge.ingest.ship import BATCH_BYTES
from tests.kafka import Broker

HERE = Path(__file__).parent
LIMIT_S = 240


@dataclass(frozen=True)
class Contender:
    """A program and the format of its topic."""

    name: str
    job: str
    events_a_message: int
    """JSON events per message. 0: log entries as `ship` sends a backlog. -1: log entries as `ship` sends live traffic, one
    message for 100 ms of 50 streams."""
    share: float = 1.0
    """Share of the streams. Slow contenders get fewer."""


OURS = Contender("Streamgauge", "streamgauge", 0)
QUIX = Contender("Quix Streams, a message an event", "quix", 1, 0.5)
CONTENDERS = (
    OURS,
    Contender("Streamgauge, live traffic", "streamgauge", -1, 0.5),
    QUIX,
    Contender("Quix Streams, a message for five events", "quix", 5, 0.5),
    Contender("kafka-python + json + row inserts, a message an event", "plain", 1, 0.025),
    Contender("kafka-python + json + row inserts, a message for five events", "plain", 5, 0.025),
)


@dataclass(frozen=True)
class Took:
    """The cost of one run."""

    events: int
    cpu_s: float
    wall_s: float
    peak_bytes: int


def race(streams: int, rounds: int, contenders: tuple[Contender, ...] = CONTENDERS) -> dict[str, list[Took]]:
    """Runs by contender. Raises RuntimeError if a job fails or its rows differ from the others."""
    found: dict[str, list[Took]] = {contender.name: [] for contender in contenders}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        broker = Broker(folder / "kafka")
        try:
            brokers = broker.start()
            topics: dict[tuple[int, int], str] = {}
            rows: dict[int, tuple[object, ...]] = {}
            for _ in range(rounds):
                for contender in contenders:
                    many = int(streams * contender.share)
                    key = (contender.events_a_message, many)
                    if key not in topics:
                        topics[key] = fill(brokers, *key)
                    took, found_rows = _run(contender, brokers, topics[key], folder, many)
                    if found_rows[0] != many or rows.setdefault(many, found_rows) != found_rows:
                        raise RuntimeError(
                            f"{contender.name} has different rows: {found_rows} instead of {rows.get(many)}"
                        )
                    found[contender.name].append(took)
        finally:
            broker.stop()
    return found


def fill(brokers: str, events_a_message: int, streams: int) -> str:
    """Create a topic with those streams and return its name. `events_a_message` as in `Contender`."""
    topic = f"bench-{uuid.uuid4()}"
    ensure_topic(brokers, topic, {}, partitions=1)
    if events_a_message > 0:
        producer = KafkaProducer(
            bootstrap_servers=brokers, linger_ms=50, batch_size=2**18, compression_type="zstd", acks="all"
        )
        for stream_id, value in messages(streams, events_a_message):
            producer.send(topic, value, key=stream_id.encode())
        producer.flush()
        producer.close()
        return topic
    writer = KafkaWriter(brokers, topic, {})
    batch: list[bytes] = []
    for payload in entries(streams):
        batch.append(payload)
        if events_a_message < 0 or sum(map(len, batch)) >= BATCH_BYTES:
            writer.append(batch)
            batch = []
    writer.append(batch)
    writer.close()
    return topic


def _run(
    contender: Contender, brokers: str, topic: str, folder: Path, streams: int
) -> tuple[Took, tuple[object, ...]]:
    """The cost of a run, and the sums of its rows."""
    database = folder / str(uuid.uuid4())
    done = _try(contender, brokers, topic, database, streams)
    if done.returncode == SILENT:
        print(f"{contender.name}: {_stderr_tail(done)}. Retrying.", file=sys.stderr, flush=True)
        _remove(database)
        done = _try(contender, brokers, topic, database, streams)
    if done.returncode:
        raise RuntimeError(f"{contender.name} failed: {_stderr_tail(done)}")
    rows = _rows_of(contender, database)
    _remove(database)
    took = json.loads(done.stdout.splitlines()[-1])
    return Took(streams * EVENTS_A_STREAM, took["cpu_s"], took["wall_s"], took["peak_bytes"]), rows


def _rows_of(contender: Contender, database: Path) -> tuple[object, ...]:
    """`ROWS` of our store or of a contender's DuckDB file."""
    if contender.job == "streamgauge":
        with closing(Reader(locate("sqlite", database), lock_down=False)) as reader:
            return reader.query(ROWS, 1, LIMIT_S).row(0)
    with duckdb.connect(str(database), read_only=True) as connection:
        return tuple(connection.execute(ROWS).fetchall()[0])


def _remove(database: Path) -> None:
    if database.is_dir():
        shutil.rmtree(database)
    else:
        database.unlink(missing_ok=True)


def _try(
    contender: Contender, brokers: str, topic: str, database: Path, streams: int
) -> subprocess.CompletedProcess[str]:
    python = quix_python() if contender.job == "quix" else sys.executable
    job = f"bench.analytics.jobs.{contender.job}"
    try:
        return subprocess.run(
            [python, "-m", job, brokers, topic, str(database), str(streams)],
            cwd=HERE.parents[1],
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise RuntimeError(f"{contender.name} did not finish {streams} streams within {LIMIT_S} s") from error


def _stderr_tail(done: subprocess.CompletedProcess[str]) -> str:
    return done.stderr[-2000:].strip()


ROWS = """
SELECT * FROM
    (SELECT count(*), sum(ttft_ns)::BIGINT, round(sum(itl_ns))::BIGINT, sum(input_tokens)::BIGINT, sum(output_tokens)::BIGINT
     FROM streams),
    (SELECT count(*), sum(at_ns)::BIGINT, sum(seq)::BIGINT, sum(chars)::BIGINT, count(finish_reason) FROM events)
"""
"""Sums over the columns that all contenders store."""


def quix_python() -> Path:
    """The Python interpreter of Quix Streams' environment, with our Python version. Created from quix.lock on first use.

    Raises CalledProcessError.
    """
    lock = HERE / "quix.lock"
    made_of = lock.read_bytes() + os.path.realpath(sys.executable).encode()
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "streamgauge"
    folder = cache / f"quix-{hashlib.sha256(made_of).hexdigest()[:12]}"
    python, ready = folder / "bin" / "python", folder / ".ready"
    if not ready.exists():
        venv.create(folder, with_pip=True, clear=True)
        install = "-m pip install --quiet --disable-pip-version-check --only-binary=:all: --require-hashes -r"
        subprocess.run([str(python), *install.split(), str(lock)], check=True)
        ready.touch()
    return python
