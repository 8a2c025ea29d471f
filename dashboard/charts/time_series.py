"""Charts over time: lines with one tooltip for all series, and stacked bars."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import altair as alt
import polars as pl

from dashboard import formatting
from dashboard.charts import colors
from dashboard.charts.axes import TIME_TOOLTIP, TimeRange, duration_unit, largest, to_wall_time
from dashboard.charts.drawing import HEIGHT, Drawing

OUTLIER_FACTOR = 4.0
"""A maximum this many times above the 95th percentile of all points flattens the other points."""


def time_lines(
    frame: pl.DataFrame,
    value: str,
    time: TimeRange,
    *,
    series: str | None = None,
    series_colors: Mapping[str, str] | None = None,
    unit: str | None = None,
    to_text: Callable[[float | None], str] | None = None,
    objective: float | None = None,
    percent: bool = False,
    clip_outliers: bool = False,
) -> Drawing:
    """Lines of `value` over `at`, one per value of the column `series`.

    - A column that ends in `_ns` is a duration and gets the unit that suits it. `to_text` formats the values of the tooltip.
    - A line breaks where a point of time has no data. A point without neighbours is a dot.
    - The tooltip shows all series at the point of time nearest to the pointer.
    - `objective` adds a dashed line.
    - `clip_outliers` ends the axis below outliers, and shows the maximum in the axis title.
    """
    frame = frame.filter(pl.col(value).is_not_null())
    divisor = 1.0
    if value.endswith("_ns"):
        divisor, unit = duration_unit(largest(frame, value))
        to_text = to_text or formatting.duration
    to_text = to_text or formatting.count
    name = series or "series"
    if series is None:
        frame, series_colors = frame.with_columns(pl.lit("").alias(name)), {"": colors.SINGLE}
    shown = colors.present(series_colors or colors.by_name(sorted(set(frame[name]))), frame, name)
    points = frame.select(
        "at",
        name,
        (pl.col(value) / divisor).alias("y"),
        pl.col(value).map_elements(to_text, return_dtype=pl.String).alias("text"),
    )
    scale = alt.Scale(zero=True, nice=True)
    if clip_outliers and (ceiling := _ceiling(points)) is not None:
        scale = alt.Scale(domain=[0, ceiling], nice=True, clamp=False)
        unit = f"{unit or ''} (max {to_text(largest(frame, value))})"
    axis = alt.Axis(tickCount=5, format="%") if percent else alt.Axis(tickCount=5)
    base = alt.Chart(to_wall_time(break_at_gaps(points, name, time.bucket_s), time.zone, "at")).encode(
        x=time.axis(fixed=True),
        y=alt.Y("y:Q", title=unit, scale=scale, axis=axis),
        color=colors.scale(name, shown),
    )
    layers = [
        base.mark_line(invalid="break-paths-show-path-domains", clip=True),
        base.transform_filter("datum.isolated").mark_point(clip=True),
    ]
    if objective is not None:
        rule = alt.Chart(pl.DataFrame({"slo": [objective / divisor]}))
        layers.append(rule.mark_rule(strokeDash=[4, 4], color=colors.RULE).encode(y="slo:Q"))
    layers.append(_shared_tooltip(points, name, list(shown), time))
    return alt.layer(*layers, height=HEIGHT)


def _ceiling(points: pl.DataFrame) -> float | None:
    """The end of the axis if outliers would flatten the lines, else None."""
    p95, maximum = points["y"].quantile(0.95), largest(points, "y")
    return p95 * 1.5 if p95 is not None and 0 < p95 < maximum / OUTLIER_FACTOR else None


def break_at_gaps(points: pl.DataFrame, series: str, bucket_s: int) -> pl.DataFrame:
    """The points with the column `isolated` (no neighbour on either side), and a NULL after each point before a gap."""
    step = pl.duration(seconds=bucket_s)
    ordered = points.sort(series, "at").with_columns(
        (pl.col("at").shift(-1).over(series) > pl.col("at") + step).fill_null(True).alias("ends"),
        (pl.col("at").shift(1).over(series) < pl.col("at") - step).fill_null(True).alias("begins"),
    )
    breaks = ordered.filter("ends").with_columns(
        pl.col("at") + step,
        pl.lit(None, dtype=pl.Float64).alias("y"),
        pl.lit(None, dtype=pl.String).alias("text"),
        pl.lit(False).alias("begins"),
    )
    points = pl.concat([ordered, breaks]).sort(series, "at")
    return points.select("at", series, "y", "text", (pl.col("begins") & pl.col("ends")).alias("isolated"))


def _shared_tooltip(points: pl.DataFrame, series: str, names: list[str], time: TimeRange) -> alt.Chart:
    """A vertical line at the point of time nearest to the pointer. Its tooltip has the values of all series.

    Each series becomes a column with a generated name, because Vega does not accept every name as a field.
    """
    fields = {name: f"s{i}" for i, name in enumerate(names)}
    renamed = points.with_columns(pl.col(series).replace_strict(fields, default=None).alias("field"))
    wide = renamed.pivot(on="field", on_columns=list(fields.values()), index="at", values="text").sort("at")
    wide = to_wall_time(wide.with_columns(pl.col("^s[0-9]+$").fill_null(formatting.UNKNOWN)), time.zone, "at")
    tooltip: list[Any] = [alt.Tooltip("at:T", title="time", timeUnit=TIME_TOOLTIP)]
    tooltip += [alt.Tooltip(f"{field}:N", title=name or "value") for name, field in fields.items()]
    nearest = alt.selection_point(
        name="near", nearest=True, on="pointerover", fields=["at"], empty=False, clear="pointerout"
    )
    opacity = alt.condition(nearest, alt.value(0.7), alt.value(0))
    chart: alt.Chart = (
        alt.Chart(wide)
        .mark_rule(color=colors.RULE)
        .encode(x=time.axis(fixed=True), opacity=opacity, tooltip=tooltip)
        .add_params(nearest)
    )
    return chart


def time_bars(
    frame: pl.DataFrame,
    value: str,
    time: TimeRange,
    *,
    series: str,
    series_colors: Mapping[str, str],
    unit: str,
) -> alt.Chart:
    """Bars of `value` over `at`, stacked in the order of the colours."""
    shown = colors.present(series_colors, frame, series)
    rank = {name: i for i, name in enumerate(shown)}
    stacked = (
        time.with_until(frame)
        .with_columns(
            pl.col(series).replace_strict(rank, return_dtype=pl.Int32).alias("rank"),
            pl.col(value).fill_null(0),
        )
        .sort("at", "rank")
        .with_columns(pl.col(value).cum_sum().over("at").alias("top"))
        .with_columns((pl.col("top") - pl.col(value)).alias("bottom"))
    )
    chart: alt.Chart = (
        alt.Chart(time.extend(stacked, low="bottom", high="top"))
        .mark_rect(stroke=None)
        .encode(
            x=time.axis(),
            x2="until:T",
            y=alt.Y("bottom:Q", title=unit, axis=alt.Axis(tickCount=5)),
            y2="top:Q",
            color=colors.scale(series, shown),
            tooltip=[
                alt.Tooltip("at:T", title="from", timeUnit=TIME_TOOLTIP),
                alt.Tooltip(f"{series}:N"),
                alt.Tooltip(f"{value}:Q", format=",.4~g", title=unit),
            ],
        )
        .properties(height=HEIGHT)
    )
    return chart
