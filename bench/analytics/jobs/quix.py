"""Quix Streams as documented: a stateful `apply` by key (RocksDB) and a batching sink that writes checkpoints.

State is read and written once per message. The sink inserts a checkpoint's rows as two Arrow tables in one transaction, the
fastest way for DuckDB. orjson parses JSON and librdkafka fetches messages. The checkpoint interval is one second. Each run has
a new consumer group, which starts at the beginning of the topic. It runs in its own environment (quix.lock).
"""

from __future__ import annotations

import sys
import tempfile
import uuid
from collections.abc import Iterable
from typing import Any

import duckdb
import pyarrow as pa
from quixstreams import Application  # type: ignore[import-not-found]  # only in its own environment
from quixstreams.sinks import BatchingSink, SinkBatch  # type: ignore[import-not-found]

from bench.analytics.jobs.measured import Clock, Watch
from bench.analytics.jobs.rows import EVENT_COLUMNS, STREAM_COLUMNS, TABLES, Row, step

COMMIT_INTERVAL_S = 1.0


class DuckDBSink(BatchingSink):  # type: ignore[misc]
    """Rows of `events` and `streams`, distinguished by length. Calls `on_streams` with the number of stored streams."""

    def __init__(self, database: str, on_streams: Any) -> None:
        super().__init__()
        self._connection = duckdb.connect(database)
        self._connection.execute(TABLES)
        self._connection.execute("SET threads = 1")
        self._on_streams = on_streams
        self._streams = 0

    def write(self, batch: SinkBatch) -> None:
        events: list[Row] = []
        streams: list[Row] = []
        for item in batch:
            (events if len(item.value) == len(EVENT_COLUMNS) else streams).append(item.value)
        self._connection.begin()
        for table, columns, rows in (("events", EVENT_COLUMNS, events), ("streams", STREAM_COLUMNS, streams)):
            if rows:
                arrays = [pa.array(column) for column in zip(*rows, strict=True)]
                self._connection.register("rows", pa.table(arrays, names=columns))
                self._connection.execute(f"INSERT INTO {table} BY NAME FROM rows")
                self._connection.unregister("rows")
        self._connection.commit()
        self._streams += len(streams)
        self._on_streams(self._streams)

    def close(self) -> None:
        self._connection.close()


def main(brokers: str, topic: str, database: str, streams: str) -> None:
    clock: Clock | None = None
    watch = Watch()

    def process(message: dict[str, Any], key: str, timestamp: int, headers: Any, state: Any) -> Iterable[Row]:
        nonlocal clock
        clock = clock or Clock()
        watch.received += 1
        stream = state.get("stream", {})
        rows, row = step(stream, key, message)
        if row is None:
            state.set("stream", stream)
            return rows
        state.delete("stream")
        return [*rows, row]

    def enough(found: int) -> None:
        if found >= int(streams):
            assert clock is not None
            clock.report()
            app.stop()

    with tempfile.TemporaryDirectory() as folder:
        app = Application(
            broker_address=brokers,
            consumer_group=f"quix-{uuid.uuid4()}",
            auto_offset_reset="earliest",
            commit_interval=COMMIT_INTERVAL_S,
            state_dir=folder,
            loglevel="WARNING",
        )
        messages = app.topic(topic, key_deserializer="str", value_deserializer="json")
        sink = DuckDBSink(database, enough)
        app.dataframe(messages).apply(process, stateful=True, expand=True, metadata=True).sink(sink)
        app.run()
        sink.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
