"""`streamgauge analyze`: own a data folder, read the log into its tables, answer SQL, until told to stop.

Order matters. Starting: lock, tables, log, replay, SQL port, then the word that it is ready. Stopping: commit, the port,
the tables, the lock. A part that cannot start says why in one line; a store that can no longer be written ends the process
(exit code 1) at its last commit, from where the next start goes on.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import polars as pl

from analytics import endpoint as endpoints
from analytics.assemble import Assembler
from analytics.consumer import Consumer, Pace
from analytics.endpoint import Endpoint
from analytics.folder import own
from analytics.measure import measure
from analytics.retention import Retention
from analytics.serve import Bounds, Server
from analytics.store import FILE, Fenced, Store, StoreFailed
from analytics.stream import FinishedStream
from analytics.telemetry import Telemetry, TelemetryOptions
from ingest.log import LogBroken, LogChanged, LogReader
from ingest.log.embedded import EmbeddedReader

log = logging.getLogger(__name__)

SWEEP_S = 5.0
IDLE_WAIT_S = 0.25


@dataclass(frozen=True, slots=True)
class AnalyzeOptions:
    """What analytics is told. Times in seconds."""

    data: Path
    kafka: str | None = None
    """Brokers (`host:port,host:port`); None = the embedded log in the data folder."""
    kafka_topic: str = "streamgauge"
    kafka_options: Mapping[str, Any] = field(default_factory=dict)
    quack_host: str = "localhost"
    quack_port: int = 9494
    """0: the system chooses."""
    quack_token: str | None = field(default=None, repr=False)
    """None: a random one."""
    store: str = "duckdb"
    retain_events_s: float | None = 7 * 86400.0
    """None: for ever."""
    retain_streams_s: float | None = 90 * 86400.0
    capture: Sequence[str] = ()
    """Globs of the paths whose generated text is stored."""
    stall_floor_s: float = 0.5
    stall_factor: float = 5.0
    lost_after_s: float = 60.0
    checkpoint_after_s: float = 60.0
    memory_limit_bytes: int | None = None
    """Of DuckDB; None: 40 % of the machine, at most 8 GiB."""
    telemetry: TelemetryOptions = field(default_factory=TelemetryOptions)
    version: str = ""
    """Of Streamgauge, told with the telemetry."""
    pace: Pace = field(default_factory=Pace)
    bounds: Bounds = field(default_factory=Bounds)


def run(options: AnalyzeOptions) -> int:
    """Analyse until SIGTERM or SIGINT. Raises OSError or ValueError (one line) when it cannot start."""
    stop = threading.Event()
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: stop.set())
    return serve_until(options, stop)


def serve_until(
    options: AnalyzeOptions, stop: threading.Event, ready: Callable[[Endpoint], None] | None = None
) -> int:
    """As `run`, until `stop` is set; `ready` is called with the endpoint once SQL is answered."""
    if options.store != "duckdb":
        raise ValueError(f"--store {options.store!r} is not known here: duckdb")
    with own(options.data), contextlib.ExitStack() as closing:
        stall_floor_ns = int(options.stall_floor_s * 1e9)
        telemetry = Telemetry(
            options.telemetry,
            version=options.version,
            stall_floor_ns=stall_floor_ns,
            stall_factor=options.stall_factor,
        )
        closing.callback(telemetry.close)
        store = Store(
            options.data / FILE,
            memory_limit_bytes=options.memory_limit_bytes,
            stall=(stall_floor_ns, options.stall_factor),
        )
        try:
            reader = _reader(options)
            try:
                consumer = Consumer(
                    reader,
                    store,
                    Assembler(
                        capture=options.capture,
                        lost_after_ns=int(options.lost_after_s * 1e9),
                        checkpoint_after_ns=int(options.checkpoint_after_s * 1e9),
                    ),
                    _measure_with(stall_floor_ns, options.stall_factor),
                    replace(
                        options.pace,
                        lost_after_s=options.lost_after_s,
                        writers_are_local=options.kafka is None,
                    ),
                    is_gone=_gone(options),
                    begins_at=reader.released if isinstance(reader, EmbeddedReader) else lambda partition: 0,
                    witness=telemetry,
                )
                return _consume(options, store, consumer, telemetry, stop, ready)
            finally:
                reader.close()
        finally:
            store.close()


def _consume(
    options: AnalyzeOptions,
    store: Store,
    consumer: Consumer,
    telemetry: Telemetry,
    stop: threading.Event,
    ready: Callable[[Endpoint], None] | None,
) -> int:
    pid = os.getpid()
    server = Server(
        store.cursor(),
        host=options.quack_host,
        port=options.quack_port,
        token=options.quack_token,
        bounds=options.bounds,
    )
    store.on_memory = server.interrupt_queries
    retention = Retention(store, events_s=options.retain_events_s, streams_s=options.retain_streams_s)
    try:
        consumer.start()
        retention.start()
        endpoint = Endpoint(server.quack, server.token, pid, telemetry.metrics_url)
        endpoints.write(options.data, endpoint)
        log.info("analytics is ready: SQL at %s", server.quack)
        if ready is not None:
            ready(endpoint)
        swept_s = float("-inf")
        while not stop.is_set():
            consumer.step(IDLE_WAIT_S)
            if time.monotonic() - swept_s > SWEEP_S:
                server.sweep()
                telemetry.tell_health(
                    {**consumer.health(), "store.size": (options.data / FILE).stat().st_size}
                )
                swept_s = time.monotonic()
        consumer.finish()
    except (StoreFailed, Fenced) as e:
        log.error("analytics stops: %s", e)
        return 1
    except LogBroken as e:
        log.error("analytics stops: %s", e)
        with contextlib.suppress(StoreFailed, Fenced, LogBroken):
            if isinstance(e, LogChanged):
                consumer.abandon_log()
            else:
                consumer.finish()
        return 1
    finally:
        endpoints.remove(options.data, pid)
        retention.close()
        server.close()
    log.info("analytics has stopped")
    return 0


def _reader(options: AnalyzeOptions) -> LogReader:
    if options.kafka is not None:
        from ingest.log.kafka import KafkaReader

        kafka: LogReader = KafkaReader(options.kafka, options.kafka_topic, dict(options.kafka_options))
        return kafka
    return EmbeddedReader(options.data / "log", "analyze", sole=True)


def _gone(options: AnalyzeOptions) -> Callable[[str], bool]:
    """Whether a log that is not the one we read cannot be read by anybody any more.

    A Kafka log's id has a slash in it: another one while we read Kafka was deleted and made anew. An embedded log is gone
    when the folder holds another; while it is there, `ship` may yet bring its streams.
    """

    def gone(log_id: str) -> bool:
        if "/" in log_id:
            return options.kafka is not None
        try:
            return (options.data / "log" / "id").read_text().strip() != log_id
        except OSError:
            return True

    return gone


def _measure_with(
    stall_floor_ns: int, stall_factor: float
) -> Callable[[Sequence[FinishedStream]], dict[str, pl.DataFrame]]:
    def measured(finished: Sequence[FinishedStream]) -> dict[str, pl.DataFrame]:
        return measure(finished, stall_floor_ns=stall_floor_ns, stall_factor=stall_factor)

    return measured
