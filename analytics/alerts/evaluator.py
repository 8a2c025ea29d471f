"""Evaluate the rules, store what changes, and notify after the commit.

Rules
1. The consumer's thread calls `observe` about once a second and the methods of the commit hook. Upkeep's thread calls
   `evaluate_store` in the elected process.
2. A change is stored first, as a row of `alert_events`, and sent after its commit. A crash in between loses a notification and
   never repeats one.
3. After a restart, open alerts continue: those over streams in the process of the same name, those over stored rows in the
   elected process.
4. A process stores the alerts over its streams again every `REPEAT_S`. The elected process resolves those that no process has
   repeated for `ABANDONED_S`: theirs has ended and was not started again.
"""

from __future__ import annotations

import datetime as dt
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import duckdb
import polars as pl

from streamgauge.analytics.alerts.alert_states import AlertStates, Change, Condition, Key
from streamgauge.analytics.alerts.rules import SILENCE_HOLDS, STORE_HOLDS, StoreRules, silence_conditions
from streamgauge.analytics.alerts.sinks import alert_sinks
from streamgauge.analytics.assembly.finished_stream import FinishedStream
from streamgauge.analytics.assembly.open_stream import OpenStream
from streamgauge.analytics.commit_hook import CommitHook
from streamgauge.analytics.measures.open_streams import Phase, Silence, TapClocks, silences
from streamgauge.analytics.schema.frames import frame_of_rows
from streamgauge.analytics.schema.tables import ALERT_EVENTS
from streamgauge.analytics.telemetry.export_queue import totals
from streamgauge.ingest.guards import Guards
from streamgauge.ingest.records import Alive

log = logging.getLogger(__name__)

STORE_EVERY_S = 10.0
REPEAT_S = 300.0
ABANDONED_S = 3 * REPEAT_S


@dataclass(frozen=True, slots=True)
class AlertOptions:
    """Limits of the rules and where alerts are sent. A limit of 0 turns its rule off."""

    silence_s: float
    first_output_s: float
    webhook: str | None = field(repr=False)


class AlertEvaluator(CommitHook):
    """The alerts of one analytics process. It is a commit hook of the consumer."""

    def __init__(
        self,
        options: AlertOptions,
        cursor: Callable[[], duckdb.DuckDBPyConnection],
        *,
        instance: str,
        client_names: Mapping[str, str] | None = None,
        publish: Callable[[Sequence[Silence]], None] = lambda found: None,
        clock: Callable[[], int] = time.monotonic_ns,
        guards: Guards | None = None,
    ) -> None:
        """`cursor` returns a new connection to the store's tables. `instance`: name of this process, the same after a restart.

        `client_names`: client id → name, for messages. `publish` receives the silences of each observation. Raises duckdb.Error.
        """
        self._cursor, self._instance, self._publish, self._clock = cursor, instance, publish, clock
        self._limits_s: dict[Phase, float] = {
            "mid_stream": options.silence_s,
            "pre_first_output": options.first_output_s,
        }
        self._client_names = client_names
        self._clocks, self._store_rules = TapClocks(), StoreRules(clock, client_names)
        self._states = AlertStates({**SILENCE_HOLDS, **STORE_HOLDS})
        self._evaluated: tuple[Sequence[OpenAlert], frozenset[str], Mapping[Key, Condition]] | None = None
        """The last result of `evaluate_store` that was not used yet: open alerts, alerts resolved elsewhere, conditions."""
        self._stored_ids: frozenset[str] = frozenset()
        """Alerts of this process that are firing in the store. Replaced, never changed, because both threads read it."""
        self._repeated_ns = clock()
        self._waiting: list[tuple[Change, int]] = []
        self._taken: list[tuple[Change, int]] = []
        with cursor() as connection:
            found = open_alerts(connection)
        self._adopt(one for one in found if one.instance == instance and one.key.rule in SILENCE_HOLDS)
        self._sinks = alert_sinks(options.webhook, guards)

    # -- evaluation --------------------------------------------------------------------------------------------------

    def observe(self, streams: Sequence[OpenStream], taps: Iterable[Alive]) -> None:
        """Evaluate the rules over the streams in flight, and use the last result of `evaluate_store`."""
        at_ns, wall_ns = self._clock(), time.time_ns()
        self._clocks.update(taps, at_ns)
        found = silences(streams, self._clocks, at_ns)
        self._publish(found)
        now_s = at_ns / 1e9
        conditions = silence_conditions(found, self._limits_s, wall_ns, self._client_names)
        changes = self._states.update(SILENCE_HOLDS, conditions, now_s)
        if at_ns - self._repeated_ns >= REPEAT_S * 1e9:
            self._repeated_ns = at_ns
            changes += self._states.repeated(SILENCE_HOLDS)
        # States change only here, on the consumer's thread. Upkeep's thread leaves its result, and a newer one replaces
        # it: conditions are complete each time.
        evaluated, self._evaluated = self._evaluated, None
        if evaluated is not None:
            opened, resolved, store_found = evaluated
            self._adopt(one for one in opened if one.key.rule in STORE_HOLDS)
            self._forget(resolved)
            changes += self._states.update(STORE_HOLDS, store_found, now_s)
            changes += self._abandoned(opened, wall_ns)
        self._waiting += [(change, wall_ns) for change in changes]

    def evaluate_store(self) -> None:
        """Evaluate the rules over stored rows, for the next `observe`. Raises duckdb.Error."""
        # Read before the query: an alert that is stored during it would be missing in the result and look as if another
        # process had resolved it.
        stored_before = self._stored_ids
        with self._cursor() as connection:
            opened = open_alerts(connection)
            resolved = stored_before - {one.alert_id for one in opened}
            self._evaluated = opened, resolved, self._store_rules.conditions(connection)

    def _abandoned(self, opened: Iterable[OpenAlert], wall_ns: int) -> list[Change]:
        """Resolve the alerts over streams of processes that have ended."""
        waiting = {change.alert_id for change, _ in self._waiting}
        return [
            Change(one.alert_id, one.key, "resolved", one.condition)
            for one in opened
            if one.key.rule in SILENCE_HOLDS
            and one.instance != self._instance
            and one.alert_id not in waiting
            and wall_ns - one.reported_ns > ABANDONED_S * 1e9
        ]

    def _adopt(self, opened: Iterable[OpenAlert]) -> None:
        for one in opened:
            if self._states.adopt(one.alert_id, one.key, one.condition, self._clock() / 1e9):
                self._stored_ids |= {one.alert_id}

    def _forget(self, alert_ids: frozenset[str]) -> None:
        """Remove alerts that another process has resolved."""
        for key, alert_id in self._states.firing.items():
            if alert_id in alert_ids:
                self._states.forget(key)
        self._stored_ids -= alert_ids

    # -- commit hook -------------------------------------------------------------------------------------------------

    @property
    def waiting(self) -> bool:
        return bool(self._waiting)

    def rows(
        self, finished: Sequence[FinishedStream], tables: Mapping[str, pl.DataFrame]
    ) -> Mapping[str, pl.DataFrame]:
        """The changes since the last commit."""
        self._taken, self._waiting = self._waiting, []
        return {"alert_events": event_rows(self._taken, self._instance)} if self._taken else {}

    def committed(self) -> None:
        """Send the changes of the last `rows` call."""
        taken, self._taken = self._taken, []
        for change, wall_ns in taken:
            if change.state == "firing" and change.alert_id in self._stored_ids:
                continue  # repeated
            if change.state == "firing":
                self._stored_ids |= {change.alert_id}
            else:
                self._stored_ids -= {change.alert_id}
            # The message names the model and the gateway.
            log.log(
                logging.WARNING if change.state == "firing" else logging.INFO,
                "alert %s: %s: %s. `streamgauge alerts` shows it",
                change.state, change.key.rule, change.condition.message,
            )  # fmt: skip
            for sink in self._sinks:
                sink.offer([notification(change, wall_ns)])

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


