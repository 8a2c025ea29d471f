"""Results of the tap's bench: ratios, noise, verdict."""

from __future__ import annotations

import random

from bench.tap.page import Result, table, verdict


def result(rounds: int = 11, **factors: float) -> Result:
    """Targets whose p50 is a factor of a base of 100 µs, each run off by up to 10 %."""
    draw = random.Random(1)
    runs = {
        name: [{"p50_ns": 100_000 * factor * draw.uniform(0.9, 1.1), "errors": 0.0} for _ in range(rounds)]
        for name, factor in {"base": 1.0, "twin": 1.0, **factors}.items()
    }
    return Result("a load", ("p50_ns",), "base", runs, "twin")


def test_noise_is_the_difference_of_two_equal_targets() -> None:
    low, high = result().noise("p50_ns") or (0.0, 0.0)
    assert 0.85 < low < 1.0 < high < 1.15


def test_noise_is_none_without_a_twin() -> None:
    alone = Result("a load", ("p50_ns",), "base", {"base": [{"p50_ns": 1.0, "errors": 0.0}]})
    assert alone.noise("p50_ns") is None
    assert verdict(alone) == ""


def test_verdict_names_targets_beyond_the_noise() -> None:
    text = verdict(result(alike=1.0, slower=1.5, faster=0.6))
    assert "ithin: alike" in text
    assert "bove: slower" in text
    assert "elow: faster" in text


def test_errors_are_listed_below_a_table_without_an_error_column() -> None:
    found = result(broken=1.0)
    found.runs["broken"][3]["errors"] = 7.0
    assert "Errors of broken: 7." in table(found)
    assert "Errors of twin" not in table(found)


def test_value_of_unaccounted_bytes_can_be_negative() -> None:
    runs = {"tap": [{"unaccounted_bytes": 0.0}, {"unaccounted_bytes": -220.0}]}
    assert Result("a load", ("unaccounted_bytes",), "nginx", runs).value("tap", "unaccounted_bytes") == -220
