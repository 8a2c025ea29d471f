"""Alerts in the store: rows of `alert_events`, and the alerts that are open."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import NamedTuple

import duckdb
import polars as pl

from streamgauge.analytics.alerts.alert_states import Change, Condition, Key
from streamgauge.analytics.schema.tables import ALERT_EVENTS, frame

_OPEN = """
SELECT alert_id::VARCHAR, rule, gateway, model, metric, value, threshold, message, epoch_us(began_at), stream_id::VARCHAR,
    client_id, instance,
    (SELECT epoch_us(max(changed_at)) FROM alert_events WHERE alert_events.alert_id = alerts.alert_id)
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
    return frame(
        ALERT_EVENTS,
        {
            "alert_id": [change.alert_id for change, _ in changes],
            "changed_at": [wall_ns // 1000 for _, wall_ns in changes],
            "instance": [instance] * len(changes),
            "rule": [change.key.rule for change, _ in changes],
            "gateway": [change.key.gateway for change, _ in changes],
            "model": [change.key.model for change, _ in changes],
            "metric": [change.key.metric for change, _ in changes],
            "state": [change.state for change, _ in changes],
            "began_at": [change.condition.since_ns // 1000 for change, _ in changes],
            "value": [change.condition.value for change, _ in changes],
            "threshold": [change.condition.threshold for change, _ in changes],
            "message": [change.condition.message for change, _ in changes],
            "stream_id": [change.condition.stream_id for change, _ in changes],
            "client_id": [change.condition.client_id for change, _ in changes],
        },
    )


def open_alerts(cursor: duckdb.DuckDBPyConnection) -> list[OpenAlert]:
    """The alerts that have fired and not resolved. Raises duckdb.Error."""
    found = []
    for row in cursor.execute(_OPEN).fetchall():
        (
            alert_id,
            rule,
            gateway,
            model,
            metric,
            value,
            threshold,
            message,
            since_us,
            stream_id,
            client_id,
            instance,
            reported_us,
        ) = row
        condition = Condition(value, threshold, message, since_us * 1000, stream_id, client_id)
        key = Key(rule, gateway, model, metric)
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
        "rule": key.rule,
        "gateway": key.gateway,
        "model": key.model,
        "metric": key.metric,
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
