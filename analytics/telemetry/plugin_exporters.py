"""Commit hook that passes committed rows to the functions of plugins, each on its own thread behind a bounded queue.

A crash after a commit loses its export. If a function is slow, the oldest commits are dropped and counted.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import polars as pl

from streamgauge.analytics.assembly.finished_stream import FinishedStream
from streamgauge.analytics.telemetry.otlp_export import ExportQueue
from streamgauge.ingest.guards import Guards
from streamgauge.ingest.plugins import EXPORTERS, function, load_plugins

log = logging.getLogger(__name__)

QUEUE_COMMITS = 64
Tables = Mapping[str, pl.DataFrame]


class PluginExporters:
    """The exporters of installed plugins. Not thread-safe."""

    def __init__(self, guards: Guards | None = None) -> None:
        self._tables: Tables = {}
        self._queues: list[ExportQueue[Tables]] = [
            ExportQueue(
                partial(_export, name, export), lambda: None, name=f"exporter-{name}", queue_size=QUEUE_COMMITS, batch_size=1,
                delay_s=60.0, guards=guards,
            )
            for name, export in load_plugins(EXPORTERS, function).items()
        ]  # fmt: skip

    @property
    def waiting(self) -> bool:
        """Exports alone never cause a commit."""
        return False

    @property
    def increments(self) -> Mapping[str, int]:
        return {}

    def rows(self, finished: Sequence[FinishedStream], tables: Tables) -> Tables:
        self._tables = dict(tables) if self._queues else {}
        return {}

    def committed(self) -> None:
        """Export the rows of the last `rows` call."""
        tables, self._tables = self._tables, {}
        if any(rows.height for rows in tables.values()):
            for queue in self._queues:
                queue.offer([tables])

    def health(self) -> dict[str, float]:
        """Commits by what became of them, by metric name without its prefix."""
        return {
            f"plugin_exports.{what}": float(sum(getattr(queue, what) for queue in self._queues))
            for what in ("exported", "failed", "dropped")
        }

    def close(self) -> None:
        """Export what is queued, within the queue's time limit."""
        for queue in self._queues:
            queue.close()


def _export(name: str, export: Callable[..., object], batch: Sequence[Tables]) -> bool:
    try:
        for tables in batch:
            export(tables)
    except Exception as e:
        log.warning("cannot export rows by the plugin %s: %s. Check the plugin", name, type(e).__name__)
        return False
    return True
