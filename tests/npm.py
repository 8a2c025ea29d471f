"""Packages of npm that tests run, installed into `build` by the first test that needs them."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


def installed(packages: Path) -> Path:
    """Install the locked packages of a folder. Returns their `node_modules`. Skips the test if npm is missing or cannot."""
    if shutil.which("npm") is None:
        pytest.skip("needs npm")
    target = ROOT / "build" / packages.name
    lock, ready = packages / "package-lock.json", target / "ready"
    if not ready.exists() or ready.stat().st_mtime < lock.stat().st_mtime:
        target.mkdir(parents=True, exist_ok=True)
        for name in ("package.json", "package-lock.json"):
            shutil.copy(packages / name, target)
        command = ["npm", "install", "--no-save", "--no-audit", "--no-fund", "--prefix", str(target)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
        if done.returncode:
            pytest.skip(f"npm cannot install {packages.name}: {done.stderr[-300:]}")
        ready.touch()
    return target / "node_modules"


def agents() -> Path:
    """The folder of the agents' commands. Skips the test also if this machine has no network namespaces."""
    if subprocess.run(["unshare", "-rn", "true"], check=False).returncode:
        pytest.skip("needs unshare for a network namespace")
    return installed(ROOT / "tests" / "agents") / ".bin"
