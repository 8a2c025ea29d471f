"""A chart in a box with its title, help text, legend and note."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import polars as pl
import streamlit as st

from streamgauge.dashboard.charts.drawing import Drawing, draw, draw_legend, draw_placeholder


def panel(
    title: str,
    frame: pl.DataFrame,
    chart_of: Callable[[pl.DataFrame], Drawing],
    *,
    help_text: str | None = None,
    value: str | None = None,
    note: str | None = None,
    legend: Mapping[str, str] | None = None,
    key: str | None = None,
    on_click: Callable[[Mapping[str, Any]], None] | None = None,
) -> None:
    """Draw `chart_of(frame)`, or a placeholder if the frame has no rows or the column `value` has only NULL.

    `legend` has the names and colours of this panel. A legend that panels share is drawn above them.
    `on_click` is that of `draw`.
    """
    with st.container(border=True, height="stretch"):
        st.markdown(f"**{title}**", help=help_text)
        if legend:
            draw_legend(legend)
        if frame.is_empty() or (value is not None and frame[value].drop_nulls().is_empty()):
            draw_placeholder()
            return
        draw(chart_of(frame), title, key=key or f"chart-{title}", on_click=on_click)
        if note:
            st.caption(note)
