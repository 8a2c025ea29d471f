"""The command: options, the loop, and one report for scripts."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import click
from rich.console import Console
from rich.live import Live

from streamgauge.analytics.diagnosis.report import Report, as_json, read_report
from streamgauge.analytics.query.query_errors import QueryError
from streamgauge.analytics.query.query_pool import QueryPool
from streamgauge.analytics.reports import formatting
from streamgauge.analytics.reports.selection import Selection
from streamgauge.analytics.storage.location import locate
from streamgauge.commands.top import screen
from streamgauge.commands.top.keys import View, pressed_keys
from streamgauge.ingest.ready_file import read_of_running, silence
from streamgauge.settings.flags import load_with_running_parts, settings_options
from streamgauge.settings.model import Settings
from streamgauge.settings.values import Duration, format_option, print_json

MAX_ROWS = 20_000
TIMEOUT_S = 20.0
WIDTH_OF_FILES = 120
KEYS_WAIT_S = 0.1
"""Time after which the screen shows a report that has arrived."""


_FILTERS = {
    "model": ("NAME", "of this model"), "gateway": ("NAME", "of this gateway"), "client": ("ID|NAME", "of this client"),
    "app": ("NAME/VERSION", "of this program of a client"), "label": ("NAME=VALUE", "with this label"),
}  # fmt: skip
"""Filter → its metavar, and the streams that it selects."""


def filter_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add an option for each filter, passed as a tuple of its values."""
    for name, (metavar, selects) in reversed(_FILTERS.items()):
        help_text = f"Only streams {selects}; repeatable."
        command = click.option(f"--{name}", name, metavar=metavar, multiple=True, help=help_text)(command)
    return command


@click.command("top")
@click.option(
    "--range", "length_s", type=Duration(60, 30 * 86400), metavar="DURATION", default="15m", show_default=True,
    help="Diagnose the streams that started within this time.",
)  # fmt: skip
@filter_options
@click.option(
    "--interval", "interval_s", type=Duration(0.5, 3600), metavar="DURATION", default="2s", show_default=True,
    help="Time between reports.",
)  # fmt: skip
@click.option(
    "--once", is_flag=True, help="Print one report and exit. The default if the output is not a terminal."
)
@format_option(" json prints one report.")
@settings_options("data", "store")
def top_command(
    length_s: float,
    interval_s: float,
    once: bool,
    form: str,
    **given: Any,
) -> int:
    """Show the diagnosis and the traffic in the terminal.

    A separate process reads the store: analytics may be running or stopped.
    """
    chosen = {name: given.pop(name) for name in _FILTERS}
    settings = load_with_running_parts(given)

    def select() -> Selection:
        until = datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=1)
        since = until - timedelta(seconds=length_s)
        return Selection(since=since, until=until).filtered(chosen)

    with contextlib.closing(QueryPool(locate(settings.store, settings.data), untrusted=False)) as tables:

        def read() -> Report:
            note = silence(settings.data, "analyze")
            note = None if note is None else f"{note}: newer rows are missing."
            query = partial(tables.query, max_rows=MAX_ROWS, timeout_s=TIMEOUT_S)
            return read_report(query, select(), note)

        if once or form == "json" or not sys.stdout.isatty():
            return _print(read, form, settings)
        with contextlib.suppress(KeyboardInterrupt):
            _watch(tables, read, interval_s, lambda: dashboard_link(settings.data, select()))
    return 0


def _print(read: Callable[[], Report], form: str, settings: Settings) -> int:
    try:
        report = read()
    except QueryError as e:
        note = silence(settings.data, "analyze")
        raise click.ClickException(f"{e} {note}." if note is not None else str(e)) from None
    if form == "json":
        print_json(as_json(report))
        return 0
    columns = os.environ.get("COLUMNS", "")
    width = None if sys.stdout.isatty() or columns.isdigit() else WIDTH_OF_FILES
    console = Console(width=width, highlight=False)
    console.print(screen.rendered(report, console, link=dashboard_link(settings.data, report.selection)))
    return 0


def dashboard_link(data: Path, chosen: Selection) -> str | None:
    """The address of the selection in the dashboard that runs on the data folder, None without one."""
    url = (read_of_running(data / "run" / "dashboard.json") or {}).get("url")
    if not url:
        return None
    length_s = round(chosen.length.total_seconds())
    unit, seconds = next((u, s) for u, s in formatting.UNITS_S.items() if length_s % s == 0)
    filters = [(name, value) for name, values in chosen.chosen.items() for value in values]
    return f"{url}/?{urlencode([('range', f'{length_s // seconds}{unit}'), *filters])}"


def _watch(
    tables: QueryPool, read: Callable[[], Report], interval_s: float, link: Callable[[], str | None]
) -> None:
    """Show reports until the reader quits. At least half of the time is pauses, however long the queries take.

    Queries run in a thread, so that keys have their effect meanwhile. At the end `tables` is closed, so a running query fails at once.
    """
    console, view = Console(highlight=False), View()
    shown: Report | str = "Reading the tables …"
    reading: Future[Report] | None = None
    began_s = next_s = time.monotonic()
    changed = True
    with (
        pressed_keys() as keys,
        Live(console=console, screen=True, auto_refresh=False, vertical_overflow="crop") as live,
        ThreadPoolExecutor(1) as thread,
        contextlib.closing(tables),
    ):
        while not view.ends:
            if reading is None and time.monotonic() >= next_s:
                began_s, reading = time.monotonic(), thread.submit(read)
            if reading is not None and reading.done():
                try:
                    shown = reading.result()
                except QueryError as e:
                    shown = str(e)
                changed, reading, now_s = True, None, time.monotonic()
                next_s = max(began_s + interval_s, 2 * now_s - began_s)
            if changed:
                live.update(
                    screen.message(shown, datetime.now(UTC), view.footer)
                    if isinstance(shown, str)
                    else screen.rendered(shown, console, height=console.height, view=view, link=link()),
                    refresh=True,
                )
            pressed = keys(KEYS_WAIT_S if reading is not None else max(next_s - time.monotonic(), 0))
            view.press(pressed)
            changed = bool(pressed)
