"""The parts that pages consist of: sections, boxes with charts, and cards with numbers.

A number can have its change from the previous period. Colours mean states. A tile with an objective has the colour of the objective's
state. A change is grey unless it is outside the noise: beyond 1.96 standard errors of the difference (95 %), with enough streams in
both periods.
"""

from __future__ import annotations

import math
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from html import escape
from typing import Any, Literal

import polars as pl
import streamlit as st

from streamgauge.analytics.reports import formatting
from streamgauge.analytics.reports.comparison import MIN_N, MIN_TAIL_N
from streamgauge.analytics.reports.metric_help import metric_help, why_unknown
from streamgauge.dashboard.charts import colors
from streamgauge.dashboard.charts.drawing import FADED, Drawing, draw, draw_legend, draw_placeholder

Summary = Mapping[str, float | None]
NORMAL_95 = 1.96
"""Standard errors that a change exceeds by chance in 5 % of the cases."""
MIN_CHANGE = 0.0005
"""Smaller changes are shown as no change."""
FACTOR_FROM = 10.0
"""Larger relative changes are shown as a factor."""
TREND_WIDTH, TREND_PX, TREND_TOP = 300, 38, 3


def section(title: str, help_text: str | None = None) -> None:
    """The heading of a part of the page."""
    st.header(title, anchor=False, help=help_text)


def draw_download(
    label: str, content: Callable[[], bytes], file: str, mime: str, help_text: str | None = None
) -> None:
    """A button that downloads a file."""
    # Made when it is clicked: the three files of a large result of SQL take longer than its table.
    st.download_button(
        label, content, file, mime, help=help_text, icon=":material/download:", on_click="ignore"
    )


@contextmanager
def box(title: str, help_text: str | None = None, **options: Any) -> Iterator[None]:
    """A box with a title. Options as of `st.container`."""
    with st.container(border=True, **options):
        st.markdown(f"**{title}**", help=help_text)
        yield


def panel(
    title: str,
    frame: pl.DataFrame,
    chart_of: Callable[[pl.DataFrame], Drawing],
    help_text: str | None = None,
    *,
    metric: str = "",
    value: str | None = None,
    note: str | None = None,
    legend: Mapping[str, str] | None = None,
    empty: str | None = None,
    on_click: Callable[[Mapping[str, Any]], None] | None = None,
) -> None:
    """A box with `chart_of(frame)`, or the text `empty` if the frame has no rows or the column `value` has only NULL.

    `metric` gives the texts for help and `empty` that are not given.
    `legend` has the names and colours of this panel. A legend that panels share is drawn above them.
    `on_click` is that of `draw`.
    """
    with box(title, help_text or (metric_help(metric) if metric else None), height="stretch"):
        if legend:
            draw_legend(legend)
        if frame.is_empty() or (value is not None and frame[value].drop_nulls().is_empty()):
            draw_placeholder(empty or why_unknown(metric))
            return
        draw(chart_of(frame), title, key=f"chart-{title}", on_click=on_click)
        if note:
            st.caption(note)


def number(
    label: str, value: str, help_text: str | None = None, *, border: bool = True, **change: Any
) -> None:
    """A card with a number. `change` as of `st.metric`."""
    height: Literal["stretch", "content"] = "stretch" if border else "content"
    st.metric(label, value, help=help_text, border=border, height=height, **change)


def numbers(
    values: Sequence[tuple[str, str, str | None]], *, least_px: int, columns: int = 0, border: bool = True
) -> None:
    """Cards side by side: label, value and help text of each, at least `least_px` wide. `columns` as of `st.grid`, else all."""
    with st.grid(columns or len(values), min_column_width=least_px):
        for label, value, help_text in values:
            number(label, value, help_text, border=border)


def card(
    label: str,
    now: float | None,
    before: float | None,
    to_text: Callable[[float | None], str],
    help_text: str,
    *,
    up_is_worse: bool = True,
    outside_noise: bool = False,
    border: bool = True,
) -> None:
    """A card with a number and its change from the previous period; the change of a share is in percentage points.

    A change outside the noise is orange if it is for the worse, else blue.
    """
    is_worse = up_is_worse == ((now or 0) > (before or 0))
    number(
        label,
        to_text(now),
        f"{help_text} Previous period: {to_text(before)}.",
        border=border,
        delta=change_text(now, before, is_share=to_text is formatting.share),
        delta_color=("orange" if is_worse else "blue") if outside_noise else "off",
    )


@contextmanager
def tile(key: str, state: str) -> Iterator[None]:
    """A box with the colour of the state of an objective: met, missed or unknown. `key` is unique on the page."""
    with st.container(border=True, height="stretch", gap="xxsmall", key=f"objective-{state}-{key}"):
        yield


