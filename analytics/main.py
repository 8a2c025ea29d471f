"""`streamgauge analyze`: read the log into the store until stopped.

Start, in this order: lock of the data folder, store, log, replay, upkeep, then `run/analyze.json`, which means ready. Stop:
commit, upkeep, store, lock. A process that cannot start reports why in one line. A store that can no longer be written ends
the process (exit code 1) at its last commit, from which the next start continues.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import polars as pl

from analytics.assembly.assembler import Assembler
from analytics.assembly.stream import FinishedStream
from analytics.consumer import Consumer
from analytics.dialects import all_dialects
from analytics.gc_tuning import look_seldom
from analytics.measures.measure import measure
from analytics.options import AnalyzeOptions
from analytics.ready_file import Ready
from analytics.ready_file import remove as remove_ready
from analytics.ready_file import write as write_ready
from analytics.storage.commit import PartitionLost, StoreFailed
from analytics.storage.data_folder_lock import lock_data_folder
from analytics.storage.location import SQLITE, locate
from analytics.storage.store import Store
from analytics.storage.upkeep import Upkeep
from analytics.telemetry.commit_hooks import Witnesses
from analytics.telemetry.telemetry import Telemetry
from ingest.record_log.embedded_reader import EmbeddedReader
from ingest.record_log.interface import LogBroken, LogChanged, LogReader

if TYPE_CHECKING:
    from analytics.otlp_receiver.http_server import OtlpIntake

__all__ = ["AnalyzeOptions", "run", "serve_until"]

log = logging.getLogger(__name__)

SWEEP_S = 5.0
DRAIN_S = 5.0
"""After a stop was requested, what the log has is still read for at most this long."""
IDLE_WAIT_S = 0.25


def run(options: AnalyzeOptions) -> int:
    """Analyse until SIGTERM or SIGINT. Raises OSError or ValueError (one line) when it cannot start."""
    stop = threading.Event()
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: stop.set())
    look_seldom()
    return serve_until(options, stop)


def serve_until(
    options: AnalyzeOptions, stop: threading.Event, ready: Callable[[Ready], None] | None = None
) -> int:
    """As `run`, until `stop` is set; `ready` is called once the log is followed."""
    location = locate(options.store, options.data, options.lake_path)
    with lock_data_folder(options.data), contextlib.ExitStack() as closing:
        stall_floor_ns = int(options.stall_floor_s * 1e9)
        telemetry = Telemetry(
            options.telemetry,
            version=options.version,
            stall_floor_ns=stall_floor_ns,
            stall_factor=options.stall_factor,
        )
        closing.callback(telemetry.close)
        store = Store(
            location,
            memory_limit_bytes=options.memory_limit_bytes,
            stall=(stall_floor_ns, options.stall_factor),
            instance=_instance(options),
        )
        closing.callback(store.close)
        intake = _intake(options, store)
        if intake is not None:
            closing.callback(intake.close)
        reader = _reader(options, store)
        closing.callback(reader.close)
        consumer = Consumer(
            reader,
            store,
            Assembler(
                capture=options.capture,
                lost_after_ns=int(options.lost_after_s * 1e9),
                gone_after_ns=int(options.gone_after_s * 1e9) if options.gone_after_s is not None else None,
                checkpoint_after_ns=int(options.checkpoint_after_s * 1e9),
            ),
            _measure_with(stall_floor_ns, options.stall_factor),
            replace(options.pace, lost_after_s=options.lost_after_s, writers_are_local=options.kafka is None),
            is_gone=_gone(options),
            begins_at=reader.released if isinstance(reader, EmbeddedReader) else lambda partition: 0,
            witness=Witnesses(telemetry, *([intake.queue] if intake is not None else [])),
        )
        _tell_of_leaving(reader, consumer)
        upkeep = Upkeep(
            store,
            events_s=options.retain_events_s,
            streams_s=options.retain_streams_s,
            rollups_s=options.retain_rollups_s,
        )
        closing.callback(upkeep.close)
        return _consume(options, store, upkeep, consumer, telemetry, intake, stop, ready)


def _consume(
    options: AnalyzeOptions,
    store: Store,
    upkeep: Upkeep,
    consumer: Consumer,
    telemetry: Telemetry,
    intake: OtlpIntake | None,
    stop: threading.Event,
    ready: Callable[[Ready], None] | None,
) -> int:
    try:
        all_dialects()  # imported now: the first stream would wait for them
        consumer.start()
        if intake is not None:
            intake.start()
            log.info("spans from other services are received at %s", intake.url)
        upkeep.start()
        said = Ready(os.getpid(), telemetry.metrics_url, intake.url if intake is not None else None)
        write_ready(options.data, said)
        log.info("analytics is ready: it writes %s", store.location.label)
        if ready is not None:
            ready(said)
        swept_s = float("-inf")
        while not stop.is_set():
            consumer.step(IDLE_WAIT_S)
            if time.monotonic() - swept_s > SWEEP_S:
                received = intake.queue.health() if intake is not None else {}
                gauges = {"store.conflicts": float(store.conflicts), "store.size": float(store.size_bytes())}
                telemetry.tell_health({**consumer.health(), **gauges, **received})
                swept_s = time.monotonic()
        until_s = time.monotonic() + DRAIN_S
        while consumer.step(0.0) and time.monotonic() < until_s:
            pass  # what the log has by now; the rest is read by the next run
        consumer.finish()
    except (StoreFailed, PartitionLost) as e:
        log.error("analytics stops: %s", e)
        return 1
    except LogBroken as e:
        log.error("analytics stops: %s", e)
        with contextlib.suppress(StoreFailed, PartitionLost, LogBroken):
            if isinstance(e, LogChanged):
                consumer.abandon_log()
            else:
                consumer.finish()
        return 1
    finally:
        remove_ready(options.data, os.getpid())
        if intake is not None:
            intake.close()
    log.info("analytics has stopped")
    return 0


def _instance(options: AnalyzeOptions) -> str:
    """A data folder has one analytics; several hosts may share a store."""
    if options.store == SQLITE:
        return "analytics"
    return hashlib.sha256(f"{socket.gethostname()} {options.data.absolute()}".encode()).hexdigest()[:16]


def _intake(options: AnalyzeOptions, store: Store) -> OtlpIntake | None:
    if options.otlp_listen is None:
        return None
    from analytics.otlp_receiver.http_server import (
        OtlpIntake,  # late: it brings a web server, which only this needs
    )
    from analytics.otlp_receiver.span_queue import ReceivedQueue

    host, _, port = options.otlp_listen.rpartition(":")
    return OtlpIntake(ReceivedQueue(store), host=host.strip("[]"), port=int(port), token=options.otlp_token)


def _reader(options: AnalyzeOptions, store: Store) -> LogReader:
    if options.kafka is not None:
        from ingest.record_log.kafka_group_reader import KafkaGroupReader
        from ingest.record_log.kafka_reader import KafkaReader

        kafka = options.kafka, options.kafka_topic, dict(options.kafka_options)
        if options.store != SQLITE:
            return KafkaGroupReader(*kafka, group=f"streamgauge-{store.store_id}")
        return KafkaReader(*kafka)
    return EmbeddedReader(options.data / "log", "analyze", sole=True)


def _tell_of_leaving(reader: LogReader, consumer: Consumer) -> None:
    """A reader that shares its partitions says which go, while they can still be committed."""
    if hasattr(reader, "leaving"):
        reader.leaving = consumer.hand_over


def _gone(options: AnalyzeOptions) -> Callable[[str], bool]:
    """Whether a log that is not the one we read cannot be read by anybody any more.

    A Kafka log's id has a slash in it: another one while we read Kafka was deleted and made anew. An embedded log is gone
    when the folder holds another; while it is there, `ship` may yet bring its streams. In a lake it may be another host's.
    """

    def gone(log_id: str) -> bool:
        if "/" in log_id:
            return options.kafka is not None
        if options.store != SQLITE:
            return False
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
