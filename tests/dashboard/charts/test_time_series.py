"""Lines over time: gaps, the shared tooltip and outliers."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import polars as pl

from streamgauge.dashboard.charts import colors
from streamgauge.dashboard.charts.drawing import TimeRange
from streamgauge.dashboard.charts.time_series import break_at_gaps, time_lines

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
HOUR = TimeRange(NOON, NOON + timedelta(hours=1), ZoneInfo("UTC"), 60)
SPECIAL_NAME = 'a.b[0] "c" \\ <d>'


def frame(*points: tuple[int, str, float | None]) -> pl.DataFrame:
    return pl.DataFrame(
        {
            "at": [NOON + timedelta(minutes=m) for m, _, _ in points],
            "name": [n for _, n, _ in points],
            "y": [v for _, _, v in points],
            "text": [str(v) for _, _, v in points],
            "sampled": [True] * len(points),
        }
    )


def test_line_breaks_at_gaps_and_isolated_points_are_marked() -> None:
    found = break_at_gaps(frame((0, "a", 1.0), (1, "a", 2.0), (5, "a", 3.0), (0, "b", 9.0)), "name", 60)
    a = found.filter(pl.col("name") == "a")
    assert a["y"].to_list() == [1.0, 2.0, None, 3.0, None]
    assert a.filter("isolated")["y"].to_list() == [3.0]
    assert found.filter((pl.col("name") == "b") & pl.col("isolated"))["y"].to_list() == [9.0]


def test_tooltip_has_all_series_under_generated_fields() -> None:
    data = frame((0, "a", 1.0), (0, SPECIAL_NAME, 2.0), (1, "a", 3.0))
    chart = time_lines(data, "y", HOUR, series="name").to_dict()  # validated against Vega-Lite's schema
    tips = chart["layer"][-1]["encoding"]["tooltip"]
    assert [t.get("title") for t in tips] == ["time", "a", SPECIAL_NAME]
    assert [t["field"] for t in tips[1:]] == ["s0", "s1"]
    assert chart["params"][0]["name"] == "near"


def test_chart_without_data_is_valid() -> None:
    empty = frame((0, "a", None)).with_columns(pl.col("y").cast(pl.Float64))
    made = time_lines(empty, "y", TimeRange(NOON, NOON, ZoneInfo("UTC"), 60), series="name")
    assert made.to_dict()["layer"]


def test_outlier_is_clipped_and_named_in_the_axis_title() -> None:
    values = [float(10 + i % 5) for i in range(60)] + [5000.0]
    data = frame(*((i, "a", v) for i, v in enumerate(values)))
    made = [
        time_lines(
            data, "y", HOUR, series="name", unit="tok/s",
            clip_outliers=clip,
        ).to_dict()["layer"][0]["encoding"]["y"]
        for clip in (True, False)
    ]  # fmt: skip
    assert made[0]["scale"]["domain"] == [0, 21.0]
    assert made[0]["title"] == "tok/s (max 5,000)"
    assert "domain" not in made[1]["scale"]


def test_points_with_few_samples_are_faded_and_the_tooltip_has_their_number() -> None:
    data = frame(*((i, "a", float(i)) for i in range(5))).with_columns(n=pl.Series([30, 30, 2, 2, 30]))
    made = time_lines(data, "y", HOUR, series="name", samples="n").to_dict()
    faded, full, dot = made["layer"][:3]
    assert faded["encoding"]["opacity"]["value"] < full["encoding"]["opacity"]["value"] == 1.0
    values = [[row["y"] for row in made["datasets"][layer["data"]["name"]]] for layer in made["layer"][:3]]
    assert values == [[0, 1, 2, 3, 4, None], [0, 1, None, None, 4, None], [4]]
    assert dot["mark"]["type"] == "point"
    tips = made["datasets"][made["layer"][-1]["transform"][0]["from"]["data"]["name"]]
    assert [row["s0"] for row in tips][:3] == ["0 (n 30)", "1 (n 30)", "2 (n 2)"]


def test_highlighted_series_keeps_its_colour_and_others_are_grey() -> None:
    data = frame((0, "a", 1.0), (1, "a", 2.0), (0, "b", 1.0), (1, "b", 2.0), (0, "total", 1.0))
    of_series = {"a": "#111111", "b": "#222222", "total": colors.TOTAL_COLOR}
    made = time_lines(data, "y", HOUR, series="name", series_colors=of_series, highlighted={"b"}).to_dict()
    line = made["layer"][0]["encoding"]
    assert line["color"]["scale"]["range"] == [colors.UNNAMED, "#222222", colors.UNNAMED]
    assert line["strokeWidth"]["condition"]["test"]["oneOf"] == ["b", "total"]
