"""Ages as people write them."""

from __future__ import annotations

import pytest

from streamgauge.durations import parse_duration_s

DAY_S = 86_400.0


@pytest.mark.parametrize(
    ("text", "age_s"),
    [
        ("7d", 7 * DAY_S),
        ("36h", 36 * 3600.0),
        ("90 m", 5400.0),
        ("30s", 30.0),
        ("2W", 14 * DAY_S),
        ("1.5d", 1.5 * DAY_S),
    ],
)
def test_ages_are_read(text: str, age_s: float) -> None:
    assert parse_duration_s(text) == age_s


@pytest.mark.parametrize("text", [None, "", "forever", "FOREVER", "none"])
def test_no_age_is_for_ever(text: str | None) -> None:
    assert parse_duration_s(text) is None


@pytest.mark.parametrize("text", ["7", "d", "-7d", "0d", "7 years", "7d3h"])
def test_what_is_no_age_is_said(text: str) -> None:
    with pytest.raises(ValueError, match="no age"):
        parse_duration_s(text)
