"""Lines over time: broken where nothing was, one tooltip for all series whatever they are called."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import polars as pl

from dashboard.charts.time_series import broken, time_lines

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
ODD = 'a.b[0] "c" \\ <d>'


def frame(*points: tuple[int, str, float | None]) -> pl.DataFrame:
    return pl.DataFrame(
        {
            "at": [NOON + timedelta(minutes=m) for m, _, _ in points],
            "name": [n for _, n, _ in points],
            "y": [v for _, _, v in points],
            "said": [str(v) for _, _, v in points],
        }
    )


def test_a_line_breaks_at_a_silence_and_a_lonely_point_is_marked() -> None:
    found = broken(frame((0, "a", 1.0), (1, "a", 2.0), (5, "a", 3.0), (0, "b", 9.0)), "name", 60)
    a = found.filter(pl.col("name") == "a")
    assert a["y"].to_list() == [1.0, 2.0, None, 3.0, None]
    assert a.filter("alone")["y"].to_list() == [3.0]
    assert found.filter((pl.col("name") == "b") & pl.col("alone"))["y"].to_list() == [9.0]


def test_one_tooltip_reads_all_series_under_names_of_its_own() -> None:
    data = frame((0, "a", 1.0), (0, ODD, 2.0), (1, "a", 3.0))
    chart = time_lines(
        data, "y", zone=ZoneInfo("UTC"), span=(NOON, NOON + timedelta(hours=1)), bucket_s=60, series="name"
    ).to_dict()  # validated against Vega-Lite's schema
    tips = chart["layer"][-1]["encoding"]["tooltip"]
    assert [t.get("title") for t in tips] == ["time", "a", ODD]
    assert [t["field"] for t in tips[1:]] == ["s0", "s1"]
    assert chart["params"][0]["name"] == "near"


def test_a_chart_of_nothing_is_a_chart() -> None:
    nothing = frame((0, "a", None)).with_columns(pl.col("y").cast(pl.Float64))
    made = time_lines(nothing, "y", zone=ZoneInfo("UTC"), span=(NOON, NOON), bucket_s=60, series="name")
    assert made.to_dict()["layer"]


def test_an_outlier_does_not_flatten_the_lines_and_is_told() -> None:
    values = [float(10 + i % 5) for i in range(60)] + [5000.0]
    data = frame(*((i, "a", v) for i, v in enumerate(values)))
    made = [
        time_lines(
            data, "y", zone=ZoneInfo("UTC"), span=(NOON, NOON + timedelta(hours=1)), bucket_s=60, series="name", unit="tok/s",
            robust=robust,
        ).to_dict()["layer"][0]["encoding"]["y"]
        for robust in (True, False)
    ]  # fmt: skip
    assert made[0]["scale"]["domain"] == [0, 21.0]
    assert made[0]["title"] == "tok/s (up to 5,000)"
    assert "domain" not in made[1]["scale"]
