"""The default chart of a query result, and that every choice of columns can be drawn."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import polars as pl
import pytest

from streamgauge.dashboard.sql_result import Axes, default_axes, drawable, numbers, result_chart

TIMES = [datetime(2026, 1, 2, 3, minute, tzinfo=UTC) for minute in (4, 5)]
BERLIN = ZoneInfo("Europe/Berlin")
MIXED = pl.DataFrame(
    {
        "id": ["a", "b"],
        "at": TIMES,
        "model": ["m", None],
        "n": [1, 2],
        "share": [0.5, float("nan")],
        "day": [date(2026, 1, 2)] * 2,
        "ok": [True, False],
        "took": [timedelta(seconds=1)] * 2,
        "list": [[1], [2]],
        "nothing": [None, None],
        "bytes": [b"a", b"b"],
    }
)


@pytest.mark.parametrize(
    ("columns", "axes"),
    [
        ({"at": TIMES, "n": [1, 2]}, Axes("at", "n", None)),
        ({"n": [1, 2], "model": ["a", "b"], "at": TIMES}, Axes("at", "n", "model")),
        ({"at": TIMES, "same": ["a", "a"], "n": [1, 2]}, Axes("at", "n", None)),
        ({"model": ["a", "b"], "outcome": ["c", "d"], "n": [1, 2]}, Axes("model", "n", None)),
        ({"a": [1, 2], "b": [1.0, 2.0]}, Axes("a", "b", None)),
        ({"a": [1, 2]}, None),
        ({"a": ["x", "y"], "list": [[1], [2]]}, None),
        ({"a": ["x"], "n": [1]}, None),
    ],
)
def test_default_is_a_number_over_time_else_by_name(columns: dict[str, Any], axes: Axes | None) -> None:
    assert default_axes(pl.DataFrame(columns)) == axes


def test_names_with_many_values_are_no_default_colour() -> None:
    frame = pl.DataFrame({"at": TIMES * 10, "id": [str(i) for i in range(20)], "n": range(20)})
    assert default_axes(frame) == Axes("at", "n", None)


def test_every_choice_can_be_drawn() -> None:
    assert numbers(MIXED.schema) == ["n", "share"]
    assert drawable(MIXED.schema) == ["id", "at", "model", "n", "share", "day", "ok"]
    for x in drawable(MIXED.schema):
        for color in (None, "model", "ok"):
            spec = result_chart(MIXED, Axes(x, "share", color), BERLIN)[0].to_dict()
            rows = next(iter(spec["datasets"].values()))
            assert len(rows) == 1, x  # NaN is not drawn
    spec = result_chart(MIXED, Axes("at", "n", None), BERLIN)[0].to_dict()
    assert "04:04:00" in str(spec["datasets"])


@pytest.mark.parametrize(("minutes", "labels"), [(5, "%H:%M:%S"), (600, "%H:%M"), (6000, "%d %b %H:%M")])
def test_time_axis_has_24_hours_and_names_the_zone(minutes: int, labels: str) -> None:
    frame = pl.DataFrame({"at": [TIMES[0], TIMES[0] + timedelta(minutes=minutes)], "n": [1, 2]})
    x = result_chart(frame, Axes("at", "n", None), BERLIN)[0].to_dict()["encoding"]["x"]
    assert (x["axis"]["format"], x["title"]) == (labels, "at (Europe/Berlin)")


@pytest.mark.parametrize("color", [None, "model"])
def test_many_rows_over_time_are_medians_and_the_chart_says_so(color: str | None) -> None:
    rows = 3282
    frame = pl.DataFrame(
        {
            "at": [TIMES[0] + timedelta(seconds=i) for i in range(rows)],
            "n": range(rows),
            "model": ["a", "b"] * (rows // 2),
        }
    )
    chart, _, note = result_chart(frame, Axes("at", "n", color), BERLIN)
    step_s = 4 if color else 2
    assert note == f"3,282 rows: each point is the median of {step_s} s."
    points = next(iter(chart.to_dict()["datasets"].values()))
    assert len(points) == pytest.approx(rows * (2 if color else 1) / step_s, rel=0.01)
    assert max(point["y"] for point in points) > rows - 5  # the newest rows are drawn


def test_bar_is_the_median_of_its_rows() -> None:
    frame = pl.DataFrame({"model": ["a", "a", "a", "b"], "n": [1, 2, 9, 4], "outcome": ["ok"] * 4})
    chart, _, note = result_chart(frame, Axes("model", "n", None), BERLIN)
    rows = next(iter(chart.to_dict()["datasets"].values()))
    assert [(row["x"], row["y"]) for row in rows] == [("a", 2.0), ("b", 4.0)]
    assert note == "Each bar is the median of the rows with the same model."
    assert result_chart(frame[2:], Axes("model", "n", "outcome"), BERLIN)[2] == ""
    many = pl.DataFrame({"id": [str(i) for i in range(3000)], "n": range(3000)})
    assert result_chart(many, Axes("id", "n", None), BERLIN)[2] == "The first 2,000 of 3,000 bars are drawn."


def test_many_points_of_two_numbers_are_a_sample() -> None:
    frame = pl.DataFrame({"a": range(4001), "b": range(4001)})
    chart, _, note = result_chart(frame, Axes("a", "b", None), BERLIN)
    assert note == "A sample is drawn: one of every 3 of 4,001 rows."
    assert [row["x"] for row in next(iter(chart.to_dict()["datasets"].values()))][-1] == 3999
