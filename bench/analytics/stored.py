"""Query times and bytes over 1, 10 or 100 million events, made by SQL: streams of 100 events over the last 24 hours.

With a folder a store is kept, since 100 million events take minutes to make. When it is queried again, all its times are moved
by whole minutes until its last minute is the present one: the views of the last 24 hours then read all of it.
"""

from __future__ import annotations

import shutil
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from analytics.query.limits import TRUSTED
from analytics.query.reader import Reader
from analytics.storage.location import locate
from analytics.storage.store import Store
from bench._stored import bytes_by_table, catalog_bytes, maintain, roll_up

STEP = 20_000
"""Streams inserted at once: two million events."""
MEMORY_BYTES = 4 * 2**30
ROUNDS = 5
GENERATED = (Path(__file__).parent / "stored.sql").read_text()
VIEWS = (
    "latency_by_minute", "errors_by_minute", "throughput_by_minute", "gateway_comparison", "slow_streams", "stalls",
    "taps", "counters",
)  # fmt: skip
QUERIES = {
    **{f"`{view}`": f"FROM {view}" for view in VIEWS},
    "`histogram_buckets`, as many rows as an answer may have": f"FROM histogram_buckets LIMIT {TRUSTED.max_rows}",
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
TIMEOUT_S = 300.0


@dataclass(frozen=True)
class Asked:
    """One store: seconds by query (medians), bytes an event by table and of the whole store."""

    events: int
    seconds: dict[str, float]
    bytes_an_event: dict[str, float]


def fill(folder: Path, events: int) -> None:
    """Create a store of that many events as upkeep leaves it, with roll-ups. `folder` exists once it is complete."""
    part = folder.with_name(f"{folder.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    store = Store(locate("sqlite", part), memory_limit_bytes=MEMORY_BYTES)
    cursor = store.cursor()
    cursor.execute("SELECT setseed(0.5)")
    streams, now_ms = events // 100, int(time.time() * 1000)
    for first in range(0, streams, STEP):
        for statement in GENERATED.split(";\n\n"):
            cursor.execute(
                statement.replace("{first}", str(first))
                .replace("{end}", str(min(streams, first + STEP)))
                .replace("{now_ms}", str(now_ms))
                .replace("{streams}", str(streams))
            )
    roll_up(store, cursor)
    cursor.close()
    maintain(store)
    store.close()
    part.rename(folder)


def bring_up_to_now(folder: Path) -> None:
    """Move all times of a store by whole minutes, the newest to this one. Stream ids stay."""
    store = Store(locate("sqlite", folder), memory_limit_bytes=MEMORY_BYTES)
    cursor = store.cursor()
    [(minutes,)] = cursor.execute(
        "SELECT date_diff('minute', max(started_at), now()) FROM streams"
    ).fetchall()
    if minutes:
        for table, columns in {
            "streams": ("started_at",),
            "stalls": ("started_at",),
            "stream_minutes": ("minute", "first_at", "last_at"),
            "histogram_minutes": ("minute",),
        }.items():
            moved = ", ".join(f"{column} = {column} + INTERVAL {minutes} MINUTE" for column in columns)
            cursor.execute(f"UPDATE {table} SET {moved}")
        maintain(store)
    cursor.close()
    store.close()


def ask(folder: Path) -> Asked:
    """Seconds of each query (median, one thread, after a warm-up) and bytes of the tables."""
    location = locate("sqlite", folder)
    store = Store(location)
    size = bytes_by_table(store)
    store.close()
    size["catalog"] = catalog_bytes(location)
    with tempfile.TemporaryDirectory() as spill:
        reader = Reader(
            location,
            memory_limit_bytes=TRUSTED.database_bytes,
            spill_folder=Path(spill),
            lock_down=False,
        )
        reader.connection.execute("SET threads = 1")
        events = int(_query(reader, "SELECT count(*) FROM events"))
        stream = str(_query(reader, "SELECT stream_id::VARCHAR FROM streams LIMIT 1 OFFSET 4321"))
        seconds = {name: _median_s(reader, sql.replace("{stream}", stream)) for name, sql in QUERIES.items()}
        reader.close()
    by_table = {table: size.get(table, 0) / events for table in TABLES}
    return Asked(
        events,
        seconds,
        {**by_table, "catalog": size["catalog"] / events, "store": sum(size.values()) / events},
    )


def _query(reader: Reader, sql: str) -> str:
    """One value."""
    return str(reader.query(sql, TRUSTED.max_rows, TIMEOUT_S).item())


def _median_s(reader: Reader, sql: str) -> float:
    took_s = []
    for _ in range(ROUNDS + 1):
        began_s = time.perf_counter()
        reader.query(sql, TRUSTED.max_rows, TIMEOUT_S)
        took_s.append(time.perf_counter() - began_s)
    return statistics.median(took_s[1:])
