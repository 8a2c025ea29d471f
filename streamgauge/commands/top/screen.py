"""A report as text for a terminal of any size.

- Narrow terminals show fewer columns, by the priorities of the report. Low ones show fewer rows.
- All values are `Text`, never markup: models and names come from requests.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Literal

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from streamgauge.analytics.diagnosis.report import GROUPS, OFFENDERS, Report
from streamgauge.analytics.reports import formatting, spend
from streamgauge.analytics.reports.columns import Column, Row
from streamgauge.analytics.schema.clients import shortened
from streamgauge.analytics.schema.objectives import DEFAULT
from streamgauge.commands.top.keys import View

STATES = {
    "incident": ("bold red", "✗"),
    "unclear": ("bold yellow", "?"),
    "healthy": ("bold green", "✓"),
    "no_data": ("dim", "–"),
}
"""State → style and sign."""
OBJECTIVES = {"error_rate": "error rate", "ttft": "TTFT p95", "itl": "ITL p95"}
LIMITS = {"error_rate": "error_rate", "ttft_p95_ns": "ttft_ns", "itl_p50_ns": "itl_ns"}
"""Column → limit of the objective above which its value is red."""
MAX_CAUSES = 3
MAX_NAME = 40
_GAP = 2
_LEAST_NAME = 14
_LEAST_GROUPS = 3
_MAX_LIMITS = 6
"""Limits of objectives in the line below the headline, missed ones first."""
_LOW = 14
"""Terminals with fewer lines show only the first cause."""


def rendered(
    report: Report,
    console: Console,
    *,
    height: int | None = None,
    view: View | None = None,
    link: str | None = None,
) -> RenderableType:
    """The report in the console's width. `height`: lines of the terminal, None = no limit. `view`: what the keys chose."""
    width, footer = console.width, None if view is None else view.footer
    zone = report.selection.until.astimezone().tzinfo
    assert zone is not None
    head: list[Text] = [_status(report)]
    style, sign = STATES[report.diagnosis.state]
    head.append(Text(f"{sign} {report.headline(zone)}", style))
    if height is None or height >= _LOW:
        head += [Text(f"  {report.cause(cause, zone)}") for cause in report.diagnosis.causes[1:MAX_CAUSES]]
        head += [_objectives(report)] if report.diagnosis.measured else []
        limits = [row["text"] for row in report.rate_limits if row["text"]]
        head += [Text(f"  {text}", "red") for text in (*report.budgets[:MAX_CAUSES], *limits[:MAX_CAUSES])]
    head += [Text(report.note, "yellow")] if report.note else []
    head += [Text("  ").append(link, f"link {link}")] if link else []
    offenders = _offenders(report, width)
    used = sum(len(line.wrap(console, width)) for line in head) + 1 + (footer is not None)
    groups = matching = (view or View()).rows(report.groups, lambda row: _is_affected(report, row))
    if height is not None:
        free = height - used - 2  # without the header and "and 5 more"
        if free - len(report.offenders) - 2 < min(_LEAST_GROUPS, len(groups)):
            offenders = None
        else:
            free -= len(report.offenders) + 2
        groups = groups[: max(free, 1)]
    parts: list[RenderableType] = [*head, Text()]
    if groups:
        parts.append(
            _table(
                GROUPS.columns,
                groups,
                width,
                lambda row: _is_affected(report, row),
                lambda row, name: getattr(report.objective(row), LIMITS[name]) if name in LIMITS else None,
            )
        )
    else:
        parts.append(
            Text("No model or gateway matches." if report.groups else "No streams in this range.", "dim")
        )
    if len(groups) < len(matching):
        parts.append(Text(f"and {len(matching) - len(groups)} more", "dim"))
    parts += [Text(), offenders] if offenders is not None else []
    parts += [Text(footer, "dim")] if footer else []
    return Group(*parts)


def _status(report: Report) -> Text:
    chosen = report.selection
    parts = [
        f"{chosen.until.astimezone():%H:%M:%S %Z}",
        f"last {formatting.span(chosen.length)}",
        f"{formatting.count(report.in_flight)} in flight",
        *(f"about {spend.cost_text(row['cost'], row['currency'])}" for row in report.cost),
    ]
    parts += [f"{name} {', '.join(values)}" for name, values in chosen.chosen.items() if values]
    return Text("streamgauge top", "bold").append(" · " + " · ".join(parts), "not bold dim")


