"""`streamgauge run`: one command whose model requests pass through a tap, and a summary of them."""

from __future__ import annotations

import importlib
import os
import resource
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import click
import cloup

from streamgauge.analytics.extras import require
from streamgauge.analytics.reports.formatting import duration, plural
from streamgauge.analytics.storage.data_folder_lock import RUN, UP, lock_data_folder
from streamgauge.analytics.storage.location import SQLITE, locate
from streamgauge.commands import agent_telemetry
from streamgauge.commands.background import POLL_S, Background, own_command
from streamgauge.commands.client_programs import Call, Routes
from streamgauge.ingest.http1.upstreams import NAME, parse_upstream, parse_upstreams
from streamgauge.ingest.listening import bind, join_address
from streamgauge.ingest.ready_file import read_of_running
from streamgauge.settings.values import Address

if TYPE_CHECKING:
    from streamgauge.commands.telemetry_spool import TelemetrySpool

NOT_EXECUTABLE, NOT_FOUND, BY_SIGNAL = 126, 127, 128
"""Exit codes of a shell: the command cannot be run, does not exist, was ended by a signal (plus its number)."""
ANY_PORT = "127.0.0.1:0"
BASE_URLS = {
    "OpenAI": "OPENAI_BASE_URL",
    "Anthropic": "ANTHROPIC_BASE_URL",
    "Google": "GOOGLE_GEMINI_BASE_URL",
}
"""API → variable with its base URL."""
SUMMARY_MODULES = ("polars", "pyarrow.compute", "duckdb", "streamgauge.commands.request_summary")
"""Imports of the summary, the long ones first. None is made for a command that has ended without a request."""
RUN_TOTALS = "streamgauge.ingest.record_log.run_totals"
STORE_S, MOST_STORE_S = 1.4, 10.0
"""After the command, analytics has this long to store the last requests before the summary: on a quiet machine, at most. The rest is
stored in the background."""
DRAIN_S = 1.0
"""Time for requests that the command has left open."""
LOCK_S, SAY_LOCK_S = 60.0, 2.0
"""Time for the analytics of an earlier run to release the data folder. After the second time a line says what is awaited."""
FORWARDED = (signal.SIGTERM, signal.SIGHUP)
KEYS = (signal.SIGINT, signal.SIGQUIT)
"""Signals of the terminal, which the command gets itself."""


