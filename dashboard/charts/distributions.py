"""Distributions of durations: heatmap over time, histogram and ECDF.

The database computes the logarithmic bins, so the size of a chart does not depend on the number of streams.
"""

from __future__ import annotations

from collections.abc import Mapping

import altair as alt
import polars as pl

from streamgauge.analytics.reports import formatting
from streamgauge.dashboard.charts import colors
from streamgauge.dashboard.charts.axes import TIME_TOOLTIP, TimeRange, duration_unit, largest, log_x, tooltips
from streamgauge.dashboard.charts.drawing import HEIGHT, OVER_TIME

HEATMAP_HEIGHT = 240


def heatmap(frame: pl.DataFrame, time: TimeRange, *, counted: str = "streams") -> alt.Chart:
    """Counts by time and duration (`at, low_ns, high_ns, n`). `counted` names the unit of `n`."""
    binned, unit = _with_bounds(frame)
    data = time.extend(time.with_until(binned), low="low", high="high")
    legend = alt.Legend(
        title=counted, orient="right", gradientLength=HEATMAP_HEIGHT - 70, tickCount=4, offset=6
    )
    axis = alt.Axis(tickCount=6, grid=False)
    chart: alt.Chart = (
        alt.Chart(data)
        .mark_rect()
        .encode(
            x=time.axis(),
            x2=alt.X2("until:T"),
            y=alt.Y("low:Q", scale=alt.Scale(type="log", nice=False), title=unit, axis=axis),
            y2=alt.Y2("high:Q"),
            color=alt.Color("n:Q", legend=legend, scale=alt.Scale(type="sqrt")),
            tooltip=[
                alt.Tooltip("begin:T", title="from", timeUnit=TIME_TOOLTIP),
                alt.Tooltip("range:N"),
                alt.Tooltip("n:Q", title=counted, format=",d"),
            ],
        )
        .properties(height=HEATMAP_HEIGHT, usermeta=OVER_TIME)
    )
    return chart


def histogram(frame: pl.DataFrame, group_colors: Mapping[str, str]) -> alt.Chart:
    """Share of streams per bin (`name, low_ns, high_ns, n, share`), one stepped line per name."""
    data, unit = _with_bounds(frame)
    chart: alt.Chart = (
        alt.Chart(data)
        .mark_line(interpolate="step-after")
        .encode(
            x=log_x("low", unit),
            y=alt.Y("share:Q", title="share", axis=alt.Axis(format="%", tickCount=5)),
            color=colors.scale("name", group_colors),
            tooltip=[
                *tooltips("name:N", "range:N"),
                alt.Tooltip("share:Q", format=".1%"),
                alt.Tooltip("n:Q", title="streams"),
            ],
        )
        .properties(height=HEIGHT)
    )
    return chart


def ecdf(frame: pl.DataFrame, group_colors: Mapping[str, str], *, height: int = HEIGHT) -> alt.Chart:
    """Cumulative share of streams (`name, low_ns, high_ns, cumulated`), one line per name."""
    data, unit = _with_bounds(frame)
    axis = alt.Axis(format="%", tickCount=5)
    chart: alt.Chart = (
        alt.Chart(data)
        .mark_line(interpolate="linear")
        .encode(
            x=log_x("high", unit),
            y=alt.Y("cumulated:Q", title="cumulative share", scale=alt.Scale(domain=[0, 1]), axis=axis),
            color=colors.scale("name", group_colors),
            tooltip=[
                alt.Tooltip("name:N"),
                alt.Tooltip("range:N", title="bin"),
                alt.Tooltip("cumulated:Q", title="share up to the end of the bin", format=".1%"),
            ],
        )
        .properties(height=height)
    )
    return chart


def _with_bounds(frame: pl.DataFrame) -> tuple[pl.DataFrame, str]:
    """Add the bounds of each bin in the chart's unit (`low`, `high`) and as text (`range`)."""
    divisor, unit = duration_unit(largest(frame, "high_ns"))
    text = pl.struct("low_ns", "high_ns").map_elements(
        lambda b: f"{formatting.duration(b['low_ns'])} – {formatting.duration(b['high_ns'])}",
        return_dtype=pl.String,
    )
    return frame.with_columns(
        (pl.col("low_ns") / divisor).alias("low"),
        (pl.col("high_ns") / divisor).alias("high"),
        text.alias("range"),
    ), unit
