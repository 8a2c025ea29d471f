"""A query result with any columns: as a table, or as a chart (a line over time, bars by name, or points of two numbers)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal
from zoneinfo import ZoneInfo

import altair as alt
import polars as pl
import streamlit as st

from streamgauge.dashboard import filters
from streamgauge.dashboard.charts import colors
from streamgauge.dashboard.charts.drawing import (
    Drawing,
    time_labels,
    time_tooltip,
    to_wall_time,
    tooltips,
    whole_numbers,
)

MAX_POINTS = 2_000
"""Points that are drawn. Of more rows, they are medians or a sample."""
PAGES = {"stream_id": ("stream", "id"), "trace_id": ("traces", "trace")}
"""End of the name of a column of ids → page and its parameter."""
DATE_LABELS = "%d %b %Y"
"""Format of the labels of an axis of dates."""
MAX_COLORS = 12
"""Different values of a column that colours by default."""


def show_result(frame: pl.DataFrame, *, key: str, height: int | Literal["auto"] = "auto") -> None:
    """A table. Instants are in the reader's time zone, which their headings name. Ids are links to their pages."""
    zone = filters.time_zone()
    instants = [
        name for name, dtype in frame.schema.items() if isinstance(dtype, pl.Datetime) and dtype.time_zone
    ]
    config: dict[str, Any] = {
        name: st.column_config.DatetimeColumn(f"{name} ({zone.key})", format="YYYY-MM-DD HH:mm:ss.SSS")
        for name in instants
    }
    shown = [pl.col(name).dt.convert_time_zone(zone.key).dt.replace_time_zone(None) for name in instants]
    for name in frame.columns:
        for page, parameter in (page for end, page in PAGES.items() if name.endswith(end)):
            address = f"{filters.page_address(page, {})}&{parameter}="
            shown.append((pl.lit(address) + pl.col(name).cast(pl.String)).alias(name))
            config[name] = st.column_config.LinkColumn(display_text=f"&{parameter}=(.*)")
    st.dataframe(
        frame.with_columns(shown),
        hide_index=True,
        key=key,
        placeholder="NULL",
        height=height,
        column_config=config,
    )


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


def result_chart(result: pl.DataFrame, axes: Axes, zone: ZoneInfo) -> tuple[Drawing, dict[str, str], str]:
    """The chart, the colours of its legend, and how its points differ from the rows, if they do."""
    color = [pl.col(axes.color).cast(pl.String).fill_null("NULL").alias("name")] if axes.color else []
    frame = result.select(
        pl.col(axes.x).alias("x"), pl.col(axes.y).cast(pl.Float64, strict=False).alias("y"), *color
    )
    frame = frame.filter(pl.col("y").is_finite(), pl.col("x").is_not_null())
    frame, note = _reduced(frame, [axes.x] + ([axes.color] if axes.color else []))
    shown = colors.of_groups(frame) if axes.color else {}
    chart, x, label = _marks(frame, axes.x, zone)
    of_color = [("name:N", axes.color)] if axes.color else []
    drawing = chart.encode(
        x=x,
        y=alt.Y("y:Q", title=axes.y, axis=whole_numbers(result.schema[axes.y].is_integer())),
        color=colors.scale("name", shown) if axes.color else alt.ColorValue(colors.SINGLE),
        tooltip=[label, *tooltips(("y:Q", axes.y), *of_color)],
    )
    return drawing.properties(height=320), shown, note


def _reduced(frame: pl.DataFrame, names: list[str]) -> tuple[pl.DataFrame, str]:
    """At most `MAX_POINTS` points of `x, y` and perhaps `name`, at most one per bar, and how they differ from the rows."""
    rows, dtype, keys = frame.height, frame.schema["x"], [name for name in frame.columns if name != "y"]
    median = pl.col("y").median()
    if not _is_time(dtype) and not dtype.is_numeric():
        frame = frame.group_by(keys, maintain_order=True).agg(median)
        note = (
            f"Each bar is the median of the rows with the same {' and '.join(names)}."
            if frame.height < rows
            else ""
        )
        if frame.height > MAX_POINTS:
            note += f" The first {MAX_POINTS:,} of {frame.height:,} bars are drawn."
        return frame.head(MAX_POINTS), note.strip()
    if rows <= MAX_POINTS:
        return frame, ""
    if isinstance(dtype, pl.Datetime):
        series = frame["name"].n_unique() if "name" in frame.columns else 1
        length_s = (frame["x"].max() - frame["x"].min()).total_seconds()  # type: ignore[operator, union-attr]
        step_s = max(1, math.ceil(length_s * series / MAX_POINTS))
        frame = frame.with_columns(pl.col("x").dt.truncate(f"{step_s}s"))
        frame = frame.group_by(keys, maintain_order=True).agg(median).sort("x")
        if frame.height <= MAX_POINTS * 1.1:
            return (
                frame,
                f"{rows:,} rows: each point is the median of {step_s:,} s.",
            )
    nth = -(-rows // MAX_POINTS)
    return frame.gather_every(nth), f"A sample is drawn: one of every {nth} of {rows:,} rows."


def _marks(frame: pl.DataFrame, title: str, zone: ZoneInfo) -> tuple[alt.Chart, alt.X, alt.Tooltip]:
    """Lines over time, points of numbers, or bars, with the x axis and its text in the tooltip."""
    dtype = frame.schema["x"]
    if _is_time(dtype):
        if isinstance(dtype, pl.Datetime) and dtype.time_zone:
            frame = to_wall_time(frame, zone, "x")
            title = f"{title} ({zone.key})"
        length = (frame["x"].max() or 0) - (frame["x"].min() or 0)  # type: ignore[operator]
        labels = DATE_LABELS if dtype == pl.Date else time_labels(length or timedelta())  # type: ignore[arg-type]
        axis = alt.Axis(grid=False, tickCount=8, format=labels, labelOverlap=True)
        x = alt.X("x:T", title=title, scale=alt.Scale(type="utc"), axis=axis)
        return alt.Chart(frame).mark_line(point=True), x, time_tooltip("x", title)
    if dtype.is_numeric():
        frame = frame.with_columns(pl.col("x").cast(pl.Float64))
        x = alt.X("x:Q", title=title, scale=alt.Scale(zero=False))
        return alt.Chart(frame).mark_point(), x, alt.Tooltip("x:Q", title=title)
    frame = frame.with_columns(pl.col("x").cast(pl.String))
    x = alt.X("x:N", title=title, sort=None, axis=alt.Axis(labelLimit=160))
    return alt.Chart(frame).mark_bar(), x, alt.Tooltip("x:N", title=title)
