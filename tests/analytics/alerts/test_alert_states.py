"""An alert fires once and resolves once, whatever its condition does."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamgauge.analytics.alerts.alert_states import NEXT, AlertStates, Condition, Hold, Key, Severity, State

KEY = Key("rule", "gw", "model")
MET = Condition(value=7.0, threshold=5.0, message="late", since_ns=1)


def alerts(before_firing_s: float = 0, before_resolving_s: float = 0, **options: int) -> AlertStates:
    numbers = itertools.count(1)
    holds = {"rule": Hold(before_firing_s, before_resolving_s), "other": Hold()}
    return AlertStates(holds, new_id=lambda: f"id{next(numbers)}", **options)


def changes(states: AlertStates, schedule: str) -> str:
    """One character per second: `x` = the condition is met. Returns `F` (fired), `R` (resolved) or `.` for each."""
    found = ""
    for second, met in enumerate(schedule):
        changed = states.update(["rule"], {KEY: MET} if met == "x" else {}, float(second))
        found += {"firing": "F", "resolved": "R"}[changed[0].state] if changed else "."
    return found


@pytest.mark.parametrize(
    ("before_firing_s", "before_resolving_s", "schedule", "expected"),
    [
        (0, 0, "-xxx-", ".F..R"),
        (2, 0, "xx-xxx-", ".....FR"),
        (0, 3, "x---x-----", "F.......R."),
        (0, 3, "x-x-x-x----", "F.........R"),
        (1, 1, "x-x-x-x-x", "........."),
        (0, 2, "x---x---", "F..RF..R"),
    ],
)
def test_alert_fires_and_resolves_after_its_hold_times(
    before_firing_s: float, before_resolving_s: float, schedule: str, expected: str
) -> None:
    assert changes(alerts(before_firing_s, before_resolving_s), schedule) == expected


@given(st.text("x-", max_size=60), st.integers(0, 4), st.integers(0, 4))
def test_fired_and_resolved_alternate_under_any_schedule(
    schedule: str, before_firing_s: int, before_resolving_s: int
) -> None:
    states = alerts(before_firing_s, before_resolving_s)
    found = changes(states, schedule).replace(".", "")
    assert found == ("FR" * len(found))[: len(found)]
    assert bool(states.firing) == (len(found) % 2 == 1)


def test_every_state_that_lasts_has_a_transition_for_both_inputs() -> None:
    assert {state for state, _ in NEXT} == set(State) - {State.RESOLVED} - {State.INACTIVE} | {State.INACTIVE}
    assert all(
        (state, met) in NEXT
        for state in (State.PENDING, State.FIRING, State.CLEARING)
        for met in (True, False)
    )


def test_resolved_alert_has_the_id_of_the_fired_one_and_the_next_alert_another() -> None:
    states = alerts()
    ids = [
        c.alert_id
        for s, met in enumerate((1, 0, 1))
        for c in states.update(["rule"], {KEY: MET} if met else {}, s)
    ]
    assert ids == ["id1", "id1", "id2"]


def test_rules_that_were_not_evaluated_do_not_change() -> None:
    states = alerts()
    states.update(["rule"], {KEY: MET}, 0.0)
    assert states.update(["other"], {}, 1.0) == []
    assert states.firing == {KEY: "id1"}


def test_adopted_alert_is_not_fired_again_and_resolves() -> None:
    states = alerts()
    assert states.adopt("stored", KEY, MET, 0.0)
    assert not states.adopt("stored", KEY, MET, 0.0)
    assert states.update(["rule"], {KEY: MET}, 1.0) == []
    [resolved] = states.update(["rule"], {}, 2.0)
    assert (resolved.alert_id, resolved.state) == ("stored", "resolved")


def test_conditions_beyond_the_limit_are_counted_and_ignored() -> None:
    states = alerts(max_alerts=2)
    found = states.update(["rule"], {Key("rule", "gw", f"m{n}"): MET for n in range(5)}, 0.0)
    assert len(found) == 2
    assert states.ignored == 3


def worse(states: AlertStates, second: float, value: float, severity: Severity = "ticket") -> list[str]:
    met = Condition(value, threshold=1.0, message="", since_ns=1, severity=severity)
    return [change.state for change in states.update(["rule"], {KEY: met}, second)]


def test_condition_that_gets_worse_is_reported_at_most_once_in_the_quiet_time() -> None:
    states = AlertStates({"rule": Hold(worse_after_s=60)})
    assert worse(states, 0, 2.0) == ["firing"]
    assert worse(states, 30, 4.0) == []
    assert worse(states, 60, 4.0) == ["worse"]
    assert worse(states, 130, 4.1) == []
    assert worse(states, 131, 4.1, "page") == ["worse"]
    assert worse(states, 132, 90.0, "page") == []


def test_rule_without_a_quiet_time_reports_nothing_worse() -> None:
    states = alerts()
    assert [worse(states, second, 2.0**second) for second in range(3)] == [["firing"], [], []]
