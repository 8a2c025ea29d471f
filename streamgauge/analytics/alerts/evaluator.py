"""Evaluate the rules, store what changes, and notify after the commit.

Rules
1. The consumer's thread calls `observe` about once a second and the methods of the commit hook. A thread of its own
   calls `evaluate_store` in the elected process.
2. A change is stored first, as a row of `alert_events`, and sent after its commit. A crash in between loses a notification and
   never repeats one.
3. Not every change is a message (`streamgauge.analytics.alerts.messages`). The row says why.
4. After a restart, open alerts continue: those over streams in the process of the same name, those over stored rows in the
   elected process.
5. A process stores the alerts over its streams again every `REPEAT_S`. The elected process resolves those that no process has
   repeated for `ABANDONED_S`: theirs has ended and was not started again.
"""

from __future__ import annotations

import datetime as dt
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import duckdb
import polars as pl

from streamgauge.analytics.alerts import rules
from streamgauge.analytics.alerts.alert_states import AlertStates, Change, Condition, Hold, Key
from streamgauge.analytics.alerts.formats import AGAIN_S
from streamgauge.analytics.alerts.incident_rule import DIAGNOSIS, IncidentRule, where_of
from streamgauge.analytics.alerts.messages import Messages, Silence
from streamgauge.analytics.alerts.sinks import Webhook, alert_sinks
from streamgauge.analytics.assembly.finished_stream import FinishedStream
from streamgauge.analytics.commit_hook import CommitHook
from streamgauge.analytics.measures.open_streams import OpenPartition, Phase, TapClocks, silences
from streamgauge.analytics.measures.open_streams import Silence as StreamSilence
from streamgauge.analytics.reports import Query
from streamgauge.analytics.reports.alerts import overview_address
from streamgauge.analytics.schema.frames import frame_of_rows
from streamgauge.analytics.schema.tables import ALERT_EVENTS
from streamgauge.analytics.telemetry.export_queue import totals
from streamgauge.ingest.guards import Guards

log = logging.getLogger(__name__)

STORE_EVERY_S = 10.0
REPEAT_S = 300.0
ABANDONED_S = 3 * REPEAT_S
RESOLVE_INCIDENT_S = 60.0
VALID_S = 6 * STORE_EVERY_S
"""Incidents of a process that is no longer elected are not shown after this time."""


@dataclass(frozen=True, slots=True)
class AlertOptions:
    """Limits of the rules and where alerts are sent. A limit of 0 turns its rule off."""

    silence_s: float
    first_output_s: float
    quiet_s: float
    """Least time between two messages about the same thing."""
    webhook: str | None = field(repr=False)
    """URLs with spaces between them."""
    routing_key: str | None = field(repr=False)
    dashboard_url: str | None
    """None: that of the running dashboard."""


@dataclass(frozen=True, slots=True)
class AlertRule:
    """A row of the table `alert_rules`."""

    rule: str
    severity: str
    fires_when: str


def alert_rules(options: AlertOptions) -> list[AlertRule]:
    """The rules that are on as readers see them, sorted."""
    by_objective = "page or ticket, by objective"
    silence = f"a stream that has begun its output is silent for {options.silence_s:g} s (--alert-silence)"
    first = f"a request has no output after {options.first_output_s:g} s (--alert-first-output)"
    return [
        AlertRule(rules.BUDGET.name, "page or ticket, by budget", "a budget is spent, burns too fast, or will be exceeded by its forecast"),
        AlertRule("burn_rate", by_objective, "an error budget burns too fast in a short and a long window"),
        AlertRule("cache_hit_rate", "ticket", "the prompt-cache hit rate is below half of that of the last day"),
        AlertRule(DIAGNOSIS, by_objective, "the diagnosis names what got worse, where and since when"),
        *([AlertRule("no_first_output", "ticket", first)] if options.first_output_s else []),
        AlertRule("rate_limit", "ticket", "at the current rate, a rate limit is used up within 15 minutes"),
        AlertRule("server_drift", "ticket", "TTFT minus the TTFT that the server reports doubled in 15 minutes"),
        *([AlertRule("silent_stream", "page", silence)] if options.silence_s else []),
    ]  # fmt: skip


