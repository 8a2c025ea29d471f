"""Alerts in a real store: stored once, sent after the commit, continued after a restart."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import polars as pl
import pytest

from streamgauge.analytics.alerts.alert_states import Condition, Key
from streamgauge.analytics.alerts.evaluator import REPEAT_S, AlertEvaluator
from streamgauge.analytics.alerts.incident_rule import DIAGNOSIS
from streamgauge.analytics.alerts.rules import StoreRules
from streamgauge.analytics.assembly.assembler import Assembler
from streamgauge.analytics.measures.open_streams import OpenPartition
from streamgauge.analytics.storage.commit import Commit
from streamgauge.analytics.storage.store import Store
from tests.analytics.alerts.receiver import Receiver, receiver
from tests.analytics.log_entries import alive, stream, stream_id
from tests.analytics.schema.prices import price, set_prices
from tests.analytics.stores import ask, new_store
from tests.deadline import DEADLINE_S
from tests.options import alert_options

HISTORY = "SELECT rule, gateway, model, state, value, threshold, stream_id::VARCHAR FROM alerts"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    found = new_store(tmp_path)
    yield found
    found.close()


class Clock:
    """A monotonic clock that a test sets, in seconds."""

    now_s = 0.0

    def __call__(self) -> int:
        return int(self.now_s * 1e9)


CLOCK = Clock()


@contextmanager
def evaluator(store: Store, instance: str = "analytics", **options: object) -> Iterator[AlertEvaluator]:
    made = AlertEvaluator(alert_options(**options), store.cursor, instance=instance, clock=CLOCK)  # type: ignore[arg-type]
    yield made
    made.close()


def observed(at_ms: int) -> tuple[list[OpenPartition], bool]:
    """A stream whose last output was at 281 ms, and the tap's report at `at_ms`."""
    assembler = Assembler()
    assembler.feed("w0", 0, stream(1)[:3])
    assembler.feed("w0", 1, [alive(at_ms)])
    return [OpenPartition("w0", 2, assembler.open_streams(), assembler.reports("w0"))], True


def commit(store: Store, evaluator: AlertEvaluator) -> None:
    if evaluator.waiting:
        store.commit(Commit("", tables=evaluator.rows([], {})))
        evaluator.committed()


def resolve(evaluator: AlertEvaluator) -> None:
    """Observe no stream, and again after the hold time."""
    evaluator.observe([], True)
    CLOCK.now_s += 6
    evaluator.observe([], True)


def test_alert_over_a_partition_with_unread_entries_neither_fires_nor_resolves(store: Store) -> None:
    with evaluator(store) as alerts:
        alerts.observe([], False)
        assert alerts.health()["alerts.firing"] == 0
        alerts.observe(*observed(at_ms=9_281))
        for _ in range(2):
            CLOCK.now_s += 10
            alerts.observe([], False)
            assert alerts.health()["alerts.firing"] == 1
        resolve(alerts)
        assert alerts.health()["alerts.firing"] == 0


def until_received(found: Receiver, count: int) -> None:
    end_s = time.monotonic() + DEADLINE_S
    while len(found.received) < count:
        assert time.monotonic() < end_s, found.received
        time.sleep(0.01)


def test_silent_stream_is_stored_once_and_sent_after_the_commit(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="streamgauge.analytics.alerts.evaluator")
    with receiver() as found, evaluator(store, webhook=found.url) as alerts:
        alerts.observe(*observed(at_ms=4_000))
        assert not alerts.waiting
        for at_ms in (6_281, 7_281, 9_281):
            alerts.observe(*observed(at_ms))
        assert alerts.waiting
        assert found.received == []
        commit(store, alerts)
        assert ask(store, HISTORY) == [("silent_stream", "gw", "gpt-test", "firing", 6.0, 5.0, stream_id(1))]
        resolve(alerts)
        commit(store, alerts)
        [(state, fired_at, resolved_at)] = ask(store, "SELECT state, fired_at, resolved_at FROM alerts")
        assert state == "resolved"
        assert fired_at < resolved_at
        until_received(found, 2)
    text = "silent_stream: no output from gpt-test at gw for {} s (limit 5 s), 1 stream. `streamgauge alerts` shows it"
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("WARNING", f"alert firing: {text.format('6.0')}"),
        ("INFO", f"alert resolved: {text.format('9.0')}"),
    ]
    fired, resolved = found.received
    assert fired["text"].startswith(
        "[firing] silent_stream: no output from gpt-test at gw for 6.0 s (limit 5 s), 1 stream, since 20"
    )
    assert {k: fired[k] for k in ("state", "rule", "gateway", "model", "value", "threshold", "stream_id")} == {
        "state": "firing", "rule": "silent_stream", "gateway": "gw", "model": "gpt-test", "value": 6.0,
        "threshold": 5.0, "stream_id": stream_id(1),
    }  # fmt: skip
    assert (resolved["state"], resolved["alert_id"]) == ("resolved", fired["alert_id"])


