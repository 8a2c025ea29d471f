"""The tree of the spans of one trace, in the order of its rows. Pure.

- A span whose parent is unknown is a root. Of spans that are each other's parents, the first becomes a root.
- Siblings are in the order of their starts, then the longest first.
- At most `most` spans have a row: those with errors, those of the tap, then the longest, each with its ancestors. The rest is
  counted at the nearest row above it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from streamgauge.dashboard import formatting
from streamgauge.dashboard.trace_spans import Span

MIN_SKEW_NS = 1_000_000
"""A child that starts earlier than its parent by less is no sign of different clocks."""


@dataclass(kw_only=True)
class TreeRow:
    """One span in the tree."""

    span: Span
    depth: int
    children: list[TreeRow] = field(default_factory=list)
    omitted: int = 0
    """Spans below this one without a row, not counting those below its children."""
    notes: tuple[str, ...] = ()
    """What is unusual about the place or the times of the span."""


@dataclass(frozen=True, kw_only=True)
class Tree:
    """The tree of a trace. Times are Unix times of all spans, also of those without a row."""

    roots: Sequence[TreeRow]
    start_ns: int
    end_ns: int
    spans: int
    omitted: int
    """Spans without a row."""
    omitted_roots: int
    """Spans without a row and without a row above them."""

    def rows(self) -> Iterator[TreeRow]:
        """All rows from top to bottom."""
        stack = [*reversed(self.roots)]
        while stack:
            row = stack.pop()
            yield row
            stack += reversed(row.children)


@dataclass(frozen=True)
class _Place:
    span: Span
    parent: int | None
    """Index of the parent in the order of the rows."""
    notes: tuple[str, ...]


def tree(spans: Sequence[Span], *, most: int) -> Tree:
    """The tree of the spans with at most `most` rows. Span ids are unique."""
    places = _ordered(spans)
    kept = _most_important(places, most)
    rows: dict[int, TreeRow] = {}
    above: list[int | None] = []  # the nearest row at or above each place
    roots: list[TreeRow] = []
    omitted_roots = 0
    for index, place in enumerate(places):
        parent = None if place.parent is None else above[place.parent]
        if index not in kept:
            above.append(parent)
            if parent is None:
                omitted_roots += 1
            else:
                rows[parent].omitted += 1
            continue
        above.append(index)
        depth = 0 if parent is None else rows[parent].depth + 1
        rows[index] = TreeRow(span=place.span, depth=depth, notes=place.notes)
        (roots if parent is None else rows[parent].children).append(rows[index])
    start_ns = min((span.start_ns for span in spans), default=0)
    return Tree(
        roots=roots,
        start_ns=start_ns,
        end_ns=max((span.end_ns for span in spans), default=start_ns),
        spans=len(spans),
        omitted=len(spans) - len(rows),
        omitted_roots=omitted_roots,
    )


def _ordered(spans: Sequence[Span]) -> list[_Place]:
    """Each span followed by those below it."""
    by_id = {span.span_id: span for span in spans}
    children: dict[str | None, list[Span]] = {}
    for span in sorted(spans, key=lambda s: (s.start_ns, -(s.duration_ns or 0))):
        children.setdefault(span.parent_id if span.parent_id in by_id else None, []).append(span)
    places: list[_Place] = []
    reached: set[str] = set()

    def add(root: Span, note: str | None) -> None:
        stack: list[tuple[Span, int | None, str | None]] = [(root, None, note)]
        while stack:
            span, parent, remark = stack.pop()
            if span.span_id in reached:
                continue
            reached.add(span.span_id)
            skew = None if parent is None else _skew(span, places[parent].span)
            places.append(_Place(span, parent, tuple(filter(None, (remark, skew)))))
            index = len(places) - 1
            stack += [(child, index, None) for child in reversed(children.get(span.span_id, []))]

    for root in children.get(None, []):
        add(root, "The parent span is not stored." if root.parent_id and not root.measured else None)
    for span in spans:
        if span.span_id not in reached:
            add(span, "This span is below itself.")
    return places


def _skew(span: Span, parent: Span) -> str | None:
    earlier_ns = parent.start_ns - span.start_ns
    if earlier_ns < MIN_SKEW_NS or parent.measured or span.measured:
        return None
    cause = "" if span.service == parent.service else ": the clocks of the services differ"
    return f"Starts {formatting.duration(earlier_ns)} before its parent{cause}."


def _most_important(places: Sequence[_Place], most: int) -> set[int]:
    """Indexes of the rows that stay."""
    if len(places) <= most:
        return set(range(len(places)))

    def rank(index: int) -> tuple[bool, bool, int]:
        span = places[index].span
        return not span.failed, span.stream_id is None, -(span.duration_ns or 0)

    kept: set[int] = set()
    for index in sorted(range(len(places)), key=rank):
        path: list[int] = []
        at: int | None = index
        while at is not None and at not in kept and len(kept) + len(path) <= most:
            path.append(at)
            at = places[at].parent
        if len(kept) + len(path) <= most:
            kept.update(path)
    return kept
