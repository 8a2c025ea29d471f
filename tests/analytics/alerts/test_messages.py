"""One message per incident: what a silence, an incident or another message stands for, and what is sent later."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from streamgauge.analytics.alerts.alert_states import Change, Condition, Key, Severity
from streamgauge.analytics.alerts.incident_rule import DIAGNOSIS
from streamgauge.analytics.alerts.messages import NOT_ANNOUNCED, Messages, Silence

NUMBERS = itertools.count()
QUIET_S = 600.0


def change(
    rule: str, gateway: str | None, model: str | None, *, severity: Severity = "page", **key: str
) -> Change:
    condition = Condition(1.0, 0.0, "late", 1, severity=severity)
    return Change(f"id{next(NUMBERS)}", Key(rule, gateway, model, **key), "firing", condition)


def resolved(fired: Change) -> Change:
    return Change(fired.alert_id, fired.key, "resolved", fired.condition)


def test_gateway_that_fails_sends_one_message_for_all_of_its_models() -> None:
    messages = Messages(QUIET_S)
    fired = [change("silent_stream", "gw", f"m{n}") for n in range(20)]
    reasons = [messages.reason(one, 0.0) for one in fired]
    assert reasons == [None] + [f"alert {fired[0].alert_id}"] * 19
    assert messages.reason(change("silent_stream", "other", "other"), 1.0) is None
    assert [messages.reason(resolved(one), 2.0) for one in fired[:2]] == [None, NOT_ANNOUNCED]


def test_no_incident_explains_a_budget() -> None:
    messages = Messages(QUIET_S)
    assert messages.reason(change(DIAGNOSIS, None, None, metric="ttft"), 0.0) is None
    assert messages.reason(change("silent_stream", "gw", "m"), 1.0) is not None
    assert [messages.reason(change("budget", None, None, metric=m), 1.0) for m in ("a spent", "b burn")] == [
        None,
        None,
    ]


def test_alert_that_still_fires_after_the_quiet_time_is_sent_then() -> None:
    messages = Messages(QUIET_S)
    first, second = change("silent_stream", "gw", "a"), change("silent_stream", "gw", "b")
    messages.reason(first, 0.0)
    messages.reason(second, 1.0)
    assert messages.due([first, second], QUIET_S + 1) == []
    messages.reason(resolved(first), QUIET_S + 2)
    assert messages.due([second], QUIET_S + 3) == [second]


def test_alert_that_flickers_is_sent_once_in_the_quiet_time() -> None:
    messages = Messages(QUIET_S)
    sent = []
    for second in range(0, 1300, 100):
        fired = change("server_drift", "gw", "m")
        sent.append(messages.reason(fired, second) is None)
        messages.reason(resolved(fired), second + 50)
        messages.due([], second + 60)
    assert sent == [True, *[False] * 5, True, *[False] * 5, True]


@pytest.mark.parametrize(
    ("place", "other", "explained"),
    [
        (("gw", None), ("gw", "m"), True),
        (("gw", "m"), ("gw", "m"), True),
        (("gw", "m"), ("gw", "n"), False),
        ((None, "m"), ("gw", "m"), True),
        (("x", None), ("gw", "m"), False),
    ],
)
def test_incident_explains_the_alerts_of_its_place(
    place: tuple[str | None, str | None], other: tuple[str, str], explained: bool
) -> None:
    messages = Messages(QUIET_S)
    incident, burning = change(DIAGNOSIS, *place, metric="ttft"), change("burn_rate", *other)
    assert messages.reason(incident, 0.0) is None
    assert (messages.reason(burning, 1.0) is None) == (not explained)
    messages.reason(resolved(incident), 2.0)
    # A budget burns on for hours after the incident.
    assert messages.due([burning], QUIET_S + 3) == []


def test_incident_of_another_client_is_not_explained() -> None:
    messages = Messages(QUIET_S)
    assert messages.reason(change(DIAGNOSIS, None, None, metric="ttft", place='{"client": "a"}'), 0.0) is None
    assert messages.reason(change(DIAGNOSIS, None, None, metric="ttft", place='{"client": "b"}'), 0.0) is None
    assert messages.reason(change("burn_rate", "gw", "m"), 0.0) is None


def test_incident_at_a_label_explains_the_alerts_whose_streams_mostly_have_it() -> None:
    messages = Messages(QUIET_S)
    incident = change(DIAGNOSIS, "gw", None, metric="ttft", place='{"label": "team=search"}')
    assert messages.reason(incident, 0.0) is None
    for label, explained in (("team=search", True), ("team=ads", False)):
        burning = change("burn_rate", "gw", f"of {label}")
        dominant = frozenset({("label", label), ("app", "curl/8")})
        burning = replace(burning, condition=replace(burning.condition, dominant=dominant))
        assert (messages.reason(burning, 1.0) is not None) is explained
        messages.forget(burning.alert_id)


def test_message_does_not_stand_for_an_alert_of_higher_severity() -> None:
    messages = Messages(QUIET_S)
    assert messages.reason(change("burn_rate", "gw", "a", severity="ticket"), 0.0) is None
    assert messages.reason(change("burn_rate", "gw", "b", severity="page"), 0.0) is None


def test_silenced_alert_is_sent_when_the_silence_ends() -> None:
    messages = Messages(QUIET_S)
    messages.silences = [Silence(100.0, "*", "gpt-*", "*", "load test")]
    silenced, other = change("silent_stream", "gw", "gpt-1"), change("silent_stream", "gw2", "claude")
    assert messages.reason(silenced, 0.0) == "silence: load test"
    assert messages.reason(other, 0.0) is None
    assert messages.due([silenced, other], 99.0) == []
    assert messages.due([silenced, other], 101.0) == [silenced]
    assert messages.announced([silenced, other]) == [other]


def test_alert_that_fired_longer_than_the_quiet_time_gets_its_resolution() -> None:
    messages = Messages(QUIET_S)
    fired = change("silent_stream", "gw", "m")
    assert messages.reason(fired, 0.0) is None
    # It has resolved, and the change is not decided yet.
    assert messages.due([], 2 * QUIET_S) == []
    assert messages.reason(resolved(fired), 2 * QUIET_S) is None
