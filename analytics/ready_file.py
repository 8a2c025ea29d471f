"""`run/analyze.json`: marks a ready analytics process and has the addresses of its ports. Removed on a clean stop."""

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
    """URL of its OTLP receiver."""


def read(data: Path) -> Ready | None:
    """The content of the file, None if there is none. The process may have died."""
    try:
        found = json.loads((data / FILE).read_text())
        return Ready(int(found["pid"]), found.get("metrics"), found.get("otlp"))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def write(data: Path, ready: Ready) -> None:
    make_private_folder((data / FILE).parent)
    write_json(data / FILE, asdict(ready))


def remove(data: Path, pid: int) -> None:
    found = read(data)
    if found is not None and found.pid == pid:
        (data / FILE).unlink(missing_ok=True)
