"""SQL of the pipeline itself: is what the other pages show complete, and how fresh is it?"""

from __future__ import annotations

import polars as pl

from dashboard.queries import Ask

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


def positions(ask: Ask) -> pl.DataFrame:
    """`log_positions` with `open` (streams that hold back `low`), one row per partition, at most 1000."""
    return ask("""
        SELECT log_id, partition, high, low, high - low AS replayed_after_restart, len(open_stream_ids) AS open, owner, version,
            updated_at
        FROM log_positions ORDER BY log_id, partition LIMIT 1000""")


def sizes(ask: Ask) -> pl.DataFrame:
    """Columns `table_name, row_count` of each public table."""
    return ask(
        " UNION ALL ".join(f"SELECT '{t}' AS table_name, count(*) AS row_count FROM {t}" for t in TABLES)
    )


def freshness(ask: Ask) -> dict[str, object]:
    """`newest_end_at` (of finished streams), `committed_at` (last commit of a position), `open`, `oldest_open_at`."""
    rows = ask("""
        SELECT (SELECT max(started_at + to_microseconds(coalesce(end_ns, 0) // 1000)) FROM streams
                WHERE started_at > (SELECT max(started_at) FROM streams) - INTERVAL '1 hour') AS newest_end_at,
            (SELECT max(updated_at) FROM log_positions) AS committed_at,
            (SELECT count(*) FROM open_streams) AS open, (SELECT min(started_at) FROM open_streams) AS oldest_open_at""")
    found: dict[str, object] = rows.to_dicts()[0]
    return found


def last_heard(ask: Ask) -> object:
    """The newest sign of life that analytics has read of any tap which has not stopped: a tap gives one every few seconds, so
    what is older is lag. None without a running tap."""
    return ask("SELECT max(last_alive_at) AS heard FROM taps WHERE NOT stopped")["heard"][0]


def ledger(ask: Ask) -> pl.DataFrame:
    """Columns `tap, finished, tap_lost, in_flight, malformed_events, lost_bytes`, one row per tap."""
    return ask("""
        SELECT tap, sum(finished)::BIGINT AS finished, sum(lost)::BIGINT AS tap_lost, sum(in_flight)::BIGINT AS in_flight,
            sum(malformed)::BIGINT AS malformed_events, sum(lost_bytes)::BIGINT AS lost_bytes
        FROM (
            SELECT coalesce(tap, '–') AS tap, count(*) AS finished, count(*) FILTER (outcome = 'tap_lost') AS lost,
                0 AS in_flight, sum(malformed_events) AS malformed, sum(lost_bytes) AS lost_bytes
            FROM streams GROUP BY ALL
            UNION ALL SELECT coalesce(tap, '–'), 0, 0, count(*), 0, 0 FROM open_streams GROUP BY ALL)
        GROUP BY ALL ORDER BY tap LIMIT 200""")


def taps(ask: Ask) -> pl.DataFrame:
    """What each run of each tap worker last said of itself.

    Columns `tap, tap_worker, started_at, last_alive_at, stopped, streams_opened, counters` (JSON).
    """
    return ask("""
        SELECT tap, tap_worker, started_at, last_alive_at, stopped,
            CAST(json_extract_string(counters, '$.streams_opened') AS BIGINT) AS streams_opened, counters
        FROM taps ORDER BY started_at DESC LIMIT 200""")


def counters(ask: Ask) -> pl.DataFrame:
    """Columns `name, value`: what analytics has counted since its file was made."""
    return ask("SELECT name, value FROM counters ORDER BY name LIMIT 500")


def losses(ask: Ask) -> pl.DataFrame:
    """The latest 200 holes that the taps told of."""
    return ask("""
        SELECT lost_at, cause, tap, partition, first_seq, last_seq, bytes, stream_id FROM losses
        ORDER BY lost_at DESC LIMIT 200""")


def losses_by_cause(ask: Ask) -> pl.DataFrame:
    """Columns `cause, loss_count, bytes, last_at`."""
    return ask("""
        SELECT cause, count(*) AS loss_count, sum(bytes)::BIGINT AS bytes, max(lost_at) AS last_at FROM losses GROUP BY ALL
        ORDER BY loss_count DESC LIMIT 50""")


def dead_letters(ask: Ask) -> pl.DataFrame:
    """The latest 200 records that could not be read."""
    return ask("SELECT * FROM dead_letters ORDER BY set_aside_at DESC LIMIT 200")


def versions(ask: Ask) -> str:
    """The version of the database."""
    return str(ask("SELECT version() AS v")["v"][0])
