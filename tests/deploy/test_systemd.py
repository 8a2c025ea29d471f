"""systemd accepts the units and rates their exposure low; their commands exist."""

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
def test_memory_is_bounded_and_the_oom_killer_spares_the_tap(unit: Path) -> None:
    text = unit.read_text()
    assert re.search(r"^MemoryMax=\d+[MG]$", text, re.M)
    assert ("\nOOMPolicy=continue\n" in text) == ("streamgauge up" in text)


def test_query_processes_may_use_landlock() -> None:
    """`@system-service` does not include Landlock's system calls."""
    lines = (DEPLOY / "systemd" / "streamgauge.service").read_text().splitlines()
    assert (
        allowed := "SystemCallFilter=landlock_create_ruleset landlock_add_rule landlock_restrict_self"
    ) in lines
    assert lines.index(allowed) > lines.index("SystemCallFilter=~@privileged")


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_systemd_accepts_the_unit_with_low_exposure(unit: Path, tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("no systemd-analyze")
    for other in UNITS:  # as installed, except the program, which must exist
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
