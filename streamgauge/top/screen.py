"""A report as text for a terminal of any size.

- Narrow terminals show fewer columns, by `_COLUMNS`. Low ones show fewer rows.
- All values are `Text`, never markup: models and names come from requests.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from streamgauge.analytics.diagnosis.report import Report
from streamgauge.analytics.reports import formatting, spend
from streamgauge.analytics.schema.clients import shortened
from streamgauge.analytics.schema.objectives import DEFAULT
from streamgauge.top.keys import View

STATES = {
    "incident": ("bold red", "✗"),
    "unclear": ("bold yellow", "?"),
    "healthy": ("bold green", "✓"),
    "no_data": ("dim", "–"),
}
"""State → style and sign."""
OBJECTIVES = {"error_rate": "error rate", "ttft": "TTFT p95", "itl": "ITL p95"}
MAX_CAUSES = 3
MAX_NAME = 40
_GAP = 2
_LEAST_NAME = 14
_LEAST_GROUPS = 3
_MAX_LIMITS = 6
"""Limits of objectives in the line below the headline, missed ones first."""
_LOW = 14
"""Terminals with fewer lines show only the first cause."""

Row = Mapping[str, Any]


@dataclass(frozen=True)
class _Column:
    title: str
    show: Callable[[Row], str]
    rank: int
    """Columns with a high rank are left out first."""
    limit: Callable[[Row], tuple[float | None, float | None]] | None = None
    """(value, objective): above it, the value is red."""
    is_name: bool = False
    """Left-aligned, and may be cut."""


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
        head += [Text(f"  {text}", "red") for text in report.budgets[:MAX_CAUSES]]
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
        parts.append(_table(_columns(report), groups, width, lambda row: _is_affected(report, row)))
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


def _columns(report: Report) -> list[_Column]:
    """In the order of the screen."""
    duration = formatting.duration
    return [
        _Column("Model", lambda r: r["model"], 0, is_name=True),
        _Column("Gateway", lambda r: r["gateway"], 1, is_name=True),
        _Column("In flight", lambda r: str(r["in_flight"]), 5),
        _Column("Silence", lambda r: _seconds(r["silent_ns"]), 6),
        _Column("Req/s", lambda r: formatting.rate(r["requests_per_s"], ""), 4),
        _Column("Errors", lambda r: formatting.share(r["error_rate"]), 2, lambda r: (r["error_rate"], report.objective(r).error_rate)),
        _Column("TTFT p50", lambda r: duration(r["ttft_p50_ns"]), 9),
        _Column("TTFT p95", lambda r: duration(r["ttft_p95_ns"]), 3, lambda r: (r["ttft_p95_ns"], report.objective(r).ttft_ns)),
        _Column("ITL p50", lambda r: duration(r["itl_p50_ns"]), 8, lambda r: (r["itl_p50_ns"], report.objective(r).itl_ns)),
        _Column("tok/s", lambda r: formatting.rate(r["tokens_per_s"], ""), 7),
    ]  # fmt: skip


def _seconds(value_ns: int | None) -> str:
    """With one decimal: heartbeats limit the precision."""
    return formatting.UNKNOWN if value_ns is None else f"{value_ns / 1e9:.1f} s"


def _offenders(report: Report, width: int) -> Table | None:
    columns = [
        _Column("Top offenders", lambda r: f"{r['dimension']} {shortened(r['name'])}", 0, is_name=True),
        _Column(report.offenders_by, lambda r: formatting.share(r["bad_share"]), 1),
        _Column("of all of them", lambda r: formatting.share(r["of_all_bad"]), 3),
        _Column("of all requests", lambda r: formatting.share(r["of_all"]), 4),
        _Column("Errors", lambda r: formatting.share(r["error_rate"]), 2),
    ]
    return _table(columns, report.offenders, width) if report.offenders else None


def _is_affected(report: Report, row: Row) -> bool:
    """Whether a cause names the model or the gateway of a row."""
    for cause in report.diagnosis.causes:
        places = {d: value for d, value in cause.where.items() if d in ("model", "gateway")}
        if places and all(row[d] == value for d, value in places.items()):
            return True
    return False


def _table(
    columns: Sequence[_Column],
    rows: Sequence[Row],
    width: int,
    is_bold: Callable[[Row], bool] = lambda row: False,
) -> Table:
    """Columns that do not fit are left out."""
    cells = {column: [_cell(column, row) for row in rows] for column in columns}
    needed = {c: max(len(c.title), *(text.cell_len for text in cells[c])) for c in columns}
    widths = _widths(needed, width)
    table = Table(box=None, padding=(0, _GAP, 0, 0), pad_edge=False, header_style="bold")
    for column in widths:
        justify: Literal["left", "right"] = "left" if column.is_name else "right"
        table.add_column(
            column.title, justify=justify, no_wrap=True, overflow="ellipsis", width=widths[column]
        )
    for i, row in enumerate(rows):
        table.add_row(*(cells[column][i] for column in widths), style="bold" if is_bold(row) else "")
    return table


def _cell(column: _Column, row: Row) -> Text:
    text = Text(column.show(row), no_wrap=True)
    if column.is_name:
        text.truncate(MAX_NAME, overflow="ellipsis")
    if column.limit is not None:
        value, limit = column.limit(row)
        if value is not None and limit is not None and value > limit:
            text.stylize("red")
    return text


def _widths(needed: Mapping[_Column, int], width: int) -> dict[_Column, int]:
    """The columns that fit together, of the lowest ranks, and their widths. Names are cut as far as necessary."""
    found: dict[_Column, int] = {}
    for column, most in sorted(needed.items(), key=lambda item: item[0].rank):
        found[column] = min(most, _LEAST_NAME) if column.is_name else most
        if len(found) > 1 and sum(found.values()) + _GAP * (len(found) - 1) > width:
            del found[column]
            break
    free = width - sum(found.values()) - _GAP * (len(found) - 1)
    names = [column for column in found if column.is_name]
    while free > 0 and (cut := [c for c in names if found[c] < needed[c]]):
        found[min(cut, key=found.__getitem__)] += 1
        free -= 1
    return {column: found[column] for column in needed if column in found}


def message(text: str, at: datetime, footer: str) -> RenderableType:
    """The screen without a report."""
    head = Text("streamgauge top", "bold").append(f" · {at.astimezone():%H:%M:%S %Z}", "not bold dim")
    return Group(head, Text(text, "yellow"), Text(footer, "dim"))
