"""Time ranges selected on a chart: their texts in the URL."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from streamgauge.dashboard import zoom

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
HOUR = (NOON, NOON + timedelta(hours=1))


def test_range_restored_from_its_text() -> None:
    assert zoom.to_text(HOUR) == "2026-03-01T12:00:00/2026-03-01T13:00:00"
    assert zoom.from_text(zoom.to_text(HOUR)) == HOUR


@pytest.mark.parametrize(
    "text",
    ["", "x", "2026-03-01T12:00:00", "2026-03-01T12:00:00/x", "2026-03-01T12:00:00/2026-03-01T12:00:00"],
)
def test_text_without_a_range_is_rejected(text: str) -> None:
    assert zoom.from_text(text) is None


def test_part_is_in_whole_seconds_and_not_too_short() -> None:
    assert zoom.part_of(HOUR, 0.2501, 0.4999) == (
        NOON + timedelta(minutes=15),
        NOON + timedelta(minutes=30),
    )
    assert zoom.part_of(HOUR, 0.5, 0.5) == (
        NOON + timedelta(minutes=30),
        NOON + timedelta(minutes=30) + zoom.SHORTEST,
    )
