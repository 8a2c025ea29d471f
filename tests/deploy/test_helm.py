"""The Helm chart: its values match their schema, and with helm it renders the objects of the manifests."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml

from tests.deploy.manifests import DEPLOY, assert_settings_exist, documents

CHART = DEPLOY / "helm" / "streamgauge"
KUBERNETES = DEPLOY / "kubernetes"
VALUES: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text())
SCHEMA: dict[str, Any] = json.loads((CHART / "values.schema.json").read_text())
KAFKA = {"mode": "kafka", "storage": {"size": "100Gi", "className": ""}}
SETTINGS = {"STREAMGAUGE_UPSTREAM": "http://gateway:4000", "STREAMGAUGE_KAFKA": "kafka:9092"}
LAKE_SETTINGS = SETTINGS | {"STREAMGAUGE_LAKE_PATH": "s3://streamgauge/lake", "AWS_REGION": "us-east-1"}
LAKE_ANALYTICS = {"resources": {"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"memory": "4Gi"}}}
MODES: dict[str, tuple[dict[str, Any], list[str]]] = {
    "single": ({}, ["single/streamgauge", "single/network"]),
    "kafka": (KAFKA | {"settings": SETTINGS}, ["kafka/tap", "kafka/analytics", "kafka/network"]),
    "lake": (
        {"mode": "lake", "settings": LAKE_SETTINGS, "analytics": LAKE_ANALYTICS},
        ["kafka/tap", "kafka/analytics", "kafka/network", "lake/analytics", "lake/dashboard"],
    ),
}
"""Mode → values that give the objects of the manifests, and their files."""
KUBERNETES_VERSION = ("--kube-version", "1.33.0")
"""A helm that `go install` built assumes an old one."""
ADDED_LABELS = ("instance", "managed-by", "version", "part-of")


def merged(values: dict[str, Any], changed: dict[str, Any]) -> dict[str, Any]:
    """As helm merges values."""
    return values | {
        k: merged(values.get(k, {}), v) if isinstance(v, dict) else v for k, v in changed.items()
    }


# -- Without helm ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("changed", [values for values, _ in MODES.values()], ids=MODES.keys())
def test_values_match_the_schema(changed: dict[str, Any]) -> None:
    jsonschema.Draft7Validator.check_schema(SCHEMA)
    jsonschema.validate(merged(VALUES, changed), SCHEMA)


@pytest.mark.parametrize(
    "changed",
    [
        {"mode": "cluster"},
        {"mode": "kafka"},
        {"mode": "lake", "settings": SETTINGS},
        {"settings": {"streamgauge_upstream": "http://gateway"}},
        {"settings": {"STREAMGAUGE_SQL_TOKEN": "secret"}},
        {"settings": {"STREAMGAUGE_WORKERS": 2}},
        {"secrets": {"client_key": "x"}},
        {"tap": {"replicas": 0}},
        {"tap": {"resources": {"limits": {"memory": None}}}},
        {"storage": {"size": "20"}},
        {"image": {"repository": ""}},
    ],
)
def test_invalid_values_are_refused(changed: dict[str, Any]) -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(merged(VALUES, changed), SCHEMA)


def test_misspelt_value_is_refused() -> None:
    with pytest.raises(jsonschema.ValidationError, match="replicaCount"):
        jsonschema.validate(VALUES | {"replicaCount": 2}, SCHEMA)


def test_every_value_of_the_templates_exists_and_every_value_is_used() -> None:
    text = "\n".join(path.read_text() for path in (CHART / "templates").iterdir())
    used = set(re.findall(r"\.Values\.([\w.]+)", text))
    for name in used:
        found: Any = VALUES
        for part in name.split("."):
            assert part in found, name
            found = found[part]
    leaves = {f"{key}.{inner}" for key, value in VALUES.items() if isinstance(value, dict) for inner in value}
    leaves -= {name for name in leaves if name.split(".")[0] in ("settings", "secrets")}
    leaves |= {key for key, value in VALUES.items() if not isinstance(value, dict)} | {"settings", "secrets"}
    assert leaves <= used


def test_every_value_has_a_schema_and_top_level_values_a_comment() -> None:
    assert VALUES.keys() == SCHEMA["properties"].keys() - {"global"}
    text = (CHART / "values.yaml").read_text()
    commented = set(re.findall(r"^#.*\n(?:#.*\n)*(\w+):", text, re.M))
    assert VALUES.keys() - commented <= {"image", "ship", "analytics", "dashboard", "existingSecret"}
    assert_settings_exist(set(VALUES["settings"]) | set(LAKE_SETTINGS))


def test_rules_and_dashboard_are_those_of_the_repository() -> None:
    for name in ("alerts.yaml", "grafana.json"):
        assert (CHART / "files" / name).resolve() == DEPLOY / "otel" / name


# -- With helm ---------------------------------------------------------------------------------------------------------


@cache
def helm() -> str:
    found = shutil.which("helm")
    if found is None:
        pytest.skip("no helm")
    return found


def rendered(values: dict[str, Any], folder: Path, release: str = "streamgauge") -> list[dict[str, Any]]:
    file = folder / "values.yaml"
    file.write_text(yaml.safe_dump(values))
    done = subprocess.run(
        [helm(), "template", release, str(CHART), "--values", str(file), *KUBERNETES_VERSION],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return [document for document in yaml.safe_load_all(done.stdout) if document]


def plain(value: Any) -> Any:
    """Without what the chart adds: labels of the release, checksums, tags and pull policies of images."""
    if isinstance(value, dict):
        return {
            key: item.partition(":")[0] if key == "image" else plain(item)
            for key, item in value.items()
            if key not in ("annotations", "imagePullPolicy", "helm.sh/chart")
            and not (key.startswith("app.kubernetes.io/") and key.partition("/")[2] in ADDED_LABELS)
        }
    return [plain(item) for item in value] if isinstance(value, list) else value


def by_name(objects: list[dict[str, Any]]) -> dict[tuple[str, str], Any]:
    found = {(o["kind"], o["metadata"]["name"]): plain(o) for o in objects}
    for one in found.values():
        one["metadata"] = {key: value for key, value in one["metadata"].items() if value}
        for spec in (one.get("spec", {}).get("template", {}).get("spec", {}),):
            for container in (*spec.get("initContainers", ()), *spec.get("containers", ())):
                container.setdefault("envFrom", [{"configMapRef": {"name": "streamgauge"}}])
    return found


def test_helm_finds_no_fault(tmp_path: Path) -> None:
    done = subprocess.run([helm(), "lint", "--strict", str(CHART)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 chart(s) failed" in done.stdout


@pytest.mark.parametrize("mode", MODES)
def test_chart_renders_the_objects_of_the_manifests(mode: str, tmp_path: Path) -> None:
    values, files = MODES[mode]
    found = by_name(rendered(values, tmp_path))
    expected = by_name([o for file in files for o in documents(KUBERNETES / f"{file}.yaml")])
    if mode == "lake":
        del expected[("StatefulSet", "streamgauge")]  # lake/no-file.yaml
    settings = found.pop(("ConfigMap", "streamgauge"))["data"]
    assert values.get("settings", VALUES["settings"]).items() <= settings.items()
    assert found.pop(("Secret", "streamgauge"))["stringData"] == {}
    assert found == expected


@pytest.mark.parametrize("mode", MODES)
def test_every_rendered_object_matches_the_kubernetes_schema(mode: str, tmp_path: Path) -> None:
    more = {
        "existingSecret": "mine", "imagePullSecrets": [{"name": "registry"}],
        "monitoring": {"serviceMonitor": True, "rules": True, "grafanaDashboard": True, "labels": {"release": "prometheus"}},
    }  # fmt: skip
    objects = rendered({**MODES[mode][0], **more}, tmp_path, release="prod")
    kinds = {o["kind"] for o in objects}
    assert {"ServiceMonitor", "PrometheusRule"} <= kinds
    assert "Secret" not in kinds
    for one in objects:
        assert one["metadata"]["name"].startswith("prod-streamgauge")
        assert one["metadata"]["labels"]["app.kubernetes.io/instance"] == "prod"
        if not one["apiVersion"].startswith("monitoring."):
            kubernetes_validate.validate(one, "1.33", strict=True)
    (rules,) = [o for o in objects if o["kind"] == "PrometheusRule"]
    assert [rules["spec"]] == documents(DEPLOY / "otel" / "alerts.yaml")
    (dashboard,) = [o for o in objects if o["metadata"]["name"].endswith("-grafana")]
    assert json.loads(dashboard["data"]["streamgauge.json"]) == json.loads(
        (DEPLOY / "otel" / "grafana.json").read_text()
    )


def test_helm_refuses_values_that_do_not_match(tmp_path: Path) -> None:
    done = subprocess.run(
        [helm(), "template", "x", str(CHART), "--set", "mode=kafka", *KUBERNETES_VERSION],
        capture_output=True,
        text=True,
    )
    assert done.returncode != 0
    assert "STREAMGAUGE_KAFKA" in done.stderr
