"""Charts with one row per name: a matrix of error rates, and dots that compare several values of a row."""

from __future__ import annotations

from collections.abc import Mapping

import altair as alt
import polars as pl

from streamgauge.dashboard.charts import colors
from streamgauge.dashboard.charts.axes import duration_text, duration_unit, largest, names_axis, tooltips
from streamgauge.dashboard.charts.drawing import CLICKED, Drawing

ROW_PX = 24
AXIS_PX = 50
LEGEND_PX = 40
ERROR_CELL = "#d64545"


def error_matrix(frame: pl.DataFrame) -> Drawing:
    """Error rate by `model` (rows) and `gateway` (columns), as colour and text. Models with most errors first.

    A click selects the `model` and `gateway` of a cell (`drawing.CLICKED`).
    """
    models = frame["model"].unique(maintain_order=True).to_list()
    base = alt.Chart(frame).encode(
        y=alt.Y("model:N", sort=models, title=None, axis=names_axis()),
        x=alt.X("gateway:N", title=None, axis=alt.Axis(orient="top", labelAngle=0)),
    )
    clicked = alt.selection_point(name=CLICKED, fields=["model", "gateway"], on="click", clear=False)
    # The opacity carries the rate, so a healthy cell has the background of either theme.
    cells = (
        base.mark_rect(color=ERROR_CELL, cursor="pointer")
        .encode(
            opacity=alt.Opacity(
                "error_rate:Q", scale=alt.Scale(domain=[0, 1], range=[0.04, 0.75]), legend=None
            ),
            tooltip=[*tooltips("model:N", "gateway:N"), alt.Tooltip("error_rate:Q", title="error rate", format=".1%"),
                     alt.Tooltip("errors:Q"), alt.Tooltip("requests:Q")],
        )
        .add_params(clicked)
    )  # fmt: skip
    # The text has no tooltip, so the cell below it receives the click.
    text = base.mark_text(color=colors.RULE).encode(text=alt.Text("error_rate:Q", format=".1%"))
    return alt.layer(cells, text).properties(height=ROW_PX * len(models) + AXIS_PX)


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
    line = base.mark_line(color=colors.RULE, opacity=0.5, strokeWidth=1.5).encode(detail=alt.Detail("name:N"))
    domain = list(phase_colors)
    points = base.mark_point(filled=True, size=70, opacity=0.95).encode(
        # A legend inside the chart, because it also shows the shapes.
        color=alt.Color(
            "first:N", sort=domain, legend=alt.Legend(columns=4),
            scale=alt.Scale(domain=domain, range=list(phase_colors.values())),
        ),
        shape=alt.Shape("first:N", sort=domain, scale=alt.Scale(domain=domain)),
        tooltip=[*tooltips("name:N", "first:N"), alt.Tooltip("text:N", title="value")],
    )  # fmt: skip
    return alt.layer(line, points).properties(height=28 * len(names) + AXIS_PX + LEGEND_PX)
