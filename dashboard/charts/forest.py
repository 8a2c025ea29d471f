"""Forest plots: effects with their 95 % intervals, one row per metric."""

from __future__ import annotations

from collections.abc import Sequence

import altair as alt
import polars as pl

from streamgauge.analytics.reports.comparison import Row, State
from streamgauge.dashboard.charts import colors
from streamgauge.dashboard.charts.axes import LABEL_PX
from streamgauge.dashboard.charts.drawing import Drawing

STATE_COLORS: dict[State, str] = {
    "worse": "#d9601a",
    "better": "#0e9a6e",
    "unclear": colors.RULE,
    "few": colors.RULE,
    "unknown": colors.RULE,
}
ROW_PX = 26
MAX_RATIO = 32.0
"""Larger ratios are drawn at the edge. The tooltip and the table have their values."""


def forest(rows: Sequence[Row]) -> Drawing | None:
    """The effects of rows of one kind: points of rates, or ratios on a logarithmic axis. None if no row has an effect."""
    effects = [(row, row.effect) for row in rows if row.effect is not None]
    if not effects:
        return None
    is_rate = effects[0][0].is_rate
    edge = max(5.0, *(abs(v) for _, e in effects for v in e)) * 1.08 if is_rate else _ratio_edge(rows)
    least = -edge if is_rate else 1 / edge
    frame = pl.DataFrame(
        {
            "metric": [row.label for row, _ in effects],
            "effect": [min(max(e[0], least), edge) for _, e in effects],
            "low": [min(max(e[1], least), edge) for _, e in effects],
            "high": [min(max(e[2], least), edge) for _, e in effects],
            "shown": [_text(e[0], is_rate) for _, e in effects],
            "interval": [f"{_text(e[1], is_rate)} … {_text(e[2], is_rate)}" for _, e in effects],
            "result": [row.result for row, _ in effects],
            "state": [row.state for row, _ in effects],
        }
    )
    scale = (
        alt.Scale(domain=[least, edge], nice=False)
        if is_rate
        else alt.Scale(type="log", base=2, domain=[least, edge], nice=False)
    )
    axis = (
        alt.Axis(tickCount=6, format="+.3~g")
        if is_rate
        else alt.Axis(tickCount=6, labelExpr="format(datum.value, '.3~g') + '×'")
    )
    base = alt.Chart(frame).encode(
        y=alt.Y(
            "metric:N",
            sort=None,
            title=None,
            axis=alt.Axis(labelLimit=LABEL_PX, labelOverlap=False, grid=False),
        ),
        color=alt.Color(
            "state:N",
            legend=None,
            scale=alt.Scale(domain=list(STATE_COLORS), range=list(STATE_COLORS.values())),
        ),
        tooltip=[
            alt.Tooltip("metric:N"),
            alt.Tooltip("shown:N", title="B − A" if is_rate else "B / A"),
            alt.Tooltip("interval:N", title="95 % interval"),
            alt.Tooltip("result:N"),
        ],
    )
    x = alt.X("low:Q", scale=scale, axis=axis, title="B − A, percentage points" if is_rate else "B / A")
    intervals = base.mark_rule(strokeWidth=2).encode(x=x, x2=alt.X2("high:Q"))
    effects_drawn = base.mark_point(size=70, filled=True, opacity=1).encode(
        x=alt.X("effect:Q", scale=scale, axis=axis)
    )
    equal = (
        alt.Chart(pl.DataFrame({"at": [0.0 if is_rate else 1.0]}))
        .mark_rule(strokeDash=[4, 3], color=colors.RULE)
        .encode(x=alt.X("at:Q", scale=scale))
    )
    return alt.layer(equal, intervals, effects_drawn).properties(height=ROW_PX * frame.height + 45)


def _ratio_edge(rows: Sequence[Row]) -> float:
    """The end of a symmetric logarithmic axis."""
    ends = [end for row in rows for end in row.effect or ()]
    return min(MAX_RATIO, max(1.25, *(max(end, 1 / end) for end in ends)) * 1.05)


def _text(value: float, is_rate: bool) -> str:
    return f"{value:+.2f} points" if is_rate else f"{value:.3g}×"
