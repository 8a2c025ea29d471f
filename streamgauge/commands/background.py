"""Processes of Streamgauge that a command starts, waits for and stops: those of `demo` and `run`. How to call this command again."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import IO, Any

from streamgauge.ingest.processes import cpu_s
from streamgauge.ingest.ready_file import part_of_up, read_ready_file

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 60.0
POLL_S = 0.02
OF_OTHERS = ("STREAMGAUGE_KAFKA", "STREAMGAUGE_STORE")
"""Settings of another log and another store, which the started processes do not share."""


def own_command() -> str:
    """How to call this command again: by its name if that is on the PATH, else by its path."""
    called = Path(sys.argv[0])
    return "streamgauge" if shutil.which("streamgauge") or called.name != "streamgauge" else str(called)


def stop_process(process: subprocess.Popen[bytes], grace_s: float) -> bool:
    """Stop a process, if it runs. True: it did not stop in time, and was killed."""
    if process.poll() is not None:
        return False
    process.terminate()
    try:
        process.wait(grace_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        return True
    return False


class Background:
    """The processes that one command has started. All settings are flags: the configuration file is ignored."""

    def __init__(self, report: Callable[[str], None]) -> None:
        """`report` takes one line about a process that had to be killed."""
        self._report = report
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._give_up_s: dict[str, float] = {}

    def spawn(
        self, name: str, arguments: list[str], ready_files: Iterable[Path], log: IO[bytes] | None = None,
        *, lock: IO[str] | None = None,
    ) -> None:  # fmt: skip
        """Start `streamgauge ARGUMENTS`. `log` takes its stderr; None: that of this process.

        The process is asked to stop when the calling thread ends. With `lock`, it holds this file of a lock too, and may outlive this
        process: one that is starting stops when it has started. Only analytics can.
        """
        for file in ready_files:
            file.unlink(missing_ok=True)
        own = {"STREAMGAUGE_PARENT": str(os.getpid()), "STREAMGAUGE_CONFIG": os.devnull}
        environment = {name: value for name, value in os.environ.items() if name not in OF_OTHERS} | own
        blocked = () if lock is None else (signal.SIGTERM,)  # the process inherits it
        before = signal.pthread_sigmask(signal.SIG_BLOCK, blocked)
        try:
            # Own process group: Ctrl-C signals only this process, which stops the others in order.
            self._processes[name] = subprocess.Popen(
                [sys.executable, "-P", "-m", "streamgauge", *arguments],
                env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=log, process_group=0,
                pass_fds=() if lock is None else (lock.fileno(),),
            )  # fmt: skip
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
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

    def stopped(self, name: str, within_s: float, most_s: float) -> int | None:
        """Ask a process to stop. Returns its exit code, 1 if it could not be started, or None if it still runs after this time.

        On a busy machine, a process that has used less CPU than `within_s` has more time, but at most `most_s`.
        """
        process = self._processes.get(name)
        if process is None:
            return 1
        process.terminate()
        began_s, began_cpu_s = time.monotonic(), cpu_s(process.pid)
        while process.poll() is None:
            elapsed_s = time.monotonic() - began_s
            if elapsed_s > most_s or min(elapsed_s, cpu_s(process.pid) - began_cpu_s) > within_s:
                return None
            time.sleep(POLL_S)
        return process.returncode
