"""Metric cards: a number with its change from the previous period and its trend."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import streamlit as st

from dashboard import formatting

Summary = Mapping[str, float | None]
Worse = Literal["up", "down", "none"]
"""The direction of a worsening change, drawn in red. "none" draws all changes in grey."""
DELTA_COLORS: dict[Worse, Literal["normal", "inverse", "off"]] = {
    "up": "inverse",
    "down": "normal",
    "none": "off",
}
MIN_CHANGE = 0.0005
"""Smaller changes are shown as no change."""
FACTOR_FROM = 10.0
"""Larger relative changes are shown as a factor."""


def card(
    label: str,
    value: str,
    *,
    help_text: str,
    now: float | None = None,
    before: float | None = None,
    before_text: str | None = None,
    is_share: bool = False,
    worse: Worse = "up",
    trend: Sequence[float | None] = (),
) -> None:
    """Draw a card.

    `now` and `before` give the change; the change of a share is in percentage points. `trend` is drawn as a small line
    without its unknown values.
    """
    known = [v for v in trend if v is not None]
    st.metric(
        label,
        value,
        delta=change_text(now, before, is_share=is_share),
        delta_color=DELTA_COLORS[worse],
        help=help_text if before_text is None else f"{help_text} Previous period: {before_text}.",
        border=True,
        height="stretch",
        chart_data=known if len(known) > 1 else None,
    )


def change_text(now: float | None, before: float | None, *, is_share: bool = False) -> str | int | None:
    """The change for `st.metric`: a text that begins with its sign, 0 for no change, None for unknown."""
    if is_share and now is not None and before is not None:
        return 0 if abs(now - before) < MIN_CHANGE else f"{(now - before) * 100:+.1f} points"
    relative = formatting.change(now, before)
    if relative is None:
        return None
    if abs(relative) < MIN_CHANGE:
        return 0
    return f"{relative:+.1%}" if relative < FACTOR_FROM else f"×{relative + 1:,.0f}"
