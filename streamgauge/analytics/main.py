"""`streamgauge analyze`: the analytics process. It reads the log into the store until it is stopped.

It starts in this order: lock of the data folder, store, log, replay, upkeep, then `run/analyze.json`, which marks it as
ready. It stops in this order: last commit, upkeep, flush, backup, store, lock. A process that cannot start raises one line. If the store
cannot be written, the process exits with code 1, and the next start continues from the last commit. If the Kafka topic was
replaced, the process continues with the new one.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import signal
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from streamgauge.analytics.alerts.evaluator import STORE_EVERY_S, AlertEvaluator, alert_rules
from streamgauge.analytics.assembly.assembler import Assembler
from streamgauge.analytics.assembly.partition import LOG_GONE
from streamgauge.analytics.commit_hook import CommitHook
from streamgauge.analytics.consumer import IDLE_WAIT_S, Consumer, tune_gc
from streamgauge.analytics.dialects import all_dialects
from streamgauge.analytics.hops.hop_job import HopJob
from streamgauge.analytics.intake.import_job import ImportJob
from streamgauge.analytics.intake.posted_items import (
    MARKERS_PATH,
    SILENCES_PATH,
    parse_marker,
    parse_silence,
)
from streamgauge.analytics.intake.server_spans import ServerSpanJob
from streamgauge.analytics.intake.store_endpoint import StoreEndpoint, item_queue
from streamgauge.analytics.measures.measure import measure
from streamgauge.analytics.measures.session_prompts import SessionPrompts
from streamgauge.analytics.measures.sessions import Sessions
from streamgauge.analytics.options import AnalyzeOptions
from streamgauge.analytics.query.query_socket import QueryServer
from streamgauge.analytics.schema import tables
from streamgauge.analytics.schema.objectives import Objectives
from streamgauge.analytics.schema.stall_limit import StallLimit
from streamgauge.analytics.storage.commit import StoreFailed
from streamgauge.analytics.storage.data_folder_lock import lock_data_folder
from streamgauge.analytics.storage.database import reason
from streamgauge.analytics.storage.elected_tasks import ElectedTasks
from streamgauge.analytics.storage.location import SQLITE, StoreLocation, locate, without_password
from streamgauge.analytics.storage.partition_positions import PartitionLost
from streamgauge.analytics.storage.replaced_tables import replace_rows
from streamgauge.analytics.storage.store import Store
from streamgauge.analytics.storage.upkeep import Upkeep
from streamgauge.analytics.storage.websocket_states import WebSocketStates
from streamgauge.analytics.telemetry.export_queue import PluginExporters
from streamgauge.analytics.telemetry.objective_gauges import READ_EVERY_S
from streamgauge.analytics.telemetry.prometheus import recording_probe
from streamgauge.analytics.telemetry.telemetry import Telemetry
from streamgauge.ingest.guards import Guards
from streamgauge.ingest.keyed_ids import FILE, load_client_key
from streamgauge.ingest.ready_file import (
    Heartbeat,
    read_ready_file,
    remove_ready_file,
    write_ready_file,
    write_start,
)
from streamgauge.ingest.record_log.embedded_reader import EmbeddedReader
from streamgauge.ingest.record_log.interface import LogBroken, LogChanged, LogReader

if TYPE_CHECKING:
    from streamgauge.analytics.intake.otlp_receiver import OtlpReceiver

__all__ = ["AnalyzeOptions", "run", "run_until"]

log = logging.getLogger(__name__)

PART = "analyze"
HEALTH_EVERY_S = 5.0
CONSUMER_SILENT_AFTER_S = 30.0
"""One step reads, and may commit. `up` kills analytics only after `--hung-after`."""
DRAIN_S = 5.0
"""After a stop request, the log is read for at most this long."""
STOP_LIMIT_S = 120
"""After this time the process ends, even if a store does not respond. The next start continues from the last commit."""


@dataclass(frozen=True, slots=True)
class Ready:
    """URLs and settings of a running analytics process, in `run/analyze.json`. Commands such as `status` read them."""

    metrics: str | None
    """Prometheus endpoint."""
    markers: str | None
    """Receiver of markers."""
    silences: str | None
    """Receiver of silences of alerts."""
    otlp: str | None
    """OTLP receiver."""
    otlp_requires_token: bool
    store: str
    """`--store`, without a password."""
    kafka: str | None
    kafka_topic: str
    kafka_options: Sequence[str]
    """Names of the options. The values may be secrets."""


def run(options: AnalyzeOptions) -> int:
    """Run until SIGTERM or SIGINT and return the exit code. Raises OSError or ValueError (one line) if it cannot start."""
    stop = threading.Event()
    if threading.current_thread() is threading.main_thread():

        def request_stop(*_: object) -> None:
            stop.set()
            signal.alarm(STOP_LIMIT_S)  # its default action ends the process

        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, request_stop)
        # `streamgauge run` blocks it, so that a process that is still starting stores what the log has before it stops.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGTERM,))
    # After the imports: `gc.freeze` excludes the objects that exist now from every later collection.
    tune_gc()
    return run_until(options, stop)


def run_until(
    options: AnalyzeOptions, stop: threading.Event, on_ready: Callable[[Ready], None] | None = None
) -> int:
    """As `run`, until `stop` is set. Calls `on_ready` once the log is being read."""
    location = locate(options.store, options.data, options.lake_path)
    with lock_data_folder(options.data), contextlib.ExitStack() as closing:
        return _consume(options, _start(options, location, closing), stop, on_ready)


class _Log:
    """The log being read and its consumer. `read` replaces both when the log is replaced."""

    def __init__(
        self,
        options: AnalyzeOptions,
        store: Store,
        hooks: Sequence[CommitHook],
        stall: StallLimit,
        alerts: AlertEvaluator,
        guards: Guards,
    ) -> None:
        self._guards = guards
        self._options, self._store, self._hooks, self._stall = options, store, hooks, stall
        self._alerts = alerts
        self._client_key = options.client_key or load_client_key(options.data / FILE)
        self._sessions = Sessions()
        # Responses of earlier runs, so that a conversation keeps its session across a restart.
        self._sessions.restore(store.recent_responses())
        self._prompts = SessionPrompts()
        self._prompts.restore(store.recent_prompts())
        self._open()

    def _open(self) -> None:
        options = self._options
        self._reader = reader = _reader(options, self._store)
        # In a topic, `ship` has split the records of WebSockets.
        states = WebSocketStates(options.data / "log" / "websockets") if options.kafka is None else None
        self.consumer = Consumer(
            reader,
            self._store,
            Assembler(
                capture=options.capture,
                lost_after_ns=int(options.lost_after_s * 1e9),
                checkpoint_after_ns=int(options.checkpoint_after_s * 1e9),
                client_key=self._client_key,
                labels=options.labels,
                store_websockets=states is not None,
            ),
            partial(
                measure,
                stall=self._stall,
                fingerprint_key=self._store.fingerprint_key,
                objectives=Objectives(options.objectives),
                sessions=self._sessions,
                prompts=self._prompts,
                labels=options.labels,
            ),
            replace(
                options.commit_policy,
                lost_after_s=options.lost_after_s,
                writers_are_local=options.kafka is None,
            ),
            is_deleted_log=partial(_is_deleted_log, options),
            first_offset=reader.released if isinstance(reader, EmbeddedReader) else lambda partition: 0,
            states=states,
            hooks=self._hooks,
            guards=self._guards,
            observe=self._alerts.observe,
        )
        # Kafka takes partitions away during a poll. They are committed first, so that the next consumer reads nothing twice.
        if hasattr(reader, "on_revoke"):  # `KafkaGroupReader`
            reader.on_revoke = self.consumer.release_partitions

    def read(self, timeout_s: float) -> bool:
        """As `Consumer.step`. After the log was replaced, its open streams are lost and the new log is read."""
        try:
            return self.consumer.step(timeout_s)
        except LogChanged as e:
            lost = self.consumer.lose_open_streams()
            outcome = (
                f". {lost} streams that were open are lost (losses.cause = '{LOG_GONE}')" if lost else ""
            )
            log.warning("%s%s.", e, outcome)
            self.close()
            self._open()
            self.consumer.start()
            return True

    def close(self) -> None:
        self._reader.close()


@dataclass(frozen=True, slots=True)
class _Parts:
    store: Store
    log: _Log
    guards: Guards
    upkeep: Upkeep
    evaluation: ElectedTasks
    hop_job: HopJob
    imports: ImportJob
    telemetry: Telemetry
    otlp: tuple[OtlpReceiver, ServerSpanJob] | None
    health: Sequence[Callable[[], Mapping[str, float]]]
    """Gauges and totals of the parts without a public method here."""


def _start(options: AnalyzeOptions, location: StoreLocation, closing: contextlib.ExitStack) -> _Parts:
    """Open everything in order. `closing` closes it in reverse order."""
    stall = StallLimit(int(options.stall_floor_s * 1e9), options.stall_factor)
    markers, silences = item_queue(tables.MARKERS), item_queue(tables.SILENCES)
    guards = Guards(describe=partial(reason, location))
    telemetry = Telemetry(
        options.telemetry,
        version=options.version,
        stall=stall,
        apps={
            MARKERS_PATH: StoreEndpoint(markers, parse_marker, token=options.otlp_token),
            SILENCES_PATH: StoreEndpoint(silences, parse_silence, token=options.otlp_token),
            "/recordingz": recording_probe(guards),
        },
        guards=guards,
    )
    closing.callback(telemetry.close)
    closing.callback(markers.close)
    closing.callback(silences.close)
    closing.callback(write_start, options.data, PART, None)
    store = Store(
        location,
        memory_limit_bytes=options.memory_limit_bytes,
        stall=stall,
        instance=_instance(options),
        report=partial(_report_upgrade, options.data),
    )
    write_start(options.data, PART, None)
    closing.callback(store.close)
    replace_rows(store, tables.OBJECTIVES, options.objectives)
    replace_rows(store, tables.PRICES, options.prices)
    replace_rows(store, tables.BUDGETS, options.budgets)
    replace_rows(store, tables.CLIENTS, options.clients)
    replace_rows(store, tables.LABELS, options.labels)
    replace_rows(store, tables.ALERT_RULES, alert_rules(options.alerts))
    query_server = QueryServer(options.data, location, guards)
    closing.callback(query_server.close)
    alerts = AlertEvaluator(
        options.alerts,
        store.cursor,
        instance=_instance(options),
        query=query_server.query,
        dashboard=partial(_dashboard_url, options.data),
        client_names={client.client_id: client.name for client in options.clients},
        publish=telemetry.update_open_streams,
        publish_incidents=telemetry.update_incidents,
        publish_limits=telemetry.update_limits,
        guards=guards,
    )
    closing.callback(alerts.close)
    hop_job = HopJob(store, on_stored=telemetry.count_hops, guards=guards)
    closing.callback(hop_job.close)
    imports = ImportJob(store, options.data, guards)
    closing.callback(imports.close)
    exporters = PluginExporters(guards)
    closing.callback(exporters.close)
    hooks: list[CommitHook] = [telemetry, alerts, hop_job, markers, silences, imports, exporters]
    health: list[Callable[[], Mapping[str, float]]] = [
        part.health for part in (alerts, hop_job, markers, silences, exporters, query_server)
    ]
    otlp = _otlp(options, store, guards)
    if otlp is not None:
        receiver, server_spans = otlp
        closing.callback(server_spans.close)
        closing.callback(receiver.close)
        hooks += [*receiver.queues, server_spans]
        health += [receiver.health, server_spans.health]
    read_log = _Log(options, store, hooks, stall, alerts, guards)
    closing.callback(read_log.close)
    upkeep = Upkeep(
        store,
        events_s=options.retain_events_s,
        streams_s=options.retain_streams_s,
        rollups_s=options.retain_rollups_s,
        guards=guards,
    )
    closing.callback(upkeep.close)
    # Apart from upkeep, whose tasks take long on a busy machine.
    evaluation = ElectedTasks(
        store,
        "alerts",
        {
            "evaluate_alerts": (STORE_EVERY_S, alerts.evaluate_store),
            "read_objectives": (READ_EVERY_S, partial(telemetry.read_objectives, store.cursor)),
        },
        guards,
    )
    closing.callback(evaluation.close)
    return _Parts(store, read_log, guards, upkeep, evaluation, hop_job, imports, telemetry, otlp, health)


def _report_upgrade(data: Path, step: str) -> None:
    log.info("upgrading the store: %s", step)
    write_start(data, PART, f"upgrading the store ({step})")


def _consume(
    options: AnalyzeOptions, parts: _Parts, stop: threading.Event, on_ready: Callable[[Ready], None] | None
) -> int:
    otlp = parts.otlp
    ready_file = options.data / "run" / f"{PART}.json"
    try:
        all_dialects()  # import them before the first stream needs them
        parts.log.consumer.start()
        if otlp is not None:
            for part in otlp:
                part.start()
            log.info("receiving OTLP at %s", otlp[0].url)
        parts.upkeep.start()
        parts.evaluation.start()
        parts.hop_job.start()
        parts.imports.start()
        endpoint = parts.telemetry.endpoint
        ready = Ready(
            metrics=endpoint.url if endpoint is not None else None,
            markers=endpoint.root + MARKERS_PATH if endpoint is not None else None,
            silences=endpoint.root + SILENCES_PATH if endpoint is not None else None,
            otlp=otlp[0].url if otlp is not None else None,
            otlp_requires_token=options.otlp_token is not None,
            store=without_password(options.store),
            kafka=options.kafka,
            kafka_topic=options.kafka_topic,
            kafka_options=sorted(options.kafka_options),
        )
        write_ready_file(ready_file, asdict(ready))
        log.info("analytics is ready and writes to %s", parts.store.location.label)
        if on_ready is not None:
            on_ready(ready)
        reported_s = float("-inf")
        heartbeat = Heartbeat(ready_file)
        guard = parts.guards.guard("consumer", silent_after_s=CONSUMER_SILENT_AFTER_S)
        while not stop.is_set():
            guard.beat()
            heartbeat.beat(parts.guards.faults())
            parts.log.read(IDLE_WAIT_S)
            if time.monotonic() - reported_s > HEALTH_EVERY_S:
                _report_health(parts)
                reported_s = time.monotonic()
        until_s = time.monotonic() + DRAIN_S
        # What was written before the stop becomes visible now, instead of after the next start.
        while parts.log.read(0.0) and time.monotonic() < until_s:
            pass
        parts.log.consumer.finish()
        parts.evaluation.end()
        parts.upkeep.finish()
        parts.evaluation.stop()
    except (StoreFailed, PartitionLost) as e:
        log.error("analytics stops: %s", e)
        return 1
    except LogBroken as e:
        log.error("analytics stops: %s", e)
        with contextlib.suppress(StoreFailed, PartitionLost, LogBroken):
            parts.log.consumer.finish()
        return 1
    finally:
        remove_ready_file(ready_file)
        if otlp is not None:
            otlp[0].close()
    log.info("analytics has stopped")
    return 0


def _report_health(parts: _Parts) -> None:
    store = parts.store
    found = {"store.conflicts": float(store.conflicts), "store.size": float(store.size_bytes())}
    for health in (parts.log.consumer.health, *parts.health):
        found |= health()
    parts.telemetry.update_health(found)


def _instance(options: AnalyzeOptions) -> str:
    """The name of this process in the store. Several hosts can share a store. A data folder has one analytics process."""
    if options.store == SQLITE:
        return "analytics"
    return hashlib.sha256(f"{socket.gethostname()} {options.data.absolute()}".encode()).hexdigest()[:16]


def _dashboard_url(data: Path) -> str | None:
    """The address of the running dashboard, without its token."""
    url = (read_ready_file(data / "run" / "dashboard.json") or {}).get("url")
    return url.partition("?")[0] if isinstance(url, str) else None


def _otlp(options: AnalyzeOptions, store: Store, guards: Guards) -> tuple[OtlpReceiver, ServerSpanJob] | None:
    if options.otlp_listen is None:
        return None
    # Imported only when used, because it imports a web server.
    from streamgauge.analytics.intake.otlp_receiver import OtlpReceiver, signals
    from streamgauge.analytics.intake.received_events import event_queue
    from streamgauge.analytics.intake.received_spans import span_queue

    session_key = options.client_key or load_client_key(options.data / FILE)
    job = ServerSpanJob(store, guards)
    receiver = OtlpReceiver(
        signals(span_queue(store.cursor, on_stored=job.add), event_queue(store.cursor), session_key),
        listen=options.otlp_listen,
        token=options.otlp_token,
        allowed_hosts=options.allowed_hosts,
        guards=guards,
    )
    return receiver, job


def _reader(options: AnalyzeOptions, store: Store) -> LogReader:
    if options.kafka is not None:
        from streamgauge.ingest.record_log.kafka_group_reader import KafkaGroupReader
        from streamgauge.ingest.record_log.kafka_reader import KafkaReader

        kafka = options.kafka, options.kafka_topic, dict(options.kafka_options)
        if options.store != SQLITE:
            return KafkaGroupReader(*kafka, group=f"streamgauge-{store.store_id}")
        return KafkaReader(*kafka)
    return EmbeddedReader(options.data / "log", "analyze", sole=True)


def _is_deleted_log(options: AnalyzeOptions, log_id: str) -> bool:
    """Whether a log other than the one being read no longer exists.

    The id of a Kafka log contains a slash. If we read Kafka, a different Kafka log was deleted and created again. An embedded
    log no longer exists if the folder has another one. While it exists, `ship` can still send its streams. With a shared store
    it may be on another host.
    """
    if "/" in log_id:
        return options.kafka is not None
    if options.store != SQLITE:
        return False
    try:
        return (options.data / "log" / "id").read_text().strip() != log_id
    except OSError:
        return True
