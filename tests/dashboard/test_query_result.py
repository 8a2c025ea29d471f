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