class AlertEvaluator(CommitHook):
    """The alerts of one analytics process. It is a commit hook of the consumer."""

    def __init__(
        self,
        options: AlertOptions,
        cursor: Callable[[], duckdb.DuckDBPyConnection],
        *,
        instance: str,
        query: Query | None = None,
        dashboard: Callable[[], str | None] = lambda: None,
        client_names: Mapping[str, str] | None = None,
        publish: Callable[[Sequence[StreamSilence]], None] = lambda found: None,
        clock: Callable[[], int] = time.monotonic_ns,
        publish_incidents: Callable[[Sequence[Mapping[str, str]]], None] = lambda firing: None,
        publish_limits: rules.PublishLimits = lambda rows, now: None,
        guards: Guards | None = None,
    ) -> None:
        """`cursor` returns a new connection to the store's tables. `instance`: name of this process, the same after a restart.

        `query` runs the queries of the diagnosis, None: there is none. `dashboard` returns the address of the running dashboard.
        `client_names`: client id → name, for messages. `publish` receives the silences of each observation, `publish_incidents` the
        labels of the incidents that fire, `publish_limits` the rate limits. Raises duckdb.Error.
        """
        self._cursor, self._instance, self._publish, self._clock = cursor, instance, publish, clock
        self._publish_incidents = publish_incidents
        self._dashboard = (lambda: options.dashboard_url) if options.dashboard_url else dashboard
        self._guard = (guards or Guards()).guard("alerts of the diagnosis")
        self._limits_s: dict[Phase, float] = {
            "mid_stream": options.silence_s,
            "pre_first_output": options.first_output_s,
        }
        self._client_names = client_names
        self._clocks: dict[str, TapClocks] = {}
        """By partition."""
        self._store_rules = rules.StoreRules(clock, client_names, publish_limits)
        self._incidents = IncidentRule(query, clock, client_names or {}) if query is not None else None
        self._store_holds = dict(rules.STORE_HOLDS)
        self._store_holds[DIAGNOSIS] = Hold(0.0, RESOLVE_INCIDENT_S, options.quiet_s)
        self._states = AlertStates({**rules.SILENCE_HOLDS, **self._store_holds})
        self._messages = Messages(options.quiet_s)
        self._sent_again_s = self._evaluated_s = float("-inf")
        self._evaluated: tuple[Sequence[OpenAlert], frozenset[str], Mapping[Key, Condition]] | None = None
        """The last result of `evaluate_store` that was not used yet: open alerts, alerts resolved elsewhere, conditions."""
        self._first_ns = 0
        """Start of the first stream. 0: there was none yet."""
        self._stored_ids: frozenset[str] = frozenset()
        """Alerts of this process that are firing in the store. Replaced, never changed, because both threads read it."""
        self._repeated_ns = clock()
        self._waiting: list[tuple[Change, int]] = []
        self._taken: list[tuple[Change, int, str | None]] = []
        """With the reason why no message is sent."""
        with cursor() as connection:
            found = open_alerts(connection)
        self._adopt(one for one in found if one.instance == instance and one.key.rule in rules.SILENCE_HOLDS)
        self._sinks = alert_sinks(options.webhook, options.routing_key, guards)

    # -- evaluation --------------------------------------------------------------------------------------------------

    def observe(self, partitions: Sequence[OpenPartition], is_complete: bool) -> None:
        """Evaluate the rules over the streams in flight, and use the last result of `evaluate_store`.

        `is_complete`: the partitions are all. Otherwise, the alerts that fire may be over streams of the others, and fire on.
        """
        at_ns, wall_ns = self._clock(), time.time_ns()
        clocks = self._clocks
        self._clocks = {one.name: clocks.get(one.name) or TapClocks() for one in partitions}
        found = list[StreamSilence]()
        for one in partitions:
            self._clocks[one.name].update(one.reports, at_ns)
            found += silences(one.streams, self._clocks[one.name], at_ns)
        self._publish(found)
        now_s = at_ns / 1e9
        conditions = rules.silence_conditions(found, self._limits_s, wall_ns, self._client_names)
        if not is_complete:
            firing_on = self._states.repeated(rules.SILENCE_HOLDS)
            conditions = {change.key: change.condition for change in firing_on} | conditions
        changes = self._states.update(rules.SILENCE_HOLDS, conditions, now_s)
        if at_ns - self._repeated_ns >= REPEAT_S * 1e9:
            self._repeated_ns = at_ns
            changes += self._states.repeated(rules.SILENCE_HOLDS)
        # States change only here, on the consumer's thread. The thread of `evaluate_store` leaves its result, and a newer one replaces
        # it: conditions are complete each time.
        evaluated, self._evaluated = self._evaluated, None
        if evaluated is not None:
            self._evaluated_s = now_s
            opened, resolved, store_found = evaluated
            self._adopt(one for one in opened if one.key.rule in self._store_holds)
            self._forget(resolved)
            changes += self._states.update(self._store_holds, store_found, now_s)
            changes += self._abandoned(opened, wall_ns)
        undecided = [*changes, *(one[0] for one in self._waiting), *(one[0] for one in self._taken)]
        unsaved = {change.alert_id for change in undecided}
        firing = self._states.repeated(self._states.rules)
        # A message that was withheld is a change without `repeated`.
        changes += [
            replace(change, repeated=False)
            for change in self._messages.due(firing, wall_ns / 1e9)
            if change.alert_id not in unsaved
        ]
        self._waiting += [(change, wall_ns) for change in changes]
        is_valid = now_s - self._evaluated_s < VALID_S
        self._publish_incidents(
            [
                {"severity": c.condition.severity, "metric": str(c.key.metric), **where_of(c.key)}
                for c in firing
                if c.key.rule == DIAGNOSIS and is_valid
            ]
        )
        if now_s - self._sent_again_s >= AGAIN_S:
            self._sent_again_s = now_s
            self._send_again(firing, wall_ns)

    def evaluate_store(self) -> None:
        """Evaluate the rules over stored rows, for the next `observe`. Raises duckdb.Error."""
        # Read before the query: an alert that is stored during it would be missing in the result and look as if another
        # process had resolved it.
        stored_before = self._stored_ids
        with self._cursor() as connection:
            opened = open_alerts(connection)
            resolved = stored_before - {one.alert_id for one in opened}
            self._messages.silences = active_silences(connection)
            found = self._store_rules.conditions(connection)
            self._first_ns = self._first_ns or connection.execute(_FIRST).fetchall()[0][0]
        if self._incidents is not None:
            for one in opened:
                if one.key.rule == DIAGNOSIS and one.alert_id not in stored_before:
                    self._incidents.adopt(one.key, one.condition)
            self._guard.attempt(self._incidents.evaluate)  # the other rules do not depend on it
            found |= self._incidents.conditions
        # A rule looks at a window of time, which may have begun before the first stream.
        found = {key: replace(one, since_ns=max(one.since_ns, self._first_ns)) for key, one in found.items()}
        self._evaluated = opened, resolved, found

    def _abandoned(self, opened: Iterable[OpenAlert], wall_ns: int) -> list[Change]:
        """Resolve the alerts over streams of processes that have ended."""
        waiting = {change.alert_id for change, _ in self._waiting}
        abandoned = [
            one
            for one in opened
            if one.key.rule in rules.SILENCE_HOLDS
            and one.instance != self._instance
            and one.alert_id not in waiting
            and wall_ns - one.reported_ns > ABANDONED_S * 1e9
        ]
        self._announced(abandoned)
        return [Change(one.alert_id, one.key, "resolved", one.condition) for one in abandoned]

    def _announced(self, opened: Iterable[OpenAlert]) -> None:
        for one in opened:
            if one.is_announced:
                self._messages.adopt(one.alert_id, one.key, one.condition.severity, time.time())

    def _adopt(self, opened: Iterable[OpenAlert]) -> None:
        for one in opened:
            if self._states.adopt(one.alert_id, one.key, one.condition, self._clock() / 1e9):
                self._stored_ids |= {one.alert_id}
                self._announced([one])

    def _forget(self, alert_ids: frozenset[str]) -> None:
        """Remove alerts that another process has resolved."""
        for key, alert_id in self._states.firing.items():
            if alert_id in alert_ids:
                self._states.forget(key)
                self._messages.forget(alert_id)
        self._stored_ids -= alert_ids

    # -- commit hook -------------------------------------------------------------------------------------------------

    @property
    def waiting(self) -> bool:
        return bool(self._waiting)

    def rows(
        self, finished: Sequence[FinishedStream], tables: Mapping[str, pl.DataFrame]
    ) -> Mapping[str, pl.DataFrame]:
        """The changes since the last commit."""
        taken, self._waiting = self._waiting, []
        if taken:
            with suppress(duckdb.Error), self._cursor() as connection:  # else the last ones that were read
                self._messages.silences = active_silences(connection)
        self._taken = [
            (change, wall_ns, None if change.repeated else self._messages.reason(change, wall_ns / 1e9))
            # Incidents first: they stand for the others.
            for change, wall_ns in sorted(taken, key=lambda one: one[0].key.rule != DIAGNOSIS)
        ]
        return {"alert_events": event_rows(self._taken, self._instance)} if self._taken else {}

    def committed(self) -> None:
        """Send the changes of the last `rows` call."""
        taken, self._taken = self._taken, []
        for change, wall_ns, not_sent in taken:
            if change.repeated:
                continue
            if change.state == "resolved":
                self._stored_ids -= {change.alert_id}
            else:
                self._stored_ids |= {change.alert_id}
            # The message names the model and the gateway.
            log.log(
                logging.INFO if change.state == "resolved" else logging.WARNING,
                "alert %s: %s: %s. `streamgauge alerts` shows it",
                change.state, change.key.rule, change.condition.message.removesuffix("."),
            )  # fmt: skip
            if not_sent is None:
                for sink in self._sinks:
                    sink.offer([notification(change, wall_ns, self._dashboard())])

    def _send_again(self, firing: Sequence[Change], wall_ns: int) -> None:
        for sink in self._sinks:
            if isinstance(sink, Webhook) and sink.again:
                sink.offer(
                    [notification(c, wall_ns, self._dashboard()) for c in self._messages.announced(firing)]
                )

    # -- process -----------------------------------------------------------------------------------------------------

    def health(self) -> dict[str, float]:
        """Gauges and totals by metric name without its prefix."""
        sent = totals(self._sinks)
        return {
            "alerts.firing": float(len(self._states.firing)),
            "alerts.ignored": float(self._states.ignored),
            "alerts.sent": float(sent["exported"]),
            "alerts.send_failed": float(sent["failed"]),
            "alerts.send_dropped": float(sent["dropped"]),
        }

    def close(self) -> None:
        for sink in self._sinks:
            sink.close()