_OPEN = """
SELECT alert_id::VARCHAR, instance,
    (SELECT epoch_us(max(changed_at)) FROM alert_events WHERE alert_events.alert_id = alerts.alert_id),
    rule, gateway, model, metric, value, threshold, message, epoch_us(began_at), stream_id::VARCHAR, client_id
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


def event_rows(changes: Sequence[tuple[Change, int]], instance: str) -> pl.DataFrame:
    """Rows of `alert_events` for (change, wall time in ns)."""
    rows = []
    for change, wall_ns in changes:
        key, found = change.key, change.condition
        rows.append(
            (
                change.alert_id, wall_ns // 1000, instance, *key, change.state, found.since_ns // 1000, found.value,
                found.threshold, found.message, found.stream_id, found.client_id,
            )
        )  # fmt: skip
    return frame_of_rows(ALERT_EVENTS, rows)


def open_alerts(cursor: duckdb.DuckDBPyConnection) -> list[OpenAlert]:
    """The alerts that have fired and not resolved. Raises duckdb.Error."""
    found = []
    for alert_id, instance, reported_us, *row in cursor.execute(_OPEN).fetchall():
        key, (value, threshold, message, since_us, stream_id, client_id) = Key(*row[:4]), row[4:]
        condition = Condition(value, threshold, message, since_us * 1000, stream_id, client_id)
        found.append(OpenAlert(alert_id, instance, key, condition, reported_us * 1000))
    return found


def notification(change: Change, wall_ns: int) -> dict[str, object]:
    """The webhook's JSON: `text` for chat systems, and the fields of the alert."""
    key, condition = change.key, change.condition
    since = _time(condition.since_ns)
    stream = f" Stream {condition.stream_id}." if condition.stream_id else ""
    return {
        "text": f"[{change.state}] {key.rule}: {condition.message}, since {since}.{stream}",
        "alert_id": change.alert_id,
        "state": change.state,
        **key._asdict(),
        "client_id": condition.client_id,
        "value": condition.value,
        "threshold": condition.threshold,
        "began_at": since,
        "changed_at": _time(wall_ns),
        "message": condition.message,
        "stream_id": condition.stream_id,
    }


def _time(wall_ns: int) -> str:
    return (
        dt.datetime.fromtimestamp(wall_ns // 1000 / 1e6, dt.UTC)
        .isoformat(timespec="seconds")
        .replace("+00:00", "Z")
    )
