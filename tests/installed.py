"""Environments with the packages of the base install or of an extra, made from the installed packages without a network."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import cache_from_source
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
OFFERED = {name: lines for name, lines in PROJECT["optional-dependencies"].items() if name != "dev"}


def normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


@cache
def distributions(*extras: str) -> frozenset[str]:
    """Names of the distributions that an install with these extras has, as normalized, without our own."""
    found: set[tuple[str, str]] = set()

    def add(lines: list[str], extra: str) -> None:
        for line in lines:
            wanted = Requirement(line)
            if wanted.marker and not wanted.marker.evaluate({"extra": extra}):
                continue
            name = normalized(wanted.name)
            for its_extra in ("", *wanted.extras):
                if (name, its_extra) in found:
                    continue
                found.add((name, its_extra))
                if name == "streamgauge":
                    add(OFFERED[its_extra] if its_extra else [], its_extra)
                    continue
                try:
                    add(distribution(name).requires or [], its_extra)
                except PackageNotFoundError:  # of another platform
                    found.discard((name, its_extra))

    add(PROJECT["dependencies"], "")
    for extra in extras:
        add(OFFERED[extra], "")
    return frozenset(name for name, _ in found) - {"streamgauge"}


def environment(folder: Path, *extras: str) -> Path:
    """Make an environment with an install of these extras. Returns its Python. Its packages are links to those of the tests."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    for found in map(distribution, distributions(*extras)):
        for file in found.files or ():
            if ".." in file.parts or "__pycache__" in file.parts:
                continue
            # With the compiled file; otherwise each process compiles all that it imports.
            for linked in (str(file), cache_from_source(str(file))):
                path, link = str(found.locate_file(linked)), packages / linked
                if os.path.exists(path) and not link.exists():
                    link.parent.mkdir(parents=True, exist_ok=True)
                    os.symlink(os.path.realpath(path), link)
    os.symlink(ROOT / "streamgauge", packages / "streamgauge")
    return folder / "bin" / "python"
