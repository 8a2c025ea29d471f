"""Objectives are met up to their limit. Unknown measurements are not judged."""

from __future__ import annotations

from dashboard.health import Slos, checks, headline, overall

SLOS = Slos(ttft_s=2.0, itl_s=0.1, error_rate=0.05)


def health_of(**summary: float | None) -> tuple[str, str]:
    found = checks(summary, SLOS)
    return overall(found), headline(found)


def test_value_at_the_limit_is_met() -> None:
    assert health_of(error_rate=0.05, ttft_p95_ns=2e9, itl_p95_ns=1e8) == (
        "met",
        "Healthy: all objectives met",
    )


def test_missed_objectives_are_named() -> None:
    assert health_of(error_rate=0.0501, ttft_p95_ns=2e9, itl_p95_ns=2e8) == (
        "missed",
        "Unhealthy: Error rate and ITL p95 above the objective",
    )


def test_unknown_values_are_not_judged() -> None:
    assert health_of(error_rate=None, ttft_p95_ns=float("nan")) == (
        "unknown",
        "Health unknown: no measurements yet",
    )
    assert health_of(error_rate=0.0)[0] == "met"


def test_check_text_has_measured_value_and_limit() -> None:
    errors, ttft, itl = checks({"error_rate": 0.1, "ttft_p95_ns": 1.5e9}, SLOS)
    assert str(errors) == "Error rate 10.0 % > 5.00 %"
    assert str(ttft) == "TTFT p95 1.50 s ≤ 2.00 s"
    assert str(itl) == "ITL p95 unknown (objective: ≤ 100 ms)"
