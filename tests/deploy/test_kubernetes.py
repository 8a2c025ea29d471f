"""The Kubernetes manifests match the schemas, are hardened, and their references exist."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml

from tests.deploy.manifests import DEPLOY, assert_command_parses, assert_settings_exist, documents, published

KUBERNETES = DEPLOY / "kubernetes"
FOLDERS = ["single", "kafka", "lake", "sidecar", "monitoring"]
PATCHES = {KUBERNETES / "sidecar" / "tap.yaml", KUBERNETES / "lake" / "no-file.yaml"}


def kustomization(folder: str) -> dict[str, Any]:
    (document,) = documents(KUBERNETES / folder / "kustomization.yaml")
    return document


def objects() -> Iterator[tuple[Path, dict[str, Any]]]:
    for folder in FOLDERS:
        for path in sorted((KUBERNETES / folder).glob("*.yaml")):
            if path.name != "kustomization.yaml":
                for document in documents(path):
                    yield path, document


def pods() -> list[Any]:
    return [
        pytest.param(o["spec"]["template"]["spec"], id=f"{path.parent.name}/{o['metadata']['name']}")
        for path, o in objects()
        if "template" in o.get("spec", {})
    ]


def containers(pod: dict[str, Any]) -> list[dict[str, Any]]:
    return [*pod.get("initContainers", []), *pod.get("containers", [])]


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_file_belongs_to_its_kustomization(folder: str) -> None:
    found = kustomization(folder)
    listed = {*found.get("resources", []), *(patch["path"] for patch in found.get("patches", []))}
    assert {p.name for p in (KUBERNETES / folder).glob("*.yaml")} == listed | {"kustomization.yaml"}
    for generator in found.get("configMapGenerator", []):
        assert_settings_exist({literal.split("=")[0] for literal in generator["literals"]})


@pytest.mark.parametrize(
    "document",
    [
        pytest.param(o, id=f"{p.parent.name}/{o['kind']}-{o['metadata']['name']}")
        for p, o in objects()
        if p not in PATCHES and "." not in o["apiVersion"].split("/")[0].removesuffix(".k8s.io")
    ],
)
def test_every_object_matches_the_kubernetes_schema(document: dict[str, Any]) -> None:
    kubernetes_validate.validate(document, "1.33", strict=True)


def test_deployment_with_the_sidecar_patch_matches_the_schema() -> None:
    (patch,) = documents(KUBERNETES / "sidecar" / "tap.yaml")
    patch["spec"]["selector"] = {"matchLabels": {"app": "gateway"}}
    patch["spec"]["template"]["metadata"] = {"labels": {"app": "gateway"}}
    patch["spec"]["template"]["spec"]["containers"] = [{"name": "gateway", "image": "gateway"}]
    kubernetes_validate.validate(patch, "1.33", strict=True)


def test_monitors_match_the_schema_of_the_prometheus_operator() -> None:
    folder = published("github.com/prometheus-operator/prometheus-operator", "v0.85.0")
    crd = yaml.safe_load(
        (folder / "example/prometheus-operator-crd/monitoring.coreos.com_servicemonitors.yaml").read_text()
    )
    schema = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    monitors = documents(KUBERNETES / "monitoring" / "monitors.yaml")
    ports = {port["name"] for _, o in objects() if o["kind"] == "Service" for port in o["spec"]["ports"]}
    for monitor in monitors:
        jsonschema.validate(monitor, schema)
        assert {endpoint["port"] for endpoint in monitor["spec"]["endpoints"]} <= ports


@pytest.mark.parametrize("pod", pods())
def test_every_container_is_hardened_and_its_command_parses(pod: dict[str, Any]) -> None:
    assert pod["enableServiceLinks"] is False
    for container in containers(pod):
        security = {**pod.get("securityContext", {}), **container["securityContext"]}
        assert security["runAsNonRoot"] is True
        assert security["runAsUser"] == 10001
        assert security["allowPrivilegeEscalation"] is False
        assert security["readOnlyRootFilesystem"] is True
        assert security["capabilities"] == {"drop": ["ALL"]}
        assert security["seccompProfile"] == {"type": "RuntimeDefault"}
        assert "memory" in container["resources"]["limits"]
        assert_command_parses(container["args"])
        assert_settings_exist({e["name"] for e in container["env"]})


@pytest.mark.parametrize("pod", pods())
def test_referenced_volumes_and_ports_exist(pod: dict[str, Any]) -> None:
    volumes = {volume["name"] for volume in pod["volumes"]} | {"data"}  # data may be a claim's
    for container in containers(pod):
        assert {mount["name"] for mount in container["volumeMounts"]} <= volumes
        ports = {port["name"] for port in container.get("ports", [])}
        listens = {int(port) for port in re.findall(r":(\d+)", " ".join(map(str, container["args"])))} | {
            8501
        }
        assert {port["containerPort"] for port in container.get("ports", [])} <= listens
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            if "httpGet" in container.get(probe, {}):
                assert container[probe]["httpGet"]["port"] in ports


def test_services_and_policies_select_existing_pods_and_ports() -> None:
    for folder in ("single", "kafka"):
        mine = [o for path, o in objects() if path.parent.name == folder]
        templates = [o["spec"]["template"] for o in mine if "template" in o.get("spec", {})]
        for o in mine:
            selector = o["spec"].get("selector") or o["spec"].get("podSelector")
            labels = selector.get("matchLabels", selector)
            chosen = [t for t in templates if labels.items() <= t["metadata"]["labels"].items()]
            assert chosen, o["metadata"]["name"]
            ports = {p["name"] for t in chosen for c in containers(t["spec"]) for p in c.get("ports", [])}
            if o["kind"] == "Service":
                assert {port["targetPort"] for port in o["spec"]["ports"]} <= ports
            if o["kind"] == "NetworkPolicy":
                assert {p["port"] for rule in o["spec"]["ingress"] for p in rule["ports"]} <= ports


def test_services_of_kafka_select_the_pods_of_the_lake_component() -> None:
    templates = [
        o["spec"]["template"]
        for p, o in objects()
        if p.parent.name == "lake" and "template" in o.get("spec", {})
    ]
    (service,) = [
        o
        for p, o in objects()
        if p.name == "analytics.yaml" and p.parent.name == "kafka" and o["kind"] == "Service"
    ]
    chosen = [t for t in templates if service["spec"]["selector"].items() <= t["metadata"]["labels"].items()]
    ports = {p["name"] for t in chosen for c in containers(t["spec"]) for p in c["ports"]}
    assert {port["targetPort"] for port in service["spec"]["ports"]} == ports
    (removed,) = documents(KUBERNETES / "lake" / "no-file.yaml")
    files = documents(KUBERNETES / "kafka" / "analytics.yaml")
    assert any(
        (o["kind"], o["metadata"]["name"]) == (removed["kind"], removed["metadata"]["name"]) for o in files
    )


@pytest.mark.parametrize(
    ("folder", "components"),
    [("single", ["monitoring"]), ("kafka", ["monitoring"]), ("kafka", ["lake", "monitoring"])],
)
def test_kustomize_builds_the_folder(folder: str, components: list[str], tmp_path: Path) -> None:
    if shutil.which("kustomize") is None:
        pytest.skip("no kustomize")
    shutil.copytree(KUBERNETES, tmp_path / "kubernetes")
    (tmp_path / "kustomization.yaml").write_text(
        yaml.safe_dump(
            {
                "resources": [f"kubernetes/{folder}"],
                "components": [f"kubernetes/{name}" for name in components],
            }
        )
    )
    done = subprocess.run(["kustomize", "build", tmp_path], capture_output=True, text=True, check=True)
    assert "kind: ServiceMonitor" in done.stdout
    assert ("kind: StatefulSet" in done.stdout) == ("lake" not in components)