_FIRST = "SELECT coalesce(epoch_us(min(first_at)), 0) * 1000 FROM stream_minutes"
_OPEN = """
SELECT alert_id::VARCHAR, instance,
    (SELECT epoch_us(max(changed_at)) FROM alert_events WHERE alert_events.alert_id = alerts.alert_id), not_sent IS NULL,
    rule, gateway, model, metric, place,
    value, threshold, message, epoch_us(began_at) * 1000, stream_id::VARCHAR, client_id, severity, evidence
FROM alerts WHERE state = 'firing'
"""


class OpenAlert(NamedTuple):
    """An alert that has fired and not resolved."""

    alert_id: str
    instance: str
    key: Key
    condition: Condition
    reported_ns: int
    """Wall time of its newest row."""
    is_announced: bool
    """It has had a message."""


_SILENCES = """
SELECT epoch_us(ends_at) / 1e6, rule, model, gateway, reason FROM silences
QUALIFY row_number() OVER (PARTITION BY rule, model, gateway ORDER BY created_at DESC) = 1 AND ends_at > now()
"""


def active_silences(cursor: duckdb.DuckDBPyConnection) -> list[Silence]:
    """Raises duckdb.Error."""
    return [Silence(*row) for row in cursor.execute(_SILENCES).fetchall()]


