"""What the reader of a page has chosen: a time range and filters, and the SQL that says so."""

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
"""Name → SQL of what streams can be told apart by. A model is named as the request named it."""

BUCKETS_S = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400)
POINTS = 60
"""About as many points as a line of a chart gets."""


def instant(at: datetime) -> str:
    """A time with a zone as SQL, exact to the microsecond."""
    return f"TIMESTAMPTZ '{at.astimezone(UTC).strftime('%Y-%m-%d %H:%M:%S.%f')}+00'"


@dataclass(frozen=True, kw_only=True)
class Selection:
    """Streams that started in [since, until), of these models, gateways and clients; an empty tuple means all."""

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
        """Width of a point on a time line: the round length that makes about sixty of them."""
        wanted = self.length.total_seconds() / POINTS
        return next((b for b in BUCKETS_S if b >= wanted), BUCKETS_S[-1])

    def covered_s(self) -> pl.Expr:
        """Seconds of a point of time that lie in the range: fewer at its two ends. For rates over time."""
        begin = pl.max_horizontal("at", pl.lit(self.since).cast(pl.Datetime("us", "UTC")))
        end = pl.min_horizontal(
            pl.col("at") + pl.duration(seconds=self.bucket_s),
            pl.lit(self.until).cast(pl.Datetime("us", "UTC")),
        )
        return pl.max_horizontal((end - begin).dt.total_milliseconds() / 1000, pl.lit(0.001))

    def before(self) -> Selection:
        """The period of the same length before this one."""
        return replace(self, since=self.since - self.length, until=self.since)

    def filters(self) -> str:
        """The filters without the time range, as SQL to follow a WHERE or AND."""
        chosen: Iterable[tuple[str, tuple[str, ...]]] = (
            (MODEL, self.models),
            (GATEWAY, self.gateways),
            (CLIENT, self.clients),
        )
        parts = [f"{column} IN ({', '.join(map(literal, values))})" for column, values in chosen if values]
        return " AND ".join(parts) or "TRUE"

    def where(self) -> str:
        """The whole selection, as SQL to follow a WHERE."""
        return (
            f"started_at >= {instant(self.since)} AND started_at < {instant(self.until)} AND {self.filters()}"
        )

    def bucket(self) -> str:
        """SQL of the point on a time line that a stream belongs to (its start)."""
        return f"time_bucket(INTERVAL '{self.bucket_s} seconds', started_at)"