@cloup.command("run", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@cloup.argument("command", nargs=-1, type=click.UNPROCESSED, required=True)
@cloup.option(
    "--upstream",
    multiple=True,
    metavar="[NAME=]URL",
    help="Gateway to send the requests to, or the upstream of one provider, such as openai=URL; repeatable.  [default: the base URLs in "
    "the environment, else the providers]",
)
@cloup.option(
    "--name",
    metavar="NAME",
    help="Name of the run, in the column `tap`.  [default: the command and the time]",
)
@cloup.option(
    "--data",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="FOLDER",
    help="Data folder.  [default: a folder of the run's name below ~/.local/share/streamgauge/runs]",
)
@cloup.option(
    "--listen", type=Address(), metavar="HOST:PORT", default=ANY_PORT,
    help="Address of the tap, for programs that have it in a file or flag.  [default: a free port of this machine]",
)  # fmt: skip
@cloup.option(
    "--join", is_flag=True, help="Use the tap that `up` runs on the data folder, and start nothing."
)
@cloup.option("--no-dashboard", is_flag=True, help="Do not start the dashboard.")
@cloup.option(
    "--price-file", type=click.Path(exists=True, dir_okay=False, path_type=Path), metavar="FILE",
    help="CSV or TOML file with prices of tokens, for the cost of the run.",
)  # fmt: skip
def run_command(command: tuple[str, ...], **options: Any) -> int:
    """Run a command, and measure its model requests.

    \b
    streamgauge run -- claude -p "explain this repository"
    streamgauge run --upstream http://localhost:4000 -- python agent.py

    Starts a tap and points the command at it: Claude Code, Codex, Gemini CLI, opencode, pi, Qwen Code, aider, llm, and any program
    with the SDK of OpenAI, Anthropic or Google. The command uses the terminal, and `run` returns its exit code. The summary goes to
    stderr.
    """
    require("duckdb" if options["no_dashboard"] or options["join"] else "streamlit")
    if (path := shutil.which(command[0])) is None:
        exists = shutil.which(command[0], os.F_OK) or (os.sep in command[0] and os.path.lexists(command[0]))
        click.echo(
            f"streamgauge: cannot run {command[0]}: {'not executable' if exists else 'no such command'}",
            err=True,
        )
        return NOT_EXECUTABLE if exists else NOT_FOUND
    return Run(path, command, **options).run()


class Run:
    """One run of a command.

    The command starts when the tap is ready. Analytics and the dashboard start in parallel. When it ends, the tap stops first, then
    analytics, which may store the last requests after this process has ended.
    """

    def __init__(
        self, program: str, command: Sequence[str], *, upstream: tuple[str, ...], name: str | None, data: Path | None,
        listen: str, join: bool, no_dashboard: bool, price_file: Path | None,
    ) -> None:  # fmt: skip
        """`program`: path of the command. Raises click.UsageError or ValueError."""
        self._program, self._command, self._join, self._listen = program, command, join, listen
        self._is_agent = Path(program).name in agent_telemetry.AGENTS
        self._given = parse_upstreams(upstream)
        self._began_at = datetime.now(UTC)
        self._name = name or f"{Path(program).name}-{self._began_at.astimezone():%Y%m%d-%H%M%S}"
        if not NAME.fullmatch(self._name):
            raise click.UsageError(
                f"--name: {self._name!r} is not a name: use letters, digits, '.', '_', '-'"
            )
        self._data, store = data or runs_folder() / self._name, SQLITE
        if join:
            from streamgauge.settings.flags import (
                load_with_running_parts,  # other runs need not wait for its import
            )

            # The store of the running analytics: it need not be in the data folder.
            joined = load_with_running_parts({"data": data})
            self._data, store = joined.data, joined.store
        self._location = locate(store, self._data)
        # The port is chosen here, so that its address can be said before the command takes the terminal.
        self._dashboard = None if no_dashboard or join else free_address()
        self._price_file = price_file
        self._background = Background(say)
        self._log = self._data / "run.log"
        self._ended = threading.Event()
        self._opened_before = 0
        self._lock: IO[str] | None = None
        self._spool: TelemetrySpool | None = None

    def run(self) -> int:
        """Returns the exit code of the command. Raises OSError or ValueError, with one line, if the tap cannot start."""
        # Its thread starts the other processes, which end with it.
        with ThreadPoolExecutor(1) as beside:
            try:
                tap, routes = self._running_tap() if self._join else self._start()
                call = routes.point([self._program, *self._command[1:]], tap, self._data)
                if self._is_agent and (receiver := self._receiver()):
                    agent_telemetry.switch_on(call, receiver)
                for note in call.notes:
                    say(note)
                self._opened_before = opened_streams(self._data)
                measured = beside.submit(self._measure)
                started_s = time.monotonic()
                code = run_in_terminal(call)
                ended_s = time.monotonic()
            finally:
                self._ended.set()
                self._background.stop("tap")
            wait([measured])
            self._finish(call, tap, started_s, ended_s)
        return code if code >= 0 else _end_by(-code)

    def _running_tap(self) -> tuple[str, Routes]:
        tap = read_of_running(self._data / "run" / "tap.json")
        if tap is None:
            raise click.UsageError(
                f"no tap runs on {self._data}. Pass its folder with --data, or leave out --join."
            )
        # The tap adds the paths of its upstreams itself.
        upstreams = [replace(parse_upstream(text), base_path="") for text in tap["upstreams"]]
        return str(tap["listen"]), Routes(self._given or upstreams, os.environ)

    def _receiver(self) -> str | None:
        """The URL for the telemetry of the command. None: it cannot be received."""
        if self._join:
            running = self._analytics()
            return None if running.get("otlp_requires_token") else running.get("otlp")
        return self._spool.url if self._spool is not None else None

    def _analytics(self) -> dict[str, Any]:
        """The content of its ready file, {} while it does not run."""
        return read_of_running(self._data / "run" / "analyze.json") or {}

    def _start(self) -> tuple[str, Routes]:
        routes = Routes(self._given, os.environ)
        lock_data_folder(self._data, UP).close()
        self._lock = self._await_lock()
        self._log.unlink(missing_ok=True)
        flags = [word for upstream in routes.upstreams for word in ("--upstream", str(upstream))]
        flags += ["--tap-name", self._name, "--drain-timeout", f"{DRAIN_S}s"]
        self._spawn("tap", *flags, "--listen", self._listen, "--admin", ANY_PORT)
        # In parallel with the start of the tap: what the command needs, and takes time to import.
        importlib.import_module(RUN_TOTALS)
        if self._is_agent and find_spec("uvicorn") is not None:
            from streamgauge.commands.telemetry_spool import TelemetrySpool

            self._spool = TelemetrySpool(lambda: self._analytics().get("otlp"))
        if self._dashboard is not None:
            say(f"dashboard: http://{self._dashboard}")
        tap = self._await("tap")
        return str(tap["listen"]), routes

    def _spawn(self, part: str, *flags: str) -> None:
        with open(self._log, "ab", opener=partial(os.open, mode=0o600)) as log:
            ready_file, words = self._data / "run" / f"{part}.json", [part, "--data", str(self._data), *flags]
            lock = self._lock if part == "analyze" else None
            self._background.spawn(part, words, [ready_file], log, lock=lock)

    def _await(self, part: str) -> dict[str, Any]:
        """The content of the ready file; {} if the command ends first."""
        while not self._ended.is_set():
            try:
                found = self._background.ready(part, self._data / "run" / f"{part}.json")
            except SystemExit:
                raise OSError(f"cannot start {part}: {self._last_line()}") from None
            if found is not None:
                return found
            time.sleep(POLL_S)
        return {}

    def _last_line(self) -> str:
        lines = self._log.read_text(errors="replace").splitlines()
        return lines[-1] if lines else f"see {self._log}"

    def _await_lock(self) -> IO[str]:
        """Lock the data folder for this run and its analytics. That of an earlier run may still be at work. Raises OSError."""
        began_s, said = time.monotonic(), False
        while True:
            try:
                return lock_data_folder(self._data, RUN)
            except OSError:
                waited_s = time.monotonic() - began_s
                if waited_s > LOCK_S or read_of_running(self._data / "run" / "tap.json"):
                    raise
                if waited_s > SAY_LOCK_S and not said:
                    say("waiting for an earlier run, which stores its last requests")
                    said = True
            time.sleep(POLL_S)

    def _measure(self) -> None:
        """Start analytics, import what the summary needs, then start the dashboard, which would delay both."""
        if not self._join:
            prices = ["--price-file", str(self._price_file)] if self._price_file is not None else []
            otlp = ["--otlp-listen", ANY_PORT] if self._spool is not None else []
            self._spawn("analyze", "--metrics", ANY_PORT, *prices, *otlp)
        for module in SUMMARY_MODULES:
            if not self._ended.is_set():
                importlib.import_module(module)
        if self._dashboard is not None and self._await("analyze"):
            self._spawn("dashboard", "--dashboard-listen", self._dashboard)

    def _finish(self, call: Call, tap: str, started_s: float, ended_s: float) -> None:
        """Say how long the command ran, and what is stored of its requests."""
        say(f"{self._name}: {duration((ended_s - started_s) * 1e9)}")
        if self._join:
            time.sleep(STORE_S)  # analytics commits within it
        if not (seen := opened_streams(self._data) - self._opened_before):
            self._hint(call, tap)
            return
        from streamgauge.analytics.query.query_errors import QueryError
        from streamgauge.analytics.reports.selection import Selection
        from streamgauge.commands.request_summary import Summary, summarize

        code: int | None = 0
        if self._spool is not None and (unsent := self._spool.finish()):
            say(f"  telemetry  {unsent:,} {plural(unsent, 'request')} of the agent not stored")
        if not self._join:
            spent_s = time.monotonic() - ended_s
            code = self._background.stopped("analyze", STORE_S - spent_s, MOST_STORE_S)
        found = Summary([], 0)
        try:
            found = summarize(self._location, Selection(since=self._began_at, until=datetime.now(UTC)))
        except QueryError as e:
            if code == 0:
                say(f"  no summary: {e}")
        for line in found.lines:
            say(line)
        if (pending := seen - found.stored) > 0:
            self._say_pending(pending, code)
        elif not found.lines:
            self._hint(call, tap)
            return
        if not self._join:
            say(f"  dashboard  {own_command()} dashboard --data {shlex.quote(str(self._data))}")

    def _say_pending(self, number: int, code: int | None) -> None:
        """Say where requests are that are not in the tables. `code`: exit code of analytics, None while it runs."""
        if self._join:
            where = "not in the tables yet. The running analytics stores them when they have ended"
        elif code is None:
            where = "not in the tables yet. A background process stores them within seconds"
        else:
            command = f"{own_command()} analyze --data {shlex.quote(str(self._data))}"
            where = f"only in the record log: {self._last_line()}. Store them with {command}"
        say(f"  pending    {number:,} {plural(number, 'request')} {where}.")

    def _hint(self, call: Call, tap: str) -> None:
        """Say how to measure a program that ignores the variables: its base URL, and the command to run then."""
        words = sys.argv[1:]
        if not self._join and self._listen == ANY_PORT:
            words[1:1] = ["--listen", tap.partition("://")[2]]
        say(
            f"  no request reached the tap: {self._command[0]} may take its base URL from a flag or a file. Set it there:"
        )
        for api, variable in BASE_URLS.items():
            say(f"    {api:<9}  {call.environment[variable]}")
        say(f"  Then run   {shlex.join([own_command(), *words])}")


def run_in_terminal(call: Call) -> int:
    """Run a command with this terminal. Returns its exit code, or minus the number of the signal that ended it."""

    def handle(number: int, frame: object) -> None:
        """A handler, because the command would inherit SIG_IGN, and because only handled signals reach the socket."""

    handled = [n for n in (*FORWARDED, *KEYS) if signal.getsignal(n) is not signal.SIG_IGN]
    # Whichever thread receives a signal, Python writes it to this socket. `waitpid` returns only if this thread receives it.
    received, written = socket.socketpair()
    written.setblocking(False)
    with received, written:
        before = signal.set_wakeup_fd(written.fileno(), warn_on_full_buffer=False)
        try:
            for number in (*handled, signal.SIGCHLD):
                signal.signal(number, handle)
            try:
                process = subprocess.Popen(call.argv, env=call.environment)
            except OSError as e:  # of another kind of machine, for example
                say(f"streamgauge: cannot run {call.argv[0]}: {e.strerror}")
                return NOT_EXECUTABLE
            while process.poll() is None:
                for kind in received.recv(64):
                    if kind in FORWARDED:
                        process.send_signal(kind)
            return process.returncode
        finally:
            signal.set_wakeup_fd(before)


def _end_by(number: int) -> int:
    """End this process by a signal, as the command did: a shell has its exit code, and stops a loop after Ctrl-C.

    Returns the exit code for SIGKILL, after which this process could not clean up.
    """
    if number != signal.SIGKILL:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the command has left its own core file, if any
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    return BY_SIGNAL + number


def opened_streams(data: Path) -> int:
    """The number of exchanges that the taps of a data folder have begun."""
    totals = importlib.import_module(RUN_TOTALS).read_run_totals(data / "log")
    return sum(run.streams_opened for run in totals.values())


def free_address() -> str:
    with bind("127.0.0.1:0") as sock:
        return join_address(*sock.getsockname()[:2])


def runs_folder() -> Path:
    base = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(base) / "streamgauge" / "runs"


def say(line: str) -> None:
    """Write a line to stderr: stdout is the command's."""
    click.echo(line, err=True)
