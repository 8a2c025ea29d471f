"""Objectives of a diagnosis: a value at the limit is met, unknown values are not judged."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

from streamgauge.analytics.diagnosis.diagnosis import Diagnosis, Measured

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
TTFT = Measured(name="ttft", value=2e9, limit=2e9, unit="ns")


def found(*measured: Measured) -> Diagnosis:
    return Diagnosis(state="healthy", since=NOON, until=NOON, measured=measured)


def test_value_at_the_limit_is_met() -> None:
    states = [replace(TTFT, value=value).state for value in (2e9, 2.1e9, None)]
    assert states == ["met", "missed", "unknown"]


def test_the_limit_that_is_missed_most_is_first() -> None:
    strict, unknown = replace(TTFT, objective="strict", limit=1e9), replace(TTFT, objective="x", value=None)
    errors = Measured(name="error_rate", value=0.0, limit=0.05, unit="share")
    assert found(errors, unknown, TTFT, strict).measured_of("ttft") == [strict, TTFT, unknown]
    assert found(errors).measured_of("error_rate") == [errors]


def test_streams_with_several_limits_have_no_common_one() -> None:
    assert found(TTFT, replace(TTFT, objective="same")).limit("ttft") == 2e9
    assert found(TTFT, replace(TTFT, limit=1e9)).limit("ttft") is None
    assert found(TTFT).limit("itl") is None
