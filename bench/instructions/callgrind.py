"""User-space instructions of a process, counted by callgrind (Debian's package `valgrind`).

Valgrind does not know AVX-512, and libraries do not use it there.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {
    "PATH": os.environ.get("PATH", os.defpath),
    "HOME": "/nonexistent",
    "TMPDIR": tempfile.gettempdir(),
    "PYTHONHASHSEED": "0",
    "POLARS_MAX_THREADS": "1",
}
"""The whole environment of a counted process: its size moves the stack."""


class NotCounted(Exception):
    """A count failed, with the reason in one line."""


def missing() -> str:
    """What has to be installed, "" if nothing."""
    wanted = {
        "valgrind": "valgrind",
        "callgrind_control": "valgrind",
        "setarch": "util-linux",
        "taskset": "util-linux",
        "cc": "gcc",
    }
    packages = sorted({package for program, package in wanted.items() if shutil.which(program) is None})
    return f"missing on Debian: apt-get install {' '.join(packages)}" if packages else ""


def command(out: Path, *options: str) -> list[str]:
    """What runs a program under callgrind, without randomized addresses. It writes to `out` and files that begin with it."""
    environment = ["env", "-i", *(f"{name}={value}" for name, value in ENVIRONMENT.items())]
    callgrind = ["valgrind", "-q", "--tool=callgrind", "--compress-strings=no", f"--callgrind-out-file={out}"]
    return [*environment, "setarch", "-R", *callgrind, *options]


def run(out: Path, argv: Sequence[str], *options: str) -> str:
    """Run Python on one core until it ends. Returns its output. Raises NotCounted."""
    core = min(os.sched_getaffinity(0))
    python = ["taskset", "-c", str(core), *command(out, *options), sys.executable, *argv]
    done = subprocess.run(python, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        raise NotCounted(f"{' '.join(argv)}: {(done.stderr or done.stdout)[-2000:]}")
    return done.stdout


def name_of(dump: Path) -> str:
    """The name that the process gave to a file, "" for the file of its end."""
    found = re.search(r"^desc: Trigger: Client Request: (.*)", dump.read_text(), re.MULTILINE)
    return found[1] if found else ""


def by_library(dump: Path) -> Counter[str]:
    """The instructions in a file by the library that contains them, without those of the functions that they call."""
    found: Counter[str] = Counter()
    library, of_call = "", False
    for line in dump.read_text().splitlines():
        if line.startswith("ob="):
            library = line[3:]
        elif line.startswith("calls="):
            of_call = True
        elif line and line[0] in "0123456789+-*":
            if not of_call:
                found[library] += int(line.split()[-1])
            of_call = False
    return found
