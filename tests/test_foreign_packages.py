"""Packages named `ingest`, `analytics` and `dashboard`, in the environment and in the current folder, are never run."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from streamgauge.cli import LAZY_COMMANDS
from tests.deadline import DEADLINE_S
from tests.installed import environment
from tests.ports import free_ports

RUN = "raise SystemExit('a foreign package was run')"


def plant(folder: Path) -> None:
    for name in ("ingest", "analytics", "dashboard"):
        (folder / name).mkdir()
        (folder / name / "__init__.py").write_text(RUN)


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with all extras, into which the packages were installed before and after."""
    folder = tmp_path_factory.mktemp("foreign") / "venv"
    found = environment(folder, "all")
    (packages,) = folder.glob("lib/python*/site-packages")
    plant(packages)
    return found


def test_every_command_starts(python: Path, tmp_path: Path) -> None:
    plant(tmp_path)
    processes = {
        name: subprocess.Popen(
            [python, "-m", "streamgauge", name, "--help"],
            cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        for name in LAZY_COMMANDS
    }  # fmt: skip
    for name, process in processes.items():
        out, _ = process.communicate(timeout=DEADLINE_S)
        assert process.returncode == 0, out
        assert out.startswith(f"Usage: streamgauge {name}"), out


def test_all_parts_run(python: Path, tmp_path: Path) -> None:
    """The demo starts the tap with workers, analytics, the processes for queries, the dashboard and the simulator."""
    plant(tmp_path)
    listen, admin, simulator, port = free_ports(4)
    done = subprocess.run(
        [
            python, "-m", "streamgauge", "demo", "--seconds", "5", "--workers", "2", "--dashboard-listen", f"127.0.0.1:{port}",
            "--listen", f"127.0.0.1:{listen}", "--admin", f"127.0.0.1:{admin}", "--simulator", f"127.0.0.1:{simulator}",
        ],
        cwd=tmp_path, capture_output=True, text=True, timeout=DEADLINE_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "foreign" not in done.stdout + done.stderr
