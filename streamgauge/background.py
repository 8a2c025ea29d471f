"""Processes of Streamgauge that a command starts, waits for and stops: those of `demo` and `run`."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import IO, Any

from streamgauge.ingest.ready_file import part_of_up, read_ready_file
from streamgauge.up import stop_process

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 60.0


class Background:
    """The processes that one command has started. All settings are flags: the configuration file is ignored."""

    def __init__(self, report: Callable[[str], None]) -> None:
        """`report` takes one line about a process that had to be killed."""
        self._report = report
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._give_up_s: dict[str, float] = {}

    def spawn(
        self, name: str, arguments: list[str], ready_files: Iterable[Path], log: IO[bytes] | None = None
    ) -> None:
        """Start `streamgauge ARGUMENTS`. `log` takes its stderr; None: that of this process."""
        for file in ready_files:
            file.unlink(missing_ok=True)
        environment = dict(os.environ, STREAMGAUGE_PARENT=str(os.getpid()), STREAMGAUGE_CONFIG=os.devnull)
        # Own process group: Ctrl-C signals only this process, which stops the others in order.
        self._processes[name] = subprocess.Popen(
            [sys.executable, "-P", "-m", "streamgauge", *arguments],
            env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=log, process_group=0,
        )  # fmt: skip
        self._give_up_s[name] = time.monotonic() + START_TIMEOUT_S

    def ready(self, name: str, path: Path) -> dict[str, Any] | None:
        """The content of a ready file of the process or of a part of it; None while it starts. Raises OSError if it cannot start.

        The time limit is not for `up`, which starts its parts again and again and says why.
        """
        if (content := read_ready_file(path)) is not None:
            return content
        data, part = path.parents[1], path.stem
        code = self._processes[name].poll()
        if code is not None:
            raise SystemExit(code if code > 0 else 1)  # the process has logged the reason
        if (why := (part_of_up(data, part) or {}).get("failure")) is not None:
            raise OSError(f"cannot start {part}: {why}")
        if name != "up" and time.monotonic() > self._give_up_s[name]:
            raise OSError(f"{part} was not ready after {START_TIMEOUT_S:.0f} s. See its log lines above.")
        return None

    def check_alive(self) -> None:
        """Raise OSError if a process has ended."""
        for name, process in self._processes.items():
            if (code := process.poll()) is not None:
                raise OSError(f"{name} exited unexpectedly with code {code}")

    def stop(self, *names: str) -> None:
        """Stop those of the processes that run, one after the other."""
        for name in names:
            process = self._processes.get(name)
            if process is not None and stop_process(process, STOP_TIMEOUT_S):
                self._report(f"Killed {name}: it did not stop within {STOP_TIMEOUT_S:.0f} s")
