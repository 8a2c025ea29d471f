"""Send alerts to the functions of plugins, each on its own thread behind a bounded queue."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

from streamgauge.analytics.alerts.sink import Notification, Sink
from streamgauge.ingest.guards import Guards
from streamgauge.ingest.plugins import ALERT_SINKS, function, load_plugins

log = logging.getLogger(__name__)


def plugin_sinks(guards: Guards | None = None) -> list[Sink]:
    """The sinks of installed plugins."""
    return [
        Sink(partial(_send, name, send), name=f"alert-sink-{name}", guards=guards)
        for name, send in load_plugins(ALERT_SINKS, function).items()
    ]


def _send(name: str, send: Callable[..., object], notification: Notification) -> bool:
    try:
        send(dict(notification))
    except Exception as e:
        log.warning("cannot send an alert by the plugin %s: %s. Check the plugin", name, type(e).__name__)
        return False
    return True
