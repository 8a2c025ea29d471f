"""Store the redaction state of open streams, so `ship` can be killed at any time.

One SQLite file in the log's folder (mode 0600): a row for each open stream, and the bytes so far of compressed bodies. It is
written after Kafka has acknowledged a batch and before the batch is released. So the state covers exactly the records that
Kafka has. `Redactor` drops them when `ship` reads their batch again.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sqlite3
from pathlib import Path

from streamgauge.ingest.private_files import make_private_folder
from streamgauge.ingest.redaction.record_redactor import Redactor

log = logging.getLogger(__name__)

FILE = "redaction.sqlite"


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
