"""Numbers in boxes: each with its change against the period before, and its course as a small line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import streamlit as st

from dashboard import formatting

Summary = Mapping[str, float | None]
Worse = Literal["up", "down", "none"]
"""Which direction is a change for the worse: it is drawn red; "none" is drawn grey."""
DELTA_COLORS: dict[Worse, Literal["normal", "inverse", "off"]] = {
    "up": "inverse",
    "down": "normal",
    "none": "off",
}
STEADY = 0.0005
"""Changes below this are shown as none."""
MANYFOLD = 10.0
"""From here on a factor says more than a percentage."""


def card(
    label: str,
    value: str,
    *,
    help_text: str,
    now: float | None = None,
    before: float | None = None,
    said_before: str | None = None,
    points: bool = False,
    worse: Worse = "up",
    course: Sequence[float | None] = (),
) -> None:
    """One box. `now` and `before`: what the change is made of; without either there is none. `points`: both are shares, and
    their change is said in percentage points. `course`: the small line; what is unknown is left out of it."""
    known = [v for v in course if v is not None]
    st.metric(
        label,
        value,
        delta=change(now, before, points=points),
        delta_color=DELTA_COLORS[worse],
        help=f"{help_text} Before: {said_before}." if said_before is not None else help_text,
        border=True,
        height="stretch",
        chart_data=known if len(known) > 1 else None,
    )


def change(now: float | None, before: float | None, *, points: bool = False) -> str | float | None:
    """The change as `st.metric` takes it: a text that begins with its sign, 0 for none, None for unknown."""
    moved = formatting.change(now, before)
    if points and now is not None and before is not None:
        return 0 if abs(now - before) < STEADY else f"{(now - before) * 100:+.1f} points"
    if moved is None:
        return None
    if abs(moved) < STEADY:
        return 0
    return f"{moved:+.1%}" if moved < MANYFOLD else f"×{moved + 1:,.0f}"
