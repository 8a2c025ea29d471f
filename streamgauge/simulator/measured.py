"""Measured streams, read from the tables for the audit."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from analytics.query.process import QueryProcess
from streamgauge.simulator.audit import STREAM_COLUMNS

PAGE_ROWS = 20_000


def streams_since(tables: QueryProcess, since: datetime) -> list[dict[str, Any]]:
    """Every row of `streams` that started since then (the columns that the audit reads). Raises QueryError."""
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
