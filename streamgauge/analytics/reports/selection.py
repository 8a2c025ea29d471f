"""The selected streams: time range and filters, their SQL, and the names that readers see instead of client ids."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

import polars as pl

from streamgauge.analytics.schema.clients import MAX_CLIENTS
from streamgauge.analytics.schema.dimensions import CLIENT as CLIENT
from streamgauge.analytics.schema.dimensions import DIMENSIONS as DIMENSIONS
from streamgauge.analytics.schema.dimensions import GATEWAY as GATEWAY
from streamgauge.analytics.schema.dimensions import LABEL, has_labels, is_client, is_one_of
from streamgauge.analytics.schema.dimensions import MODEL as MODEL
from streamgauge.analytics.schema.dimensions import dimension as dimension
from streamgauge.analytics.schema.sql_quoting import instant as instant
from streamgauge.analytics.schema.sql_quoting import literal

FURTHER_DIMENSIONS: dict[str, str] = {
    name: f"coalesce({column}::VARCHAR, '(none)')"
    for name, column in (
        ("provider", "provider"), ("dialect", "dialect"), ("operation", "operation"), ("path", "path"),
        ("response model", "response_model"), ("server instance", "server_instance"), ("tap", "tap"),
        ("token source", "token_source"), ("streamed", "streamed"),
    )
}  # fmt: skip
"""Dimensions that the filters of all pages do not have."""

FILTERS = (*DIMENSIONS, LABEL)
"""Filters of all pages."""

BUCKETS_S = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400)
POINTS = 60
"""Approximate number of points of a line with many samples."""
MIN_POINTS = 15
"""Approximate number of points of a line with few samples."""
MIN_SAMPLES = 20
"""Points with fewer samples are drawn faded, because quantiles and rates of so few vary by chance."""
LEAST_DRAWN = timedelta(minutes=1)
MAX_STREAM_S = 3600
"""Longest stream that counts as open at a past instant. It limits how many streams a query reads."""


@dataclass(frozen=True, kw_only=True)
class Selection:
    """Streams that started in [since, until). An empty filter matches all values of its dimension."""

    since: datetime
    until: datetime
    models: tuple[str, ...] = ()
    gateways: tuple[str, ...] = ()
    clients: tuple[str, ...] = ()
    apps: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    """Texts NAME=VALUE."""
    further: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """Names of FURTHER_DIMENSIONS with their values."""
    least_bucket_s: float = 0.0
    """Lower limit of `bucket_s`."""
    began: datetime | None = None
    """When the first stored stream started. It limits what charts draw and what rates divide by, not the selected streams."""

    @property
    def chosen(self) -> dict[str, tuple[str, ...]]:
        """Filter → its values. The attributes have the plural of its name."""
        return {name: getattr(self, f"{name}s") for name in FILTERS}

    def filtered(self, chosen: Mapping[str, tuple[str, ...]]) -> Selection:
        """With other values of these filters."""
        values: dict[str, Any] = {f"{name}s": texts for name, texts in chosen.items()}
        return replace(self, **values)

    @property
    def length(self) -> timedelta:
        return self.until - self.since

    @property
    def drawn_since(self) -> datetime:
        """Where the time axis of charts begins: at the first data, if that is later than `since`, and at least `LEAST_DRAWN` long."""
        if self.began is None:
            return self.since
        began = min(self.began, self.until - LEAST_DRAWN)
        # At the beginning of a point, so that the first one is complete.
        return max(self.since, began.replace(second=began.second - began.second % 10, microsecond=0))

    @property
    def bucket_s(self) -> int:
        """Seconds between the points of a time series: a round number that gives about 60 points, or fewer if widened."""
        target_s = max((self.until - self.drawn_since).total_seconds() / POINTS, self.least_bucket_s)
        return next((b for b in BUCKETS_S if b >= target_s), BUCKETS_S[-1])

    def widened(self, samples_per_s: float) -> Selection:
        """With points that have MIN_SAMPLES at this rate of one series, as far as MIN_POINTS remain."""
        widest_s = (self.until - self.drawn_since).total_seconds() / MIN_POINTS
        wanted_s = MIN_SAMPLES / samples_per_s if samples_per_s > 0 else 0.0
        return replace(self, least_bucket_s=min(wanted_s, widest_s))

    def in_minutes(self) -> Selection:
        """The range with its ends moved outwards to whole minutes, so that a cached answer serves several refreshes."""
        minute = timedelta(minutes=1)
        until = self.until.replace(second=0, microsecond=0)
        return replace(
            self,
            since=self.since.replace(second=0, microsecond=0),
            until=until if until == self.until else until + minute,
        )

    def seconds_with_data(self) -> float:
        """Seconds of the range since the first stored data, at least 1: the divisor of rates."""
        since = max(self.since, self.began or self.since)
        return max((self.until - since).total_seconds(), 1.0)

    def covered_s(self) -> pl.Expr:
        """Seconds of each point `at` inside the range and since the first stored data."""
        since = max(self.since, self.began or self.since)
        begin = pl.max_horizontal("at", pl.lit(since).cast(pl.Datetime("us", "UTC")))
        end = pl.min_horizontal(
            pl.col("at") + pl.duration(seconds=self.bucket_s),
            pl.lit(self.until).cast(pl.Datetime("us", "UTC")),
        )
        return pl.max_horizontal((end - begin).dt.total_milliseconds() / 1000, pl.lit(0.001))

    def with_comparable_before(self) -> Selection:
        """Itself, or its end that is half of the time since the first data: then there is data of the whole previous period."""
        half = self.since if self.began is None else self.until - (self.until - self.began) / 2
        return replace(self, since=max(self.since, half))

    def before(self) -> Selection:
        """The previous period of the same length."""
        return replace(self, since=self.since - self.length, until=self.since)

    def filters(self) -> str:
        """SQL condition of the filters without the time range."""
        by_column = [(column, self.chosen[name]) for name, column in DIMENSIONS.items()]
        by_column += [(FURTHER_DIMENSIONS[name], values) for name, values in self.further]
        parts = [
            (is_client if column == DIMENSIONS["client"] else is_one_of)(column, values)
            for column, values in by_column
            if values
        ]
        parts += [has_labels(self.labels)] if self.labels else []
        return " AND ".join(parts) or "TRUE"

    def within(self, column: str = "started_at") -> str:
        """SQL condition of the time range."""
        return f"{column} >= {instant(self.since)} AND {column} < {instant(self.until)}"

    def where(self) -> str:
        """SQL condition of the selection."""
        return f"{self.within()} AND {self.filters()}"

    def bucket(self) -> str:
        """SQL of a stream's point in a time series, by its start."""
        return f"time_bucket(INTERVAL '{self.bucket_s} seconds', started_at)"


def contains_text(text: str, *fields: str) -> str:
    """SQL condition: one of the fields contains the text, ignoring case."""
    return "(" + " OR ".join(f"contains(lower({f}), lower({literal(text)}))" for f in fields) + ")"


# Names of clients

CLIENT_NAMES = f"SELECT client_id, name FROM clients LIMIT {MAX_CLIENTS}"
_SHOWN_IN = ("name", "client")


def with_client_names(rows: pl.DataFrame, names: Mapping[str, str]) -> pl.DataFrame:
    """The rows with names instead of client ids in the columns `name` and `client`. The column `client_id` is unchanged."""
    columns = [column for column in _SHOWN_IN if names and rows.schema.get(column) == pl.String]
    return rows.with_columns(pl.col(columns).replace(names)) if columns else rows
