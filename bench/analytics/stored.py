"""Query times and bytes over 1, 10 or 100 million events, made by SQL: streams of 100 events over the last 24 hours.

A file is kept where a folder is given, for 100 million events take minutes to make; when it is asked again, all its times are
moved on, so that its last minute is the last one: the views of the last 24 hours have all of it to read.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from pathlib import Path

import duckdb

from analytics.measures.rollup import DEFAULT_STALL
from analytics.serving.serve import Bounds
from analytics.storage.packed import STORED_AS, append
from analytics.storage.schema import backfill, open_file, prepare
from analytics.storage.settle import settle

STEP = 20_000
MEMORY_BYTES = 4 * 2**30
GENERATED = (Path(__file__).parent / "stored.sql").read_text()
VIEWS = (
    "latency_by_minute", "errors_by_minute", "throughput_by_minute", "gateway_comparison", "slow_streams", "stalls",
    "taps", "counters",
)  # fmt: skip
QUERIES = {
    **{f"`{view}`": f"FROM {view}" for view in VIEWS},
    "`histogram_buckets`, as many rows as an answer may have": f"FROM histogram_buckets LIMIT {Bounds().max_rows}",
    "`histogram_buckets`, all added up": """
        SELECT metric, bucket, value, sum(n) FROM histogram_buckets GROUP BY ALL""",
    "heat map of all gaps (`histogram_buckets`)": """
        SELECT time_bucket(INTERVAL 24 MINUTE, minute) AS since, bucket, sum(n) FROM histogram_buckets
        WHERE metric = 'icl_ns' GROUP BY ALL""",
    "p50 and p99 by the hour (`histogram_buckets`)": """
        WITH added AS (
            SELECT date_trunc('hour', minute) AS hour, model, bucket, value, sum(n) AS n FROM histogram_buckets
            WHERE metric = 'ttft_ns' GROUP BY ALL
        ), ranked AS (
            SELECT *, sum(n) OVER (alike ORDER BY bucket) AS upto, sum(n) OVER alike AS many
            FROM added WINDOW alike AS (PARTITION BY hour, model)
        )
        SELECT hour, model, min(value) FILTER (upto >= 0.5 * many), min(value) FILTER (upto >= 0.99 * many)
        FROM ranked GROUP BY ALL""",
    "one stream's timeline": "FROM events WHERE stream_id = '{stream}' ORDER BY seq",
}
TABLES = ("events", "streams", "stream_minutes", "histogram_minutes")


@dataclass(frozen=True)
class Asked:
    """One file: seconds by query (medians), bytes an event by table and of the whole file."""

    events: int
    seconds: dict[str, float]
    bytes_an_event: dict[str, float]


def fill(path: Path, events: int) -> None:
    """A settled file of that many events, its roll-ups made as an upgrade makes them."""
    connection = open_file(path, MEMORY_BYTES)
    prepare(connection, None)
    connection.execute("SELECT setseed(0.5)")
    streams, now_ms = events // 100, int(time.time() * 1000)
    for first in range(0, streams, STEP):
        for statement in GENERATED.split(";\n\n"):
            connection.execute(
                statement.replace(
                    "INSERT INTO events BY NAME", "CREATE OR REPLACE TEMP TABLE plain_events AS"
                )
                .replace("{first}", str(first))
                .replace("{end}", str(min(streams, first + STEP)))
                .replace("{now_ms}", str(now_ms))
                .replace("{streams}", str(streams))
            )
        append(connection, "plain_events")
    backfill(connection, DEFAULT_STALL)
    connection.close()
    _open_anew(path).close()


def bring_up_to_now(path: Path) -> None:
    """Move all times of a file by whole minutes, the newest to this one."""
    connection = _open_anew(path)
    row = connection.execute("SELECT date_diff('minute', max(started_at), now()) FROM streams").fetchone()
    minutes = row[0] if row else 0
    if minutes:
        for table, columns in {
            "streams": ("started_at",),
            "stalls": ("started_at",),
            "stream_minutes": ("minute", "first_at", "last_at"),
            "histogram_minutes": ("minute",),
        }.items():
            moved = ", ".join(f"{column} = {column} + INTERVAL {minutes} MINUTE" for column in columns)
            connection.execute(f"UPDATE {table} SET {moved}")
        connection.execute("CHECKPOINT")
    connection.close()


def _open_anew(path: Path) -> duckdb.DuckDBPyConnection:
    """As analytics opens it: brought to this version, settled."""
    connection = open_file(path, MEMORY_BYTES)
    prepare(connection, None)
    settle(connection, time.time())
    connection.execute("CHECKPOINT")
    return connection


def blocks(connection: duckdb.DuckDBPyConnection, table: str) -> int:
    """Bytes of the blocks that hold a table."""
    row = connection.execute(
        "SELECT count(DISTINCT block) FROM (SELECT unnest(additional_block_ids || [block_id]) AS block "
        f"FROM pragma_storage_info('{table}')) WHERE block >= 0"
    ).fetchone()
    return (row[0] if row else 0) * 256 * 1024


def ask(path: Path) -> Asked:
    """What each query takes (median of 5, one thread, after a warm-up) and what the tables take."""
    with duckdb.connect(str(path), read_only=True) as connection:
        connection.execute("SET threads = 1")
        connection.execute("SET TimeZone = 'UTC'")
        row = connection.execute("SELECT count(*) FROM events").fetchone()
        events = row[0] if row else 0
        sizes = {table: blocks(connection, STORED_AS.get(table, table)) / events for table in TABLES}
        found = connection.execute("SELECT stream_id::VARCHAR FROM streams LIMIT 1 OFFSET 4321").fetchone()
        seconds = {}
        for name, sql in QUERIES.items():
            took_s = []
            for _ in range(6):
                began_s = time.perf_counter()
                connection.execute(sql.replace("{stream}", found[0] if found else "")).pl()
                took_s.append(time.perf_counter() - began_s)
            seconds[name] = statistics.median(took_s[1:])
        return Asked(events, seconds, {**sizes, "file": path.stat().st_size / events})