def test_webhook_that_hangs_delays_no_commit(store: Store) -> None:
    with receiver("hang") as found, evaluator(store, webhook=found.url, quiet_s=0) as alerts:
        began_s = time.monotonic()
        for _ in range(60):
            alerts.observe(*observed(at_ms=6_281))
            commit(store, alerts)
            resolve(alerts)
            commit(store, alerts)
        assert time.monotonic() - began_s < DEADLINE_S
        health = alerts.health()
        assert health["alerts.send_dropped"] > 10
        assert health["alerts.sent"] == 0
        found.released.set()
    assert ask(store, "SELECT state, count(*) FROM alerts GROUP BY ALL") == [("resolved", 60)]


def test_alert_continues_after_a_restart_and_is_not_doubled(store: Store) -> None:
    with evaluator(store) as alerts:
        alerts.observe(*observed(at_ms=6_281))
        commit(store, alerts)
    with evaluator(store) as alerts:
        alerts.observe(*observed(at_ms=9_281))
        assert not alerts.waiting
        resolve(alerts)
        commit(store, alerts)
    assert ask(store, "SELECT state, count(*) FROM alert_events GROUP BY 1 ORDER BY 1") == [
        ("firing", 1),
        ("resolved", 1),
    ]


def test_alert_over_streams_belongs_to_the_process_that_has_them(store: Store) -> None:
    with evaluator(store, "a") as first, evaluator(store, "b") as second:
        first.observe(*observed(at_ms=6_281))
        commit(store, first)
        second.evaluate_store()
        second.observe([], True)
        assert not second.waiting
        assert second.health()["alerts.firing"] == 0


@pytest.mark.parametrize(
    ("repeats", "elected", "state"),
    [(False, "b", "resolved"), (True, "b", "firing"), (False, "a", "firing")],
    ids=["ended", "running", "elected itself"],
)
def test_alert_over_streams_of_an_ended_process_resolves(
    store: Store, repeats: bool, elected: str, state: str
) -> None:
    """A running process repeats its alerts, and does not send them again."""
    with (
        receiver() as found,
        evaluator(store, "a", webhook=found.url) as first,
        evaluator(store, "b") as second,
    ):
        first.observe(*observed(at_ms=6_281))
        commit(store, first)
        with store.cursor() as cursor:
            cursor.execute("UPDATE alert_events SET changed_at = changed_at - INTERVAL 20 MINUTE")
        if repeats:
            CLOCK.now_s += REPEAT_S
            first.observe(*observed(at_ms=9_281))
            commit(store, first)
        for _ in range(2):
            evaluate(store, first if elected == "a" else second, CLOCK.now_s)
        rows = ask(store, "SELECT state, instance FROM alert_events ORDER BY changed_at")
        assert (
            rows
            == [("firing", "a"), ("resolved", "b")][: 1 + (state == "resolved")] + [("firing", "a")] * repeats
        )
        assert ask(store, "SELECT state FROM alerts") == [(state,)]
        until_received(found, 1)
        time.sleep(0.05)
        assert len(found.received) == 1


CACHED = """
INSERT INTO stream_minutes BY NAME SELECT
    now() - INTERVAL 1 MINUTE * n AS minute, 'gw' AS gateway, 'm' AS model, 'ok' AS outcome, true AS settled, 1 AS streams,
    1 AS streams_with_output, 1 AS streams_with_output_tokens, 0 AS aborted_after_terminal, 1 AS streams_with_stalls_known,
    1 AS meeting_objective, 1 AS complete_answers, 0 AS cut_answers, 0 AS refusals, 0 AS empty_answers, 0 AS answers_with_tools,
    0 AS streams_with_malformed_tools, 0 AS streams_with_tools, 0 AS failed_with_tools,
    0 AS stalled_streams, 20_000 AS input_tokens_with_cache_known, if(n < 15, {recent}, 16_000) AS cached_input_tokens,
    minute AS first_at, minute AS last_at
FROM range({minutes}) AS minutes(n)
"""


