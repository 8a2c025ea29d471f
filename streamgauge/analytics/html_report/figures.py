"""What the template draws: the cells of a table, and the points of a line over time."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from datetime import tzinfo
from typing import Any

import polars as pl

from streamgauge.analytics.reports import formatting
from streamgauge.analytics.reports.columns import Column, ReportTable, Row

MAX_TEXT = 120
"""Longest text of a cell in characters. The rest becomes an ellipsis."""
MAX_LINE = 36
"""Longest text of a cell that never wraps."""
WIDTH, TOP, BASE = 320.0, 8.0, 92.0
"""Geometry of a line over time: the width, and the heights of the largest value and of 0."""
STEPS = (1, 1.5, 2, 3, 5, 7.5, 10)
"""An axis ends at one of these × 10^n."""


def table(
    report: ReportTable, found: pl.DataFrame | Sequence[Row], zone: tzinfo, *, most: int = 40, drop: Collection[str] = (), **words: str
) -> dict[str, Any]:  # fmt: skip
    """The first `most` rows of a report. Columns without a value, and those of `drop`, are left out. `words` are those of the headings."""
    rows = found.to_dicts() if isinstance(found, pl.DataFrame) else found
    texts = {
        c.name: [_text(c, row.get(c.name), zone) for row in rows[:most]]
        for c in report.columns
        if c.name not in drop
    }
    columns = [c for c in report.columns if set(texts.get(c.name, ())) - {formatting.UNKNOWN}]
    head = [(c.heading.format(**words), c.unit, "number" if c.number else "") for c in columns]
    body = [
        [(texts[c.name][i], _classes(c, row, texts[c.name][i])) for c in columns]
        for i, row in enumerate(rows[:most])
    ]
    return {"label": report.label.format(**words), "empty": report.empty or "None.", "head": head, "body": body,
            "more": len(rows[most:])}  # fmt: skip


def _text(column: Column, value: Any, zone: tzinfo) -> str:
    if value is None or value != value:  # NaN
        return formatting.UNKNOWN
    text = column.text(value) if column.form is None else f"{value.astimezone(zone):%m-%d %H:%M:%S}"
    return cut(text)


def cut(text: str) -> str:
    return text if len(text) <= MAX_TEXT else text[: MAX_TEXT - 1] + "…"


def _classes(column: Column, row: Row, text: str) -> str:
    state = "muted" if text == formatting.UNKNOWN else column.state(row) if column.state else None
    wraps = "long" if len(text) > MAX_LINE else "line"
    return " ".join(
        filter(None, ("number" if column.number else "", "mono" if column.mono else "", wraps, state))
    )


def line(
    title: str, points: Sequence[tuple[float, float]], to_text: Callable[[float], str], step: float, limit: float | None = None
) -> dict[str, Any]:  # fmt: skip
    """A line through (x, value) points with x from 0 to 1, broken where points are farther apart than `step`. `limit` is an objective."""
    largest = max((*(value for _, value in points), limit or 0.0), default=0.0) or 1.0
    power = 10.0 ** math.floor(math.log10(largest))
    top = next(n * power for n in STEPS if n * power >= largest * (1 - 1e-9))
    pieces: list[list[tuple[float, float]]] = []
    for before, (x, value) in zip([(-math.inf, 0.0), *points], points, strict=False):
        if x - before[0] > 1.5 * step:
            pieces.append([])
        pieces[-1].append((x * WIDTH, BASE - (BASE - TOP) * value / top))
    last = to_text(points[-1][1]) if points else formatting.UNKNOWN
    return {"title": title, "top": to_text(top), "label": f"{title} over time, up to {to_text(top)}, at the end {last}", "pieces": pieces,
            "limit": None if limit is None else BASE - (BASE - TOP) * limit / top}  # fmt: skip
