"""Run a script of `in_tree` in a work tree and read its result."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.analytics.corpus import CORPUS

SCRIPTS = Path(__file__).parent / "in_tree"


class Failed(Exception):
    """A script failed; str() says which, and why."""


@dataclass(frozen=True)
class Tree:
    """A work tree with a `.venv`."""

    name: str
    """`current` or `parent`."""
    path: Path
    commit: str

    @classmethod
    def of(cls, name: str, path: Path) -> Tree:
        """Raises Failed when it has no interpreter."""
        path = path.absolute()
        if not (path / ".venv" / "bin" / "python").exists():
            raise Failed(f"{path} has no .venv. Link or create one")
        described = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--exclude", "*"],
            cwd=path,
            capture_output=True,
            text=True,
        )
        return cls(name, path, described.stdout.strip())

    def run(self, script: str, *arguments: object) -> dict[str, Any]:
        """The JSON that the script prints in its last line. Raises Failed."""
        environment = {**os.environ, "PYTHONPATH": str(self.path), "STREAMGAUGE_CORPUS": str(CORPUS)}
        done = subprocess.run(
            [self.path / ".venv" / "bin" / "python", SCRIPTS / f"{script}.py", *map(str, arguments)],
            cwd=self.path,
            env=environment,
            capture_output=True,
            text=True,
        )
        if done.returncode or not done.stdout.strip():
            raise Failed(
                f"{script} in {self.path} failed (exit code {done.returncode}): {done.stderr[-3000:].strip()}"
            )
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return found


def run_alternately(
    trees: list[Tree], rounds: int, script: str, *arguments: object
) -> dict[str, list[dict[str, Any]]]:
    """Results by tree; every other round begins with the other tree."""
    found: dict[str, list[dict[str, Any]]] = {tree.name: [] for tree in trees}
    for number in range(rounds):
        for tree in trees if number % 2 == 0 else reversed(trees):
            result = tree.run(script, *arguments)
            print(f"  {script} {' '.join(map(str, arguments))}, round {number + 1}, {tree.name}", flush=True)
            found[tree.name].append(result)
    return found
