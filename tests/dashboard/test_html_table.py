"""The markup of tables: escaped values, units in headings, links, and columns that disappear in narrow boxes."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from html.parser import HTMLParser
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from streamgauge.analytics.reports import columns as report_columns
from streamgauge.analytics.reports.columns import Column
from streamgauge.analytics.schema.clients import shortened
from streamgauge.dashboard import html_table
from streamgauge.dashboard.html_table import markup, pairs_markup
from streamgauge.dashboard.page_head import SIGNS_BELOW_PX, STACKED_BELOW_PX, WIDTHS_PX

HOSTILE = "<img src=x onerror=alert(1)>\"'&</td></table><script>alert(1)</script>"


class Parsed(HTMLParser):
    """Tags with their attributes, and the text of each cell."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.cells: list[str] = []
        self._in_cell = False
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag in ("td", "th"):
            self.cells.append("")
            self._in_cell = True

    def handle_endtag(self, tag: str) -> None:
        self._in_cell = self._in_cell and tag not in ("td", "th")

    def handle_data(self, data: str) -> None:
        if self._in_cell:
            self.cells[-1] += data

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


def parsed(*columns: Column, rows: list[dict[str, Any]], **options: Any) -> Parsed:
    return Parsed(markup(columns, rows, label=options.pop("label", "Things"), **options))


def test_hostile_values_stay_text() -> None:
    column = Column(
        name="a", heading=HOSTILE, help=HOSTILE, link=lambda row: f'x?a="{row["a"]}', sort_address=HOSTILE
    )
    found = parsed(column, rows=[{"a": HOSTILE}], label=HOSTILE)
    assert {tag for tag, _ in found.tags} == {"div", "table", "thead", "tbody", "tr", "th", "span", "a"}
    assert found.cells == [HOSTILE, HOSTILE]
    assert found.all("a") == [
        {"href": HOSTILE, "target": "_self"},
        {"href": f'x?a="{HOSTILE}', "target": "_self"},
    ]
    assert found.all("th")[0]["title"] == HOSTILE
    assert found.all("table")[0]["aria-label"] == HOSTILE
    pairs = Parsed(pairs_markup({HOSTILE: HOSTILE}, label=HOSTILE))
    assert pairs.cells == [HOSTILE, HOSTILE]
    assert len(pairs.tags) == 6


def test_headings_have_a_scope_and_name_the_unit() -> None:
    found = parsed(
        Column(name="a", heading="Name"),
        report_columns.ms("t", "TTFT"),
        rows=[{"a": "x", "t": 1_234_500_000}],
    )
    assert found.cells == ["Name", "TTFT, ms", "x", "1,234"]
    assert [th["scope"] for th in found.all("th")] == ["col", "col", "row"]
    assert found.all("td")[0]["class"] == "sg-number sg-from-200"


@pytest.mark.parametrize(
    ("column", "value", "text"),
    [
        (report_columns.number("a", "A", digits=1, unit="tok/s"), 1234.56, "1,234.6"),
        (report_columns.seconds("a", "A"), 2_500_000_000, "2.5"),
        (report_columns.percent("a", "A"), 0.0213, "2.1"),
        (report_columns.percent("a", "A", digits=0, sign=True), 0.5, "+50"),
        (report_columns.number("a", "A"), float("nan"), "–"),
        (report_columns.number("a", "A"), None, "–"),
        (report_columns.number("a", "A"), 0, "0"),
    ],
)
def test_values_are_formatted(column: Column, value: object, text: str) -> None:
    assert parsed(column, rows=[{"a": value}]).cells[1] == text


def test_instants_are_in_the_time_zone_of_the_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(html_table, "time_zone", lambda: ZoneInfo("Europe/Berlin"))
    column = report_columns.instant("a", "A", form="%H:%M:%S.%f")
    at = datetime(2026, 1, 1, 12, 0, 0, 123_456, UTC)
    assert parsed(column, rows=[{"a": at}]).cells[1] == "13:00:00.123"


def test_column_without_values_is_left_out() -> None:
    columns = [Column(name=name, heading=name.upper()) for name in ("id", "a", "b")]
    found = parsed(*columns, rows=[{"id": None, "a": None, "b": 1}, {"id": None, "a": None, "b": None}])
    assert found.cells == ["ID", "B", "–", "1", "–", "–"]


