"""The drawings of how a duration is spread: over time as a heatmap, and as histogram and ECDF on a log axis.

Bins come from the database (`queries.latency`), on a log scale: a chart holds a few hundred marks however many streams
there are.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from zoneinfo import ZoneInfo

import altair as alt
import polars as pl

from dashboard import formatting
from dashboard.charts.base import HEIGHT, color_of, time_axis, to_the_ends, unit_of, wall


def heatmap(
    frame: pl.DataFrame,
    *,
    zone: ZoneInfo,
    span: tuple[datetime, datetime],
    bucket_s: int,
    height: int = 240,
    counted: str = "streams",
) -> alt.Chart:
    """How many per point of time and log bin of a duration (`at, low_ns, high_ns, n`): the stronger the colour, the more.

    `counted`: what `n` counts.
    """
    binned, unit = _binned(frame)
    until = (pl.col("at") + pl.duration(seconds=bucket_s)).alias("until")
    drawn = wall(binned.with_columns(until), zone, "at", "until")
    drawn = to_the_ends(drawn, zone, span, flat=("low", "high"))
    chart: alt.Chart = (
        alt.Chart(drawn)
        .mark_rect()
        .encode(
            x=time_axis(span),
            x2="until:T",
            y=alt.Y(
                "low:Q",
                scale=alt.Scale(type="log", nice=False),
                title=unit,
                axis=alt.Axis(tickCount=6, grid=False),
            ),
            y2="high:Q",
            color=alt.Color(
                "n:Q",
                legend=alt.Legend(
                    title=counted, orient="right", gradientLength=height - 70, tickCount=4, offset=6
                ),
                scale=alt.Scale(type="sqrt"),
            ),
            tooltip=[
                alt.Tooltip("at:T", title="from", timeUnit="utcyearmonthdatehoursminutesseconds"),
                alt.Tooltip("range:N"),
                alt.Tooltip("n:Q", title=counted, format=",d"),
            ],
        )
        .properties(height=height)
    )
    return chart


def _log_x(field: str, unit: str) -> alt.X:
    return alt.X(
        f"{field}:Q",
        scale=alt.Scale(type="log", nice=False),
        title=unit,
        axis=alt.Axis(tickCount=8, labelOverlap=True),
    )


def _binned(frame: pl.DataFrame) -> tuple[pl.DataFrame, str]:
    divisor, unit = unit_of(frame, "high_ns")
    said = pl.struct("low_ns", "high_ns").map_elements(
        lambda b: f"{formatting.duration(b['low_ns'])} – {formatting.duration(b['high_ns'])}",
        return_dtype=pl.String,
    )
    return frame.with_columns(
        (pl.col("low_ns") / divisor).alias("low"),
        (pl.col("high_ns") / divisor).alias("high"),
        said.alias("range"),
    ), unit


def histogram(frame: pl.DataFrame, colors: Mapping[str, str]) -> alt.Chart:
    """Shares per log bin (`name, low_ns, high_ns, n, share`), one stepped line per name."""
    drawn, unit = _binned(frame)
    chart: alt.Chart = (
        alt.Chart(drawn)
        .mark_line(interpolate="step-after")
        .encode(
            x=_log_x("low", unit),
            y=alt.Y("share:Q", title="share", axis=alt.Axis(format="%", tickCount=5)),
            color=color_of("name", colors),
            tooltip=[
                "name:N",
                "range:N",
                alt.Tooltip("share:Q", format=".1%"),
                alt.Tooltip("n:Q", title="streams"),
            ],
        )
        .properties(height=HEIGHT)
    )
    return chart


def ecdf(frame: pl.DataFrame, colors: Mapping[str, str], *, height: int = HEIGHT) -> alt.Chart:
    """Share of streams at or below (`name, high_ns, cumulated`)."""
    drawn, unit = _binned(frame)
    chart: alt.Chart = (
        alt.Chart(drawn)
        .mark_line(interpolate="linear")
        .encode(
            x=_log_x("high", unit),
            y=alt.Y(
                "cumulated:Q",
                title="share at or below",
                scale=alt.Scale(domain=[0, 1]),
                axis=alt.Axis(format="%", tickCount=5),
            ),
            color=color_of("name", colors),
            tooltip=[
                "name:N",
                alt.Tooltip("range:N", title="up to the end of"),
                alt.Tooltip("cumulated:Q", format=".1%"),
            ],
        )
        .properties(height=height)
    )
    return chart
