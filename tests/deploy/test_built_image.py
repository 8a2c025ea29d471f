"""The images of `make image`, inspected with buildah; skipped without buildah or image.

STREAMGAUGE_IMAGES names others than `streamgauge-tap,streamgauge`.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from tests.deadline import DEADLINE_S

IMAGES = os.environ.get("STREAMGAUGE_IMAGES", "localhost/streamgauge-tap,localhost/streamgauge").split(",")
LARGEST_BYTES = {"tap": 600 * 2**20, "streamgauge": 1_600 * 2**20}
"""Limits with a base image of 335 MB. python:3.12-slim-bookworm is less than half as large."""


def buildah(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["buildah", *words], capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )


@pytest.fixture(scope="module", params=IMAGES)
def image(request: pytest.FixtureRequest) -> str:
    if shutil.which("buildah") is None:
        pytest.skip("no buildah; on Debian: apt-get install buildah")
    if buildah("inspect", "--type", "image", request.param).returncode:
        pytest.skip(f"no image {request.param}: make image")
    return str(request.param)


@pytest.fixture(scope="module")
def container(image: str) -> Iterator[str]:
    name = buildah("from", "--pull-never", image).stdout.strip()
    assert name
    yield name
    buildah("rm", name)


def inside(container: str, *words: str) -> subprocess.CompletedProcess[str]:
    return buildah("run", "--isolation", "chroot", container, "--", *words)


def config(image: str) -> dict[str, Any]:
    configuration: dict[str, Any] = json.loads(buildah("inspect", "--type", "image", image).stdout)["Docker"]
    return configuration


def test_image_has_unprivileged_user_healthcheck_and_one_volume(image: str) -> None:
    configured = config(image)["config"]
    assert configured["User"] == "10001:10001"
    assert configured["Entrypoint"] == ["streamgauge"]
    assert configured["Volumes"] == {"/data": {}}
    assert configured["Healthcheck"]["Test"][0] == "CMD"
    assert not [one for one in configured["Env"] if "KEY" in one or "TOKEN" in one or "PASSWORD" in one]


def test_command_runs_and_only_the_data_folder_is_writable(container: str) -> None:
    done = inside(container, "streamgauge", "version")
    assert done.stdout.startswith("streamgauge "), done.stderr
    script = "import os, streamgauge; print(os.getuid(), os.path.dirname(streamgauge.__file__))"
    user, folder = inside(container, "python", "-c", script).stdout.split()
    assert user == "10001"
    for folder_ in ("/", folder, "/opt/streamgauge/bin", "/usr/bin", "/etc"):
        assert inside(container, "touch", f"{folder_}/x").returncode, folder_
    assert inside(container, "touch", "/data/x").returncode == 0


def test_image_has_its_bill_of_materials_and_no_installer(image: str, container: str) -> None:
    bill = json.loads(inside(container, "cat", "/opt/streamgauge/sbom.cdx.json").stdout)
    names = {plain(component["name"]) for component in bill["components"]}
    script = "from importlib.metadata import distributions as d; print(*{x.metadata['Name'] for x in d()})"
    installed = {plain(name) for name in inside(container, "python", "-c", script).stdout.split()} - {
        "streamgauge"
    }
    assert installed
    assert installed <= names
    assert not installed & {"pip", "setuptools"}


def plain(name: str) -> str:
    """The normalised package name."""
    return re.sub(r"[-_.]+", "-", name).lower()


def test_image_size_is_below_the_limit(image: str) -> None:
    (listed,) = json.loads(buildah("images", "--json", image).stdout)
    used = listed.get("size") or ""
    number, unit = used.split()
    size_bytes = float(number) * {"MB": 1e6, "GB": 1e9}[unit]
    assert size_bytes < LARGEST_BYTES["tap" if "tap" in image else "streamgauge"]
