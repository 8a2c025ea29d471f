"""Exporters of plugins get committed rows; one that fails or hangs delays nothing."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping

import polars as pl
import pytest

from streamgauge.analytics.telemetry import export_queue
from streamgauge.analytics.telemetry.export_queue import QUEUE_COMMITS, PluginExporters
from tests.deadline import DEADLINE_S

ROWS = {"streams": pl.DataFrame({"outcome": ["ok"]})}


def exporters(monkeypatch: pytest.MonkeyPatch, **functions: object) -> PluginExporters:
    monkeypatch.setattr(export_queue, "load_plugins", lambda group, check: functions)
    return PluginExporters()


def test_only_committed_rows_are_exported(monkeypatch: pytest.MonkeyPatch) -> None:
    got: list[Mapping[str, pl.DataFrame]] = []
    hook = exporters(monkeypatch, mine=got.append)
    assert hook.rows([], ROWS) == {}
    hook.rows([], ROWS)  # the commit of the first call failed
    hook.committed()
    hook.rows([], {"streams": pl.DataFrame({"outcome": []})})
    hook.committed()
    hook.close()
    assert [list(tables) for tables in got] == [["streams"]]
    assert hook.health() == {
        "plugin_exports.exported": 1,
        "plugin_exports.failed": 0,
        "plugin_exports.dropped": 0,
    }


def test_failing_and_hanging_exporters_are_counted(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    entered, release = threading.Event(), threading.Event()

    def hang(tables: object) -> None:
        entered.set()
        release.wait(10)

    def fail(tables: object) -> None:
        raise ValueError("text of a row")

    hook = exporters(monkeypatch, hang=hang, fail=fail)
    with caplog.at_level(logging.WARNING):
        hook.rows([], ROWS)
        hook.committed()
        assert entered.wait(DEADLINE_S)
        for _ in range(QUEUE_COMMITS + 1):
            hook.rows([], ROWS)
            hook.committed()
        release.set()
        hook.close()
    assert hook.health()["plugin_exports.dropped"] >= 1
    assert hook.health()["plugin_exports.failed"] >= QUEUE_COMMITS
    assert set(caplog.messages) == {"cannot export rows by the plugin fail: ValueError. Check the plugin"}
