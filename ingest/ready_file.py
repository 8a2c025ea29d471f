"""Ready files: a part writes `run/<part>.json` with its pid and addresses when it is ready, and removes it when it stops.

- While it is ready, the loop that does the part's work touches the file every `HEARTBEAT_S`. The file's time is the time of
  the part's last progress.
- A killed process leaves its file behind.
- A file can hold a token, so only its owner can read it.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ingest.private_files import make_private_folder, write_json

HEARTBEAT_S = 1.0
SILENT_AFTER_S = 10.0
"""A part without a heartbeat for this long is reported."""


def read_ready_file(path: Path) -> dict[str, Any] | None:
    """The content of the file; None if it is missing or invalid."""
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) and isinstance(content.get("pid"), int) else None


def write_ready_file(path: Path, content: Mapping[str, object]) -> None:
    """Write the file of this process and create its folder. Raises OSError."""
    make_private_folder(path.parent)
    write_json(path, {"pid": os.getpid(), **content})


def remove_ready_file(path: Path) -> None:
    """Remove the file unless another process wrote it."""
    content = read_ready_file(path)
    if content is not None and content["pid"] == os.getpid():
        path.unlink(missing_ok=True)


def heartbeat_ns(path: Path) -> int | None:
    """Wall time of the last heartbeat; None without a file."""
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return None


def silent_s(path: Path) -> float:
    """Seconds since the last heartbeat; 0 without a file."""
    beat_ns = heartbeat_ns(path)
    return max(0.0, time.time() - beat_ns / 1e9) if beat_ns is not None else 0.0


def silence(data: Path, part: str) -> str | None:
    """A sentence with the time of the last heartbeat, if a running part has none for `SILENT_AFTER_S`."""
    path = data / "run" / f"{part}.json"
    content, for_s = read_ready_file(path), silent_s(path)
    if content is None or for_s < SILENT_AFTER_S or not Path(f"/proc/{content['pid']}").exists():
        return None
    since = datetime.fromtimestamp(datetime.now(UTC).timestamp() - for_s, UTC)
    return (
        f"{part} (pid {content['pid']}) does not respond since {since:%Y-%m-%d %H:%M:%S} UTC ({for_s:.0f} s)"
    )


class Heartbeat:
    """Touches a ready file. Call `beat` from the loop that does the part's work, never from a thread of its own.

    An error is ignored: `up` does not judge parts while the folder cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._next_s = 0.0

    def beat(self) -> None:
        """Touch the file if `HEARTBEAT_S` has passed. May wait for the disk."""
        now_s = time.monotonic()
        if now_s >= self._next_s:
            self._next_s = now_s + HEARTBEAT_S
            with contextlib.suppress(OSError):
                os.utime(self._path)
