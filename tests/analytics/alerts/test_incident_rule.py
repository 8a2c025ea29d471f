"""An incident in simulated traffic is one condition from its third diagnosis until it ends, also after its range."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import polars as pl
import pytest

from bench.diagnosis.traffic import Fault, simulate
from streamgauge.analytics.alerts.alert_states import Condition, Key
from streamgauge.analytics.alerts.incident_rule import (
    DIAGNOSIS,
    EVERY_S,
    LOOKS,
    IncidentRule,
    key_of,
    severity_of,
    where_of,
)
from streamgauge.analytics.diagnosis.diagnosis import Cause, Diagnosis, Effect, Measured
from streamgauge.analytics.query.reader import Reader
from streamgauge.analytics.reports import Query
from streamgauge.analytics.schema.frames import with_all_columns
from streamgauge.analytics.schema.objectives import DEFAULT
from streamgauge.analytics.schema.tables import STREAMS
from streamgauge.analytics.storage.commit import Commit
from streamgauge.analytics.storage.store import Store
from tests.analytics.stores import new_store

SINCE = datetime(2026, 6, 1, 12, tzinfo=UTC)
ONSET_S, END_S, UNTIL_S = 300.0, 2400.0, 3000.0
GATEWAY = "us-gateway"


@pytest.fixture(scope="module")
def query(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Query]:
    """Traffic of 90 minutes. From ONSET_S to END_S, most requests at GATEWAY fail."""
    fault = Fault(where={"gateway": GATEWAY}, onset_s=ONSET_S, outcome="http_error", status=429, share=0.7)
    parts = [
        simulate(1, since=SINCE, length_s=END_S, earlier_s=UNTIL_S - END_S, rate=8.0, faults=[fault]),
        simulate(2, since=SINCE + timedelta(seconds=END_S), length_s=UNTIL_S - END_S, earlier_s=0.001, rate=8.0),
    ]  # fmt: skip
    store: Store = new_store(tmp_path_factory.mktemp("incident"))
    store.commit(Commit("", tables={"streams": with_all_columns(pl.concat(parts), STREAMS)}))
    reader = Reader(store.location)
    store.close()
    yield lambda sql: reader.query(sql, 20_000, 60)
    reader.close()


class Clock:
    now_s = 0.0

    def __call__(self) -> int:
        return int(self.now_s * 1e9)


def conditions(rule: IncidentRule, clock: Clock, *at_s: float) -> list[dict[Key, Condition]]:
    """The conditions after each evaluation."""
    found = []
    for clock.now_s in at_s:
        rule.evaluate(SINCE + timedelta(seconds=clock.now_s))
        found.append(rule.conditions)
    return found


def test_incident_is_one_condition_until_it_ends(query: Query) -> None:
    clock = Clock()
    rule = IncidentRule(query, clock, {})
    assert conditions(rule, clock, 200, 210, 220) == [{}, {}, {}]
    first = conditions(rule, clock, 330, 340, 350)
    assert first[: LOOKS - 1] == [{}, {}]
    [(key, condition)] = first[-1].items()
    assert (key.rule, where_of(key)) == (DIAGNOSIS, {"gateway": GATEWAY})
    onset_s = condition.since_ns / 1e9 - SINCE.timestamp()
    assert onset_s == pytest.approx(ONSET_S, abs=10)
    assert condition.severity == "page"
    assert condition.value == pytest.approx(0.7, abs=0.25)
    assert any("HTTP 429" in fact for fact in condition.evidence)
    # The baseline of the later ones is the incident itself.
    for found in conditions(rule, clock, 600, 1500, 2200, 2390):
        assert found.keys() == {key}
        assert found[key].since_ns == condition.since_ns
    assert conditions(rule, clock, END_S + 300)[-1] == {}
    assert conditions(rule, clock, END_S + 310, END_S + 320, UNTIL_S)[-1] == {}


def test_incident_of_another_process_is_continued(query: Query) -> None:
    clock = Clock()
    key = Key(DIAGNOSIS, GATEWAY, None, "rate_limited")
    rule = IncidentRule(query, clock, {})
    rule.adopt(key, Condition(0.7, 0.01, "", int(SINCE.timestamp() * 1e9)))
    found = conditions(rule, clock, 2000, END_S + 300)
    assert [list(one) for one in found] == [[key], []]


def test_a_slow_diagnosis_does_not_delay_the_next(query: Query) -> None:
    clock, asked_s = Clock(), list[float]()

    def slow(sql: str) -> pl.DataFrame:
        asked_s.append(clock.now_s)
        clock.now_s += 4
        return query(sql)

    rule = IncidentRule(slow, clock, {})
    began_s = list[float]()
    while len(began_s) < 4:
        before = len(asked_s)
        rule.evaluate(SINCE)
        began_s += asked_s[before : before + 1]
        clock.now_s += 1
    looks_s = [b - a for a, b in itertools.pairwise(began_s)]
    assert max(looks_s) <= EVERY_S + 1


def test_diagnoses_are_more_frequent_while_a_cause_is_not_confirmed(query: Query) -> None:
    clock, asked_s = Clock(), list[float]()

    def asked(sql: str) -> pl.DataFrame:
        asked_s.append(clock.now_s)
        return query(sql)

    times = range(260, 400, 10)
    found = conditions(IncidentRule(asked, clock, {}), clock, *times)
    confirmed_s = next(s for s, firing in zip(times, found, strict=True) if firing)
    looks = sorted(set(asked_s))
    last = looks.index(confirmed_s)
    every_s = [b - a for a, b in itertools.pairwise(looks)]
    assert every_s[last - LOOKS + 1 : last] == [10] * (LOOKS - 1)
    assert {*every_s[: last - LOOKS + 1], *every_s[last:]} == {20}


@pytest.mark.parametrize(
    ("value", "of_place", "highest", "severity"),
    [
        (0.1, 0.02, "page", "page"),
        (0.01, 0.5, "page", "page"),
        (0.01, 0.02, "page", "ticket"),
        (0.1, 0.5, "ticket", "ticket"),
        (0.1, 0.5, "none", None),
    ],
)
def test_severity_follows_the_objective(
    value: float, of_place: float, highest: str, severity: str | None
) -> None:
    cause = Cause(kind="step", where={"model": "m", "tap": "t"}, main=Effect(metric="http_error", value=of_place, before=0.0, unit="share"),
                  objective="default")  # fmt: skip
    found = Diagnosis(state="incident", since=SINCE, until=SINCE,
                      measured=(Measured(name="error_rate", value=value, limit=0.05, unit="share"),))  # fmt: skip
    objective = replace(DEFAULT, severity=highest)  # type: ignore[arg-type]
    assert severity_of(cause, found, [objective]) == severity
    more_requests = severity_of(replace(cause, kind="traffic"), found, [objective])
    assert more_requests == ("ticket" if severity else None)
    assert where_of(key_of(cause)) == {"model": "m", "tap": "t"}
