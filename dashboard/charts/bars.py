"""Charts with one row per name: stacked bars, and dots that compare several values of a row."""

from __future__ import annotations

from collections.abc import Mapping

import altair as alt
import polars as pl

from dashboard.charts import colors
from dashboard.charts.axes import duration_text, duration_unit, largest, names_axis
from dashboard.charts.drawing import Drawing

ROW_PX = 24
AXIS_PX = 50
LEGEND_PX = 40


def stacked_bars(frame: pl.DataFrame, outcome_colors: Mapping[str, str], *, rows: int = 0) -> alt.Chart:
    """Horizontal bars of `n` by `name`, largest first, stacked by `outcome`. The chart has room for at least `rows` rows."""
    shown = colors.present(outcome_colors, frame, "outcome")
    totals = frame.group_by("name").agg(pl.col("n").sum()).sort("n", "name", descending=[True, False])
    names = totals["name"].to_list()
    # Blank names pad the chart, so charts next to each other have bars of the same height.
    domain = names + [" " * (i + 1) for i in range(rows - len(names))]
    rank = {name: i for i, name in enumerate(shown)}
    ranked = frame.with_columns(pl.col("outcome").replace_strict(rank, return_dtype=pl.Int32).alias("rank"))
    chart: alt.Chart = (
        alt.Chart(ranked)
        .mark_bar(cornerRadius=2, size=ROW_PX - 8)
        .encode(
            y=alt.Y("name:N", scale=alt.Scale(domain=domain), title=None, axis=names_axis()),
            x=alt.X("n:Q", title="streams", axis=alt.Axis(tickMinStep=1, tickCount=5)),
            color=colors.scale("outcome", shown),
            order="rank:Q",
            tooltip=["name:N", "outcome:N", alt.Tooltip("n:Q", title="streams")],
        )
        .properties(height=ROW_PX * len(domain) + AXIS_PX)
    )
    return chart


def dots(frame: pl.DataFrame, phase_colors: Mapping[str, str]) -> Drawing:
    """One row per `name` with a dot at `value_ns` for each `first`, connected by a line."""
    divisor, unit = duration_unit(largest(frame, "value_ns"))
    data = frame.with_columns(
        (pl.col("value_ns") / divisor).alias("x"), duration_text("value_ns").alias("text")
    )
    names = data["name"].unique(maintain_order=True).to_list()
    base = alt.Chart(data).encode(
        y=alt.Y("name:N", sort=names, title=None, axis=names_axis()),
        x=alt.X("x:Q", title=unit, scale=alt.Scale(zero=True), axis=alt.Axis(tickCount=8)),
    )
    line = base.mark_line(color=colors.RULE, opacity=0.5, strokeWidth=1.5).encode(detail="name:N")
    domain = list(phase_colors)
    points = base.mark_point(filled=True, size=70, opacity=0.95).encode(
        # A legend inside the chart, because it also shows the shapes.
        color=alt.Color(
            "first:N", sort=domain, legend=alt.Legend(columns=4),
            scale=alt.Scale(domain=domain, range=list(phase_colors.values())),
        ),
        shape=alt.Shape("first:N", sort=domain, scale=alt.Scale(domain=domain)),
        tooltip=["name:N", "first:N", alt.Tooltip("text:N", title="value")],
    )  # fmt: skip
    return alt.layer(line, points).properties(height=28 * len(names) + AXIS_PX + LEGEND_PX)
