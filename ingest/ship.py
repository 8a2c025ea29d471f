"""Move the embedded log into a Kafka topic, without the text of streams, and let it trim what has arrived there.

Rules
 1. Entries are released only after Kafka has acknowledged every message made of them: at least once, in order per stream.
 2. Kafka may be away for as long as the log's cap allows: nothing else in this process grows meanwhile. Memory is one
    batch (BATCH_BYTES of compressed entries, unpacked) and its messages.
 3. What leaves is redacted (`ingest.redaction`), and where each stream stands is stored before its entries are released.
 4. SIGTERM or SIGINT: ship what is in the log, for at most `drain_s`, then stop; the rest is shipped by the next run.

DATA/run/ship.json says who runs and what was done, refreshed at most once a second.
"""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from ingest.private_files import make_private_folder, write_json
from ingest.record_log.embedded_reader import EmbeddedReader
from ingest.record_log.interface import LogBroken
from ingest.record_log.kafka_messages import GroupedRecords, group_by_stream
from ingest.record_log.kafka_writer import KafkaWriter
from ingest.record_log.run_totals import incarnations_of
from ingest.record_log.segments import log_bytes
from ingest.records import AnyRecord, Damaged, pack_damage
from ingest.redaction.record_redactor import Redactor, filled_poison
from ingest.redaction.state_file import RedactionStateFile

log = logging.getLogger(__name__)

BATCH_BYTES = 2 * 2**20
"""Compressed entries moved at once. Captured streams compress 5 to 15 times: some 30 MiB when unpacked."""
_POLL_S = 0.5
_STATUS_S = 1.0
_HOPELESS_S = 2.0
"""What is left of the drain time when Kafka does not answer anyway."""


@dataclass(frozen=True, kw_only=True)
class ShipOptions:
    """What `run` needs. `kafka_options` are kafka-python's (security_protocol, sasl_mechanism, ssl_cafile …)."""

    data: Path
    brokers: str
    redactor: Redactor | None
    """What takes the text out; None ships everything as it is."""
    topic: str = "streamgauge"
    kafka_options: Mapping[str, Any] = field(default_factory=dict)
    drain_s: float = 10.0


def run(options: ShipOptions) -> int:
    """Ship until SIGTERM or SIGINT; 0. Raises ValueError or OSError with one line when it cannot start."""
    with _stop_signals() as stop:
        ship = _Ship(options, stop)
        try:
            ship.work()
        finally:
            ship.close()
    return 0


class _Stop:
    """Whether and when it was told to stop."""

    at_s: float | None = None

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self.at_s is None:
            self.at_s = time.monotonic()


@contextmanager
def _stop_signals() -> Iterator[_Stop]:
    stop = _Stop()
    former = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield stop
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)


class _Ship:
    def __init__(self, options: ShipOptions, stop: _Stop) -> None:
        self._options, self._stop = options, stop
        self._log_dir = options.data / "log"
        self._status_path = options.data / "run" / "ship.json"
        self._status_s = float("-inf")
        self._damaged = 0
        self._writer = KafkaWriter(
            options.brokers,
            options.topic,
            options.kafka_options,
            give_up=self._give_up,
            progress=self._show,
        )
        make_private_folder(self._status_path.parent)
        self._reader = EmbeddedReader(self._log_dir, "ship", sole=True)
        self._redactor = options.redactor
        self._redaction = (
            RedactionStateFile(self._log_dir, options.redactor) if options.redactor is not None else None
        )

    def work(self) -> None:
        reader = self._reader
        for partition in reader.partitions():
            reader.seek(partition, reader.released(partition))
        self._show(now=True)
        log.info(
            "shipping %s to the topic %r at %s", self._log_dir, self._options.topic, self._options.brokers
        )
        try:
            while not self._give_up():
                stopping = self._stop.at_s is not None
                entries = reader.poll(0.0 if stopping else _POLL_S, BATCH_BYTES)
                self._tell_damage()
                if entries:
                    self._writer.deliver(
                        self._without_text(group_by_stream(entry.payload for entry in entries))
                    )
                    self._keep_redaction()
                    for partition, offset in {entry.partition: entry.offset + 1 for entry in entries}.items():
                        reader.release(partition, offset)
                elif stopping:
                    break
                self._show()
        except LogBroken as error:
            if self._stop.at_s is None:
                raise OSError(str(error)) from error
            log.warning("%s", error)
        log.info("stopped shipping: %d records went to Kafka", self._writer.stats()["records"])

    def _tell_damage(self) -> None:
        """What cannot be read is told in the topic: its range, and to all partitions whose streams may have been in it."""
        damage = self._reader.take_unreadable()
        if damage:
            self._damaged += sum(one.end - one.first for one in damage)
            told = [pack_damage(one.partition, one.first, one.end, one.reason) for one in damage]
            now_ns = time.time_ns()
            doubted: list[AnyRecord] = [
                Damaged(incarnations_of(self._log_dir, one), "log_damaged", now_ns)
                for one in dict.fromkeys(one.partition for one in damage)
            ]
            self._writer.deliver(GroupedRecords(poison=told, broadcast=doubted))

    def _without_text(self, found: GroupedRecords) -> GroupedRecords:
        if self._redactor is not None:
            streams = {one: self._redactor.redact(records) for one, records in found.streams.items()}
            found.streams = {one: records for one, records in streams.items() if records}
            found.poison = [filled_poison(one) for one in found.poison]
        return found

    def _keep_redaction(self) -> None:
        """A full disk must not keep entries from being released: that makes room. Until it is stored, a kill costs streams."""
        if self._redaction is None:
            return
        try:
            self._redaction.save()
        except OSError as error:
            log.warning("%s", error)

    def close(self) -> None:
        self._writer.close()
        if self._redaction is not None:
            self._redaction.close()
        self._reader.close()
        self._status_path.unlink(missing_ok=True)

    def _give_up(self) -> bool:
        if self._stop.at_s is None:
            return False
        bound_s = self._options.drain_s
        if self._writer.failing:
            bound_s = min(bound_s, _HOPELESS_S)
        return time.monotonic() - self._stop.at_s >= bound_s

    def _show(self, *, now: bool = False) -> None:
        now_s = time.monotonic()
        if not now and now_s - self._status_s < _STATUS_S:
            return
        self._status_s = now_s
        status = {
            "pid": os.getpid(),
            "brokers": self._options.brokers,
            "topic": self._options.topic,
            "reachable": not self._writer.failing,
            "last_error": self._writer.last_error,
            "log_bytes": log_bytes(self._log_dir),
            "damaged_entries": self._damaged,
            "entries": self._reader.stats()["entries"],
            "released": {name: self._reader.released(name) for name in self._reader.partitions()},
            **self._writer.stats(),
            "redaction": dict(self._redactor.counters) if self._redactor is not None else None,
        }
        write_json(self._status_path, status)
