"""Lines over time: gaps, the shared tooltip and outliers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import polars as pl
import pytest

from streamgauge.dashboard.charts import colors
from streamgauge.dashboard.charts.drawing import CLICKED, TimeRange
from streamgauge.dashboard.charts.group_charts import heatmap
from streamgauge.dashboard.charts.time_series import break_at_gaps, time_bars, time_lines

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


def tips(chart: Mapping[str, Any]) -> list[dict[str, str]]:
    """The tooltip of each point of time."""
    found = chart["layer"][-1]["transform"][0]["from"]["data"]["name"]
    return [row["tip"] for row in chart["datasets"][found]]


def test_axis_of_counts_has_whole_numbers() -> None:
    bars: dict[str, Any] = {"series": "name", "series_colors": colors.by_name(("a",))}
    counts = time_bars(frame((0, "a", 1.0)), "y", HOUR, unit=None, **bars)
    rates = time_bars(frame((0, "a", 1.0)), "y", HOUR, unit="tok/s", **bars)
    lines = time_lines(frame((0, "a", 1.0)), "y", HOUR, unit="streams")
    steps = [
        chart.to_dict()["layer"][0]["encoding"]["y"]["axis"].get("tickMinStep")
        for chart in (counts, rates, lines)
    ]
    assert steps == [1, None, 1]


def test_tooltip_has_all_series_and_points_are_described() -> None:
    data = frame((0, "a", 1.0), (0, SPECIAL_NAME, 2.0), (1, "a", 3.0))
    chart = time_lines(data, "y", HOUR, series="name").to_dict()  # validated against Vega-Lite's schema
    assert tips(chart) == [
        {"time": "2026-03-01 12:00:00", "a": "1", SPECIAL_NAME: "2"},
        {"time": "2026-03-01 12:01:00", "a": "3", SPECIAL_NAME: "–"},
    ]
    points = chart["datasets"][chart["layer"][-1]["data"]["name"]]
    assert [row["label"] for row in points] == [
        "2026-03-01 12:00:00 a: 1", f"2026-03-01 12:00:00 {SPECIAL_NAME}: 2", "2026-03-01 12:01:00 a: 3"
    ]  # fmt: skip
    assert chart["layer"][-1]["params"][0]["name"] == CLICKED


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
    assert [tip["a"] for tip in tips(made)][:3] == ["0 (n 30)", "1 (n 30)", "2 (n 2)"]


UNFINISHED = replace(HOUR, since=NOON + timedelta(seconds=30), complete_until=NOON + timedelta(minutes=4))
"""The first minute and those from the fourth on are incomplete."""


def test_incomplete_points_are_faded_and_do_not_set_the_scale() -> None:
    data = frame(*((i, "a", v) for i, v in enumerate((8.0, 2.0, 3.0, 1.0, 9.0))))
    made = time_lines(data, "y", UNFINISHED, series="name").to_dict()
    faded, full = made["layer"][:2]
    assert faded["encoding"]["opacity"]["value"] < full["encoding"]["opacity"]["value"] == 1.0
    values = [[row["y"] for row in made["datasets"][layer["data"]["name"]]] for layer in made["layer"][:2]]
    assert values == [[8, 2, 3, 1, 9, None], [None, 2, 3, 1, None, None]]
    assert faded["encoding"]["y"]["scale"]["domain"] == [0, 3]
    assert [tip["a"] for tip in tips(made)[:2]] == ["8, incomplete", "2"]
    assert (
        "domain"
        not in time_lines(data, "y", HOUR, series="name").to_dict()["layer"][0]["encoding"]["y"]["scale"]
    )


@pytest.mark.parametrize(("rates", "top"), [((0.0, 0.0, 0.4), 0.01), ((0.0, 0.2, 0.4), 0.2)])
def test_error_rate_of_incomplete_points_does_not_set_the_scale(rates: tuple[float, ...], top: float) -> None:
    data = frame(*((i + 2, "a", rate) for i, rate in enumerate(rates)))
    made = time_lines(data, "y", UNFINISHED, series="name", percent=True).to_dict()
    assert made["layer"][0]["encoding"]["y"]["scale"]["domain"] == [0, top]


def test_incomplete_bars_and_cells_are_faded_and_do_not_set_the_scale() -> None:
    data = frame((1, "a", 5.0), (1, "b", 2.0), (4, "a", 40.0))
    bars = time_bars(
        data, "y", UNFINISHED, series="name", series_colors={"a": "#111111", "b": "#222222"}, unit=None
    )
    bins = data.with_columns(
        pl.lit(1e6).alias("low_ns"), pl.lit(2e6).alias("high_ns"), pl.col("y").alias("n")
    )
    for made, channel, top in (
        (bars.to_dict()["layer"][0], "y", 7.0),
        (heatmap(bins, UNFINISHED).to_dict(), "color", 5.0),
    ):
        encoding = made["encoding"]
        assert encoding[channel]["scale"]["domainMax"] == top
        assert encoding["opacity"]["condition"] == {"test": "datum.complete", "value": 1}
    rows = next(iter(bars.to_dict()["datasets"].values()))
    assert {(row["y"], row["complete"]) for row in rows} == {(5.0, True), (2.0, True), (40.0, False)}


def test_highlighted_series_keeps_its_colour_and_others_are_grey() -> None:
    data = frame((0, "a", 1.0), (1, "a", 2.0), (0, "b", 1.0), (1, "b", 2.0), (0, "total", 1.0))
    of_series = {"a": "#111111", "b": "#222222", "total": colors.TOTAL_COLOR}
    made = time_lines(data, "y", HOUR, series="name", series_colors=of_series, highlighted={"b"}).to_dict()
    line = made["layer"][0]["encoding"]
    assert line["color"]["scale"]["range"] == [colors.UNNAMED, "#222222", colors.UNNAMED]
    assert line["strokeWidth"]["condition"]["test"]["oneOf"] == ["b", "total"]
