"""Charts that compare groups: distributions, error rates by model and gateway, values side by side, and effects with intervals.

The database computes the logarithmic bins of distributions, so the size of a chart does not depend on the number of streams.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import altair as alt
import polars as pl

from streamgauge.analytics.reports.comparison import Row
from streamgauge.dashboard.charts import colors
from streamgauge.dashboard.charts.drawing import (
    HEIGHT,
    OVER_TIME,
    POINT_OF_LINE,
    Drawing,
    Layers,
    TimeRange,
    clickable,
    duration_text,
    duration_unit,
    faded,
    largest,
    names_y,
    time_tooltip,
    tooltips,
)

HEATMAP_HEIGHT = 240
AXIS_PX = 50
LEGEND_PX = 40
ERROR_CELL = "#d64545"
STATE_COLORS: dict[str, str] = {
    "worse": "#d9601a",
    "better": "#0e9a6e",
    "changed": colors.SINGLE,
    "unclear": colors.RULE,
    "few": colors.RULE,
    "unknown": colors.RULE,
}
MAX_RATIO = 32.0
"""Larger ratios are drawn at the edge. The tooltip and the table have their values."""


def heatmap(frame: pl.DataFrame, time: TimeRange, *, counted: str = "streams") -> Drawing:
    """Counts by time and duration (`at, low_ns, high_ns, n`). `counted` names the unit of `n`. Incomplete cells are faded."""
    binned, unit = _with_bounds(frame.with_columns(time.is_complete().alias("complete")))
    data = time.extend(time.with_until(binned), low="low", high="high")
    legend = alt.Legend(
        title=counted,
        orient="right",
        gradientLength=HEATMAP_HEIGHT - 70,
        tickCount=4,
        tickMinStep=1,
        offset=6,
    )
    cells: alt.Chart = alt.Chart(data, height=HEATMAP_HEIGHT, usermeta=OVER_TIME).mark_rect()
    return cells.add_params(clickable("t", "low_ns", "high_ns")).encode(
        x=time.axis(),
        x2=alt.X2("until:T"),
        y=alt.Y("low:Q", scale=_LOG, title=unit, axis=alt.Axis(tickCount=6, grid=False)),
        y2=alt.Y2("high:Q"),
        # Few bins have most streams: a linear scale would show the others as one colour.
        color=alt.Color(
            "n:Q",
            legend=legend,
            scale=alt.Scale(type="sqrt", domainMax=largest(time.complete(frame), "n"), clamp=True),
        ),
        opacity=faded(),
        tooltip=[time_tooltip("begin", "from"), *tooltips("range:N", ("n:Q", counted, ",d"))],
    )


def histogram(frame: pl.DataFrame, group_colors: Mapping[str, str]) -> Drawing:
    """Share of streams per bin (`name, low_ns, high_ns, n, share`), one stepped line per name."""
    data, unit = _with_bounds(frame)
    base = alt.Chart(data).encode(
        x=_log_x("low", unit),
        y=alt.Y("share:Q", title="share", axis=alt.Axis(format="%", tickCount=5)),
        color=colors.scale("name", group_colors),
    )
    shown = tooltips("name:N", "range:N", ("share:Q", "share", ".1%"), ("n:Q", "streams"))
    return _with_points(base, "step-after", shown, HEIGHT)


def ecdf(frame: pl.DataFrame, group_colors: Mapping[str, str], *, height: int = HEIGHT) -> Drawing:
    """Cumulative share of streams (`name, low_ns, high_ns, cumulated`), one line per name."""
    data, unit = _with_bounds(frame)
    axis = alt.Axis(format="%", tickCount=5)
    share = ("cumulated:Q", "share up to the end of the bin", ".1%")
    base = alt.Chart(data).encode(
        x=_log_x("high", unit),
        y=alt.Y("cumulated:Q", title="cumulative share", scale=alt.Scale(domain=[0, 1]), axis=axis),
        color=colors.scale("name", group_colors),
    )
    return _with_points(base, "linear", tooltips("name:N", ("range:N", "bin"), share), height)


def _with_points(
    base: alt.Chart, interpolate: Literal["linear", "step-after"], shown: Sequence[alt.Tooltip], height: int
) -> Drawing:
    """Lines of bins. The bin nearest to the pointer shows its tooltip, and is clicked."""
    points: alt.Chart = base.mark_point(**POINT_OF_LINE).encode(tooltip=list(shown))
    points = points.add_params(clickable("name", "low_ns", "high_ns", nearest=True))
    return Layers([base.mark_line(interpolate=interpolate), points], height=height)


_LOG = alt.Scale(type="log", nice=False)


def _log_x(field: str, unit: str) -> alt.X:
    return alt.X(f"{field}:Q", scale=_LOG, title=unit, axis=alt.Axis(tickCount=8, labelOverlap=True))


def _with_bounds(frame: pl.DataFrame) -> tuple[pl.DataFrame, str]:
    """Add the bounds of each bin in the chart's unit (`low`, `high`) and as text (`range`)."""
    divisor, unit = duration_unit(largest(frame, "high_ns"))
    return frame.with_columns(
        (pl.col("low_ns") / divisor).alias("low"),
        (pl.col("high_ns") / divisor).alias("high"),
        pl.format("{} – {}", duration_text("low_ns"), duration_text("high_ns")).alias("range"),
    ), unit