def test_lowest_priority_and_last_columns_disappear_first() -> None:
    columns = [Column(name=n, heading=n * 10, priority=p) for n, p in (("a", 0), ("b", 2), ("c", 1), ("d", 2))]  # fmt: skip
    found = parsed(*columns, rows=[dict.fromkeys("abcd", "value")])
    steps = [int((th["class"] or "0").rsplit("-", 1)[-1]) for th in found.all("th")[:4] if th.get("class")]
    assert "class" not in found.all("th")[0]
    b, c, d = steps
    assert c < b < d
    assert {b, c, d} <= set(WIDTHS_PX)
    note = {span["class"] for span in found.all("span") if "class" in span}
    assert note == {f"sg-until-{step}" for step in steps}


def test_sign_of_an_outcome_leaves_room_for_further_columns_on_a_phone() -> None:
    columns = [Column(name=n, heading=n, priority=0, line=True) for n in "ab"] + [
        Column(name="c", heading="c", line=True)
    ]
    rows = [{"a": "x" * 15, "b": "✕ connect_error", "c": "x" * 10}]
    wide, narrow = (
        int(str(parsed(*cs, rows=rows).all("td")[-1]["class"]).rsplit("-", 1)[-1])
        for cs in (columns, [columns[0], replace(columns[1], is_sign=True), columns[2]])
    )
    assert narrow < wide < SIGNS_BELOW_PX
    found = parsed(replace(columns[1], is_sign=True), rows=rows)
    assert found.cells[1] == "✕ connect_error"
    assert found.all("th")[1]["class"] == "sg-line sg-sign"


def test_shortened_id_is_one_line_and_a_name_may_wrap() -> None:
    column = Column(name="a", heading="A", text=shortened)
    found = parsed(column, rows=[{"a": "0" * 32}, {"a": "nightly evaluation"}])
    assert [th.get("class") for th in found.all("th")[1:]] == ["sg-line", None]


def test_stacking_table_keeps_every_column() -> None:
    columns = [Column(name=n, heading=n.upper() * 30, priority=2) for n in "abcd"]
    found = parsed(*columns, rows=[dict.fromkeys("abcd", "1")], stacks=True)
    assert found.all("table")[0]["class"] == f"sg-rows-from-{STACKED_BELOW_PX}"
    cell = found.all("td")[-1]
    assert cell["data-heading"] == "D" * 30
    assert int(str(cell["class"]).removeprefix("sg-from-")) > STACKED_BELOW_PX, "hidden only in wider boxes"


def test_table_that_can_be_too_wide_is_a_region_with_a_label() -> None:
    columns = [Column(name=n, heading="x" * 30, priority=0) for n in "abc"]
    assert parsed(*columns, rows=[dict.fromkeys("abc", 1)]).all("div")[0] == {
        "class": "sg-table",
        "role": "region",
        "tabindex": "0",
        "aria-label": "Things",
    }
    assert "tabindex" not in parsed(columns[0], rows=[{"a": 1}]).all("div")[0]


def test_long_text_is_cut_and_titled() -> None:
    found = parsed(Column(name="a", heading="A"), rows=[{"a": "x" * 5000}])
    assert len(found.cells[1]) == html_table.MAX_TEXT
    assert found.all("th")[1]["title"] == "x" * html_table.MAX_TITLE


def test_sorted_column_is_named_for_screen_readers() -> None:
    columns = [Column(name=n, heading=n.upper(), sort_address=f"?order={n}") for n in "ab"]
    found = parsed(*columns, rows=[{"a": 1, "b": 2}], order="b")
    assert [th.get("aria-sort") for th in found.all("th")[:2]] == [None, "descending"]
    assert found.all("a")[0]["href"] == "?order=a"


def test_state_is_a_class_and_row_link_covers_the_row() -> None:
    column = Column(name="a", heading="A", state=lambda row: "bad" if row["a"] == "✕" else None, link=lambda row: "stream?id=1",
                    opens_row=True)  # fmt: skip
    found = parsed(column, rows=[{"a": "✕"}, {"a": "✓"}])
    assert [th.get("class") for th in found.all("th")[1:]] == ["sg-bad", None]
    assert found.all("a")[0]["class"] == "sg-row"
    assert found.all("tr")[1]["class"] == "sg-opens"
