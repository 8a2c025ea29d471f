"""The compose files match the Compose schema, and their commands and settings exist."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest

from tests.deploy.manifests import DEPLOY, assert_command_parses, assert_settings_exist, documents, published

FILES = ["compose.yaml", "compose.kafka.yaml", "compose.lake.yaml"]


def compose(name: str) -> dict[str, Any]:
    (document,) = documents(DEPLOY / name)
    return document


@pytest.mark.parametrize("name", FILES)
def test_file_matches_the_compose_schema(name: str) -> None:
    schema = published("github.com/compose-spec/compose-go/v2", "v2.16.2") / "schema" / "compose-spec.json"
    jsonschema.validate(compose(name), json.loads(schema.read_text()))


@pytest.mark.parametrize("name", FILES)
def test_commands_settings_volumes_and_images_exist(name: str) -> None:
    document = compose(name)
    ours = [s for s in document["services"].values() if s["image"].startswith("streamgauge")]
    assert ours
    dockerfile = (DEPLOY / "Dockerfile").read_text()
    for service in ours:
        if "command" in service:
            assert_command_parses(service["command"])
        assert_settings_exist(set(service.get("environment", {})))
        for volume in service["volumes"]:
            assert volume.split(":")[0] in document["volumes"]
        if target := service["build"].get("target"):
            assert f" AS {target}\n" in dockerfile


@pytest.mark.parametrize("name", FILES)
def test_containers_are_hardened_and_only_the_tap_is_exposed(name: str) -> None:
    for service in compose(name)["services"].values():
        for port in service.get("ports", []):
            assert port == "4100:4100" or port.startswith("127.0.0.1:")
        if service["image"].startswith("streamgauge"):
            assert service["read_only"]
            assert service["cap_drop"] == ["ALL"]
            assert service["security_opt"] == ["no-new-privileges:true"]
            assert service["mem_limit"].endswith("g")
            assert service["pids_limit"] > 0
