"""Healthy or not: an objective is met up to its limit, and what is not known is not judged."""

from __future__ import annotations

from dashboard.health import Slos, checks, headline, verdict

SLOS = Slos(ttft_s=2.0, itl_s=0.1, error_rate=0.05)


def judged(**summary: float | None) -> tuple[str, str]:
    found = checks(summary, SLOS)
    return verdict(found), headline(found)


def test_at_the_limit_is_met() -> None:
    assert judged(error_rate=0.05, ttft_p95_ns=2e9, itl_p95_ns=1e8) == (
        "met",
        "Healthy: every objective is met",
    )


def test_what_is_broken_is_named() -> None:
    assert judged(error_rate=0.0501, ttft_p95_ns=2e9, itl_p95_ns=2e8) == (
        "broken",
        "Not healthy: Error rate and ITL p95 above the objective",
    )


def test_the_unknown_is_not_judged() -> None:
    assert judged(error_rate=None, ttft_p95_ns=float("nan")) == ("unknown", "Nothing can be judged yet")
    assert judged(error_rate=0.0)[0] == "met"


def test_a_check_says_what_was_measured_and_the_limit() -> None:
    errors, ttft, itl = checks({"error_rate": 0.1, "ttft_p95_ns": 1.5e9}, SLOS)
    assert str(errors) == "Error rate 10.0 % > 5.00 %"
    assert str(ttft) == "TTFT p95 1.50 s ≤ 2.00 s"
    assert str(itl) == "ITL p95 unknown (objective: ≤ 100 ms)"
