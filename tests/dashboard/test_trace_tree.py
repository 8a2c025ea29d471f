"""The tree of the spans of a trace: roots, order, notes, and the limit of rows."""

from __future__ import annotations

import pytest

from streamgauge.analytics.reports.trace_tree import Span, tree
from tests.dashboard.test_trace_spans import span

MS = 1_000_000


def shape(spans: list[Span], most: int = 100) -> list[tuple[str, int]]:
    return [(row.span.span_id, row.depth) for row in tree(spans, most=most).rows()]


def test_children_follow_their_parent_by_their_start() -> None:
    spans = [
        span("d", "b", 40),
        span("e", "a", 20),
        span("b", "a", 30),
        span("c", None, 50),
        span("a", None, 10),
    ]
    assert shape(spans) == [("a", 0), ("e", 1), ("b", 1), ("d", 2), ("c", 0)]


def test_of_siblings_with_one_start_the_longest_is_first() -> None:
    spans = [
        span("open", "a", 10, None),
        span("short", "a", 10, 1),
        span("long", "a", 10, 9),
        span("a", None, 10),
    ]
    assert [name for name, _ in shape(spans)] == ["a", "long", "short", "open"]


@pytest.mark.parametrize(
    ("spans", "note"),
    [
        ([span("a", "unknown")], "The parent span is not stored."),
        ([span("a", "a")], "This span is below itself."),
        ([span("a", "b"), span("b", "a")], "This span is below itself."),
        ([span("a", None)], None),
        ([span("a", "")], None),
    ],
)
def test_span_without_a_stored_parent_is_a_root(spans: list[Span], note: str | None) -> None:
    found = tree(spans, most=9)
    assert [row.span.span_id for row in found.roots] == ["a"]
    assert found.roots[0].notes == ((note,) if note else ())
    assert len([*found.rows()]) == len(spans)


@pytest.mark.parametrize(
    ("service", "earlier_ns", "note"),
    [
        ("other", 12 * MS, ("Starts 12.0 ms before its parent: the clocks of the services differ.",)),
        ("app", 12 * MS, ("Starts 12.0 ms before its parent.",)),
        ("other", MS // 2, ()),
        ("other", -MS, ()),
    ],
)
def test_child_that_starts_before_its_parent_has_a_note(
    service: str, earlier_ns: int, note: tuple[str]
) -> None:
    spans = [span("a", None, 100 * MS), span("b", "a", 100 * MS - earlier_ns, service=service)]
    found = tree(spans, most=9)
    assert found.roots[0].children[0].notes == note
    assert found.start_ns == min(s.start_ns for s in spans)


def test_limit_keeps_errors_and_streams_with_their_ancestors_and_counts_the_rest() -> None:
    spans = [span("root", None, 0, 1000), span("branch", "root", 1, 50)]
    spans += [span(f"leaf {i}", "branch", i, i) for i in range(100)]
    spans += [span("failed", "leaf 3", 3, 0, status="Error"), span("tap", "root", 5, 0, stream_id="s")]
    spans += [span("lost root", None, 7, 0)]
    found = tree(spans, most=7)
    assert shape(spans, 7) == [
        ("root", 0), ("branch", 1), ("leaf 3", 2), ("failed", 3), ("leaf 98", 2), ("leaf 99", 2), ("tap", 1),
    ]  # fmt: skip
    omitted = {row.span.span_id: row.omitted for row in found.rows()}
    assert omitted == {
        "root": 0,
        "branch": 97,
        "leaf 3": 0,
        "failed": 0,
        "leaf 98": 0,
        "leaf 99": 0,
        "tap": 0,
    }
    assert (found.spans, found.omitted, found.omitted_roots) == (105, 98, 1)
    assert sum(omitted.values()) + found.omitted_roots == found.omitted


@pytest.mark.parametrize("most", [1, 50, 5000])
def test_deep_chain_is_within_the_limit(most: int) -> None:
    spans = [span(str(i), str(i - 1) if i else None, i, 5000 - i) for i in range(5000)]
    rows = [*tree(spans, most=most).rows()]
    assert [row.depth for row in rows] == list(range(most))
    assert rows[-1].omitted == 5000 - most


def test_trace_without_spans_is_empty() -> None:
    found = tree([], most=9)
    assert ([*found.rows()], found.start_ns, found.end_ns) == ([], 0, 0)
