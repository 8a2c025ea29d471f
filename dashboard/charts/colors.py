"""Colours of charts and legends. theme.toml has the colours of the page itself.

All colours are safe for colour-vision deficiencies (after Okabe and Ito) and have a contrast of at least 3:1 on both the light
and the dark background. Charts and the legends outside them therefore use the same colours in both themes. A legend or tooltip
always names what a colour stands for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import altair as alt
import polars as pl

SERIES = ("#2a82c9", "#d9601a", "#0e9a6e", "#bb5f9b", "#a8830b", "#8468d8", "#3a9aa8", "#9a6a4b")
"""Colours of series, in the order of their names."""
SINGLE = SERIES[0]
"""Colour of charts with one series."""
STALL = SERIES[1]
UNNAMED = "#7b8794"
"""Colour of the series "others" and of values without a colour."""
RULE = "#8d99a3"
"""Colour of rules and labels."""
OTHERS = "others"

OUTCOMES: dict[str, str] = {
    "ok": "#2a82c9",
    "http_error": "#d9601a",
    "connect_error": "#a8416f",
    "inband_error": "#e58a4e",
    "truncated": "#a8830b",
    "upstream_reset": "#8468d8",
    "idle_timeout": "#bb5f9b",
    "malformed": "#9a6a4b",
    "client_abort": "#8d99a3",
    "tap_lost": "#5b666f",
    "refused": "#6f8794",
}
EVENT_KINDS: dict[str, str] = {
    "text": "#2a82c9",
    "reasoning": "#8468d8",
    "tool_call": "#0e9a6e",
    "refusal": "#bb5f9b",
    "audio": "#a8830b",
    "error": "#d9601a",
    "finish": "#6b7f8c",
    "terminal": "#6b7f8c",
    "usage": "#8d99a3",
    "start": "#8d99a3",
}
TOKENS: dict[str, str] = {
    "output, answer": "#2a82c9",
    "output, reasoning": "#8468d8",
    "input, fresh": "#0e9a6e",
    "input, cached": "#6fb99d",
}


def by_name(names: Sequence[str]) -> dict[str, str]:
    """A colour for each name. "others" is grey."""
    colored = [name for name in names if name != OTHERS]
    found = {name: SERIES[i % len(SERIES)] for i, name in enumerate(colored)}
    return {name: found.get(name, UNNAMED) for name in names}


def of_groups(frame: pl.DataFrame, order: Sequence[str] = ()) -> dict[str, str]:
    """A colour for each value of the column `name`, sorted by name or in the given order, "others" last."""
    found = set(frame["name"].drop_nulls())
    names = [name for name in order if name in found] or sorted(found - {OTHERS})
    return by_name([*names, *([OTHERS] if OTHERS in found else [])])


def present(colors: Mapping[str, str], frame: pl.DataFrame, column: str) -> dict[str, str]:
    """The colours of the values that occur in the column, in their order. Values without a colour come last, in grey."""
    found = set(frame[column].drop_nulls())
    unnamed = dict.fromkeys(sorted(found - set(colors)), UNNAMED)
    return {name: color for name, color in colors.items() if name in found} | unnamed


def scale(field: str, colors: Mapping[str, str]) -> alt.Color:
    """The colour encoding of a chart whose legend is drawn with `drawing.draw_legend`."""
    return alt.Color(
        f"{field}:N", legend=None, sort=None,
        scale=alt.Scale(domain=list(colors), range=list(colors.values())),
    )  # fmt: skip