def evaluate(store: Store, alerts: AlertEvaluator, at_s: float) -> None:
    CLOCK.now_s = at_s
    alerts.evaluate_store()
    alerts.observe([], True)
    commit(store, alerts)


@pytest.mark.parametrize(("recent", "fires"), [(16_000, False), (9_000, False), (2_000, True)])
def test_drop_of_the_prompt_cache_hit_rate_fires(store: Store, recent: int, fires: bool) -> None:
    with store.cursor() as cursor:
        cursor.execute(CACHED.format(recent=recent, minutes=120))
    with evaluator(store) as alerts:
        evaluate(store, alerts, 0)
        evaluate(store, alerts, 61)
    found = ask(
        store, "SELECT rule, gateway, model, round(value, 2), round(threshold, 2), message FROM alerts"
    )
    message = "m at gw: prompt-cache hit rate 10 %, less than half of the usual 80 %"
    assert found == ([("cache_hit_rate", "gw", "m", 0.1, 0.4, message)] if fires else [])


@pytest.mark.parametrize(("data_minutes", "since_minutes"), [(50, 50), (70, 60)])
def test_burning_error_budget_fires_with_its_objective(
    store: Store, data_minutes: int, since_minutes: int
) -> None:
    """It began an hour ago, with the window that it fills, but not before the first data."""
    with store.cursor() as cursor:
        cursor.execute("DELETE FROM objectives")
        cursor.execute(
            "INSERT INTO objectives BY NAME SELECT 1 AS priority, 'fast' AS name, '*' AS model, '*' AS gateway, '*' AS label, "
            "'*' AS client, 0.01 AS error_rate, 'page' AS severity"
        )
        cursor.execute(
            "INSERT INTO client_minutes BY NAME SELECT now() - INTERVAL 1 MINUTE * n AS minute, 'gw' AS gateway, 'm' AS model, "
            "'fast' AS objective, true AS settled, 100 AS streams, 100 AS counted, 50 AS errors, 0 AS meeting_objective "
            f"FROM range({data_minutes}) AS minutes(n)"
        )
        cursor.execute(CACHED.format(recent=16_000, minutes=data_minutes + 1))
    with evaluator(store) as alerts:
        evaluate(store, alerts, 0)
        evaluate(store, alerts, 10)
    since = "round(date_diff('second', began_at, now()) / 60)"
    assert ask(store, f"SELECT rule, gateway, model, metric, round(value), threshold, message, state, {since} FROM alerts") == [
        ("burn_rate", "gw", "m", "fast error_rate", 50, 14.4,
         "m at gw: page: error budget of objective fast (error_rate) burns 50.0 times too fast", "firing", since_minutes),
    ]  # fmt: skip


def test_budget_fires_with_its_spend_and_resolves_when_it_is_raised(store: Store) -> None:
    with store.cursor() as cursor:
        set_prices(cursor, price("m", 0, 1))
        cursor.execute(
            "INSERT INTO budgets BY NAME SELECT priority, name, '*' AS model, '*' AS gateway, '*' AS client, "
            "'month' AS period, 2 AS amount, 'USD' AS currency, 'UTC' AS time_zone, severity "
            "FROM (VALUES (0, 'all', 'ticket'), (1, 'quiet', 'none')) AS v(priority, name, severity)"
        )
        cursor.execute(
            "INSERT INTO streams BY NAME SELECT uuid() AS stream_id, now() AS started_at, 'm' AS request_model, 'ok' AS outcome, "
            "3_000_000 AS output_tokens, 'usage' AS token_source, 1 AS ttft_ns, 0 AS input_tokens"
        )
    with evaluator(store) as alerts:
        evaluate(store, alerts, 0)
        found = ask(store, "SELECT rule, metric, severity, value, threshold, message, state FROM alerts")
        message = "budget all is spent: 3.0000 of 2.0000 USD this month, 0 % of it estimated"
        assert found == [("budget", "all spent", "ticket", 3.0, 2.0, message, "firing")]
        with store.cursor() as cursor:
            cursor.execute("DELETE FROM budgets")
        evaluate(store, alerts, 301)
        evaluate(store, alerts, 602)
    assert ask(store, "SELECT state FROM alerts") == [("resolved",)]


