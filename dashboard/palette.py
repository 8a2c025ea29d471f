"""The house colours, in one place. theme.toml has the page's own; these are what charts draw with.

- Safe for any colour vision (after Okabe and Ito), and at least 3:1 against the light and the dark background alike: so that a
  chart need not know which of them it stands on, and a legend outside the chart has the very same colours.
- A colour never speaks alone: a legend names it, and a tooltip does.
"""

from __future__ import annotations

from collections.abc import Sequence

SERIES = ("#2a82c9", "#d9601a", "#0e9a6e", "#bb5f9b", "#a8830b", "#8468d8", "#3a9aa8", "#9a6a4b")
"""Colours of lines, in the order of their names."""
REST = "#7b8794"
"""The colour of "others", and of whatever has none."""
RULE = "#8d99a3"
"""Lines and words beside the data: readable on both backgrounds."""
ONE = SERIES[0]
"""The colour of a chart that shows one thing."""
ALARM = SERIES[1]
"""Stalls."""

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
}
KINDS: dict[str, str] = {
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
OTHERS = "others"


def of_series(names: Sequence[str]) -> dict[str, str]:
    """A colour for each of these names; "others" is grey."""
    plain = [n for n in names if n != OTHERS]
    found = {name: SERIES[i % len(SERIES)] for i, name in enumerate(plain)}
    return {name: found.get(name, REST) for name in names}
