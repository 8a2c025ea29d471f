"""Query times and bytes over 1, 10 or 100 million events, made by SQL: streams of 100 events over the last 24 hours."""

from __future__ import annotations

import statistics
import time
from pathlib import Path

import duckdb

from analytics.schema import open_file, prepare
from analytics.settle import settle

STEP = 20_000
GENERATED = (Path(__file__).parent / "stored.sql").read_text()
QUERIES = {
    **{
        view: f"FROM {view}"
        for view in (
            "latency_by_minute", "errors_by_minute", "throughput_by_minute", "gateway_comparison", "slow_streams", "stalls",
        )
    },
    "heat map of all gaps": "SELECT time_bucket(INTERVAL 24 MINUTE, minute) AS since, bucket, sum(n) FROM histogram_buckets "
    "WHERE metric = 'icl_ns' GROUP BY ALL",
    "one stream's timeline": "FROM events WHERE stream_id = (SELECT stream_id FROM streams LIMIT 1 OFFSET 4321) ORDER BY seq",
}  # fmt: skip


def fill(path: Path, events: int) -> None:
    """A settled file of that many events, its roll-ups made as an upgrade makes them."""
    connection = open_file(path, 4 * 2**30)
    prepare(connection, None)
    connection.execute("SELECT setseed(0.5)")
    streams, now_ms = events // 100, int(time.time() * 1000)
    for first in range(0, streams, STEP):
        for statement in GENERATED.split(";\n\n"):
            connection.execute(
                statement.replace("{first}", str(first))
                .replace("{end}", str(min(streams, first + STEP)))
                .replace("{now_ms}", str(now_ms))
                .replace("{streams}", str(streams))
            )
    connection.execute("UPDATE internal.migrations SET version = 1")
    connection.execute("DROP TABLE stalls")
    connection.close()
    connection = open_file(path, 4 * 2**30)
    prepare(connection, None)
    settle(connection, time.time())
    connection.execute("CHECKPOINT")
    connection.close()


def blocks(connection: duckdb.DuckDBPyConnection, table: str) -> int:
    """Bytes of the blocks that hold a table."""
    row = connection.execute(
        "SELECT count(DISTINCT block) FROM (SELECT unnest(additional_block_ids || [block_id]) AS block "
        f"FROM pragma_storage_info('{table}')) WHERE block >= 0"
    ).fetchone()
    return (row[0] if row else 0) * 256 * 1024


def ask(path: Path) -> None:
    """Print what each query takes (median of 5, one thread, after a warm-up) and what the tables take."""
    with duckdb.connect(str(path), read_only=True) as connection:
        connection.execute("SET threads = 1")
        connection.execute("SET TimeZone = 'UTC'")
        row = connection.execute("SELECT count(*) FROM events").fetchone()
        events = row[0] if row else 0
        print(f"{events:,} events, {path.stat().st_size / events:.1f} bytes of file an event")
        for table in ("events", "streams", "stream_minutes", "histogram_minutes"):
            print(f"  {table:<20} {blocks(connection, table) / events:>8.2f} bytes an event")
        for name, sql in QUERIES.items():
            took_s = []
            for _ in range(6):
                began_s = time.perf_counter()
                rows = len(connection.execute(sql).pl())
                took_s.append(time.perf_counter() - began_s)
            print(f"  {name:<24} {statistics.median(took_s[1:]) * 1e3:>8.0f} ms  {rows:>8} rows", flush=True)
