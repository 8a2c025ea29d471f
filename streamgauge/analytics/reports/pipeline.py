"""SQL for the completeness and freshness of the stored data."""

from __future__ import annotations

import polars as pl

from streamgauge.analytics.reports import Query
from streamgauge.analytics.reports.selection import Selection
from streamgauge.analytics.schema.dimensions import ENDED_AT

TABLES = (
    "streams",
    "open_streams",
    "events",
    "usage_reports",
    "server_stats",
    "spans",
    "losses",
    "dead_letters",
)


def positions(query: Query) -> pl.DataFrame:
    """`log_positions`, one row per partition, at most 1,000. `open`: number of streams that hold back `low`."""
    return query("""
        SELECT log_id, partition, high, low, high - low AS replayed_after_restart, len(open_stream_ids) AS open, owner, version,
            updated_at
        FROM log_positions ORDER BY log_id, partition LIMIT 1000""")


def sizes(query: Query) -> pl.DataFrame:
    """`table_name, row_count` of each public table."""
    return query(
        " UNION ALL ".join(f"SELECT '{t}' AS table_name, count(*) AS row_count FROM {t}" for t in TABLES)
    )


def freshness(query: Query) -> dict[str, object]:
    """`newest_end_at` (of finished streams), `committed_at` (last commit of a position), `open` (streams), `alive_at`.

    `alive_at`: the latest alive record of any running tap. Taps write one every few seconds, so an older one means lag.
    """
    return query(f"""
        SELECT (SELECT max({ENDED_AT}) FROM streams
                WHERE started_at > (SELECT max(started_at) FROM streams) - INTERVAL '1 hour') AS newest_end_at,
            (SELECT max(updated_at) FROM log_positions) AS committed_at,
            (SELECT count(*) FROM open_streams) AS open,
            (SELECT max(last_alive_at) FROM taps WHERE NOT stopped) AS alive_at""").to_dicts()[0]


def streams_by_tap(query: Query) -> pl.DataFrame:
    """`tap, finished, tap_lost, in_flight, malformed_events, lost_bytes`, one row per tap."""
    return query("""
        SELECT tap, sum(finished)::BIGINT AS finished, sum(lost)::BIGINT AS tap_lost, sum(in_flight)::BIGINT AS in_flight,
            sum(malformed)::BIGINT AS malformed_events, sum(lost_bytes)::BIGINT AS lost_bytes
        FROM (
            SELECT coalesce(tap, '–') AS tap, count(*) AS finished, count(*) FILTER (outcome = 'tap_lost') AS lost,
                0 AS in_flight, sum(malformed_events) AS malformed, sum(lost_bytes) AS lost_bytes
            FROM streams GROUP BY ALL
            UNION ALL SELECT coalesce(tap, '–'), 0, 0, count(*), 0, 0 FROM open_streams GROUP BY ALL)
        GROUP BY ALL ORDER BY tap LIMIT 200""")


def taps(query: Query) -> pl.DataFrame:
    """The latest state of each run of each tap worker.

    `tap, tap_worker, started_at, last_alive_at, stopped, streams_opened, faults` (threads and loops at fault), `counters` (JSON).
    """
    return query("""
        SELECT tap, tap_worker, started_at, last_alive_at, stopped,
            CAST(json_extract_string(counters, '$.streams_opened') AS BIGINT) AS streams_opened,
            CAST(json_extract_string(counters, '$.faults_now') AS BIGINT) AS faults, counters
        FROM taps ORDER BY started_at DESC LIMIT 200""")


def counters(query: Query) -> pl.DataFrame:
    """`name, value`: the counters of analytics since the creation of the store."""
    return query("SELECT name, value FROM counters ORDER BY name LIMIT 500")


def equal_cache_miss_reasons(counters: pl.DataFrame) -> tuple[int, int]:
    """(requests with a reason from both the provider and the comparison, those where both agree), from rows of `counters`."""
    both, equal = (
        counters.filter(pl.col("name") == f"cache_miss_reasons.{name}")["value"].sum()
        for name in ("both", "equal")
    )
    return int(both), int(equal)


def losses(query: Query) -> pl.DataFrame:
    """The latest 200 losses."""
    return query("""
        SELECT lost_at, cause, tap, partition, first_seq, last_seq, bytes, stream_id FROM losses
        ORDER BY lost_at DESC LIMIT 200""")


def losses_by_cause(query: Query, selection: Selection | None = None) -> pl.DataFrame:
    """`cause, loss_count, bytes, last_at` of all losses, or of those in the time range of a selection."""
    within = "TRUE" if selection is None else selection.within("lost_at")
    return query(f"""
        SELECT cause, count(*) AS loss_count, sum(bytes)::BIGINT AS bytes, max(lost_at) AS last_at FROM losses WHERE {within} GROUP BY ALL
        ORDER BY loss_count DESC LIMIT 50""")


def dead_letters(query: Query) -> pl.DataFrame:
    """The latest 200 records that could not be decoded."""
    return query("SELECT * FROM dead_letters ORDER BY set_aside_at DESC LIMIT 200")


def database_version(query: Query) -> str:
    """The version of DuckDB."""
    return str(query("SELECT version() AS v")["v"][0])
