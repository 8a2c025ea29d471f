"""The systemd units: systemd itself accepts them, finds them well locked down, and their commands exist."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.deploy.manifests import DEPLOY, assert_command_parses, assert_settings_exist

UNITS = sorted((DEPLOY / "systemd").glob("*.service"))


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_command_and_settings_exist(unit: Path) -> None:
    text = unit.read_text()
    (command,) = re.findall(r"^ExecStart=(.+)$", text, re.M)
    assert_command_parses(shlex.split(command)[1:])
    assert_settings_exist(set(re.findall(r"\b(STREAMGAUGE_\w+)=", text)))


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_memory_is_bounded_and_who_takes_too_much_does_not_take_the_tap_along(unit: Path) -> None:
    text = unit.read_text()
    assert re.search(r"^MemoryMax=\d+[MG]$", text, re.M)
    assert ("\nOOMPolicy=continue\n" in text) == ("streamgauge up" in text)


def test_query_processes_may_confine_themselves() -> None:
    """`@system-service` lacks Landlock's system calls: without them the kernel would confine no query process."""
    lines = (DEPLOY / "systemd" / "streamgauge.service").read_text().splitlines()
    assert (
        allowed := "SystemCallFilter=landlock_create_ruleset landlock_add_rule landlock_restrict_self"
    ) in lines
    assert lines.index(allowed) > lines.index("SystemCallFilter=~@privileged")


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_systemd_accepts_the_unit_and_its_exposure_is_low(unit: Path, tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("no systemd-analyze")
    for other in UNITS:  # as installed, but for the program, which must exist
        (tmp_path / other.name).write_text(
            re.sub(r"^ExecStart=\S+", "ExecStart=/bin/true", other.read_text(), flags=re.M)
        )
    installed = str(tmp_path / unit.name)
    done = subprocess.run(["systemd-analyze", "verify", installed], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    done = subprocess.run(
        ["systemd-analyze", "security", "--offline=yes", "--threshold=20", "--no-pager", installed],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-200:]
