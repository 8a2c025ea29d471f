"""The selected streams of a page: time range and filters, and their SQL."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

import polars as pl

from analytics.schema.sql_quoting import literal

MODEL = "coalesce(request_model, response_model, '(no model)')"
GATEWAY = "coalesce(gateway, '(no gateway)')"
CLIENT = "coalesce(client_id, '(no key)')"
DIMENSIONS: dict[str, str] = {"model": MODEL, "gateway": GATEWAY, "client": CLIENT}
"""Dimension → SQL of its value. The model is the requested one, else the one in the response."""

BUCKETS_S = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400)
POINTS = 60
"""Approximate number of points of a line."""
MAX_STREAM_S = 3600
"""Longest stream that counts as open at a past instant. It limits how many streams a query reads."""


def instant(at: datetime) -> str:
    """A TIMESTAMPTZ literal, exact to the microsecond."""
    return f"TIMESTAMPTZ '{at.astimezone(UTC).strftime('%Y-%m-%d %H:%M:%S.%f')}+00'"


@dataclass(frozen=True, kw_only=True)
class Selection:
    """Streams that started in [since, until). Empty filters match all models, gateways or clients."""

    since: datetime
    until: datetime
    models: tuple[str, ...] = ()
    gateways: tuple[str, ...] = ()
    clients: tuple[str, ...] = ()

    @property
    def length(self) -> timedelta:
        return self.until - self.since

    @property
    def bucket_s(self) -> int:
        """Seconds between the points of a time series: a round number that gives about 60 points."""
        target_s = self.length.total_seconds() / POINTS
        return next((b for b in BUCKETS_S if b >= target_s), BUCKETS_S[-1])

    def covered_s(self) -> pl.Expr:
        """Seconds of each point `at` inside the range. The first and last point are partly outside."""
        begin = pl.max_horizontal("at", pl.lit(self.since).cast(pl.Datetime("us", "UTC")))
        end = pl.min_horizontal(
            pl.col("at") + pl.duration(seconds=self.bucket_s),
            pl.lit(self.until).cast(pl.Datetime("us", "UTC")),
        )
        return pl.max_horizontal((end - begin).dt.total_milliseconds() / 1000, pl.lit(0.001))

    def before(self) -> Selection:
        """The previous period of the same length."""
        return replace(self, since=self.since - self.length, until=self.since)

    def filters(self) -> str:
        """SQL condition of the filters without the time range."""
        by_column: Iterable[tuple[str, tuple[str, ...]]] = (
            (MODEL, self.models),
            (GATEWAY, self.gateways),
            (CLIENT, self.clients),
        )
        parts = [f"{column} IN ({', '.join(map(literal, values))})" for column, values in by_column if values]
        return " AND ".join(parts) or "TRUE"

    def where(self) -> str:
        """SQL condition of the selection."""
        return (
            f"started_at >= {instant(self.since)} AND started_at < {instant(self.until)} AND {self.filters()}"
        )

    def bucket(self) -> str:
        """SQL of a stream's point in a time series, by its start."""
        return f"time_bucket(INTERVAL '{self.bucket_s} seconds', started_at)"
