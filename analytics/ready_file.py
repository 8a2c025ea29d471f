"""`run/analyze.json`: analytics is ready, and where its ports are. Written when it is ready, removed on a clean stop."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from ingest.private_files import make_private_folder, write_json

FILE = Path("run") / "analyze.json"


@dataclass(frozen=True, slots=True)
class Ready:
    """A running analytics process."""

    pid: int
    metrics: str | None = None
    """URL of its Prometheus endpoint."""
    otlp: str | None = None
    """URL where it receives spans."""


def read(data: Path) -> Ready | None:
    """What the data folder names; None when there is none. Whether the process lives is not checked."""
    try:
        found = json.loads((data / FILE).read_text())
        return Ready(int(found["pid"]), found.get("metrics"), found.get("otlp"))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def write(data: Path, ready: Ready) -> None:
    """Publish, atomically, readable by its owner alone."""
    make_private_folder((data / FILE).parent)
    write_json(data / FILE, asdict(ready))


def remove(data: Path, pid: int) -> None:
    """Withdraw it, if it is still that process's own."""
    found = read(data)
    if found is not None and found.pid == pid:
        (data / FILE).unlink(missing_ok=True)
