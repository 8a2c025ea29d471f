"""Ready files: a part writes `run/<part>.json` with its pid and addresses when it is ready, and removes it when it stops.

- While it is ready, the loop that does the part's work touches the file every `HEARTBEAT_S`. The file's time is the time of
  the part's last progress.
- `up` judges a part by a file in memory that both have open (`report_progress`), because a full disk cannot stop its heartbeats.
- A killed process leaves its file behind.
- `run/<part>.starting.json` has what a part does for long before it is ready, such as an upgrade.
- A file can hold a token, so only its owner can read it.
- While threads or loops of the part are at fault (`streamgauge.ingest.guards`), the file has them in `faults`: name → sentence. A full
  disk can prevent this.
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

from streamgauge.ingest import processes
from streamgauge.ingest.private_files import make_private_folder, write_json

HEARTBEAT_S = 1.0
SILENT_AFTER_S = 10.0
"""`up` reports a part that makes no progress for this long."""
SILENT_WITHOUT_UP_AFTER_S = 60.0
"""Readers report a part that has no heartbeat for this long. Only `up` observes whether a part without one works."""
PROGRESS_VARIABLE = "_STREAMGAUGE_PROGRESS_FD"
"""Environment variable with the descriptor of the file in memory that `up` observes."""
_value = os.environ.pop(PROGRESS_VARIABLE, "")  # processes that the part starts do not have the descriptor
_progress_descriptor = int(_value) if _value.isdigit() else None


def report_progress() -> None:
    """Show the `up` that started this process that its work goes on. Does nothing without one."""
    if _progress_descriptor is not None:
        with contextlib.suppress(OSError):
            os.utime(_progress_descriptor)


def read_ready_file(path: Path) -> dict[str, Any] | None:
    """The content of the file; None if it is missing or invalid."""
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) and isinstance(content.get("pid"), int) else None


def read_of_running(path: Path) -> dict[str, Any] | None:
    """As `read_ready_file`; None if the process that wrote the file has ended. Another one may have its pid."""
    content = read_ready_file(path)
    if content is None:
        return None
    try:
        written_s = path.stat().st_ctime
    except OSError:
        return None
    running_s = processes.age_s(content["pid"])
    # Pids are reused. A process that started after the file was written cannot have written it; the second is for its coarse age.
    return content if running_s is not None and time.time() - running_s <= written_s + 1 else None


def part_of_up(data: Path, part: str) -> dict[str, Any] | None:
    """What the running `up` has written about a part: `pid`, `silent_since`, `failure`. None without `up` or if it has no such part."""
    state = read_of_running(data / "run" / "up.json") or {}
    found: dict[str, Any] | None = state.get("parts", {}).get(part)
    return found


def write_ready_file(path: Path, content: Mapping[str, object]) -> None:
    """Write the file of this process and create its folder. Raises OSError."""
    make_private_folder(path.parent)
    write_json(path, {"pid": os.getpid(), **content})


def remove_ready_file(path: Path) -> None:
    """Remove the file unless another process wrote it. A disk that fails does not fail the stop: the file names a process that ends."""
    content = read_ready_file(path)
    if content is not None and content["pid"] == os.getpid():
        with contextlib.suppress(OSError):
            path.unlink()


def _heartbeat_ns(path: Path) -> int | None:
    """Wall time of the last heartbeat; None without a file."""
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return None


def silence(data: Path, part: str) -> str | None:
    """A sentence about a part that starts or makes no progress, with the time, or that does not run, with the reason; else None.

    With `up`, its observation counts, else the heartbeats.
    """
    if (text := starting(data, part)) is not None:
        return text
    path = data / "run" / f"{part}.json"
    found = part_of_up(data, part)
    if found is not None:
        if (why := found.get("failure")) is not None:
            return f"{part} does not run: {why}"
        if found["silent_since"] is None:
            return None
        since = datetime.fromisoformat(found["silent_since"])
    else:
        found, beat_ns = read_of_running(path), _heartbeat_ns(path)
        if found is None or beat_ns is None or time.time() - beat_ns / 1e9 < SILENT_WITHOUT_UP_AFTER_S:
            return None
        since = datetime.fromtimestamp(beat_ns / 1e9, UTC)
    for_s = (datetime.now(UTC) - since).total_seconds()
    return f"{part} (pid {found['pid']}) does not respond since {since:%Y-%m-%d %H:%M:%S} UTC ({for_s:.0f} s)"


def written_faults(data: Path, part: str) -> dict[str, str]:
    """The faults in the file of a running part: name → sentence."""
    found = (read_of_running(data / "run" / f"{part}.json") or {}).get("faults")
    return found if isinstance(found, dict) else {}


def _start_file(data: Path, part: str) -> Path:
    return data / "run" / f"{part}.starting.json"


def write_start(data: Path, part: str, doing: str | None) -> None:
    """Show readers what a part does for long before it is ready. None: it is done. The disk may be full."""
    path = _start_file(data, part)
    if doing is None:
        remove_ready_file(path)
        return
    since = (read_of_running(path) or {}).get("since") or datetime.now(UTC).isoformat()
    with contextlib.suppress(OSError):
        write_ready_file(path, {"doing": doing, "since": since})


def starting(data: Path, part: str) -> str | None:
    """A sentence about a part that does something for long before it is ready; else None."""
    found = read_of_running(_start_file(data, part))
    if found is None:
        return None
    since = datetime.fromisoformat(found["since"])
    return f"{part} (pid {found['pid']}) starts since {since:%Y-%m-%d %H:%M:%S} UTC: {found['doing']}"


class Heartbeat:
    """Reports progress and touches a ready file. Call `beat` from the loop that does the part's work, never from a thread of its own.

    An error is ignored. `content`: write the file if it is missing, because the disk was full at the start, or if a process that
    has ended left it behind.
    """

    def __init__(self, path: Path, content: Mapping[str, object] | None = None) -> None:
        self._path = path
        self.content = content
        self._next_s = 0.0
        self._at_fault = False

    def beat(self, faults: Mapping[str, str] | None = None) -> None:
        """Touch the file if `HEARTBEAT_S` has passed, and write the faults, if there are any. May wait for the disk."""
        now_s = time.monotonic()
        if now_s >= self._next_s:
            self._next_s = now_s + HEARTBEAT_S
            report_progress()
            with contextlib.suppress(OSError):
                self._touch(faults)

    def _touch(self, faults: Mapping[str, str] | None) -> None:
        written = read_ready_file(self._path)
        if written is not None and written["pid"] == os.getpid():
            os.utime(self._path)
        elif self.content is not None and read_of_running(self._path) is None:
            written = dict(self.content)
            write_ready_file(self._path, written)
        else:
            return
        if faults or self._at_fault:
            write_ready_file(self._path, {**written, "faults": dict(faults or {})})
            self._at_fault = bool(faults)
