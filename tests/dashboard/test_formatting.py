"""Text of durations, counts, rates, shares and sizes."""

from __future__ import annotations

from datetime import timedelta

import pytest

from streamgauge.analytics.reports import formatting


@pytest.mark.parametrize(
    ("value_ns", "text"),
    [
        (None, "–"), (float("nan"), "–"), (0, "0 s"), (12_345, "12.3 µs"), (999_400, "999 µs"), (999_600, "1.00 ms"),
        (45_600_000, "45.6 ms"), (999_600_000, "1.00 s"), (1_234_000_000, "1.23 s"), (59_960_000_000, "1 min 0 s"),
        (200e9, "3 min 20 s"), (7_300e9, "2 h 1 min"),
    ],
)  # fmt: skip
def test_duration_has_three_digits_and_a_unit(value_ns: float | None, text: str) -> None:
    assert formatting.duration(value_ns) == text


@pytest.mark.parametrize(
    ("value", "text"), [(None, "–"), (0, "0"), (99_999, "99,999"), (123_456, "123 k"), (4_560_000, "4.56 M")]
)
def test_count_is_exact_up_to_99999(value: float | None, text: str) -> None:
    assert formatting.count(value) == text


def test_unknown_is_never_zero() -> None:
    assert {formatting.rate(None), formatting.share(None), formatting.size(None)} == {"–"}
    assert formatting.change(None, 1) is None
    assert formatting.change(1, 0) is None
    assert formatting.change(3, 2) == 0.5


@pytest.mark.parametrize(
    ("length", "text"),
    [
        (timedelta(seconds=30), "30 s"),
        (timedelta(minutes=15), "15 min"),
        (timedelta(hours=1), "1 h"),
        (timedelta(7), "7 d"),
    ],
)
def test_span_of_a_time_range(length: timedelta, text: str) -> None:
    assert formatting.span(length) == text


def test_sizes_use_powers_of_1024() -> None:
    assert formatting.size(0) == "0 B"
    assert formatting.size(1536) == "1.50 KiB"
