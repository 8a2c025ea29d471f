"""One crosshair and one brush for all charts over time of a page.

A component, because the selections of Streamlit's charts end at the borders of one chart, and a refresh of the page while the
reader drags would discard them.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import streamlit as st

KEY = "time-pointer"
_component = st.components.v2.component(
    "streamgauge_time_pointer", js=Path(__file__).with_suffix(".js").read_text(), isolate_styles=False
)


def draw_time_pointer(on_brush: Callable[[], None]) -> None:
    """Link the charts of the page. `on_brush` runs after a drag; `brushed` then returns its range."""
    _component(key=KEY, on_brush_change=on_brush, height=0)


def brushed() -> tuple[float, float] | None:
    """The last drag as two fractions of the length of the time axis."""
    ends = st.session_state[KEY].brush
    return (float(ends[0]), float(ends[1])) if ends else None
