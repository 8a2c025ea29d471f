"""Processes whose system calls fail. They are forked from one that has imported the product, which takes a tenth of a start."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import select
import signal
import subprocess
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.deadline import DEADLINE_S
from tests.faults.calls import Page

ROOT = Path(__file__).parents[2]


class Forks:
    """Starts one process at a time. Each one leads a session, and runs a function with arguments that JSON can have."""

    def __init__(self, library: Path, folder: Path, imports: Sequence[str], *, interpreted: bool) -> None:
        """Calls on files in `folder`/data fail. `imports`: modules that the processes need."""
        self.data, self.page, self._output = folder / "data", Page(folder / "page"), folder / "output"
        self.data.mkdir(mode=0o700)
        environment = {
            **os.environ,
            "LD_PRELOAD": str(library),
            "FAILING_CALLS_FOLDER": str(self.data),
            "FAILING_CALLS_PAGE": str(self.page.path),
            "STREAMGAUGE_INTERPRETED": "1" if interpreted else "0",
        }
        with self._output.open("ab") as output:
            self._server = subprocess.Popen(
                [sys.executable, "-c", "from tests.faults.forks import serve; serve()", *imports],
                env=environment, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=output, text=True, bufsize=1,
            )  # fmt: skip
        self._pid: int | None = None
        self._unread = b""

    def start(self, function: str, *arguments: object) -> None:
        """Call `function` (module:name) in a new process. No call fails until it arms the page."""
        assert self._server.stdin is not None
        print(json.dumps([function, *arguments]), file=self._server.stdin)
        self._pid = self._line()

    @property
    def running(self) -> bool:
        """Whether the process has not ended."""
        return not self._has_line(0)

    def signal(self, number: signal.Signals) -> None:
        assert self._pid is not None
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._pid, number)

    def wait(self) -> int:
        """The exit code. No process of the session may be left."""
        assert self._pid is not None
        code = self._line()
        try:
            os.killpg(self._pid, 0)
        except ProcessLookupError:
            self._pid = None
            return code
        raise AssertionError("the process has left another one behind")

    def run(self, function: str, *arguments: object) -> int:
        """`start` and `wait`."""
        self.start(function, *arguments)
        return self.wait()

    def output(self) -> str:
        """The end of what the processes have written."""
        return self._output.read_text()[-4000:]

    def close(self) -> None:
        if self._pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._pid, signal.SIGKILL)
        self._server.communicate()

    def _line(self) -> int:
        assert self._has_line(DEADLINE_S), f"the process does not end\n{self.output()}"
        line, _, self._unread = self._unread.partition(b"\n")
        return int(line)

    def _has_line(self, timeout_s: float) -> bool:
        # Not from a file object: it may have read both lines of a process, and the descriptor would have nothing more.
        output = self._server.stdout
        assert output is not None
        while b"\n" not in self._unread:
            if not select.select([output], [], [], timeout_s)[0]:
                return False
            data = os.read(output.fileno(), 4096)
            assert data, self.output()
            self._unread += data
        return True


@contextmanager
def forks(library: Path, folder: Path, *imports: str, interpreted: bool = False) -> Iterator[Forks]:
    """A server of processes, whose output is part of an error."""
    made = Forks(library, folder, imports, interpreted=interpreted)
    try:
        yield made
    except BaseException as error:
        error.add_note(made.output())
        raise
    finally:
        made.close()


def serve() -> None:
    """Fork for each line of stdin. Writes the process id and then the exit code."""
    for module in sys.argv[1:]:
        importlib.import_module(module)
    for line in sys.stdin:
        function, *arguments = json.loads(line)
        pid = os.fork()
        if pid == 0:
            _run(function, arguments)
        print(pid, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)


def _run(function: str, arguments: Sequence[object]) -> None:
    code = 1
    try:
        os.setsid()
        os.dup2(2, 1)
        module, _, name = function.partition(":")
        getattr(importlib.import_module(module), name)(*arguments)
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)
