"""Colours of charts and legends. theme.toml has the colours of the page itself.

All colours are safe for colour-vision deficiencies (after Okabe and Ito) and have a contrast of at least 3:1 on both the light
and the dark background. Charts and the legends outside them therefore use the same colours in both themes. A legend or tooltip
always names what a colour stands for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import altair as alt
import polars as pl

from streamgauge.analytics.schema.outcomes import ERRORS
from streamgauge.analytics.schema.prompt_sizes import CONTEXT_PARTS

SERIES = ("#2a82c9", "#d9601a", "#0e9a6e", "#bb5f9b", "#a8830b", "#8468d8", "#3a9aa8", "#9a6a4b")
"""Colours of series, in the order of their names."""
SINGLE = SERIES[0]
"""Colour of charts with one series."""
STALL = SERIES[1]
"""Colour of the limit of stalls."""
UNNAMED = "#7b8794"
"""Colour of the series "others" and of values without a colour."""
RULE = "#87939d"
"""Colour of rules and labels. `css` gives labels of this colour more contrast."""
MARK = "#cf4058"
"""Colour of the lines that mark an onset or a deployment."""
OTHERS = "others"
TOTAL = "total"
"""The series of all streams together."""
TOTAL_COLOR = "#687586"
MAX_REMEMBERED = 1_000
_remembered: dict[str, int] = {}
"""Name of a series → index of its colour, so that it has the same colour on every page and after every filter."""

OUTCOMES: dict[str, str] = {
    "ok": "#2a82c9",
    "http_error": "#d9601a",
    "connect_error": "#a8416f",
    "inband_error": "#db7a3a",
    "truncated": "#a8830b",
    "upstream_reset": "#8468d8",
    "idle_timeout": "#bb5f9b",
    "malformed": "#9a6a4b",
    "client_abort": "#87939d",
    "tap_lost": "#5b666f",
    "refused": "#6f8794",
}
ERROR_CAUSES: dict[str, str] = {
    "HTTP 429": "#d33f49",
    "HTTP 500": "#a3632a",
    "HTTP 502": "#8c3f6e",
    "HTTP 503": "#c9708f",
    "HTTP 504": "#6f7fa8",
    "HTTP 529": "#b0703f",
    "HTTP 400": "#a8830b",
    "HTTP 401": "#8f6f2a",
    **{name: OUTCOMES[name] for name in ERRORS[1:]},
}
"""Causes of errors: HTTP statuses and further outcomes. Other statuses are grey."""
EVENT_KINDS: dict[str, str] = {
    "text": "#2a82c9",
    "reasoning": "#8468d8",
    "tool_call": "#0e9a6e",
    "refusal": "#bb5f9b",
    "audio": "#a8830b",
    "image": "#3f8f8a",
    "error": "#d9601a",
    "finish": "#6b7f8c",
    "terminal": "#6b7f8c",
    "usage": "#87939d",
    "start": "#87939d",
}
CAUSES: dict[str, str] = {
    "upstream": "#3f97b5",
    "gateway": "#c8508c",
    "tap": "#6f79d6",
    "client": "#c27a10",
}
"""Parts of the time: causes of stalls and parts of a stream. No outcome has these colours."""
SESSION_PARTS: dict[str, str] = {
    "model": "#3f97b5",
    "tool": "#0e9a6e",
    "subagent": "#8468d8",
    "user": "#87939d",
}
"""Parts of a session: model time, tool time, and the waits for subagents and the user."""
CONTEXT: dict[str, str] = dict(
    zip(CONTEXT_PARTS, ("#0e9a6e", "#8468d8", "#2a82c9", "#a8830b", "#bb5f9b", "#9a6a4b"), strict=True)
)
"""Parts of a prompt."""
TURN_PARTS: dict[str, str] = {
    "model": SESSION_PARTS["model"],
    "tool": SESSION_PARTS["tool"],
    "gateway": CAUSES["gateway"],
    "agent": CAUSES["client"],
}
"""Parts of a turn."""
TOKENS: dict[str, str] = {
    "output, answer": "#2a82c9",
    "output, reasoning": "#8468d8",
    "input, fresh": "#0e9a6e",
    "input, cached": "#4fa184",
}


def by_name(names: Sequence[str]) -> dict[str, str]:
    """A colour for each name. "others" is grey."""
    colored = [name for name in names if name != OTHERS]
    found = {name: SERIES[i % len(SERIES)] for i, name in enumerate(colored)}
    return {name: found.get(name, UNNAMED) for name in names}


def of_groups(frame: pl.DataFrame, order: Sequence[str] = ()) -> dict[str, str]:
    """A colour for each value of the column `name`, sorted by name or in the given order, "others" and "total" last.

    A name keeps its colour while this process runs. It gets another one only next to an earlier name with the same colour.
    """
    found = set(frame["name"].drop_nulls())
    names = [name for name in order if name in found] or sorted(found - {OTHERS, TOTAL})
    chosen: dict[str, str] = {}
    # Names that have a colour choose first, so a new name never takes the colour of one beside it.
    for name in sorted(names, key=lambda name: _remembered.get(name, MAX_REMEMBERED)):
        index = _remembered.get(name, len(_remembered))
        free = [c for c in (*SERIES[index % len(SERIES) :], *SERIES) if c not in chosen.values()]
        chosen[name] = free[0] if free else SERIES[index % len(SERIES)]
        if name not in _remembered and len(_remembered) < MAX_REMEMBERED:
            _remembered[name] = SERIES.index(chosen[name])
    last = {OTHERS: UNNAMED, TOTAL: TOTAL_COLOR}
    return {name: chosen[name] for name in names} | {name: c for name, c in last.items() if name in found}


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
