"""Where `streamgauge serve` answers: DATA/run/serve.json, written when it is ready and removed on a clean stop.

The file holds the token, so its mode is 0600. It is replaced as a whole: a reader never sees half of it.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path

FILE = Path("run") / "serve.json"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A running server."""

    pid: int
    quack: str
    """Address, for example `quack:localhost:9494`."""
    token: str = field(repr=False)


def read(data: Path) -> Endpoint | None:
    """The endpoint in the data folder, None without a valid one. The server may have ended since."""
    try:
        found = json.loads((data / FILE).read_text())
        return Endpoint(int(found["pid"]), str(found["quack"]), str(found["token"]))
    except (FileNotFoundError, NotADirectoryError, ValueError, KeyError, TypeError):
        return None


def write(data: Path, endpoint: Endpoint) -> None:
    """Publish the endpoint. Raises OSError."""
    path = data / FILE
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    part = path.with_suffix(f".{os.getpid()}.part")
    with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        json.dump(asdict(endpoint), file)
    part.replace(path)


def remove(data: Path, pid: int) -> None:
    """Remove the endpoint if it belongs to that process."""
    found = read(data)
    if found is not None and found.pid == pid:
        (data / FILE).unlink(missing_ok=True)
