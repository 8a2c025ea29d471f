"""Colours of charts have a contrast of at least 3:1 on the backgrounds of both themes."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from streamgauge.dashboard.charts import colors

THEME = Path(colors.__file__).parents[1] / "theme.toml"
LEAST = 3.0
"""WCAG 2, 1.4.11: graphics."""
NAMED = (colors.OUTCOMES, colors.EVENT_KINDS, colors.CAUSES, colors.SESSION_PARTS, colors.TOKENS)
DRAWN = sorted(
    {
        *colors.SERIES,
        colors.UNNAMED,
        colors.RULE,
        colors.MARK,
        *(c for group in NAMED for c in group.values()),
    }
)


def luminance(color: str) -> float:
    """The relative luminance of an sRGB colour by WCAG 2."""
    channels = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    darker, lighter = sorted((luminance(one), luminance(other)))
    return (lighter + 0.05) / (darker + 0.05)


@pytest.mark.parametrize("name", ["light", "dark"])
def test_colors_are_visible_in_both_themes(name: str) -> None:
    theme = tomllib.loads(THEME.read_text())["theme"][name]
    faint = {color: contrast(color, theme["backgroundColor"]) for color in DRAWN}
    assert {color: found for color, found in faint.items() if found < LEAST} == {}
    assert theme["chartCategoricalColors"] == list(colors.SERIES)
