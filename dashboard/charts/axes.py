"""Axes and units of charts.

Vega draws every instant as UTC. `to_wall_time` therefore shifts instants to the wall clock of the reader's time zone and labels
them UTC. Durations are in ns and are drawn in the unit that suits the largest of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import altair as alt
import polars as pl

from streamgauge.analytics.reports import formatting
from streamgauge.dashboard.charts import colors

SECONDS_BELOW = timedelta(minutes=6)  # longer time axes have labels without seconds
DATES_ABOVE = timedelta(hours=26)  # longer time axes have labels with dates
LABEL_PX = 180
Y_AXIS_PX = 30
"""Least width of the labels of a vertical axis over time, so that the same time is at the same place in charts above each other."""
TIME_TOOLTIP: Any = "utcyearmonthdatehoursminutesseconds"


@dataclass(frozen=True)
class TimeRange:
    """The range of a time axis, the time zone of its labels, and the distance between its points."""

    since: datetime
    until: datetime
    zone: ZoneInfo
    bucket_s: int
    marks: Sequence[tuple[datetime, str]] = field(default=())
    """Instants that every chart marks with a vertical line, and their texts: onsets of incidents, and markers."""

    def axis(self, *, fixed: bool = False) -> alt.X:
        """The axis over the column `at`. `fixed` sets its domain, which Vega-Lite rejects for marks with x and x2."""
        domain = [_vega_time(end, self.zone) for end in (self.since, self.until)]
        scale = alt.Scale(type="utc", domain=domain) if fixed else alt.Scale(type="utc", nice=False)
        length = self.until - self.since
        labels = (
            "%H:%M:%S" if length <= SECONDS_BELOW else "%H:%M" if length <= DATES_ABOVE else "%d %b %H:%M"
        )
        axis = alt.Axis(grid=False, labelOverlap=True, labelFlush=True, format=labels, tickCount=8)
        return alt.X("at:T", scale=scale, title=None, axis=axis)

    def mark_lines(self) -> list[alt.Chart]:
        """A layer with a vertical line per mark inside the range, for charts whose axis is `fixed`."""
        inside = [(at, text) for at, text in self.marks if self.since <= at < self.until]
        if not inside:
            return []
        frame = pl.DataFrame(inside, schema={"at": pl.Datetime("us", "UTC"), "mark": pl.String}, orient="row")
        lines = (
            alt.Chart(to_wall_time(frame, self.zone, "at"))
            .mark_rule(color=colors.MARK, strokeWidth=2, strokeDash=[2, 3])
            .encode(
                x=self.axis(fixed=True),
                tooltip=[alt.Tooltip("at:T", title="time", timeUnit=TIME_TOOLTIP), alt.Tooltip("mark:N")],
            )
        )
        return [lines]

    def with_until(self, frame: pl.DataFrame) -> pl.DataFrame:
        """Add the columns `until`, the end of each point of `at`, and `begin`, its beginning, all as wall time.

        `at` and `until` are limited to the range, so that all axes of a page end at the same instants.
        """
        since, end = (pl.lit(at).cast(pl.Datetime("us", "UTC")) for at in (self.since, self.until))
        until = pl.min_horizontal(pl.col("at") + pl.duration(seconds=self.bucket_s), end)
        limited = frame.with_columns(
            pl.col("at").alias("begin"), pl.max_horizontal("at", since).alias("at"), until.alias("until")
        )
        return to_wall_time(limited, self.zone, "begin", "at", "until")

    def extend(self, frame: pl.DataFrame, *, low: str, high: str) -> pl.DataFrame:
        """Add a rectangle of zero height at each end of the range, so the axis covers the whole range."""
        ends = to_wall_time(pl.DataFrame({"end": [self.since, self.until]}), self.zone, "end")["end"]
        ends = ends.cast(frame.schema["at"])
        corners = pl.concat([frame.head(1)] * 2).with_columns(
            ends.alias("at"), ends.alias("until"), pl.col(low).alias(high)
        )
        return pl.concat([frame, corners])


def to_wall_time(frame: pl.DataFrame, zone: ZoneInfo, *columns: str) -> pl.DataFrame:
    """Instants as the wall clock of a time zone, labelled UTC."""
    return frame.with_columns(
        pl.col(c).dt.convert_time_zone(zone.key).dt.replace_time_zone(None).dt.replace_time_zone("UTC")
        for c in columns
    )


def _vega_time(at: datetime, zone: ZoneInfo) -> alt.DateTime:
    local = at.astimezone(zone)
    return alt.DateTime(
        year=local.year, month=local.month, date=local.day, hours=local.hour, minutes=local.minute,
        seconds=local.second, utc=True,
    )  # fmt: skip


def names_axis() -> alt.Axis:
    """The axis of the names next to bars. Long names are cut off; the tooltip shows them in full."""
    return alt.Axis(labelLimit=LABEL_PX, labelOverlap=False, grid=False)


def tooltips(*fields: str) -> list[alt.Tooltip]:
    """Rows of a tooltip. Altair turns strings into channels much more slowly."""
    return [alt.Tooltip(field) for field in fields]


def log_x(field: str, unit: str) -> alt.X:
    """A logarithmic x axis."""
    axis = alt.Axis(tickCount=8, labelOverlap=True)
    return alt.X(f"{field}:Q", scale=alt.Scale(type="log", nice=False), title=unit, axis=axis)


def duration_unit(largest_ns: float, units: Sequence[str] = ("s", "ms", "µs")) -> tuple[float, str]:
    """(divisor, name) of the unit that suits the largest duration."""
    sizes = {"s": 1e9, "ms": 1e6, "µs": 1e3}
    name = next((unit for unit in units if largest_ns >= sizes[unit]), units[-1])
    return sizes[name], name


def largest(frame: pl.DataFrame, column: str) -> float:
    """The largest number of a column, or 0 if it has none."""
    found = frame[column].max()
    return float(found) if isinstance(found, int | float) else 0.0


def duration_text(column: str) -> pl.Expr:
    """A column of durations in ns as text."""
    return pl.col(column).map_elements(formatting.duration, return_dtype=pl.String)
