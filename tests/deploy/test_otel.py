"""The files of deploy/otel are valid for promtool and the collector."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import pytest
import yaml

from streamgauge.analytics.telemetry.metric_definitions import metric_definitions
from streamgauge.analytics.telemetry.prometheus import prometheus_name
from streamgauge.analytics.telemetry.semconv import PROFILES
from tests.deadline import DEADLINE_S
from tests.e2e.collector import built
from tests.e2e.prometheus import OTEL


def promtool(*argv: str | Path, stdin: str | None = None) -> str:
    """Run promtool and return its output. Fails if it fails."""
    done = subprocess.run(
        [built("prometheus-for-tests") / "promtool", *argv],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
        cwd=OTEL,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_alert_rules_are_valid() -> None:
    assert "SUCCESS" in promtool("check", "rules", "--lint=all", "--lint-fatal", "alerts.yaml")


def test_each_alert_fires_only_when_expected() -> None:
    promtool("test", "rules", "alerts.test.yaml")
    tested = yaml.safe_load((OTEL / "alerts.test.yaml").read_text())["tests"]
    cases = [case for test in tested for case in test["alert_rule_test"]]
    alerts = {
        rule["alert"]
        for group in yaml.safe_load((OTEL / "alerts.yaml").read_text())["groups"]
        for rule in group["rules"]
    }
    assert {case["alertname"] for case in cases if case.get("exp_alerts")} == alerts
    assert {case["alertname"] for case in cases if not case.get("exp_alerts")} == alerts


def test_scrape_configuration_is_valid() -> None:
    assert "SUCCESS" in promtool("check", "config", "prometheus.yaml")


def test_collector_configuration_is_valid() -> None:
    endpoints = {f"{signal}_ENDPOINT": "http://127.0.0.1:1" for signal in ("TRACES", "LOGS", "METRICS")}
    done = subprocess.run(
        [built("collector-for-tests"), "validate", "--config", OTEL / "collector.yaml"],
        env={**os.environ, **endpoints},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("profile", PROFILES)
def test_metrics_pass_the_prometheus_linter(profile: str) -> None:
    """The metrics endpoint passes `promtool check metrics`."""
    from prometheus_client import CollectorRegistry
    from prometheus_client.exposition import generate_latest

    from tests.analytics.telemetry.test_telemetry import counted

    telemetry, _ = counted(profile=profile)
    assert telemetry.metrics is not None
    assert telemetry.metrics.endpoint is not None
    registry = CollectorRegistry()
    registry.register(telemetry.metrics.endpoint.collector)
    text = generate_latest(registry).decode()
    telemetry.close()
    promtool("check", "metrics", stdin=text)
    named = {prometheus_name(i.name, i.unit) for i in metric_definitions(PROFILES[profile])}
    assert {m.removesuffix("_total") for m in re.findall(r"^# TYPE (\S+)", text, re.MULTILINE)} <= named


def test_grafana_panels_parse_and_do_not_overlap(tmp_path: Path) -> None:
    dashboard = json.loads((OTEL / "grafana.json").read_text())
    taken: set[tuple[int, int]] = set()
    expressions: list[str] = []
    for panel in dashboard["panels"]:
        position = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(position["x"], position["x"] + position["w"])
            for y in range(position["y"], position["y"] + position["h"])
        }
        assert position["x"] + position["w"] <= 24
        assert not cells & taken, panel["title"]
        taken |= cells
        expressions += [t["expr"].replace("$__rate_interval", "1m") for t in panel.get("targets", [])]
    rules = [{"record": f"panel:{number}", "expr": expr} for number, expr in enumerate(expressions)]
    (tmp_path / "panels.yaml").write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    assert f"{len(expressions)} rules found" in promtool("check", "rules", tmp_path / "panels.yaml")