def test_budget_that_burns_and_will_be_exceeded_is_a_page_and_a_ticket(store: Store) -> None:
    with store.cursor() as cursor:
        set_prices(cursor, price("m", 0, 1))
        # Where it is noon: 2 of the 4 of a usual day are spent, and 5 in the last minute.
        cursor.execute(
            "INSERT INTO budgets BY NAME SELECT 0 AS priority, 'day' AS name, '*' AS model, '*' AS gateway, '*' AS client, "
            "'day' AS period, 8 AS amount, 'USD' AS currency, 'page' AS severity, "
            "format('Etc/GMT{:+d}', hour(timezone('UTC', now())) - 12) AS time_zone"
        )
        cursor.execute(
            "INSERT INTO streams BY NAME SELECT uuid() AS stream_id, now() - to_minutes(if(n < 40, 60 * (3 + 6 * n), 1)) AS started_at, "
            "'m' AS request_model, 'ok' AS outcome, if(n < 40, 1_000_000, 5_000_000) AS output_tokens, 'usage' AS token_source, "
            "1 AS ttft_ns, 0 AS input_tokens FROM range(41) AS v(n)"
        )
    with evaluator(store) as alerts:
        evaluate(store, alerts, 0)
    rest = ": 7.0000 of 8.0000 USD this day, 0 % of it estimated, forecast 9.0000 (9.0000 – 9.0000)"
    assert ask(store, "SELECT metric, severity, threshold, message FROM alerts ORDER BY metric") == [
        ("day burn", "page", 14.4, f"budget day burns 15.0 times too fast{rest}"),
        ("day forecast", "ticket", 8.0, f"budget day will be exceeded{rest}"),
    ]


@pytest.mark.parametrize(("late_ms", "fires"), [(150, False), (900, True)])
def test_ttft_drift_that_jumps_fires_and_names_a_stream(store: Store, late_ms: int, fires: bool) -> None:
    with store.cursor() as cursor:
        cursor.execute(
            "INSERT INTO streams BY NAME SELECT uuid() AS stream_id, now() - INTERVAL 1 MINUTE * n AS started_at, "
            "'gw' AS gateway, 'm' AS request_model, 'ok' AS outcome, "
            f"if(n < 10, {late_ms}, 100) * 1_000_000 + 1_000_000 AS ttft_ns, 'c1' AS client_id "
            "FROM range(40) AS minutes(n), range(10)"
        )
        cursor.execute(
            "INSERT INTO server_stats BY NAME SELECT stream_id, 'nvext.timing' AS source, 'ttft_ms' AS name, 1e6 AS value FROM streams"
        )
    with evaluator(store) as alerts:
        evaluate(store, alerts, 0)
    found = ask(
        store, "SELECT rule, metric, client_id, stream_id IS NOT NULL, round(value, 2) > 0.5 FROM alerts"
    )
    assert found == ([("server_drift", "ttft", "c1", True, True)] if fires else [])


def test_condition_has_the_values_that_most_of_its_streams_have(store: Store) -> None:
    with store.cursor() as cursor:
        cursor.execute(
            "INSERT INTO streams BY NAME SELECT uuid() AS stream_id, now() - INTERVAL 1 MINUTE * n AS started_at, 'gw' AS gateway, "
            "'m' AS request_model, 'ok' AS outcome, if(n < 10, 900, 100) * 1_000_000 AS ttft_ns, 'c' || m AS client_id, "
            "MAP {'team': if(m < 7, 'search', 'ads'), 'one': 'n' || n || 'm' || m} AS labels, 'curl/8' AS client_app "
            "FROM range(40) AS minutes(n), range(10) AS numbers(m)"
        )
        cursor.execute(
            "INSERT INTO server_stats BY NAME SELECT stream_id, 'nvext.timing' AS source, 'ttft_ms' AS name, 1e2 AS value FROM streams"
        )
        [condition] = StoreRules(lambda: 0).conditions(cursor).values()
    assert condition.dominant == {("app", "curl/8"), ("label", "team=search")}
    assert condition.client_id is None


