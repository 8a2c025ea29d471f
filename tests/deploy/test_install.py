"""The wheel in clean environments of every Python found here: `uvx 'streamgauge[all]' demo`, `uv tool install`, the base install.

Slow, because it installs packages from the package index or a warm cache.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from bench.install import build, first_request, install_with_pip
from tests.installed import ROOT, distributions, normalized

VERSIONS = ("3.11", "3.12", "3.13", "3.14")
UV = Path(sys.executable).parent / "uv"
pytestmark = pytest.mark.slow


def interpreter(version: str) -> Path:
    """The interpreter on PATH or of pyenv. Skips the test if there is none."""
    on_path = shutil.which(f"python{version}")
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    for found in (
        *([Path(on_path)] if on_path else []),
        *sorted(pyenv.glob(f"{version}.*/bin/python{version}")),
    ):
        if (
            subprocess.run([found, "-c", ""], capture_output=True).returncode == 0
        ):  # a shim may lack its version
            return found
    pytest.skip(f"Python {version} is not installed")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("dist"))


@pytest.mark.parametrize("version", VERSIONS)
def test_demo_runs_without_a_clone(version: str, wheel: Path, tmp_path: Path) -> None:
    python = interpreter(version)
    addresses = ["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--dashboard-listen", "127.0.0.1:0"]
    done = subprocess.run(
        [UV, "tool", "run", "--python", python, "streamgauge[all]", "demo", "--seconds", "5", *addresses],
        cwd=tmp_path, env={**os.environ, "UV_FIND_LINKS": str(wheel.parent)}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Every stream was measured exactly once" in done.stdout


def test_uv_tool_install_has_the_commands_and_man_pages(wheel: Path, tmp_path: Path) -> None:
    folders = {
        "UV_FIND_LINKS": str(wheel.parent),
        "UV_TOOL_DIR": str(tmp_path / "tools"),
        "UV_TOOL_BIN_DIR": str(tmp_path / "bin"),
    }
    subprocess.run(
        [UV, "tool", "install", "--quiet", "--python", sys.executable, "streamgauge"], env={**os.environ, **folders}, check=True
    )  # fmt: skip
    command = [tmp_path / "bin" / "streamgauge", "version"]
    assert subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, check=True
    ).stdout.startswith("streamgauge ")
    assert list((tmp_path / "tools").rglob("share/man/man1/streamgauge-tap.1"))


def test_the_base_install_forwards_a_request(wheel: Path, tmp_path: Path) -> None:
    assert first_request(install_with_pip, tmp_path / "venv", str(wheel)) > 0
    installed = {normalized(info.name.partition("-")[0]) for info in (tmp_path / "venv").rglob("*.dist-info")}
    assert installed - {"pip", "setuptools"} == distributions() | {"streamgauge"}


@pytest.mark.parametrize("version", VERSIONS)
def test_every_package_has_a_wheel_for_this_python(version: str) -> None:
    subprocess.run(
        [UV, "pip", "compile", "--quiet", "--no-header", "--only-binary", ":all:", "--python-version", version,
         "--extra", "all", "-c", "requirements.lock", "pyproject.toml"],
        cwd=ROOT, check=True, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    assert f'"Programming Language :: Python :: {version}"' in (ROOT / "pyproject.toml").read_text()
