"""Read measured streams from the tables for `measurement_check`."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from streamgauge.analytics.query.query_pool import QueryPool
from streamgauge.simulator.measurement_check import STREAM_COLUMNS

PAGE_ROWS = 20_000


def streams_since(tables: QueryPool, since: datetime) -> list[dict[str, Any]]:
    """Rows of `streams` that started at or after `since`, with `STREAM_COLUMNS`. Raises QueryError."""
    found: list[dict[str, Any]] = []
    while True:
        page = tables.query(
            f"SELECT {', '.join(STREAM_COLUMNS)} FROM streams WHERE started_at >= TIMESTAMPTZ '{since.isoformat()}' "
            f"ORDER BY started_at, stream_id LIMIT {PAGE_ROWS} OFFSET {len(found)}",
            max_rows=PAGE_ROWS,
            timeout_s=30,
        )
        found += page.to_dicts()
        if page.height < PAGE_ROWS:
            return found