def error_matrix(frame: pl.DataFrame) -> Drawing:
    """Error rate by `model` (rows) and `gateway` (columns), as colour and text. Models with most errors first."""
    models = frame["model"].unique(maintain_order=True).to_list()
    base = alt.Chart(frame).encode(
        y=names_y("model", models),
        x=alt.X("gateway:N", title=None, axis=alt.Axis(orient="top", labelAngle=0)),
    )
    # The opacity carries the rate, so a healthy cell has the background of either theme.
    scale = alt.Scale(domain=[0, 1], range=[0.04, 0.75])
    cells = base.mark_rect(color=ERROR_CELL)
    cells = cells.encode(
        opacity=alt.Opacity("error_rate:Q", scale=scale, legend=None),
        tooltip=tooltips(
            "model:N", "gateway:N", ("error_rate:Q", "error rate", ".1%"), "errors:Q", "requests:Q"
        ),
    ).add_params(clickable("model", "gateway"))
    # The text has no tooltip, so the cell below it receives the click.
    text = base.mark_text(color=colors.RULE).encode(text=alt.Text("error_rate:Q", format=".1%"))
    return Layers([cells, text], height=24 * len(models) + AXIS_PX)


def dots(frame: pl.DataFrame, phase_colors: Mapping[str, str]) -> Drawing:
    """One row per `name` with a dot at `value_ns` for each `first`, connected by a line."""
    divisor, unit = duration_unit(largest(frame, "value_ns"))
    data = frame.with_columns(
        (pl.col("value_ns") / divisor).alias("x"), duration_text("value_ns").alias("text")
    )
    names = data["name"].unique(maintain_order=True).to_list()
    base = alt.Chart(data).encode(
        y=names_y("name", names),
        x=alt.X("x:Q", title=unit, scale=alt.Scale(zero=True), axis=alt.Axis(tickCount=8)),
    )
    line = base.mark_line(color=colors.RULE, opacity=0.5, strokeWidth=1.5).encode(detail=alt.Detail("name:N"))
    domain = list(phase_colors)
    scale = alt.Scale(domain=domain, range=list(phase_colors.values()))
    points = (
        base.mark_point(filled=True, size=70, opacity=0.95)
        .encode(
            # A legend inside the chart, because it also shows the shapes.
            color=alt.Color("first:N", sort=domain, legend=alt.Legend(columns=4), scale=scale),
            shape=alt.Shape("first:N", sort=domain, scale=alt.Scale(domain=domain)),
            tooltip=tooltips("name:N", "first:N", ("text:N", "value")),
        )
        .add_params(clickable("name"))
    )
    return Layers([line, points], height=28 * len(names) + AXIS_PX + LEGEND_PX)


def forest(rows: Sequence[Row]) -> Drawing | None:
    """The effects of rows of one kind with their 95 % intervals: points of rates, or ratios on a logarithmic axis.

    None if no row has an effect.
    """
    effects = [(row, row.effect) for row in rows if row.effect is not None]
    if not effects:
        return None
    is_rate = effects[0][0].is_rate
    ends = [end for _, effect in effects for end in effect]
    if is_rate:
        edge = max(5.0, *map(abs, ends)) * 1.08
        least, equal_at, title = -edge, 0.0, "B − A"
        scale = alt.Scale(domain=[least, edge], nice=False)
        axis = alt.Axis(tickCount=6, format="+.3~g")
    else:
        # Symmetric around 1, so that half as much and twice as much are equally far from the line.
        edge = min(MAX_RATIO, max(1.25, *(max(end, 1 / end) for end in ends)) * 1.05)
        least, equal_at, title = 1 / edge, 1.0, "B / A"
        scale = alt.Scale(type="log", base=2, domain=[least, edge], nice=False)
        axis = alt.Axis(tickCount=6, labelExpr="format(datum.value, '.3~g') + '×'")

    def text(value: float) -> str:
        return f"{value:+.2f} points" if is_rate else f"{value:.3g}×"

    frame = pl.DataFrame(
        {
            "metric": [row.label for row, _ in effects],
            **{
                name: [min(max(e[i], least), edge) for _, e in effects]
                for i, name in enumerate(("effect", "low", "high"))
            },
            "shown": [text(e[0]) for _, e in effects],
            "interval": [f"{text(e[1])} … {text(e[2])}" for _, e in effects],
            "result": [row.result for row, _ in effects],
            "state": [row.state for row, _ in effects],
        }
    )
    base = alt.Chart(frame).encode(
        y=names_y("metric"),
        color=colors.scale("state", STATE_COLORS),
        tooltip=tooltips("metric:N", ("shown:N", title), ("interval:N", "95 % interval"), "result:N"),
    )
    x = alt.X("low:Q", scale=scale, axis=axis, title=f"{title}, percentage points" if is_rate else title)
    intervals = base.mark_rule(strokeWidth=2).encode(x=x, x2=alt.X2("high:Q"))
    points = base.mark_point(size=70, filled=True, opacity=1).encode(
        x=alt.X("effect:Q", scale=scale, axis=axis)
    )
    # An interval that crosses this line is no clear difference.
    equal = alt.Chart(pl.DataFrame({"at": [equal_at]})).mark_rule(strokeDash=[4, 3], color=colors.RULE)
    rule = equal.encode(x=alt.X("at:Q", scale=scale))
    return Layers([rule, intervals, points], height=26 * frame.height + 45)
