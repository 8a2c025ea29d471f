"""Ship the embedded log to a Kafka topic without the text of streams, and release the entries that Kafka acknowledged.

Rules
 1. Entries are released only after Kafka has acknowledged all their messages. Delivery is at least once, in order per stream.
 2. Kafka may be unreachable for as long as the log's cap allows. Memory stays bounded: one batch (BATCH_BYTES of compressed
    entries, unpacked) and its messages.
 3. Records are redacted before they leave (`streamgauge.ingest.redaction`). The redaction state is stored before entries are released.
 4. On SIGTERM or SIGINT: ship the rest of the log for at most `drain_s`, then stop. The next run continues.

DATA/run/ship.json has the process and its counters, refreshed at most once a second.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sqlite3
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from streamgauge.ingest.private_files import make_private_folder, prepare_data_folder, write_json
from streamgauge.ingest.ready_file import report_progress
from streamgauge.ingest.record_log.embedded_reader import EmbeddedReader
from streamgauge.ingest.record_log.interface import LogBroken
from streamgauge.ingest.record_log.kafka_writer import GroupedRecords, KafkaWriter, group_by_stream
from streamgauge.ingest.record_log.run_totals import incarnations_of
from streamgauge.ingest.record_log.segments import log_bytes
from streamgauge.ingest.records import AnyRecord, Damaged, pack_damage
from streamgauge.ingest.redaction.record_redactor import Redactor, filled_poison

log = logging.getLogger(__name__)

BATCH_BYTES = 2 * 2**20
"""Compressed entries per batch: about 30 MiB unpacked, because streams compress 5 to 15 times."""
_POLL_S = 0.5
_STATUS_S = 1.0
_UNREACHABLE_DRAIN_S = 2.0
"""Limit for the drain time while Kafka is unreachable."""


@dataclass(frozen=True, kw_only=True)
class ShipOptions:
    """Options of `run`. `kafka_options` go to kafka-python (security_protocol, sasl_mechanism, ssl_cafile …)."""

    data: Path
    kafka: str
    """Brokers (`host:port,host:port`)."""
    redactor: Redactor | None
    """None: ship records unchanged, with text."""
    kafka_topic: str
    kafka_options: Mapping[str, Any]
    drain_s: float = 10.0


def run(options: ShipOptions) -> int:
    """Ship until SIGTERM or SIGINT, then return 0. Raises ValueError or OSError with a one-line message."""
    with _stop_signals() as stop:
        ship = _Ship(options, stop)
        try:
            ship.work()
        finally:
            ship.close()
    return 0


class _Stop:
    """Signal handler that keeps the time of the first stop signal."""

    at_s: float | None = None

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self.at_s is None:
            self.at_s = time.monotonic()


@contextmanager
def _stop_signals() -> Iterator[_Stop]:
    stop = _Stop()
    previous_handlers = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield stop
    finally:
        for number, handler in previous_handlers.items():
            signal.signal(number, handler)


class _Ship:
    def __init__(self, options: ShipOptions, stop: _Stop) -> None:
        prepare_data_folder(options.data)
        self._options, self._stop = options, stop
        self._log_dir = options.data / "log"
        self._status_path = options.data / "run" / "ship.json"
        self._status_s = float("-inf")
        self._warned = False
        self._damaged = 0
        self._writer = KafkaWriter(
            options.kafka,
            options.kafka_topic,
            options.kafka_options,
            give_up=self._give_up,
            progress=self._write_status,
        )
        self._reader = EmbeddedReader(self._log_dir, "ship", sole=True)
        self._redactor = options.redactor
        self._redaction = (
            RedactionStateFile(self._log_dir, options.redactor) if options.redactor is not None else None
        )

    def work(self) -> None:
        reader = self._reader
        for partition in reader.partitions():
            # Not from where the last run has read: what Kafka has not acknowledged must be sent again.
            reader.seek(partition, reader.released(partition))
        self._write_status(now=True)
        log.info(
            "shipping %s to the topic %r at %s", self._log_dir, self._options.kafka_topic, self._options.kafka
        )
        try:
            while not self._give_up():
                stopping = self._stop.at_s is not None
                entries = reader.poll(0.0 if stopping else _POLL_S, BATCH_BYTES)
                self._report_unreadable()
                if entries:
                    # The order is the guarantee: delivered, state stored, released. A kill after any step repeats the
                    # ones before it, and repeats are recognised.
                    self._writer.deliver(self._redact(group_by_stream(entry.payload for entry in entries)))
                    self._save_redaction_state()
                    for partition, offset in {entry.partition: entry.offset + 1 for entry in entries}.items():
                        reader.release(partition, offset)
                elif stopping:
                    break
                self._write_status()
        except LogBroken as error:
            if self._stop.at_s is None:
                raise OSError(str(error)) from error
            log.warning("%s", error)
        log.info("stopped shipping: %d records were sent to Kafka", self._writer.stats()["records"])

    def _report_unreadable(self) -> None:
        """Ship each unreadable range, and the incarnations whose streams may have records in it."""
        ranges = self._reader.take_unreadable()
        if ranges:
            self._damaged += sum(r.end - r.first for r in ranges)
            entries = [pack_damage(r.partition, r.first, r.end, r.reason) for r in ranges]
            now_ns = time.time_ns()
            damaged: list[AnyRecord] = [
                Damaged(incarnations_of(self._log_dir, partition), "log_damaged", now_ns)
                for partition in dict.fromkeys(r.partition for r in ranges)
            ]
            self._writer.deliver(GroupedRecords(poison=entries, broadcast=damaged))

    def _redact(self, grouped: GroupedRecords) -> GroupedRecords:
        if self._redactor is not None:
            streams = {stream: self._redactor.redact(records) for stream, records in grouped.streams.items()}
            grouped.streams = {stream: records for stream, records in streams.items() if records}
            grouped.poison = [filled_poison(payload) for payload in grouped.poison]
        return grouped

    def _save_redaction_state(self) -> None:
        """Save the state. On a full disk only warn: releasing entries frees space, but a kill would lose open streams."""
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
        with contextlib.suppress(OSError):  # the file names a process that ends
            self._status_path.unlink()

    def _give_up(self) -> bool:
        if self._stop.at_s is None:
            return False
        drain_s = self._options.drain_s
        if self._writer.failing:
            drain_s = min(drain_s, _UNREACHABLE_DRAIN_S)
        return time.monotonic() - self._stop.at_s >= drain_s

    def _write_status(self, *, now: bool = False) -> None:
        now_s = time.monotonic()
        if not now and now_s - self._status_s < _STATUS_S:
            return
        self._status_s = now_s
        report_progress()
        status = {
            "pid": os.getpid(),
            "brokers": self._options.kafka,
            "topic": self._options.kafka_topic,
            "reachable": not self._writer.failing,
            "last_error": self._writer.last_error,
            "log_bytes": log_bytes(self._log_dir),
            "damaged_entries": self._damaged,
            "entries": self._reader.entries,
            "released": {name: self._reader.released(name) for name in self._reader.partitions()},
            **self._writer.stats(),
            "redaction": dict(self._redactor.counters) if self._redactor is not None else None,
        }
        try:
            write_json(self._status_path, status)
            self._warned = False
        except OSError as error:  # a full disk: shipping frees space
            if not self._warned:
                log.warning("cannot write the status of ship: %s", error)
            self._warned = True


FILE = "redaction.sqlite"


# A row for each open stream, and the bytes so far of compressed bodies. It is written after Kafka has acknowledged a batch and before
# the batch is released, so the state covers exactly the records that Kafka has: after a kill at any time, `Redactor` drops them when
# `ship` reads their batch again.
class RedactionStateFile:
    """State file of one redactor. Not thread-safe: one owner."""

    def __init__(self, folder: Path, redactor: Redactor) -> None:
        """Open the file and restore the redactor. A damaged file is replaced: its streams become unknown."""
        self._redactor = redactor
        self._path = folder / FILE
        make_private_folder(folder)
        try:
            self._connection = self._open()
            rows = self._stored()
        except sqlite3.DatabaseError as error:
            log.warning(
                "%s is damaged (%s) and was replaced: streams that are open now are recorded as lost",
                self._path,
                error,
            )
            for suffix in ("", "-wal", "-shm"):
                Path(f"{self._path}{suffix}").unlink(missing_ok=True)
            self._connection, rows = self._open(), []
        for stream, state, coded in rows:
            redactor.restore(stream, state, coded)

    def _stored(self) -> list[tuple[str, bytes, list[bytes]]]:
        coded: dict[str, list[bytes]] = {}
        for stream, part in self._connection.execute("SELECT stream, part FROM coded ORDER BY rowid"):
            coded.setdefault(stream, []).append(part)
        states = self._connection.execute("SELECT stream, state FROM streams ORDER BY rowid")
        return [(stream, state, coded.get(stream, [])) for stream, state in states]

    def _open(self) -> sqlite3.Connection:
        os.close(os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600))
        connection = sqlite3.connect(self._path, isolation_level=None)
        # The file must survive a kill. It need not survive a power cut, which ends all open streams too.
        connection.executescript(
            "PRAGMA journal_mode = WAL; PRAGMA synchronous = OFF; PRAGMA secure_delete = ON;"
            "CREATE TABLE IF NOT EXISTS streams (stream TEXT PRIMARY KEY, state BLOB NOT NULL);"
            "CREATE TABLE IF NOT EXISTS coded (stream TEXT NOT NULL, part BLOB NOT NULL);"
            "CREATE INDEX IF NOT EXISTS coded_of ON coded (stream);"
        )
        return connection

    def save(self) -> None:
        """Write the changes. Raises OSError when the disk fails; the next call tries again."""
        changed, ended = self._redactor.changes()
        if not changed and not ended:
            return
        execute, many = self._connection.execute, self._connection.executemany
        try:
            execute("BEGIN")
            many(
                "INSERT INTO streams VALUES (?, ?) ON CONFLICT DO UPDATE SET state = excluded.state",
                [(c.stream, c.state) for c in changed],
            )
            many("DELETE FROM coded WHERE stream = ?", [(c.stream,) for c in changed if c.replaces])
            many("INSERT INTO coded VALUES (?, ?)", [(c.stream, c.coded) for c in changed if c.coded])
            for table in ("streams", "coded"):
                many(f"DELETE FROM {table} WHERE stream = ?", [(stream,) for stream in ended])
            execute("COMMIT")
        except sqlite3.Error as error:
            with contextlib.suppress(sqlite3.Error):
                execute("ROLLBACK")
            raise OSError(f"cannot write {self._path}: {error}") from error
        self._redactor.mark_saved()

    def close(self) -> None:
        self._connection.close()
