"""Texts of diagnoses."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from streamgauge.analytics.diagnosis.diagnosis import (
    GEOMETRIC_MEAN,
    TITLES,
    Cause,
    Diagnosis,
    Effect,
    Measured,
    cause_parts,
    cause_text,
    headline,
)
from streamgauge.analytics.diagnosis.metrics import metrics
from streamgauge.analytics.schema.objectives import DEFAULT

ONSET = datetime(2026, 6, 1, 7, 28, 44, tzinfo=UTC)
UNTIL = ONSET + timedelta(minutes=10)
ERRORS = Measured(name="error_rate", value=0.05, limit=0.05, unit="share")
TTFT = Measured(name="ttft", value=2.5e9, limit=2e9, unit="ns")
FAILING = Cause(
    kind="step", where={"model": "gpt-sim-large", "gateway": "us-gateway"},
    main=Effect(metric="rate_limited", value=0.7, before=0.001, unit="share"), evidence=("HTTP 429",), onset=ONSET,
    unaffected=("eu-gateway",), unaffected_dimension="gateway",
)  # fmt: skip
SLOW = Cause(
    kind="step", where={"gateway": "us-gateway"}, onset=ONSET,
    main=Effect(metric="ttft", value=0.94e9, before=0.31e9, unit="ns", statistic="p50", p95=2.1e9),
)  # fmt: skip


def diagnosis(*causes: Cause) -> Diagnosis:
    return Diagnosis(state="incident", since=ONSET, until=UNTIL, causes=causes, measured=(ERRORS, TTFT))


def test_headline_names_rate_objective_onset_place_evidence_and_neighbours() -> None:
    text = headline(diagnosis(FAILING, SLOW))
    assert text == (
        "Error rate since 07:28:44: gpt-sim-large @ us-gateway, 70 % failing (objective 5 %), HTTP 429. "
        "Unaffected: gateway eu-gateway. 1 more cause."
    )


CASES = {
    "TTFT since 07:28:44: gateway us-gateway, TTFT p50 310 → 940 ms.": SLOW,
    "TTFT rising slowly since 07:28:44: gateway us-gateway, TTFT p50 310 → 940 ms.": replace(SLOW, kind="drift"),
    "TTFT from 07:28:44 until 07:38:44: gateway us-gateway, TTFT p50 310 → 940 ms.": replace(SLOW, ended=UNTIL),
    "TTFT since before the range: gateway us-gateway, TTFT p50 310 → 940 ms.": replace(SLOW, onset=None),
    "TTFT since 07:28:44: all streams, TTFT p50 310 → 940 ms, ITL geometric mean 10 → 30 ms.": replace(
        SLOW, where={}, effects=(Effect(metric="slow_ttft", value=0.5, before=0.1, unit="share"),
                                 Effect(metric="itl", value=30e6, before=10e6, unit="ns", statistic=GEOMETRIC_MEAN))),
    "TTFT: reasoner, 9 % of all streams above the objective (before 3 %), 60 % of the requests, before 5 %.": replace(
        SLOW, kind="traffic", where={"model": "reasoner"}, main=Effect(metric="slow_ttft", value=0.09, before=0.03, unit="share"),
        evidence=("60 % of the requests, before 5 %",)),
    "Error rate in the whole range: gateway us-gateway, 60 % failing, HTTP 503.": replace(
        SLOW, kind="constant", main=Effect(metric="rate_limited", value=0.6, before=None, unit="share"), evidence=("HTTP 503",)),
    "Error rate since 07:28:44: client billing, 70 % failing, sends 8.9 times more requests.": replace(
        FAILING, where={"client": "c" * 32}, evidence=(), unaffected=(), surges=(("c" * 32, 8.94),)),
    "Error rate since 07:28:44: gateway us-gateway, 70 % failing, client billing sends 8.9 times more requests.": replace(
        FAILING, where={"gateway": "us-gateway"}, evidence=(), unaffected=(), surges=(("c" * 32, 8.94),)),
    "Error rate since 07:28:44: gateway us-gateway, 70 % failing, 3 clients send 3.0 to 8.9 times more requests.": replace(
        FAILING, where={"gateway": "us-gateway"}, evidence=(), unaffected=(), surges=(("a", 3.0), ("b", 5.0), ("c", 8.94))),
}  # fmt: skip


@pytest.mark.parametrize("text", CASES)
def test_text_of_a_cause(text: str) -> None:
    assert cause_text(CASES[text], UTC, lambda d, value: "billing" if d == "client" else value) == text


def test_the_place_is_a_part_of_its_own_whatever_its_name() -> None:
    before, where, after = cause_parts(replace(SLOW, where={"gateway": "b"}))
    assert (before, where) == ("TTFT since 07:28:44: ", "gateway b")
    assert after == ", TTFT p50 310 → 940 ms."


def test_the_limit_stands_with_the_value_of_the_place_that_it_limits() -> None:
    assert "TTFT p50 310 → 940 ms, p95 2.1 s (objective 2 s)." in cause_text(SLOW, measured=(ERRORS, TTFT))
    of_another = replace(SLOW, objective="interactive")
    assert "objective" not in cause_text(of_another, measured=(TTFT,))
    interactive = replace(TTFT, objective="interactive", limit=1e9)
    assert "(objective interactive: 1 s)" in cause_text(of_another, measured=(TTFT, interactive))
    failing = replace(FAILING, main=replace(FAILING.main, before=0.02))
    assert "70 % failing (before 2 %, objective 5 %), HTTP 429" in cause_text(
        failing, measured=(ERRORS, TTFT)
    )


@pytest.mark.parametrize(
    ("dimension", "values", "text"),
    [
        ("client", ("a" * 32,), "1 other client"),
        ("client", tuple(c * 32 for c in "abcdefghi"), "9 other clients"),
        ("gateway", ("b",), "gateway b"),
        ("model", ("a", "b", "c", "d", "e"), "models a, b, c and 2 more"),
    ],
)
def test_unaffected_neighbours_are_named_and_clients_counted(
    dimension: str, values: tuple[str, ...], text: str
) -> None:
    cause = replace(FAILING, unaffected_dimension=dimension, unaffected=values)
    assert cause_text(cause).endswith(f" Unaffected: {text}.")


def test_times_are_of_the_readers_zone_with_a_date_if_it_is_another_day() -> None:
    zone = ZoneInfo("Asia/Tokyo")
    assert "since 16:28:44" in cause_text(SLOW, zone, until=UNTIL)
    assert "since 2026-06-01 16:28:44" in cause_text(SLOW, zone, until=UNTIL + timedelta(days=1))


def test_unclear_and_healthy_ranges_say_so() -> None:
    unclear = replace(diagnosis(), state="unclear", notes=("Only 9 requests: too few for a cause.",))
    assert (
        headline(unclear)
        == "Cause unclear: TTFT p95 2.5 s (objective 2 s). Only 9 requests: too few for a cause."
    )
    assert headline(replace(diagnosis(), state="healthy")).startswith("Healthy: ")


def test_every_metric_has_a_title() -> None:
    assert metrics([DEFAULT]).keys() <= TITLES.keys()