def test_processes_elected_in_turn_fire_and_resolve_once(store: Store) -> None:
    with store.cursor() as cursor:
        cursor.execute(CACHED.format(recent=0, minutes=120))
    with evaluator(store, "a") as first, evaluator(store, "b") as second:
        evaluate(store, first, 0)
        evaluate(store, first, 61)
        evaluate(store, second, 62)
        assert second.health()["alerts.firing"] == 1
        with store.cursor() as cursor:
            cursor.execute("DELETE FROM stream_minutes")
        evaluate(store, second, 70)
        evaluate(store, second, 371)
        evaluate(store, first, 380)
        assert first.health()["alerts.firing"] == 0
    assert ask(store, "SELECT state, instance FROM alert_events ORDER BY changed_at") == [
        ("firing", "a"),
        ("resolved", "b"),
    ]


def test_silenced_alert_is_stored_with_the_reason_and_sent_when_the_silence_ends(store: Store) -> None:
    with store.cursor() as cursor:
        cursor.execute(
            "INSERT INTO silences VALUES (now(), now() + INTERVAL 1 HOUR, 'silent_*', '*', 'gw', 'load test')"
        )
    with receiver() as found, evaluator(store, webhook=found.url) as alerts:
        alerts.observe(*observed(at_ms=6_281))
        commit(store, alerts)
        assert ask(store, "SELECT state, not_sent FROM alerts") == [("firing", "silence: load test")]
        with store.cursor() as cursor:
            cursor.execute("INSERT INTO silences VALUES (now(), now(), 'silent_*', '*', 'gw', 'done')")
        alerts.evaluate_store()
        alerts.observe(*observed(at_ms=7_281))
        commit(store, alerts)
        until_received(found, 1)
        assert ask(store, "SELECT state, not_sent FROM alerts") == [("firing", None)]
        for at_ms in (8_281, 9_281):
            alerts.observe(*observed(at_ms))
            assert not alerts.waiting
        assert len(found.received) == 1


EVIDENCE = ("surge of Jeanne d'Arc's \"bot\"", "breaks a\\b, [c]\n", "NULL")
"""Names of clients and models come from outside."""


def incident(store: Store, alerts: AlertEvaluator, *, severity: str = "page") -> None:
    """An evaluation in which the diagnosis names an incident at the gateway `gw`."""
    rule = alerts._incidents
    assert rule is not None
    key = Key(DIAGNOSIS, "gw", None, "ttft")
    CLOCK.now_s += 10
    condition = Condition(2.0, 0.5, "TTFT: gw, 500 ms → 2 s.", 1, severity=severity, evidence=EVIDENCE)  # type: ignore[arg-type]
    rule.adopt(key, condition)
    alerts.evaluate_store()
    alerts.observe(*observed(at_ms=9_281))
    commit(store, alerts)


def test_incident_is_one_message_and_stands_for_the_alerts_of_its_place(store: Store) -> None:
    published: list[Sequence[Mapping[str, str]]] = []

    def no_diagnosis(sql: str) -> pl.DataFrame:
        raise AssertionError("the query fails")

    with receiver() as found:
        alerts = AlertEvaluator(
            alert_options(webhook=found.url, dashboard_url="https://d"), store.cursor, instance="a", clock=CLOCK,
            query=no_diagnosis, publish_incidents=published.append,
        )  # fmt: skip
        incident(store, alerts)
        until_received(found, 1)
        [message] = found.received
        assert (message["rule"], message["severity"], message["evidence"]) == (
            "diagnosis",
            "page",
            [*EVIDENCE],
        )
        assert message["link"].startswith("https://d/?range=custom&from=")
        assert published[-1] == [{"severity": "page", "metric": "ttft", "gateway": "gw"}]
        rows = ask(store, "SELECT rule, not_sent LIKE 'alert %', evidence FROM alerts ORDER BY rule")
        assert rows == [("diagnosis", None, [*EVIDENCE]), ("silent_stream", True, [])]
        alerts.close()
        # A restart continues it without a message.
        second = AlertEvaluator(
            alert_options(webhook=found.url), store.cursor, instance="a", clock=CLOCK, query=no_diagnosis
        )
        incident(store, second)
        assert not second.waiting
        second.close()
        assert len(found.received) == 1
