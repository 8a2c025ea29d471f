"""DATA/run/serve.json: `streamgauge serve` is ready at this address.

The server writes the file when it is ready and removes it on a clean stop. The file holds the token, so its mode is 0600.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

from ingest.private_files import make_private_folder, write_json

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
    make_private_folder((data / FILE).parent)
    write_json(data / FILE, asdict(endpoint))


def remove(data: Path, pid: int) -> None:
    """Remove the file unless another process wrote it."""
    found = read(data)
    if found is not None and found.pid == pid:
        (data / FILE).unlink(missing_ok=True)
