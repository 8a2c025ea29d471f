"""Charts over time: lines with one tooltip for all of them, and stacked bars."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

import altair as alt
import polars as pl

from dashboard import formatting, palette
from dashboard.charts.base import (
    HEIGHT,
    color_of,
    largest,
    present,
    time_axis,
    to_the_ends,
    unit_of,
    wall,
    wall_moment,
)

TIME_TOOLTIP: Any = "utcyearmonthdatehoursminutesseconds"


def time_lines(
    frame: pl.DataFrame,
    value: str,
    *,
    zone: ZoneInfo,
    span: tuple[datetime, datetime],
    bucket_s: int,
    series: str | None = None,
    colors: Mapping[str, str] | None = None,
    unit: str | None = None,
    form: Callable[[float | None], str] | None = None,
    rule: float | None = None,
    height: int = HEIGHT,
    percent: bool = False,
    robust: bool = False,
) -> alt.LayerChart | alt.FacetChart:
    """Lines of `value` over `at`, one per `series`; durations (columns that end in _ns) find their unit.

    A line breaks where a point of time has no data, so that silence does not look like calm; a point between two silences
    is a dot. The pointer finds the nearest point of time and reads all lines there at once. `rule`: an objective. `robust`: a
    few points far above all others do not flatten the lines: the axis ends below them, and its title says how high they are.
    """
    frame = frame.filter(pl.col(value).is_not_null())
    divisor = 1.0
    if value.endswith("_ns"):
        divisor, unit = unit_of(frame, value)
        form = form or formatting.duration
    name = series or "series"
    if series is None:
        frame = frame.with_columns(pl.lit("").alias(name))
    told = (
        {"": palette.ONE} if series is None else dict(colors or palette.of_series(sorted(set(frame[name]))))
    )
    told = present(told, frame, name)
    points = frame.select(
        "at",
        name,
        (pl.col(value) / divisor).alias("y"),
        pl.col(value).map_elements(form or formatting.count, return_dtype=pl.String).alias("said"),
    )
    drawn = wall(broken(points, name, bucket_s), zone, "at")
    axis = alt.Axis(tickCount=5, format="%") if percent else alt.Axis(tickCount=5)
    at = time_axis(span, [wall_moment(end, zone) for end in span])
    scale = alt.Scale(zero=True, nice=True)
    if robust and (ceiling := _ceiling(points)) is not None:
        scale = alt.Scale(domain=[0, ceiling], nice=True, clamp=False)
        unit = f"{unit or ''} (up to {(form or formatting.count)(largest(frame, value))})"
    base = alt.Chart(drawn).encode(
        x=at,
        y=alt.Y("y:Q", title=unit, scale=scale, axis=axis),
        color=color_of(name, told),
    )
    layers: list[alt.Chart] = [
        base.mark_line(invalid="break-paths-show-path-domains", clip=True),
        base.transform_filter("datum.alone").mark_point(clip=True),
    ]
    if rule is not None:
        layers.append(slo_rule(rule / divisor))
    layers.append(_reading(points, name, list(told), zone, at))
    return alt.layer(*layers, height=height)


OUTLYING = 4.0
"""A highest point this many times above the 95th percentile of all points flattens the rest."""


def _ceiling(points: pl.DataFrame) -> float | None:
    """Where the axis ends when outliers would flatten the lines; None when there are none."""
    usual, most = points["y"].quantile(0.95), largest(points, "y")
    return usual * 1.5 if usual is not None and 0 < usual < most / OUTLYING else None


def broken(points: pl.DataFrame, series: str, bucket_s: int) -> pl.DataFrame:
    """The points with `alone` (no neighbour on either side), and a NULL after each that has none to the right."""
    step = pl.duration(seconds=bucket_s)
    ordered = points.sort(series, "at").with_columns(
        (pl.col("at").shift(-1).over(series) > pl.col("at") + step).fill_null(True).alias("ends"),
        (pl.col("at").shift(1).over(series) < pl.col("at") - step).fill_null(True).alias("begins"),
    )
    nothing = ordered.filter("ends").with_columns(
        pl.col("at") + step,
        pl.lit(None, dtype=pl.Float64).alias("y"),
        pl.lit(None, dtype=pl.String).alias("said"),
        pl.lit(False).alias("begins"),
    )
    whole = pl.concat([ordered, nothing]).sort(series, "at")
    return whole.select("at", series, "y", "said", (pl.col("begins") & pl.col("ends")).alias("alone"))


def _reading(points: pl.DataFrame, series: str, names: list[str], zone: ZoneInfo, at: alt.X) -> alt.Chart:
    """A line at the point of time nearest to the pointer, whose tooltip has the value of every series there.

    One column per series under a plain name: a series may be called anything, a field of Vega may not.
    """
    place = {one: f"s{i}" for i, one in enumerate(names)}
    placed = points.with_columns(pl.col(series).replace_strict(place, default=None).alias("place"))
    wide = placed.pivot(on="place", on_columns=list(place.values()), index="at", values="said").sort("at")
    tips: list[Any] = [alt.Tooltip("at:T", title="time", timeUnit=TIME_TOOLTIP)]
    tips += [alt.Tooltip(f"{field}:N", title=one or "value") for one, field in place.items()]
    near = alt.selection_point(
        name="near", nearest=True, on="pointerover", fields=["at"], empty=False, clear="pointerout"
    )
    shown: alt.Chart = (
        alt.Chart(wall(wide.with_columns(pl.col("^s[0-9]+$").fill_null(formatting.UNKNOWN)), zone, "at"))
        .mark_rule(color=palette.RULE)
        .encode(x=at, opacity=alt.condition(near, alt.value(0.7), alt.value(0)), tooltip=tips)
        .add_params(near)
    )
    return shown


def slo_rule(at: float) -> alt.Chart:
    """A dashed line where an objective lies."""
    rule: alt.Chart = alt.Chart(pl.DataFrame({"slo": [at]})).mark_rule(strokeDash=[4, 4], color=palette.RULE)
    chart: alt.Chart = rule.encode(y="slo:Q")
    return chart


def time_bars(
    frame: pl.DataFrame,
    value: str,
    *,
    zone: ZoneInfo,
    span: tuple[datetime, datetime],
    bucket_s: int,
    series: str,
    colors: Mapping[str, str],
    unit: str,
    height: int = HEIGHT,
) -> alt.Chart:
    """Bars of a count over time, stacked in the order of `colors`."""
    drawn = wall(
        frame.with_columns((pl.col("at") + pl.duration(seconds=bucket_s)).alias("until")), zone, "at", "until"
    )
    told = present(colors, drawn, series)
    place = {name: i for i, name in enumerate(told)}
    drawn = (
        drawn.with_columns(
            pl.col(series).replace_strict(place, return_dtype=pl.Int32).alias("place"),
            pl.col(value).fill_null(0),
        )
        .sort("at", "place")
        .with_columns(pl.col(value).cum_sum().over("at").alias("top"))
        .with_columns((pl.col("top") - pl.col(value)).alias("foot"))
    )
    drawn = to_the_ends(drawn, zone, span, flat=("foot", "top"))
    chart: alt.Chart = (
        alt.Chart(drawn)
        .mark_rect(stroke=None)
        .encode(
            x=time_axis(span),
            x2="until:T",
            y=alt.Y("foot:Q", title=unit, axis=alt.Axis(tickCount=5)),
            y2="top:Q",
            color=color_of(series, told),
            tooltip=[
                alt.Tooltip("at:T", title="from", timeUnit=TIME_TOOLTIP),
                alt.Tooltip(f"{series}:N"),
                alt.Tooltip(f"{value}:Q", format=",.4~g", title=unit),
            ],
        )
        .properties(height=height)
    )
    return chart