def draw_trend(
    points: Sequence[tuple[float, float, bool]], alt_text: str, *, objective: float | None = None, onset: float | None = None
) -> None:  # fmt: skip
    """A line through (x, value, complete) points, x and `onset` from 0 to 1. `objective` is a dashed line, the onset a vertical one.

    The axis begins at 0 and has room for the complete points and the objective. The line through others is faded. HTML, so it
    costs no chart.
    """
    complete = [point for point in points if point[2]]
    largest = max((*(value for _, value, _ in complete or points), objective or 0.0), default=0.0) or 1.0

    def y(value: float) -> float:
        return round(TREND_TOP + (TREND_PX - 2 * TREND_TOP) * (1 - value / largest), 2)

    def line(x1: float, x2: float, y1: float, y2: float, style: str) -> str:
        return f'<line x1="{x1:.1f}" x2="{x2:.1f}" y1="{y1}" y2="{y2}" vector-effect="non-scaling-stroke" {style}/>'

    marks = ""
    for shown, opacity in ((points, FADED), (complete, 1)):
        path = " ".join(f"{x * TREND_WIDTH:.1f},{y(value)}" for x, value, _ in shown)
        style = f'stroke="{colors.SINGLE}" stroke-width="1.8" stroke-opacity="{opacity}"'
        if len(shown) > 1:
            marks += f'<polyline points="{path}" fill="none" {style} vector-effect="non-scaling-stroke"/>'
    if objective is not None:
        at = y(objective)
        marks += line(
            0, TREND_WIDTH, at, at, f'stroke="{colors.RULE}" stroke-width="1.2" stroke-dasharray="4 3"'
        )
    if onset is not None:
        x = onset * TREND_WIDTH
        marks += line(x, x, 0, TREND_PX, f'stroke="{colors.MARK}" stroke-width="1.6"')
    svg = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {TREND_WIDTH} {TREND_PX}" width="{TREND_WIDTH}" '
        f'height="{TREND_PX}" preserveAspectRatio="none">{marks}</svg>'
    )
    # An image, because Streamlit removes SVG elements from HTML.
    source = "data:image/svg+xml;base64," + b64encode(svg.encode()).decode()
    st.html(f'<img class="sg-trend" height="{TREND_PX}" alt="{escape(alt_text)}" src="{source}">')


def rate_outside_noise(now: Summary, before: Summary, events: str, counted: str) -> bool:
    """Whether the share `events` / `counted` of two summaries differs by more than chance."""
    k, n, k2, n2 = (float(s.get(c) or 0) for s in (now, before) for c in (events, counted))
    if min(n, n2) < MIN_N:
        return False
    # Under the assumption that nothing changed, both periods have the same rate: the pooled one.
    pooled = (k + k2) / (n + n2)
    error = math.sqrt(pooled * (1 - pooled) * (1 / n + 1 / n2))
    return error > 0 and abs(k / n - k2 / n2) > NORMAL_95 * error


def p95_outside_noise(now: Summary, before: Summary, metric: str) -> bool:
    """Whether a 95th percentile of two summaries differs by more than chance.

    The standard error of a quantile is sqrt(q (1 - q) / n) / density. The density comes from the 90th and the 98th percentile:
    columns `<metric>_n, <metric>_p90_ns, <metric>_p95_ns, <metric>_p98_ns`.
    """
    variance, values = 0.0, []
    for summary in (now, before):
        n = summary.get(f"{metric}_n") or 0
        p90, p95, p98 = (summary.get(f"{metric}_{q}_ns") for q in ("p90", "p95", "p98"))
        if n * 0.05 < MIN_TAIL_N or p90 is None or p95 is None or p98 is None:
            return False
        variance += 0.95 * 0.05 / n * ((p98 - p90) / 0.08) ** 2
        values.append(p95)
    return abs(values[0] - values[1]) > NORMAL_95 * math.sqrt(variance)


def change_text(now: float | None, before: float | None, *, is_share: bool = False) -> str | int | None:
    """The change for `st.metric`: a text that begins with its sign, 0 for no change, None for unknown."""
    # The relative change of a small share is large and says little: 0.1 % to 0.2 % is + 100 %.
    if is_share and now is not None and before is not None:
        return 0 if abs(now - before) < MIN_CHANGE else f"{(now - before) * 100:+.1f} points"
    relative = formatting.change(now, before)
    if relative is None:
        return None
    if abs(relative) < MIN_CHANGE:
        return 0
    return f"{relative:+.1%}" if relative < FACTOR_FROM else f"×{relative + 1:,.0f}"
