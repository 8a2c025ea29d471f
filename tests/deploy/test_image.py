"""The Dockerfile: commands and copied files exist; the sidecar has the packages of the base install."""

from __future__ import annotations

import json
import re

import pytest

from tests.deploy.manifests import DEPLOY, ROOT, assert_command_parses
from tests.installed import distributions

DOCKERFILE = (DEPLOY / "Dockerfile").read_text()


@pytest.mark.parametrize(
    "words", [json.loads(found) for found in re.findall(r"^ *CMD (\[.+\])$", DOCKERFILE, re.M)], ids=" ".join
)
def test_every_command_exists(words: list[str]) -> None:
    if words[0] != "python":
        assert_command_parses(words[1:] if words[0] == "streamgauge" else words)


def test_copied_files_exist() -> None:
    for sources in re.findall(r"^COPY (?!--)(.+) \S+$", DOCKERFILE, re.M):
        for name in sources.split():
            assert (ROOT / name).exists(), name


def test_shipped_stages_do_not_run_as_root() -> None:
    shipped = [stage for stage in DOCKERFILE.split("\nFROM ") if "ENTRYPOINT" in stage]
    assert len(shipped) == 2
    for stage in shipped:
        assert stage.index("USER 10001:10001") < stage.index("ENTRYPOINT")


def test_shipped_stages_have_healthcheck_and_bill_of_materials() -> None:
    stages = dict(re.findall(r"^FROM \S+(?: AS (\S+))?\n(.*?)(?=^FROM |\Z)", DOCKERFILE, re.M | re.S))
    for shipped in (stages["tap"], stages[""]):
        assert re.search(r"^HEALTHCHECK .+\n +CMD \[", shipped, re.M)
        assert "VOLUME /data\n" in shipped  # the only writable folder: the root is read-only
        (packages,) = re.findall(r"^COPY --from=(\S+) /opt/streamgauge /opt/streamgauge$", shipped, re.M)
        (bill,) = re.findall(
            r"install -m 0644 /wheel/(\S+) /opt/streamgauge/sbom\.cdx\.json", stages[packages]
        )
        (lock,) = re.findall(rf"cyclonedx-py requirements .+ -o /wheel/{bill} (\S+)", stages["wheel"])
        assert f"--require-hashes -r {lock} " in stages[packages], "the bill is of what is installed"


def test_tap_lock_has_the_packages_of_the_base_install() -> None:
    locked = set(re.findall(r"^([a-z0-9-]+)==", (DEPLOY / "tap.lock").read_text(), re.M))
    assert locked == distributions()


def test_tap_lock_has_the_versions_of_the_full_lock() -> None:
    def pins(text: str) -> set[str]:
        return set(re.findall(r"^([a-z0-9-]+==\S+)", text, re.M))

    assert pins((DEPLOY / "tap.lock").read_text()) <= pins((ROOT / "requirements.lock").read_text())
