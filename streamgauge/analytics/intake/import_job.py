"""Import the streams of files that `streamgauge export` wrote. A thread reads them; the consumer's commits store the rows.

Rules
1. A request is a file in `DATA/import`, `<id>.json` with the key `file`. It stays until all rows are stored, so a process that was
   killed continues. Then `<id>.done` has the outcome: `streams`, `skipped`, or `error`. While it runs, the request has the numbers.
2. Each stream is stored once: ids that the store has are skipped. One process of a store imports at a time.
3. The rows of a stream are those of `TABLES_OF_STREAMS`, at most `BATCH_STREAMS` streams in a commit, which adds their roll-ups. Columns
   that the file lacks are NULL; those that the store lacks are left out.
4. A file that cannot be read is an `error`, never an exception.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import duckdb
import polars as pl

from streamgauge.analytics.assembly.finished_stream import FinishedStream
from streamgauge.analytics.commit_hook import CommitHook
from streamgauge.analytics.schema.frames import polars_types, with_all_columns
from streamgauge.analytics.schema.sql_quoting import identifier, literal
from streamgauge.analytics.schema.tables import ALERT_EVENTS, STREAMS, TABLES, Rows, Table
from streamgauge.analytics.storage.database import new_database, one_line
from streamgauge.analytics.storage.store import Store
from streamgauge.ingest.guards import Guards, guarded_thread
from streamgauge.ingest.identifiers import is_answer
from streamgauge.ingest.private_files import write_json

FOLDER = "import"
ROUND_S = 0.5
BATCH_STREAMS = 2_000
MEMORY_BYTES = 512 * 2**20
SILENT_AFTER_S = 300.0
_IDS = ("stream_id", "outer_stream_id")
TABLES_OF_STREAMS = {
    table: column
    for table in TABLES
    for column in _IDS
    if table.rows is Rows.APPENDED and table is not ALERT_EVENTS and column in table.types
}
"""With the column of the stream. `losses` and `dead_letters` are only imported with their stream."""

log = logging.getLogger(__name__)


class ImportJob(CommitHook):
    """Commit hook and thread. The consumer's thread calls the methods of the hook."""

    def __init__(self, store: Store, data: Path, guards: Guards) -> None:
        self._folder = data / FOLDER
        self._cursor, self._election = store.cursor(), store.catalog.cursor()
        self._guard = guards.guard("import", silent_after_s=SILENT_AFTER_S)
        self._stop = threading.Event()
        self._thread = guarded_thread(self._guard, self._repeat, self._stop)
        self._batch: Mapping[str, pl.DataFrame] = {}
        self._is_taken = False
        self._stored = threading.Event()

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self) -> None:
        """Stop. Requests stay for the next start."""
        self._stop.set()
        self._stored.set()
        if self._thread.is_alive():
            self._thread.join()
        for connection in (self._election, self._cursor):
            connection.close()

    # -- commit hook ---------------------------------------------------------------------------------------------------

    @property
    def waiting(self) -> bool:
        return bool(self._batch)

    def rows(
        self, finished: Sequence[FinishedStream], tables: Mapping[str, pl.DataFrame]
    ) -> Mapping[str, pl.DataFrame]:
        """The rows of the waiting batch."""
        self._is_taken = bool(self._batch)
        return self._batch

    @property
    def increments(self) -> Mapping[str, int]:
        ids = self._batch[STREAMS.name]["stream_id"] if self._is_taken else ()
        return {"imported_streams": sum(not is_answer(one) for one in ids)}

    def committed(self) -> None:
        """Continue with the next batch."""
        if self._is_taken:
            self._batch, self._is_taken = {}, False
            self._stored.set()

    # -- thread --------------------------------------------------------------------------------------------------------

    def _repeat(self) -> None:
        while not self._stop.wait(ROUND_S):
            self._guard.beat()
            for request in sorted(self._folder.glob("*.json")):
                with self._election.elected("import") as elected:
                    if elected:
                        self._guard.attempt(self._run, request)

    def _run(self, request: Path) -> None:
        """Import the file of a request, and write the outcome."""
        outcome: dict[str, Any] = {"streams": 0, "skipped": 0}
        try:
            file = str(json.loads(request.read_bytes())["file"])
            with closing(new_database(MEMORY_BYTES)) as source:
                source.execute(f"ATTACH {literal(file)} AS imported (READ_ONLY)")
                for ids, new in self._new_ids(source):
                    if new and not self._store(_tables(source, new)):
                        return
                    outcome["streams"] += len(new)
                    outcome["skipped"] += len(ids) - len(new)
                    request.stat()
                    write_json(request, {"file": file, **outcome})
        except FileNotFoundError:  # the command was interrupted
            return
        except (duckdb.Error, pl.exceptions.PolarsError, ValueError, KeyError, TypeError) as e:
            outcome["error"] = one_line(e)
        log.info("imported %d streams, %d were stored already", outcome["streams"], outcome["skipped"])
        write_json(request.with_suffix(".done"), outcome)
        request.unlink(missing_ok=True)

    def _new_ids(self, source: duckdb.DuckDBPyConnection) -> Iterator[tuple[list[str], list[str]]]:
        """The ids of the file in batches, and those of them that the store does not have."""
        ids = ["00000000-0000-0000-0000-000000000000"]
        while ids := _texts(
            source,
            f"SELECT stream_id FROM imported.streams WHERE stream_id > ?::UUID ORDER BY 1 LIMIT {BATCH_STREAMS}",
            [ids[-1]],
        ):
            self._guard.beat()
            stored = _texts(
                self._cursor,
                "SELECT stream_id FROM streams WHERE stream_id BETWEEN ?::UUID AND ?::UUID",
                [ids[0], ids[-1]],
            )
            yield ids, sorted({*ids} - {*stored})

    def _store(self, tables: Mapping[str, pl.DataFrame]) -> bool:
        """Wait until the consumer has committed the rows. False at the stop."""
        self._stored.clear()
        self._batch = tables
        while not self._stop.is_set() and not self._stored.wait(1.0):
            self._guard.beat()
        return not self._batch


def _texts(connection: duckdb.DuckDBPyConnection, sql: str, values: Sequence[object]) -> list[str]:
    return [str(value) for (value,) in connection.execute(sql, values).fetchall()]


def _tables(source: duckdb.DuckDBPyConnection, ids: Sequence[str]) -> dict[str, pl.DataFrame]:
    """The rows of these streams, by table."""
    found = {
        (table, column)
        for table, column in source.execute(
            "SELECT table_name, column_name FROM duckdb_columns() WHERE database_name = 'imported' AND schema_name = 'main'"
        ).fetchall()
    }
    tables = {}
    for table, column in TABLES_OF_STREAMS.items():
        columns = [name for name in table.types if (table.name, name) in found]
        if columns:
            rows = source.execute(
                f"SELECT {', '.join(_selected(table, name) for name in columns)} FROM imported.{table.name} "
                f"WHERE {column} BETWEEN ?::UUID AND ?::UUID AND {column} IN (SELECT unnest(?::UUID[]))",
                [ids[0], ids[-1], ids],
            ).pl()
            kinds = polars_types(table)
            tables[table.name] = with_all_columns(
                rows.cast({name: kinds[name] for name in columns}), table
            ).select(*kinds)
    return tables


def _selected(table: Table, column: str) -> str:
    kind = table.types[column]
    quoted = identifier(column)
    text = f"{quoted}::UUID::VARCHAR" if kind == "UUID" else f"{quoted}::{kind}"
    return f"{text} AS {quoted}"
