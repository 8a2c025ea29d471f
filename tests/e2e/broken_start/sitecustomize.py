"""Python imports this file first in each part of `up` under test: it breaks the start in the next way of the part's list.

`BROKEN_STARTS` names a folder with a file for each part: one way in each line. A start removes the first line. Without lines the part
starts as usual. Each SIGUSR1 raises `Injected` in its main thread, and adds a line to the folder's file `raised`.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any, NoReturn

MODULES = {
    "ship": ("streamgauge.ingest.ship", "kafka"),
    "analyze": ("streamgauge.analytics.main", "duckdb"),
    "serve": ("streamgauge.analytics.query.serve", "duckdb"),
    "dashboard": ("streamgauge.dashboard.launch", "streamlit"),
}
"""The main module of each part, and a package that it needs."""


def raise_at_import(module: str, error: BaseException) -> None:
    class Finder:
        def find_spec(self, name: str, *_: object) -> None:
            if name == module:
                raise error

    sys.meta_path.insert(0, Finder())  # type: ignore[arg-type]


def refuse_writes(number: int, data: str) -> None:
    """Creating or writing any file of the data folder fails, also with SQLite, until the folder of the plans has a file `writable`."""
    writable = os.path.join(os.environ["BROKEN_STARTS"], "writable")

    def check(event: str, arguments: tuple[Any, ...]) -> None:
        writes = event in ("os.mkdir", "os.rename", "sqlite3.connect") or (
            event == "open" and arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
        )
        if writes and str(arguments[0]).startswith(data) and not os.path.exists(writable):
            raise OSError(number, os.strerror(number), str(arguments[0]))

    sys.addaudithook(check)


def fail_at_event(failing: str, number: int) -> None:
    def check(event: str, _: tuple[Any, ...]) -> None:
        if event == failing:
            raise OSError(number, os.strerror(number))

    sys.addaudithook(check)


def no_thread(_: threading.Thread) -> NoReturn:
    raise RuntimeError("can't start new thread")


def break_start(way: str, part: str) -> None:
    main, package = MODULES.get(part, ("", ""))
    if way == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    elif way == "exits":
        os._exit(3)
    elif way == "hangs":
        threading.Event().wait()
    elif way == "bad setting":
        sys.argv.append("--log-format=none")
    elif way == "missing package":
        raise_at_import(package, ModuleNotFoundError(f"No module named {package!r}", name=package))
    elif way == "exception at import":
        raise_at_import(main, RuntimeError("planted"))
    elif way == "out of memory":
        raise_at_import(main, MemoryError())
    elif way == "full disk":
        refuse_writes(errno.ENOSPC, os.environ["BROKEN_DATA"])
    elif way == "read-only folder":
        refuse_writes(errno.EROFS, os.environ["BROKEN_DATA"])
    elif way == "too many open files":
        refuse_writes(errno.EMFILE, os.environ["BROKEN_DATA"])
    elif way == "port taken":
        fail_at_event("socket.bind", errno.EADDRINUSE)
    elif way == "no thread":
        threading.Thread.start = no_thread  # type: ignore[method-assign]
    else:
        raise AssertionError(way)


class Injected(Exception):
    """Raised in a main thread."""


def raise_at_signal(raised: Path, part: str) -> None:
    def injected(*_: object) -> NoReturn:
        with raised.open("a") as file:
            file.write(f"{part}\n")
        raise Injected

    signal.signal(signal.SIGUSR1, injected)


def begin() -> None:
    folder, argv = os.environ.get("BROKEN_STARTS"), sys.orig_argv
    if folder is None or "-m" not in argv or argv[argv.index("-m") + 1] != "streamgauge":
        return
    part = argv[argv.index("-m") + 2]
    raise_at_signal(Path(folder) / "raised", part)
    plan = Path(folder) / part
    way, _, rest = plan.read_text().partition("\n") if plan.exists() else ("", "", "")
    if way:
        plan.write_text(rest)
        break_start(way, part)


begin()
