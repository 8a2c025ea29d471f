"""A straightforward script: kafka-python, json, a dict of streams, rows inserted into DuckDB.

Each poll's rows are inserted with `executemany` in one transaction. Then its offsets are committed.
"""

from __future__ import annotations

import json
import sys
import uuid
from typing import Any

import duckdb
from kafka import KafkaConsumer

from bench.analytics.jobs.measured import Clock, Watch
from bench.analytics.jobs.rows import TABLES, Row, step


def main(brokers: str, topic: str, database: str, streams: str) -> None:
    connection = duckdb.connect(database)
    connection.execute(TABLES)
    connection.execute("SET threads = 1")
    consumer = KafkaConsumer(
        topic,
        bootstrap_servers=brokers,
        group_id=f"plain-{uuid.uuid4()}",
        enable_auto_commit=False,
        auto_offset_reset="earliest",
    )
    clock: Clock | None = None
    watch = Watch()
    open_streams: dict[str, dict[str, Any]] = {}
    done = 0
    while done < int(streams):
        events: list[Row] = []
        ended: list[Row] = []
        for messages in consumer.poll(timeout_ms=1000, max_records=5000).values():
            clock = clock or Clock()
            watch.received += len(messages)
            for message in messages:
                stream_id = message.key.decode()
                state = open_streams.setdefault(stream_id, {})
                rows, row = step(state, stream_id, json.loads(message.value))
                events += rows
                if row is not None:
                    ended.append(row)
                    del open_streams[stream_id]
        if events:
            connection.begin()
            connection.executemany("INSERT INTO events VALUES (?, ?, ?, ?, ?, ?)", events)
            if ended:
                connection.executemany("INSERT INTO streams VALUES (?, ?, ?, ?, ?, ?, ?)", ended)
            connection.commit()
            consumer.commit()
        done += len(ended)
    if clock is not None:
        clock.report()
    consumer.close(autocommit=False)
    connection.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
