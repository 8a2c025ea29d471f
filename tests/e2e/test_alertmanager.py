"""A real Alertmanager takes the alerts, keeps those that fire, and ends those that resolve."""

from __future__ import annotations

import json
import subprocess
import urllib.request
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from streamgauge.analytics.alerts.formats import AGAIN_S
from streamgauge.analytics.storage.store import Store
from tests.analytics.alerts.test_evaluator import CLOCK, commit, evaluator, observed, resolve
from tests.analytics.stores import new_store
from tests.deadline import DEADLINE_S, until
from tests.e2e.collector import built
from tests.e2e.running import answers
from tests.ports import free_port

CONFIG = "route: {receiver: none, group_wait: 0s}\nreceivers: [{name: none}]\n"


@pytest.fixture(scope="module")
def alertmanager(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Its address."""
    binary, folder, port = (
        built("alertmanager-for-tests"),
        tmp_path_factory.mktemp("alertmanager"),
        free_port(),
    )
    (folder / "config.yaml").write_text(CONFIG)
    flags = [
        f"--config.file={folder / 'config.yaml'}",
        f"--storage.path={folder}",
        "--cluster.listen-address=",
    ]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen([binary, *flags, f"--web.listen-address=127.0.0.1:{port}"], stderr=log)
    try:
        until(lambda: answers(f"http://127.0.0.1:{port}/-/ready"), "Alertmanager")
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(DEADLINE_S)


def active(url: str) -> list[dict[str, Any]]:
    with urllib.request.urlopen(f"{url}/api/v2/alerts?active=true", timeout=DEADLINE_S) as response:
        found: list[dict[str, Any]] = json.load(response)
    return found


def test_alert_is_active_until_it_resolves(alertmanager: str, tmp_path: Path) -> None:
    store: Store = new_store(tmp_path)
    dashboard = "https://gauge.example.com"
    url = f"{alertmanager}/api/v2/alerts"
    with evaluator(store, webhook=url, dashboard_url=dashboard) as alerts:
        alerts.observe(*observed(at_ms=6_281))
        commit(store, alerts)
        [alert] = until(lambda: active(alertmanager) or None, "the alert")
        assert alert["labels"] == {
            "alertname": "silent_stream",
            "severity": "page",
            "gateway": "gw",
            "model": "gpt-test",
        }
        assert alert["annotations"]["summary"].startswith("no output from gpt-test at gw for 6.0 s")
        assert alert["generatorURL"].startswith(f"{dashboard}/?range=custom&from=")
        ends_at = datetime.fromisoformat(alert["endsAt"])
        assert ends_at > datetime.now(UTC)
        # While it fires, it is sent again, so that it does not expire.
        CLOCK.now_s += AGAIN_S
        alerts.observe(*observed(at_ms=9_281))
        until(lambda: datetime.fromisoformat(active(alertmanager)[0]["endsAt"]) > ends_at, "the next one")
        until(lambda: alerts.health()["alerts.sent"] >= 2, "the count of the second one")
        resolve(alerts)
        commit(store, alerts)
        until(lambda: not active(alertmanager), "the end of the alert")
        assert alerts.health()["alerts.send_failed"] == 0
    store.close()
