"""A store whose last minutes have an incident: one model at one gateway answers most requests with HTTP 429."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import duckdb

from tests.dashboard.generated_store import fill, filling, roll_up, running_streams, write_open_streams

MODEL, GATEWAY = "gpt-4o-mini", "litellm"
SHARE = 70
"""Percentage of the requests of MODEL at GATEWAY that fail from the onset on."""


def rate_limit(connection: duckdb.DuckDBPyConnection, since: datetime) -> None:
    """Turn SHARE % of the streams of MODEL at GATEWAY that started after `since` into HTTP 429, and make the roll-ups anew."""
    connection.execute(
        """
        UPDATE streams SET outcome = 'http_error', http_status = 429, error_type = 'rate_limit_error', error_phase = 'pre_headers',
            error_message = 'generated rate limit', ttft_ns = NULL, itl_ns = NULL, tps_user = NULL, output_tokens = NULL,
            input_tokens = NULL, end_ns = headers_ns, stall_count = NULL, meets_objective = FALSE, finish_reason = NULL
        WHERE started_at >= ? AND request_model = ? AND gateway = ? AND outcome IN ('ok', 'client_abort')
            AND hash(stream_id) % 100 < ?""",
        [since, MODEL, GATEWAY, SHARE],
    )
    for table in ("stream_minutes", "histogram_minutes", "client_minutes", "output_stalls", "output_waits"):
        connection.execute(f"DELETE FROM {table}")
    roll_up(connection)


def with_incident(
    data: Path, *, streams: int = 2400, hours: float = 0.5, began: timedelta = timedelta(minutes=6)
) -> tuple[Path, datetime]:
    """Fill a data folder with streams until now. Returns it and the onset of the incident, `began` ago."""
    until = datetime.now(UTC)
    onset = until - began
    with filling(data) as connection:
        fill(connection, streams=streams, until=until, hours=hours)
        rate_limit(connection, onset)
    (data / "run").mkdir(exist_ok=True)
    write_open_streams(data, running_streams(until))
    return data, onset