def _objectives(report: Report) -> Text:
    line = Text("  ")
    missed_first = sorted(report.diagnosis.measured, key=lambda m: not m.missed)
    for measured in missed_first[:_MAX_LIMITS]:
        show = formatting.share if measured.unit == "share" else formatting.duration
        text = f"{OBJECTIVES[measured.name]} {show(measured.value)} (limit {show(measured.limit)})"
        text += f" {measured.objective}" if measured.objective != DEFAULT.name else ""
        line.append(" · " if len(line) > _GAP else "").append(text, "red" if measured.missed else "")
    return line


def _offenders(report: Report, width: int) -> Table | None:
    first, shares, *others = OFFENDERS.columns
    rows = [row | {"place": f"{row['dimension']} {shortened(row['name'])}"} for row in report.offenders]
    columns = [first, replace(shares, heading=report.offenders_by), *others]
    return _table(columns, rows, width) if rows else None


def _is_affected(report: Report, row: Row) -> bool:
    """Whether a cause names the model or the gateway of a row."""
    for cause in report.diagnosis.causes:
        places = {d: value for d, value in cause.where.items() if d in ("model", "gateway")}
        if places and all(row[d] == value for d, value in places.items()):
            return True
    return False


def _table(
    columns: Sequence[Column],
    rows: Sequence[Row],
    width: int,
    is_bold: Callable[[Row], bool] = lambda row: False,
    limit_of: Callable[[Row, str], float | None] = lambda row, name: None,
) -> Table:
    """Columns that do not fit are left out. `limit_of` gives the objective of a value in a row: above it, the value is red."""
    cells = {c.name: [_cell(c, row, limit_of(row, c.name)) for row in rows] for c in columns}
    needed = {c.name: max(len(c.heading), *(text.cell_len for text in cells[c.name])) for c in columns}
    widths = _widths(columns, needed, width)
    shown = [column for column in columns if column.name in widths]
    table = Table(box=None, padding=(0, _GAP, 0, 0), pad_edge=False, header_style="bold")
    for column in shown:
        justify: Literal["left", "right"] = "right" if column.number else "left"
        least = widths[column.name]
        table.add_column(column.heading, justify=justify, no_wrap=True, overflow="ellipsis", width=least)
    for i, row in enumerate(rows):
        table.add_row(*(cells[c.name][i] for c in shown), style="bold" if is_bold(row) else "")
    return table


def _cell(column: Column, row: Row, limit: float | None) -> Text:
    value = row[column.name]
    text = Text(formatting.UNKNOWN if value is None else column.text(value), no_wrap=True)
    if not column.number:
        text.truncate(MAX_NAME, overflow="ellipsis")
    if value is not None and limit is not None and value > limit:
        text.stylize("red")
    return text


def _widths(columns: Sequence[Column], needed: Mapping[str, int], width: int) -> dict[str, int]:
    """The widths of the columns that fit together, of the lowest priorities. Names are cut as far as necessary."""
    found: dict[str, int] = {}
    for column in sorted(columns, key=lambda c: c.priority):
        most = needed[column.name]
        found[column.name] = most if column.number else min(most, _LEAST_NAME)
        if len(found) > 1 and sum(found.values()) + _GAP * (len(found) - 1) > width:
            del found[column.name]
            break
    free = width - sum(found.values()) - _GAP * (len(found) - 1)
    names = [column.name for column in columns if not column.number and column.name in found]
    while free > 0 and (cut := [name for name in names if found[name] < needed[name]]):
        found[min(cut, key=found.__getitem__)] += 1
        free -= 1
    return found


def message(text: str, at: datetime, footer: str) -> RenderableType:
    """The screen without a report."""
    head = Text("streamgauge top", "bold").append(f" · {at.astimezone():%H:%M:%S %Z}", "not bold dim")
    return Group(head, Text(text, "yellow"), Text(footer, "dim"))
