"""`streamgauge run`: one command whose model requests pass through a tap, and a summary of them."""

from __future__ import annotations

import contextlib
import os
import resource
import shlex
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import click
import cloup

from streamgauge.analytics.extras import require
from streamgauge.analytics.query.errors import QueryError
from streamgauge.analytics.query.query_pool import QueryPool
from streamgauge.analytics.reports import Query, formatting, run_summary, stream_lists
from streamgauge.analytics.reports.overview import STORED_AFTER
from streamgauge.analytics.reports.selection import Selection
from streamgauge.analytics.storage.location import SQLITE, StoreLocation, locate
from streamgauge.background import Background
from streamgauge.client_programs import Call, Routes
from streamgauge.flags import load_with_running_parts, own_command
from streamgauge.ingest.listening import bind, join_address
from streamgauge.ingest.private_files import prepare_data_folder
from streamgauge.ingest.ready_file import read_of_running
from streamgauge.ingest.tap.http.upstreams import NAME, parse_upstream, parse_upstreams

NOT_FOUND = 127
"""Exit code of a shell for a command that does not exist."""
POLL_S = 0.02
ROWS_TIMEOUT_S = 10.0
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

    Starts a tap on a free port and points the command at it: Claude Code, Codex, Gemini CLI, opencode, Qwen Code, aider, llm, and any
    program with the SDK of OpenAI, Anthropic or Google. The command has the terminal, and its exit code is that of `run`. The
    summary is on stderr.
    """
    require("duckdb" if options["no_dashboard"] or options["join"] else "streamlit")
    if (path := shutil.which(command[0])) is None:
        click.echo(f"streamgauge: cannot run {command[0]}: no such command", err=True)
        return NOT_FOUND
    return Run(path, command, **options).run()


class Run:
    """One run of a command."""

    def __init__(
        self, program: str, command: Sequence[str], *, upstream: tuple[str, ...], name: str | None, data: Path | None,
        join: bool, no_dashboard: bool, price_file: Path | None,
    ) -> None:  # fmt: skip
        """`program`: path of the command. Raises click.UsageError or ValueError."""
        self._program, self._command, self._join = program, command, join
        self._given = parse_upstreams(upstream)
        self._began_at = datetime.now(UTC)
        self._name = name or f"{Path(program).name}-{self._began_at.astimezone():%Y%m%d-%H%M%S}"
        if not NAME.fullmatch(self._name):
            raise click.UsageError(
                f"--name: {self._name!r} is not a name: use letters, digits, '.', '_', '-'"
            )
        # The store of the running analytics: it need not be in the data folder.
        joined = load_with_running_parts({"data": data}) if join else None
        self._data = joined.data if joined else data or runs_folder() / self._name
        self._location = locate(joined.store if joined else SQLITE, self._data)
        self._dashboard = not no_dashboard and not join
        self._price_file = price_file
        self._background = Background(say)

    def run(self) -> int:
        """Returns the exit code of the command. Raises OSError or ValueError, with one line, if the tap cannot start."""
        try:
            tap, routes = self._running_tap() if self._join else self._start()
            call = routes.point([self._program, *self._command[1:]], tap, self._data)
            for note in call.notes:
                say(note)
            code = run_in_terminal(call)
            if not self._join:
                self._await("analyze")  # a short command may have ended before analytics started
        finally:
            self._background.stop("up")
        self._summarize(call)
        if code < 0:
            _end_by(-code)
        return code

    def _running_tap(self) -> tuple[str, Routes]:
        tap = read_of_running(self._data / "run" / "tap.json")
        if tap is None:
            raise click.UsageError(
                f"no tap runs on {self._data}. Pass its folder with --data, or leave out --join."
            )
        # The tap adds the paths of its upstreams itself.
        upstreams = [replace(parse_upstream(text), base_path="") for text in tap["upstreams"]]
        return str(tap["listen"]), Routes(self._given or upstreams, os.environ)

    def _start(self) -> tuple[str, Routes]:
        routes = Routes(self._given, os.environ)
        prepare_data_folder(self._data)
        run = self._data / "run"
        flags = [word for upstream in routes.upstreams for word in ("--upstream", str(upstream))]
        flags += ["--data", str(self._data), "--tap-name", self._name]
        flags += ["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--metrics", "127.0.0.1:0"]
        if self._price_file is not None:
            flags += ["--price-file", str(self._price_file)]
        if self._dashboard:
            # The port is chosen here, so that its address can be said before the command takes the terminal.
            address = free_address()
            flags += ["--dashboard-listen", address]
            say(f"dashboard: http://{address}")
        else:
            flags += ["--no-dashboard"]
        self._log = self._data / "up.log"
        with self._log.open("wb") as log:
            self._background.spawn("up", ["up", *flags], [run / "tap.json", run / "analyze.json"], log)
        return str(self._await("tap")["listen"]), routes

    def _await(self, part: str) -> dict[str, Any]:
        while True:
            try:
                found = self._background.ready("up", self._data / "run" / f"{part}.json")
            except SystemExit:
                lines = self._log.read_text(errors="replace").splitlines()
                raise OSError(f"cannot start {part}: {lines[-1] if lines else f'see {self._log}'}") from None
            if found is not None:
                return found
            time.sleep(POLL_S)

    def _summarize(self, call: Call) -> None:
        selection = Selection(since=self._began_at, until=(until := datetime.now(UTC)))
        lines = summary(self._location, selection, await_rows=self._join)
        say(
            f"{self._name}: {formatting.duration((until - self._began_at) / timedelta(microseconds=1) * 1e3)}"
        )
        for line in lines:
            say(line)
        if not lines:
            say(
                f"  no request reached the tap: {self._command[0]} may take its base URL from a flag or a file. With "
                f"{call.environment['OPENAI_BASE_URL']}, or {call.environment['ANTHROPIC_BASE_URL']} for Anthropic, its requests are "
                "measured."
            )
        elif not self._join:
            say(f"  dashboard  {own_command()} dashboard --data {shlex.quote(str(self._data))}")


def summary(location: StoreLocation, selection: Selection, *, await_rows: bool = False) -> list[str]:
    """The summary of the requests of a range, a line each. Empty without requests."""
    with contextlib.closing(QueryPool(location, untrusted=False)) as tables:
        try:
            if await_rows:
                _await_rows(tables.query, selection)
            return _summary_lines(tables.query, selection)
        except QueryError as e:
            return [f"  no summary: {e}"]


def _summary_lines(query: Query, selection: Selection) -> list[str]:
    rows = run_summary.by_model(query, selection).to_dicts()
    if not rows:
        return []
    duration, count = formatting.duration, formatting.count
    model_ns, tool_ns, sessions = run_summary.times(query, selection)
    total = rows[0]
    lost = f", {count(total['lost'])} lost by the recording" if total["lost"] else ""
    tools = f", {duration(tool_ns)} in tools" if sessions else ""
    lines = [
        ("requests", f"{count(total['requests'])}, {count(total['errors'])} failed{lost}"),
        ("time", f"{duration(model_ns)} in requests{tools}"),
        *((row["model"], _measures(row)) for row in rows[1:]),
    ]
    lines += [
        ("failed", f"{count(row['n'])} × {row['cause']} ({row['error_phase']})")
        for row in run_summary.failures(query, selection, most=3).to_dicts()
    ]
    lines += [
        ("stalls", f"{count(row['stalls'])} of {row['cause']}, longest {duration(row['longest_ns'])}")
        for row in run_summary.stalls(query, selection).to_dicts()
    ]
    for row in run_summary.cost(query, selection).to_dicts():
        rest = f", {count(row['estimated'])} without reported tokens: estimated" if row["estimated"] else ""
        requests = f"{_requests(row['requests'])} with a price{rest}"
        lines.append(("cost", f"{row['cost']:.4f} {row['currency']} ({requests})"))
    width = max(len(name) for name, _ in lines)
    return [f"  {name:<{width}}  {text}" for name, text in lines]


def _measures(row: Mapping[str, Any]) -> str:
    duration = formatting.duration
    return (
        f"{_requests(row['requests'])} · TTFT p50 {duration(row['ttft_p50_ns'])}, p95 {duration(row['ttft_p95_ns'])} · "
        f"ITL p50 {duration(row['itl_p50_ns'])}, p95 {duration(row['itl_p95_ns'])} · "
        f"{formatting.count(row['output_tokens'])} tokens out, {formatting.rate(row['tps_user_p50'])}"
    )


def _requests(number: int) -> str:
    return f"{formatting.count(number)} request{'' if number == 1 else 's'}"


def _await_rows(query: Query, selection: Selection) -> None:
    """Wait until analytics has stored the streams of the range, at most `ROWS_TIMEOUT_S`."""
    give_up_s = time.monotonic() + ROWS_TIMEOUT_S
    time.sleep(STORED_AFTER.total_seconds())
    while time.monotonic() < give_up_s and stream_lists.count_open(query, selection)[0]:
        time.sleep(0.2)


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
            process = subprocess.Popen(call.argv, env=call.environment)
            while process.poll() is None:
                for kind in received.recv(64):
                    if kind in FORWARDED:
                        process.send_signal(kind)
            return process.returncode
        finally:
            signal.set_wakeup_fd(before)


def _end_by(number: int) -> None:
    """End this process by a signal, as the command did."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the command has left its own core file, if any
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


def free_address() -> str:
    with bind("127.0.0.1:0") as sock:
        return join_address(*sock.getsockname()[:2])


def runs_folder() -> Path:
    base = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(base) / "streamgauge" / "runs"


def say(line: str) -> None:
    """Write a line to stderr: stdout is the command's."""
    click.echo(line, err=True)