def event_rows(changes: Sequence[tuple[Change, int, str | None]], instance: str) -> pl.DataFrame:
    """Rows of `alert_events` for (change, wall time in ns, why it is not sent)."""
    rows = []
    for change, wall_ns, not_sent in changes:
        key, found = change.key, change.condition
        rows.append(
            (
                change.alert_id, wall_ns // 1000, instance, *key, change.state, found.since_ns // 1000, found.value,
                found.threshold, found.message, found.stream_id, found.client_id, found.severity, [*found.evidence], not_sent,
            )
        )  # fmt: skip
    return frame_of_rows(ALERT_EVENTS, rows)


def open_alerts(cursor: duckdb.DuckDBPyConnection) -> list[OpenAlert]:
    """The alerts that have fired and not resolved. Raises duckdb.Error."""
    found = []
    for alert_id, instance, reported_us, announced, *row in cursor.execute(_OPEN).fetchall():
        key = Key(*row[: len(Key._fields)])
        value, threshold, message, since_ns, stream_id, client_id, severity, evidence = row[len(key) :]
        condition = Condition(
            value, threshold, message, since_ns, stream_id, client_id, severity, tuple(evidence)
        )
        found.append(OpenAlert(alert_id, instance, key, condition, reported_us * 1000, announced))
    return found


def notification(change: Change, wall_ns: int, dashboard: str | None) -> dict[str, object]:
    """The webhook's JSON: `text` for chat systems, and the fields of the alert. `dashboard`: its address, for the link."""
    key, condition = change.key, change.condition
    since = _time(condition.since_ns)
    place = where_of(key)
    link = None
    if dashboard:
        link = f"{dashboard.rstrip('/')}/{overview_address(place, condition.since_ns / 1e9, wall_ns / 1e9)}"
    parts = [f"[{change.state}] {key.rule}: {condition.message.removesuffix('.')}, since {since}."]
    parts += [f"Stream {condition.stream_id}."] if condition.stream_id else []
    parts += [link] if link else []
    return {
        "text": " ".join(parts),
        "alert_id": change.alert_id,
        "state": change.state,
        "severity": condition.severity,
        **key._asdict(),
        "place": place,
        "client_id": condition.client_id,
        "value": condition.value,
        "threshold": condition.threshold,
        "began_at": since,
        "changed_at": _time(wall_ns),
        "message": condition.message,
        "evidence": list(condition.evidence),
        "stream_id": condition.stream_id,
        "link": link,
    }


def _time(wall_ns: int) -> str:
    return (
        dt.datetime.fromtimestamp(wall_ns // 1000 / 1e6, dt.UTC)
        .isoformat(timespec="seconds")
        .replace("+00:00", "Z")
    )
