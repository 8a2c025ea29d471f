"""Durations are parsed with their units; ages require one."""

from __future__ import annotations

import pytest

from streamgauge.settings.values import parse_duration_s, parse_seconds

DAY_S = 86_400.0


@pytest.mark.parametrize(
    ("text", "duration_s"),
    [
        ("7d", 7 * DAY_S),
        ("36h", 36 * 3600.0),
        ("90 m", 5400.0),
        ("30s", 30.0),
        ("250ms", 0.25),
        ("2W", 14 * DAY_S),
        ("1.5d", 1.5 * DAY_S),
    ],
)
def test_duration_with_unit_is_parsed(text: str, duration_s: float) -> None:
    assert parse_duration_s(text) == duration_s


@pytest.mark.parametrize("text", [None, "", "forever", "FOREVER", "none"])
def test_forever_is_none(text: str | None) -> None:
    assert parse_duration_s(text) is None


@pytest.mark.parametrize("text", ["7", "d", "-7d", "0d", "7 years", "7d3h"])
def test_invalid_duration_raises(text: str) -> None:
    with pytest.raises(ValueError, match="not a duration"):
        parse_duration_s(text)


@pytest.mark.parametrize(
    ("value", "seconds"), [("5m", 300.0), ("0s", 0.0), ("100ms", 0.1), ("30", "30"), (2.5, 2.5)]
)
def test_plain_numbers_are_left_to_the_settings_model(value: object, seconds: object) -> None:
    assert parse_seconds(value) == seconds
