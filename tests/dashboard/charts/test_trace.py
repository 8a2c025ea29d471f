"""The HTML of the spans of a trace: tree, bars, marks, attributes, and hostile text."""

from __future__ import annotations

import re
from html import unescape
from html.parser import HTMLParser
from typing import Any

import pytest

from streamgauge.analytics.reports.trace_tree import Span, SpanEvent, tree
from streamgauge.dashboard.charts import colors
from streamgauge.dashboard.charts.trace import (
    MANY,
    MAX_ATTRIBUTES,
    MAX_NESTED,
    MAX_VALUE,
    StreamMarks,
    waterfall,
)
from tests.dashboard.generated_traces import HOSTILE
from tests.dashboard.test_trace_spans import span

S = 1_000_000_000
VOID = {"input"}
ELEMENTS = {
    "div", "span", "ul", "li", "input", "details", "summary", "i", "b", "small", "button", "table", "caption", "tbody", "tr", "th", "td",
}  # fmt: skip


class Elements(HTMLParser):
    """The elements of a document, the depth of its lists, and whether every element is closed."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.open: list[str] = []
        self.depth = 0
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        if tag not in VOID:
            self.open.append(tag)
            self.depth = max(self.depth, self.open.count("ul"))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def drawn(*spans: Span, most: int = 100, **options: Any) -> str:
    html = waterfall(tree(spans, most=most), {"app": "#123456"}, **options)
    assert Elements(html).open == []
    return html


def text(html: str) -> str:
    return unescape(re.sub(r"<[^>]*>", " ", html))


def test_bars_are_placed_on_one_time_axis_with_units() -> None:
    html = drawn(span("a", None, 3 * S, 4 * S), span("b", "a", 4 * S, 2 * S), span("zero", "a", 7 * S, 0))
    places = re.findall(r'class="sg-bar" style="left:min\(([\d.]+)%,100% - 3px\);width:([\d.]+)%', html)
    assert places == [("0.000", "100.000"), ("25.000", "50.000"), ("100.000", "0.000")]
    axis = html[: html.index("<ul")]
    assert text(axis).split() == ["0", "s", "1", "s", "2", "s", "3", "s"]
    assert "left:25.000%" in axis


@pytest.mark.parametrize(
    ("length_ns", "labels"),
    [
        (1, "0 µs"),
        (900, "0 µs 0.2 µs 0.4 µs 0.6 µs 0.8 µs"),
        (5 * 10**6, "0 ms 1 ms 2 ms 3 ms 4 ms"),
        (61 * S, "0 s 20 s 40 s"),
        (3 * 3600 * S, "0 s 5000 s 10000 s"),
    ],
)
def test_axis_of_any_length_has_few_round_ticks(length_ns: int, labels: str) -> None:
    html = drawn(span("a", None, 0, length_ns))
    assert " ".join(text(html[: html.index("<ul")]).split()) == labels


def test_error_has_a_sign_a_word_and_its_own_colour() -> None:
    html = drawn(span("a", None, 0, 9), span("b", "a", 0, 9, status="error", message="went wrong"))
    assert html.count("✕ error") == 1
    assert html.count("--c:var(--missed)") == 1
    assert "Status message went wrong" in " ".join(text(html).split())


def test_span_with_children_can_be_collapsed_and_is_named() -> None:
    html = drawn(span("a", None), span("b", "a"), span("c", "b"))
    assert re.findall(r'<input type="checkbox" checked class="sg-twist" aria-label="([^"]*)">', html) == [
        "Show spans below a", "Show spans below b",
    ]  # fmt: skip


def test_large_tree_begins_collapsed_except_above_errors() -> None:
    spans = [span("root"), span("a", "root"), span("b", "root"), *(span(f"a{i}", "a") for i in range(MANY))]
    spans += [span("b1", "b"), span("failed", "b1", status="error")]
    html = drawn(*spans, most=1000)
    assert re.findall(r'<input type="checkbox"( checked)? class="sg-twist" aria-label="Show spans below (\w+)">', html) == [
        (" checked", "root"), ("", "a"), (" checked", "b"), (" checked", "b1"),
    ]  # fmt: skip


def test_deep_tree_is_not_nested_beyond_the_limit() -> None:
    spans = [span(str(i), str(i - 1) if i else None, i) for i in range(400)]
    html = drawn(*spans, most=1000)
    assert html.count("<details") == 400
    assert Elements(html).depth <= MAX_NESTED + 1
    assert re.findall(r'<li style="--d:(\d+)">', html) == [str(i) for i in range(400)]


def test_omitted_spans_are_counted_where_they_belong() -> None:
    spans = [
        span("a", None, 0, 99),
        *(span(f"b{i}", "a", 1, 1) for i in range(2000)),
        span("x", None, 0, 0),
        span("y", None, 0, 0),
    ]
    html = drawn(*spans, most=3)
    assert "1,998 further spans" in html
    assert "2 further spans without a stored parent" in html
    assert html.count("<details") == 3


def test_ttft_stalls_and_waits_are_marked_and_written() -> None:
    marks = StreamMarks(
        ttft_ns=S,
        stalls=[
            {"at_ns": 2 * S, "gap_ns": S, "cause": "client"},
            {"at_ns": 5 * S, "gap_ns": S // 2, "cause": "gateway"},
        ],
        stall_count=3,
        waited_ns={"upstream": 8 * S, "client": 2 * S},
    )
    html = drawn(
        span("a", None, 0, 20 * S), span("tap", "a", 10 * S, 10 * S), marks={"tap": marks, "other": marks}
    )
    assert 'class="sg-ttft" style="left:min(55.000%,100% - 3px)" title="TTFT 1.00 s"' in html
    stall = f"left:min(60.000%,100% - 3px);width:5.000%;--c:{colors.CAUSES['client']}"
    assert f'class="sg-stall" style="{stall}" title="Stall of 1.00 s, caused by the client"' in html
    assert (
        "◆ TTFT 1.00 s · 3 stalls: client 1.00 s, gateway 500 ms · time by cause: upstream 8.00 s, client 2.00 s"
        in " ".join(text(html).split())
    )


def test_open_span_reaches_the_end_of_the_axis() -> None:
    html = drawn(span("a", None, 0, 100), span("b", "a", 50, None))
    assert 'sg-open" style="left:min(50.000%,100% - 3px);width:50.000%' in html
    assert "Duration open" in " ".join(text(html).split())


def test_text_of_other_services_is_escaped_everywhere() -> None:
    hostile = span(
        HOSTILE, None, service=HOSTILE, kind=HOSTILE, status="error", message=HOSTILE,
        attributes={HOSTILE: HOSTILE, "service.name": HOSTILE, "list": [HOSTILE]},
        events=(SpanEvent(name=HOSTILE, at_ns=1, attributes={HOSTILE: HOSTILE}),),
    )  # fmt: skip
    stall = {"at_ns": 0, "gap_ns": 1, "cause": HOSTILE}
    html = drawn(
        hostile,
        span("child", HOSTILE),
        marks={HOSTILE: StreamMarks(stalls=[stall], stall_count=1, waited_ns={HOSTILE: 1})},
    )
    found = Elements(html)
    assert found.tags <= ELEMENTS
    assert not any(name.startswith("on") or name in ("href", "src") for name in found.attributes)
    assert text(html).count("window.hostile=1</script>") >= 12


def test_attributes_events_and_values_are_bounded_and_counted() -> None:
    events = tuple(SpanEvent(name="e", at_ns=None, attributes={}) for _ in range(130))
    attributes = {f"key {i}": i for i in range(MAX_ATTRIBUTES + 7)} | {"key 0": "x" * (MAX_VALUE + 5)}
    found = " ".join(text(drawn(span("a", None, attributes=attributes, events=events))).split())
    assert "Not shown 7 further" in found
    assert "Not shown 30 further" in found
    assert "x… (5 further characters)" in found


def test_attributes_of_the_sender_are_shown_as_resource() -> None:
    attributes = {"service.name": "shop", "gen_ai.request.model": "m", "retries": 2}
    found = " ".join(text(drawn(span("a", None, attributes=attributes))).split())
    assert "Attributes gen_ai.request.model m retries 2 Resource service.name shop" in found
