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
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import polars as pl

from analytics.analyze_options import AnalyzeOptions
from analytics.assembly.assemble import Assembler
from analytics.assembly.stream import FinishedStream
from analytics.consumer import Consumer
from analytics.dialects import all_dialects
from analytics.garbage import look_seldom
from analytics.measures.measure import measure
from analytics.serving import endpoint as endpoints
from analytics.serving.endpoint import Endpoint
from analytics.storage.folder import own
from analytics.storage.home import FileHome, LakeHome, home_of
from analytics.storage.store import Fenced, StoreFailed
from analytics.telemetry.telemetry import Telemetry
from analytics.telemetry.witnesses import Witnesses
from ingest.log import LogBroken, LogChanged, LogReader
from ingest.log.embedded import EmbeddedReader

if TYPE_CHECKING:
    from analytics.intake.otlp import OtlpIntake

__all__ = ["AnalyzeOptions", "run", "serve_until"]

log = logging.getLogger(__name__)

SWEEP_S = 5.0
DRAIN_S = 5.0
"""After the word to stop: for so long what the log has is still read."""
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
    options: AnalyzeOptions, stop: threading.Event, ready: Callable[[Endpoint], None] | None = None
) -> int:
    """As `run`, until `stop` is set; `ready` is called with the endpoint once SQL is answered."""
    with own(options.data):
        while True:
            code = _serve(options, stop, ready)
            if code or stop.is_set():
                return code


def _serve(options: AnalyzeOptions, stop: threading.Event, ready: Callable[[Endpoint], None] | None) -> int:
    """One run over the open tables; it ends with 0 when told to stop, or when the tables want to be opened anew."""
    with contextlib.ExitStack() as closing:
        stall_floor_ns = int(options.stall_floor_s * 1e9)
        telemetry = Telemetry(
            options.telemetry,
            version=options.version,
            stall_floor_ns=stall_floor_ns,
            stall_factor=options.stall_factor,
        )
        closing.callback(telemetry.close)
        home = home_of(options, stop)
        closing.callback(home.store.close)
        intake = _intake(options, home)
        if intake is not None:
            closing.callback(intake.close)
        reader = _reader(options, home)
        closing.callback(reader.close)
        consumer = Consumer(
            reader,
            home.store,
            Assembler(
                capture=options.capture,
                lost_after_ns=int(options.lost_after_s * 1e9),
                gone_after_ns=int(options.gone_after_s * 1e9) if options.gone_after_s is not None else None,
                checkpoint_after_ns=int(options.checkpoint_after_s * 1e9),
            ),
            _measure_with(stall_floor_ns, options.stall_factor),
            replace(home.pace, lost_after_s=options.lost_after_s, writers_are_local=options.kafka is None),
            is_gone=_gone(options),
            begins_at=reader.released if isinstance(reader, EmbeddedReader) else lambda partition: 0,
            witness=Witnesses(telemetry, *([intake.queue] if intake is not None else [])),
        )
        _tell_of_leaving(reader, consumer)
        return _consume(options, home, consumer, telemetry, intake, stop, ready)


def _consume(
    options: AnalyzeOptions,
    home: FileHome | LakeHome,
    consumer: Consumer,
    telemetry: Telemetry,
    intake: OtlpIntake | None,
    stop: threading.Event,
    ready: Callable[[Endpoint], None] | None,
) -> int:
    try:
        endpoint = home.open(telemetry.metrics_url)
        all_dialects()  # imported now: the first stream would wait for them
        consumer.start()
        if intake is not None:
            intake.start()
            endpoint = replace(endpoint, otlp=intake.url)
            log.info("spans of others are taken at %s", intake.url)
        endpoints.write(options.data, endpoint)
        log.info(
            "analytics is ready: %s", f"SQL at {endpoint.quack}" if endpoint.quack else "it writes a lake"
        )
        if ready is not None:
            ready(endpoint)
        swept_s = float("-inf")
        rest = False
        while not (stop.is_set() or rest):
            consumer.step(IDLE_WAIT_S)
            if time.monotonic() - swept_s > SWEEP_S:
                told = intake.queue.health() if intake is not None else {}
                telemetry.tell_health({**consumer.health(), **home.sweep(), **told})
                swept_s = time.monotonic()
                rest = home.wants_rest()
        if rest:
            log.info("most of the file is free: SQL is away while it is made smaller")
        until_s = time.monotonic() + (0.0 if rest else DRAIN_S)
        while consumer.step(0.0) and time.monotonic() < until_s:
            pass  # what the log has by now; the rest is read by the next run
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
        endpoints.remove(options.data, os.getpid())
        if intake is not None:
            intake.close()
        home.close()
    if not rest:
        log.info("analytics has stopped")
    return 0


def _intake(options: AnalyzeOptions, home: FileHome | LakeHome) -> OtlpIntake | None:
    if options.otlp_listen is None:
        return None
    from analytics.intake.otlp import OtlpIntake  # late: it brings a web server, which only this needs
    from analytics.intake.queue import ReceivedQueue

    host, _, port = options.otlp_listen.rpartition(":")
    return OtlpIntake(
        ReceivedQueue(home.store), host=host.strip("[]"), port=int(port), token=options.otlp_token
    )


def _reader(options: AnalyzeOptions, home: FileHome | LakeHome) -> LogReader:
    if options.kafka is not None:
        from ingest.log.kafka import KafkaGroupReader, KafkaReader

        kafka = options.kafka, options.kafka_topic, dict(options.kafka_options)
        if isinstance(home, LakeHome):
            return KafkaGroupReader(*kafka, group=f"streamgauge-{home.store.lake_id}")
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
        if options.store != "duckdb":
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
