"""A small trend with its objective and the onset of an incident. An SVG image, so it costs no chart."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from html import escape

import streamlit as st

from streamgauge.dashboard.charts import colors

WIDTH, HEIGHT_PX, TOP = 300, 38, 3
LINE = f'fill="none" stroke="{colors.SINGLE}" stroke-width="1.8" vector-effect="non-scaling-stroke"'
DASHED = (
    f'stroke="{colors.RULE}" stroke-width="1.2" stroke-dasharray="4 3" vector-effect="non-scaling-stroke"'
)
ONSET = f'stroke="{colors.MARK}" stroke-width="1.6" vector-effect="non-scaling-stroke"'


def sparkline(
    points: Sequence[tuple[float, float]], alt_text: str, *, objective: float | None = None, onset: float | None = None
) -> str:  # fmt: skip
    """HTML of a line through (x, value) points, x and `onset` from 0 to 1. `objective` is a dashed line, the onset a vertical one.

    The axis begins at 0 and has room for the objective.
    """
    largest = max((*(value for _, value in points), objective or 0.0), default=0.0) or 1.0

    def y(value: float) -> float:
        return round(TOP + (HEIGHT_PX - 2 * TOP) * (1 - value / largest), 2)

    path = " ".join(f"{x * WIDTH:.1f},{y(value)}" for x, value in points)
    marks = f'<polyline points="{path}" {LINE}/>' if len(points) > 1 else ""
    if objective is not None:
        marks += f'<line x1="0" x2="{WIDTH}" y1="{y(objective)}" y2="{y(objective)}" {DASHED}/>'
    if onset is not None:
        marks += f'<line x1="{onset * WIDTH:.1f}" x2="{onset * WIDTH:.1f}" y1="0" y2="{HEIGHT_PX}" {ONSET}/>'
    svg = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT_PX}" width="{WIDTH}" height="{HEIGHT_PX}" '
        f'preserveAspectRatio="none">{marks}</svg>'
    )
    # An image, because Streamlit removes SVG elements from HTML.
    source = "data:image/svg+xml;base64," + b64encode(svg.encode()).decode()
    style = f"display:block;width:100%;height:{HEIGHT_PX}px"
    return f'<img alt="{escape(alt_text, quote=True)}" src="{source}" style="{style}">'


def draw_sparkline(
    points: Sequence[tuple[float, float]], alt_text: str, *, objective: float | None = None, onset: float | None = None
) -> None:  # fmt: skip
    """Draw a sparkline on the page."""
    st.html(sparkline(points, alt_text, objective=objective, onset=onset))
