"""The cells of tables, and lines over time with gaps."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest

from streamgauge.analytics.html_report.figures import BASE, MAX_TEXT, TOP, WIDTH, line, table
from streamgauge.analytics.reports import columns, formatting


def test_line_breaks_where_points_are_missing() -> None:
    found = line("x", [(0.0, 1.0), (0.1, 2.0), (0.5, 4.0)], str, 0.1, limit=5.0)
    assert [len(piece) for piece in found["pieces"]] == [2, 1]
    assert found["pieces"][1] == [(0.5 * WIDTH, pytest.approx(BASE - (BASE - TOP) * 4 / 5))]
    assert (found["top"], found["limit"]) == ("5.0", TOP)


@pytest.mark.parametrize(
    ("largest", "top"), [(0.0, 1.0), (0.9, 1.0), (1.0, 1.0), (1.1, 1.5), (420.0, 500.0), (8.0, 10.0)]
)
def test_axis_ends_at_a_round_number(largest: float, top: float) -> None:
    assert line("x", [(0.0, largest)], float, 0.1)["top"] == pytest.approx(top)  # type: ignore[arg-type]


def test_line_without_points_has_a_label() -> None:
    assert line("x", [], str, 0.1)["label"].endswith(formatting.UNKNOWN)


def test_cells_are_cut_and_columns_without_values_left_out() -> None:
    report = columns.table(
        "By {by}", columns.text("name", "{By}"), columns.number("n", "N"), columns.instant("at", "At")
    )
    at = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    rows = [
        {"name": "x" * 500, "n": None, "at": at},
        {"name": "y", "n": None, "at": None},
        {"name": "z", "n": None, "at": at},
    ]
    found = table(report, rows, timezone(timedelta(hours=1)), most=2, by="model", By="Model")
    assert [heading for heading, _, _ in found["head"]] == ["Model", "At"]
    assert (len(found["body"][0][0][0]), found["more"], found["label"]) == (MAX_TEXT, 1, "By model")
    assert [row[1][0] for row in found["body"]] == ["01-02 04:04:05", formatting.UNKNOWN]
