"""A query result with any columns: as a table, or as a chart (a line over time, bars by name, or points of two numbers)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal
from zoneinfo import ZoneInfo

import altair as alt
import polars as pl
import streamlit as st

from streamgauge.dashboard import filters
from streamgauge.dashboard.charts import colors
from streamgauge.dashboard.charts.drawing import Drawing, time_tooltip, to_wall_time, tooltips

MAX_ROWS = 2_000
"""Rows that are drawn."""
MAX_COLORS = 12
"""Different values of a column that colours by default."""


def show_result(frame: pl.DataFrame, *, key: str, height: int | Literal["auto"] = "auto") -> None:
    """A table. Instants are in the reader's time zone, which their headings name."""
    zone = filters.time_zone()
    instants = [
        name for name, dtype in frame.schema.items() if isinstance(dtype, pl.Datetime) and dtype.time_zone
    ]
    shown = frame.with_columns(
        pl.col(instants).dt.convert_time_zone(zone.key).dt.replace_time_zone(None) if instants else []
    )
    config = {
        name: st.column_config.DatetimeColumn(f"{name} ({zone.key})", format="YYYY-MM-DD HH:mm:ss.SSS")
        for name in instants
    }
    st.dataframe(shown, hide_index=True, key=key, placeholder="NULL", height=height, column_config=config)


@dataclass(frozen=True)
class Axes:
    """The columns of a chart."""

    x: str
    y: str
    color: str | None


def numbers(schema: Mapping[str, pl.DataType]) -> list[str]:
    """The columns that can be the y axis."""
    return [name for name, dtype in schema.items() if dtype.is_numeric()]


def drawable(schema: Mapping[str, pl.DataType]) -> list[str]:
    """The columns that can be the x axis or the colour."""
    return [
        name
        for name, dtype in schema.items()
        if not dtype.is_nested() and dtype not in (pl.Binary, pl.Null, pl.Duration)
    ]


def default_axes(frame: pl.DataFrame) -> Axes | None:
    """The first time, else the first text or other column, by the first number, or None if no column fits.

    Two numbers are drawn as points. A chart over time is coloured by the first text column with few different values.
    """
    schema = frame.schema
    values = numbers(schema)
    times = [name for name, dtype in schema.items() if _is_time(dtype)]
    names = [name for name in drawable(schema) if name not in values and name not in times]
    x = next(iter([*times, *names, *values]), None)
    y = next((name for name in values if name != x), None)
    # One row is a number, not a chart.
    if x is None or y is None or frame.height < 2:
        return None
    few = (name for name in names if name != x and 1 < frame[name].n_unique() <= MAX_COLORS)
    return Axes(x, y, next(few, None) if x in times else None)


def _is_time(dtype: pl.DataType) -> bool:
    return isinstance(dtype, pl.Date | pl.Datetime)


def result_chart(result: pl.DataFrame, axes: Axes, zone: ZoneInfo) -> tuple[Drawing, dict[str, str]]:
    """The chart of the first `MAX_ROWS` rows, and the colours of its legend."""
    color = [pl.col(axes.color).cast(pl.String).fill_null("NULL").alias("name")] if axes.color else []
    frame = result.head(MAX_ROWS).select(
        pl.col(axes.x).alias("x"), pl.col(axes.y).cast(pl.Float64, strict=False).alias("y"), *color
    )
    frame = frame.filter(pl.col("y").is_finite(), pl.col("x").is_not_null())
    shown = colors.of_groups(frame) if axes.color else {}
    chart, x, label = _marks(frame, axes.x, zone)
    of_color = [("name:N", axes.color)] if axes.color else []
    drawing = chart.encode(
        x=x,
        y=alt.Y("y:Q", title=axes.y),
        color=colors.scale("name", shown) if axes.color else alt.ColorValue(colors.SINGLE),
        tooltip=[label, *tooltips(("y:Q", axes.y), *of_color)],
    )
    return drawing.properties(height=320), shown


def _marks(frame: pl.DataFrame, title: str, zone: ZoneInfo) -> tuple[alt.Chart, alt.X, alt.Tooltip]:
    """Lines over time, points of numbers, or bars, with the x axis and its text in the tooltip."""
    dtype = frame.schema["x"]
    if _is_time(dtype):
        if isinstance(dtype, pl.Datetime) and dtype.time_zone:
            frame = to_wall_time(frame, zone, "x")
        x = alt.X("x:T", title=title, scale=alt.Scale(type="utc"), axis=alt.Axis(grid=False, tickCount=8))
        return alt.Chart(frame).mark_line(point=True), x, time_tooltip("x", title)
    if dtype.is_numeric():
        frame = frame.with_columns(pl.col("x").cast(pl.Float64))
        x = alt.X("x:Q", title=title, scale=alt.Scale(zero=False))
        return alt.Chart(frame).mark_point(), x, alt.Tooltip("x:Q", title=title)
    frame = frame.with_columns(pl.col("x").cast(pl.String))
    x = alt.X("x:N", title=title, sort=None, axis=alt.Axis(labelLimit=160))
    return alt.Chart(frame).mark_bar(), x, alt.Tooltip("x:N", title=title)
