"""The spans of one trace as a tree with bars on one time axis. HTML without a script.

A chart cannot have collapsible rows. Nested lists can, and the browser does the rest: a checkbox before each row with spans below it
hides them, and a `details` element opens the attributes. Both work with the keyboard. The styles are in `page.css`.

- Every text of a span is escaped: names, attributes and events come from other services.
- An error has a sign and a word besides its colour. Stalls and the TTFT are marked on the bar of their stream and written below it.
- Below `MAX_NESTED` levels, rows are not nested further: browsers limit the depth of a document.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any
from zoneinfo import ZoneInfo

from streamgauge.analytics.reports import formatting
from streamgauge.analytics.reports.trace_tree import Span, Tree, TreeRow, instant
from streamgauge.dashboard.charts import colors
from streamgauge.dashboard.charts.drawing import duration_unit

MAX_NESTED = 24
MANY = 100
"""Trees with more rows begin with the spans below the second level hidden, apart from those with errors."""
MAX_NAME, MAX_VALUE = 120, 2_000
"""Longest name of a row and longest value of an attribute in characters."""
MAX_ATTRIBUTES, MAX_EVENTS = 100, 100
"""Attributes and events of a span. Further ones are counted."""
TICKS = 5
RESOURCE_KEYS = (
    "service.",
    "telemetry.",
    "otel.scope.",
    "host.",
    "process.",
    "deployment.",
    "cloud.",
    "k8s.",
)
"""Prefixes of the attributes of the sender, as opposed to those of the span."""


@dataclass(frozen=True, kw_only=True)
class StreamMarks:
    """The marks on the bar of a stream. Times are ns from t0."""

    ttft_ns: int | None = None
    stalls: Sequence[Mapping[str, Any]] = ()
    """Rows of `one_stream.stalls`."""
    stall_count: int = 0
    """Number of stalls, also of those that are not in `stalls`."""
    waited_ns: Mapping[str, int] = field(default_factory=dict)
    """Cause → ns, from `blame.Blame.whole`."""


@dataclass(frozen=True)
class _Axis:
    start_ns: int
    length_ns: int

    def percent(self, at_ns: int) -> float:
        return min(max((at_ns - self.start_ns) / self.length_ns, 0), 1) * 100

    def place(self, start_ns: int, end_ns: int) -> str:
        """CSS of a bar. It stays visible at the right end of the axis, however short it is."""
        left, right = self.percent(start_ns), self.percent(end_ns)
        # 3 px is the least width of a bar in page.css.
        return f"left:min({left:.3f}%,100% - 3px);width:{right - left:.3f}%"


def waterfall(
    found: Tree,
    service_colors: Mapping[str, str],
    marks: Mapping[str, StreamMarks] | None = None,
    zone: ZoneInfo | None = None,
) -> str:
    """The tree as HTML.

    `service_colors` has a colour for each service, `marks` the marks of streams by the id of their span, `zone` the time zone.
    """
    axis = _Axis(found.start_ns, max(found.end_ns - found.start_ns, 1))
    drawn = _Drawing(axis, service_colors, marks or {}, zone or ZoneInfo("UTC"), _opened(found))
    ticks, step = _ticks(axis.length_ns)
    head = "".join(f'<span style="left:{share * 100:.3f}%">{escape(label)}</span>' for share, label in ticks)
    more = (
        f'<li class="sg-more">{_further(found.omitted_roots)} without a stored parent</li>'
        if found.omitted_roots
        else ""
    )
    return (
        f'<div class="sg-trace"><div style="--step:{step * 100:.3f}%">'
        f'<div class="sg-axis" aria-hidden="true"><span></span><span class="sg-ticks">{head}</span></div>'
        f'<ul class="sg-spans" aria-label="Spans">{"".join(drawn.rows(found.roots, 0))}{more}</ul></div></div>'
    )


def _opened(found: Tree) -> set[str]:
    """Span ids of the rows whose children are visible at first."""
    # Hundreds of open rows would leave only one branch on the first screen.
    rows = [*found.rows()]
    if len(rows) <= MANY:
        return {row.span.span_id for row in rows}
    failed_below: set[str] = set()
    for row in reversed(rows):  # children before their parents
        if any(child.span.failed or child.span.span_id in failed_below for child in row.children):
            failed_below.add(row.span.span_id)
    return failed_below | {row.span.span_id for row in rows if row.depth == 0}


def _ticks(length_ns: int) -> tuple[list[tuple[float, str]], float]:
    """(share of the axis and label of each tick, share of one step)."""
    divisor, unit = duration_unit(length_ns)
    sizes = (size * 10.0**power for power in range(len(str(length_ns)) + 1) for size in (1, 2, 5))
    step = next(size for size in sizes if length_ns / size <= TICKS)
    count = int(length_ns / step)
    ticks = [(i * step / length_ns, f"{i * step / divisor:g} {unit}") for i in range(count + 1)]
    # A label at the right end would leave the axis.
    return [tick for tick in ticks if tick[0] < 0.93], step / length_ns


def _further(count: int) -> str:
    return f"{count:,} further span{'' if count == 1 else 's'}"


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[:most]}… ({len(text) - most:,} further characters)"


@dataclass(frozen=True)
class _Drawing:
    axis: _Axis
    service_colors: Mapping[str, str]
    marks: Mapping[str, StreamMarks]
    zone: ZoneInfo
    opened: set[str]

    def rows(self, rows: Sequence[TreeRow], level: int) -> Iterator[str]:
        """The rows and those below them as list items."""
        for row in rows:
            # Below the limit, further rows follow on the same level. Their indentation still shows the depth.
            nests = level < MAX_NESTED
            below = [*self.rows(row.children, level + 1)] if row.children else []
            if row.omitted:
                below.append(f'<li class="sg-more" style="--d:{row.depth + 1}">{_further(row.omitted)}</li>')
            yield self._item(row, below if nests else [])
            if not nests:
                yield from below

    def _item(self, row: TreeRow, below: Sequence[str]) -> str:
        span, twist, children = row.span, "", ""
        name = escape(_cut(span.name, MAX_NAME))
        if below:
            checked = " checked" if row.span.span_id in self.opened else ""
            twist = f'<input type="checkbox"{checked} class="sg-twist" aria-label="Show spans below {name}">'
            children = f'<ul aria-label="Spans below {name}">{"".join(below)}</ul>'
        classes = "sg-span sg-failed" if span.failed else "sg-span"
        return (
            f'<li style="--d:{row.depth}">{twist}<details class="{classes}"><summary>{self._label(row, name)}'
            f"{self._track(span)}</summary>{self._detail(row)}</details>{children}</li>"
        )

    def _label(self, row: TreeRow, name: str) -> str:
        span = row.span
        color = self._color(span)
        error = '<b class="sg-error">✕ error</b> ' if span.failed else ""
        note = f'<span title="{escape(" ".join(row.notes))}">⚠</span> ' if row.notes else ""
        marks = self.marks.get(span.span_id)
        said = f'<span class="sg-marks">{_marks_text(marks)}</span>' if marks else ""
        return (
            f'<span class="sg-label"><i style="background:{color}"></i><span class="sg-name">{error}{note}{name} '
            f"<small>{escape(_cut(span.service, MAX_NAME))}</small>{said}</span>"
            f'<span class="sg-length">{_length(span)}</span></span>'
        )

    def _color(self, span: Span) -> str:
        if span.cause is not None:
            return _cause_color(span.cause)
        return self.service_colors.get(span.service, colors.UNNAMED)

    def _track(self, span: Span) -> str:
        color = "var(--missed)" if span.failed else self._color(span)
        end_ns = self.axis.start_ns + self.axis.length_ns if span.duration_ns is None else span.end_ns
        kind = " sg-open" if span.duration_ns is None else " sg-measured" if span.measured else ""
        parts = [
            f'<span class="sg-bar{kind}" style="{self.axis.place(span.start_ns, end_ns)};--c:{color}"></span>'
        ]
        marks = self.marks.get(span.span_id)
        for stall in marks.stalls if marks else ():
            begin_ns, gap_ns, cause = span.start_ns + stall["at_ns"], stall["gap_ns"], stall["cause"]
            text = f"Stall of {formatting.duration(gap_ns)}, caused by the {cause}"
            style = f"{self.axis.place(begin_ns, begin_ns + gap_ns)};--c:{_cause_color(cause)}"
            parts.append(f'<span class="sg-stall" style="{style}" title="{escape(text)}"></span>')
        if marks and marks.ttft_ns is not None:
            left = self.axis.percent(span.start_ns + marks.ttft_ns)
            text = f"TTFT {formatting.duration(marks.ttft_ns)}"
            parts.append(
                f'<span class="sg-ttft" style="left:min({left:.3f}%,100% - 3px)" title="{text}"></span>'
            )
        return f'<span class="sg-track" aria-hidden="true">{"".join(parts)}</span>'

    def _detail(self, row: TreeRow) -> str:
        span = row.span
        at_ns = span.start_ns - self.axis.start_ns
        about = {
            "Span": span.name,
            "Service": span.service,
            "Status": span.status,
            "Status message": span.message,
            "Note": " ".join(row.notes) or None,
            "Started": f"{instant(span.start_ns).astimezone(self.zone):%Y-%m-%d %H:%M:%S.%f} {self.zone.key}",
            "Offset": f"{formatting.duration(at_ns)} from the start of the trace",
            "Duration": _length(span),
            "Kind": span.kind,
            "Span id": None if span.measured else span.span_id,
            "Parent span id": None if span.measured else span.parent_id,
        }
        given = span.attributes.items()
        own = [(key, value) for key, value in given if not key.startswith(RESOURCE_KEYS)]
        of_sender = [(key, value) for key, value in given if key.startswith(RESOURCE_KEYS)]
        return (
            '<div class="sg-detail"><button type="button" class="sg-copy">Copy</button>'
            + _pairs("", [(name, value) for name, value in about.items() if value is not None])
            + _pairs("Attributes", own)
            + _pairs("Events", _events(span), MAX_EVENTS)
            + _pairs("Resource", of_sender)
            + "</div>"
        )


def _length(span: Span) -> str:
    return "open" if span.duration_ns is None else formatting.duration(span.duration_ns)


def _marks_text(marks: StreamMarks) -> str:
    """TTFT, stalls and waits as HTML text."""
    parts = [] if marks.ttft_ns is None else [f"◆ TTFT {formatting.duration(marks.ttft_ns)}"]
    if marks.stall_count:
        by_cause: dict[str, int] = {}
        for stall in marks.stalls:
            by_cause[stall["cause"]] = by_cause.get(stall["cause"], 0) + stall["gap_ns"]
        causes = ", ".join(
            f'<i style="background:{_cause_color(cause)}"></i>{escape(cause)} {formatting.duration(ns)}'
            for cause, ns in by_cause.items()
        )
        parts.append(f"{marks.stall_count:,} stall{'' if marks.stall_count == 1 else 's'}: {causes}")
    if marks.waited_ns:
        waited = ", ".join(
            f"{escape(cause)} {formatting.duration(ns)}" for cause, ns in marks.waited_ns.items()
        )
        parts.append(f"time by cause: {waited}")
    return " · ".join(parts)


def _cause_color(cause: str) -> str:
    return colors.CAUSES.get(cause, colors.UNNAMED)


def _pairs(title: str, pairs: Sequence[tuple[str, Any]], most: int = MAX_ATTRIBUTES) -> str:
    """A table of names and values."""
    if not pairs:
        return ""
    lines = [
        f'<tr><th scope="row">{escape(_cut(key, MAX_NAME))}</th><td>{escape(_cut(_text(value), MAX_VALUE))}</td></tr>'
        for key, value in pairs[:most]
    ]
    if len(pairs) > most:
        lines.append(f'<tr><th scope="row">Not shown</th><td>{len(pairs) - most:,} further</td></tr>')
    name, caption = ("", f"<caption>{title}</caption>") if title else (' aria-label="About the span"', "")
    return f"<table{name}>{caption}<tbody>{''.join(lines)}</tbody></table>"


def _events(span: Span) -> list[tuple[str, str]]:
    """The events of a span as names with their times, and attributes."""
    return [
        (
            ("" if event.at_ns is None else f"{formatting.duration(event.at_ns)} ") + event.name,
            ", ".join(f"{k} = {_text(v)}" for k, v in list(event.attributes.items())[:MAX_ATTRIBUTES]),
        )
        for event in span.events
    ]


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
