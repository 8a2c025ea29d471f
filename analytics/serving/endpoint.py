"""Where the running analytics answers SQL: DATA/run/analyze.json, written when it is ready, removed on a clean stop.

With a lake nobody serves: the file names the lake, and whoever asks attaches it. It holds the token or the lake's DSN, so it
is 0600 and written as a whole: a reader never sees half of it.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path

FILE = Path("run") / "analyze.json"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Address (`quack:localhost:9494`), token and process of the analytics that serves a data folder."""

    quack: str
    token: str = field(repr=False)
    pid: int = 0
    metrics: str | None = None
    """URL of its Prometheus endpoint, where there is one."""
    lake: str | None = field(default=None, repr=False)
    """The lake that it writes (`ducklake:postgres:…`): then it answers no SQL itself, and `quack` is empty."""
    otlp: str | None = None
    """URL where it takes spans, where it does."""


def read(data: Path) -> Endpoint | None:
    """The endpoint that the data folder names; None when there is none (yet). Says nothing of whether it lives."""
    try:
        found = json.loads((data / FILE).read_text())
        return Endpoint(
            str(found["quack"]),
            str(found["token"]),
            int(found["pid"]),
            found.get("metrics"),
            found.get("lake"),
            found.get("otlp"),
        )
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (ValueError, KeyError, TypeError):
        return None


def write(data: Path, endpoint: Endpoint) -> None:
    """Publish the endpoint, atomically, readable by its owner alone."""
    path = data / FILE
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    part = path.with_suffix(f".{os.getpid()}.part")
    with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        said = {
            "pid": endpoint.pid,
            "quack": endpoint.quack,
            "token": endpoint.token,
            "metrics": endpoint.metrics,
            "lake": endpoint.lake,
            "otlp": endpoint.otlp,
        }
        json.dump(said, file)
    part.replace(path)


def remove(data: Path, pid: int) -> None:
    """Withdraw the endpoint, if it is still that process's own."""
    found = read(data)
    if found is not None and found.pid == pid:
        (data / FILE).unlink(missing_ok=True)
