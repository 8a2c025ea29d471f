"""Charts by name: stacked bars, and dots whose distance is the point."""

from __future__ import annotations

from collections.abc import Mapping

import altair as alt
import polars as pl

from dashboard import palette
from dashboard.charts.base import color_of, names_axis, present, said, unit_of

ROW_PX = 24
AXIS_PX = 50
LEGEND_PX = 40


def stacked(frame: pl.DataFrame, *, colors: Mapping[str, str], rows: int | None = None) -> alt.Chart:
    """Horizontal bars of `n` by `name`, the largest first, stacked by `outcome`. `rows`: with the room of that many."""
    told = present(colors, frame, "outcome")
    names = (
        frame.group_by("name")
        .agg(pl.col("n").sum())
        .sort("n", "name", descending=[True, False])["name"]
        .to_list()
    )
    # Names of nothing keep the rows at the top, and every row of every chart as high as the others.
    room = names + [" " * (i + 1) for i in range((rows or 0) - len(names))]
    place = {name: i for i, name in enumerate(told)}
    drawn = frame.with_columns(pl.col("outcome").replace_strict(place, return_dtype=pl.Int32).alias("place"))
    chart: alt.Chart = (
        alt.Chart(drawn)
        .mark_bar(cornerRadius=2, size=ROW_PX - 8)
        .encode(
            y=alt.Y("name:N", scale=alt.Scale(domain=room), title=None, axis=names_axis()),
            x=alt.X("n:Q", title="streams", axis=alt.Axis(tickMinStep=1, tickCount=5)),
            color=color_of("outcome", told),
            order="place:Q",
            tooltip=["name:N", "outcome:N", alt.Tooltip("n:Q", title="streams")],
        )
        .properties(height=ROW_PX * len(room) + AXIS_PX)
    )
    return chart


def dots(frame: pl.DataFrame, *, colors: Mapping[str, str]) -> alt.LayerChart | alt.FacetChart:
    """One row per `name`, a dot at `value_ns` for each `first`, joined by a line: how far apart the dots are is the point."""
    divisor, unit = unit_of(frame, "value_ns")
    drawn = frame.with_columns((pl.col("value_ns") / divisor).alias("x"), said("value_ns").alias("said"))
    names = drawn["name"].unique(maintain_order=True).to_list()
    base = alt.Chart(drawn).encode(
        y=alt.Y("name:N", sort=names, title=None, axis=names_axis()),
        x=alt.X("x:Q", title=unit, scale=alt.Scale(zero=True), axis=alt.Axis(tickCount=8)),
    )
    line = base.mark_line(color=palette.RULE, opacity=0.5, strokeWidth=1.5).encode(detail="name:N")
    points = base.mark_point(filled=True, size=70, opacity=0.95).encode(
        # Its own legend: the shapes are told there, too.
        color=alt.Color(
            "first:N",
            sort=list(colors),
            scale=alt.Scale(domain=list(colors), range=list(colors.values())),
            legend=alt.Legend(columns=4),
        ),
        shape=alt.Shape("first:N", sort=list(colors), scale=alt.Scale(domain=list(colors))),
        tooltip=["name:N", "first:N", alt.Tooltip("said:N", title="value")],
    )
    return alt.layer(line, points).properties(height=28 * len(names) + AXIS_PX + LEGEND_PX)
