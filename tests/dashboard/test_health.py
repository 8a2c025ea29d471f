"""Objectives are met up to their limit. Unknown measurements are not judged."""

from __future__ import annotations

from streamgauge.dashboard.health import Slos, checks

SLOS = Slos(ttft_s=2.0, itl_s=0.1, error_rate=0.05)


def states(**summary: float | None) -> list[str]:
    return [check.state for check in checks(summary, SLOS)]


def test_value_at_the_limit_is_met() -> None:
    assert states(error_rate=0.05, ttft_p95_ns=2e9, itl_p95_ns=1e8) == ["met", "met", "met"]
    assert states(error_rate=0.0501, ttft_p95_ns=2.1e9, itl_p95_ns=2e8) == ["missed", "missed", "missed"]


def test_unknown_values_are_not_judged() -> None:
    assert states(error_rate=None, ttft_p95_ns=float("nan")) == ["unknown", "unknown", "unknown"]


def test_check_text_has_measured_value_and_limit() -> None:
    errors, ttft, itl = checks({"error_rate": 0.1, "ttft_p95_ns": 1.5e9}, SLOS)
    assert str(errors) == "Error rate 10.0 % > 5.00 %"
    assert str(ttft) == "TTFT p95 1.50 s ≤ 2.00 s"
    assert str(itl) == "ITL p95 unknown (objective: ≤ 100 ms)"
