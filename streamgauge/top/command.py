"""The command: options, the loop, and one report for scripts."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import click
from rich.console import Console
from rich.live import Live

from streamgauge.analytics.diagnosis.report import Report, as_json, read_report
from streamgauge.analytics.query.errors import QueryError
from streamgauge.analytics.query.query_pool import QueryPool
from streamgauge.analytics.reports.selection import Selection
from streamgauge.analytics.storage.location import locate
from streamgauge.flags import load_with_running_parts, settings_options
from streamgauge.ingest.ready_file import silence
from streamgauge.settings import Settings
from streamgauge.top import screen
from streamgauge.values import Duration, format_option, print_json

MAX_ROWS = 20_000
TIMEOUT_S = 20.0
WIDTH_OF_FILES = 120
FOOTER = "Ctrl-C ends."


@click.command("top")
@click.option(
    "--range", "length_s", type=Duration(60, 30 * 86400), metavar="DURATION", default="15m", show_default=True,
    help="Diagnose the streams that started within this time.",
)  # fmt: skip
@click.option(
    "--model", "models", metavar="NAME", multiple=True, help="Only streams of this model; repeatable."
)
@click.option(
    "--gateway", "gateways", metavar="NAME", multiple=True, help="Only streams of this gateway; repeatable."
)
@click.option(
    "--client", "clients", metavar="ID|NAME", multiple=True, help="Only streams of this client; repeatable."
)
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
    models: tuple[str, ...],
    gateways: tuple[str, ...],
    clients: tuple[str, ...],
    interval_s: float,
    once: bool,
    form: str,
    **given: Any,
) -> int:
    """Show the diagnosis and the traffic in the terminal.

    A separate process reads the store: analytics may be running or stopped.
    """
    settings = load_with_running_parts(given)

    def select() -> Selection:
        until = screen.rounded_up(datetime.now(UTC))
        since = until - timedelta(seconds=length_s)
        return Selection(since=since, until=until, models=models, gateways=gateways, clients=clients)

    with contextlib.closing(QueryPool(locate(settings.store, settings.data), untrusted=False)) as tables:

        def read() -> Report:
            note = silence(settings.data, "analyze")
            note = None if note is None else f"{note}: newer rows are missing."
            query = partial(tables.query, max_rows=MAX_ROWS, timeout_s=TIMEOUT_S)
            return read_report(query, select(), note)

        if once or form == "json" or not sys.stdout.isatty():
            return _print(read, form, settings)
        with contextlib.suppress(KeyboardInterrupt):
            _watch(read, interval_s)
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
    console.print(screen.rendered(report, console))
    return 0


def _watch(read: Callable[[], Report], interval_s: float) -> None:
    """Show reports until KeyboardInterrupt. At least half of the time is pauses, however long the queries take."""
    console = Console(highlight=False)
    first = screen.message("Reading the tables …", datetime.now(UTC), FOOTER)
    with Live(first, console=console, screen=True, auto_refresh=False, vertical_overflow="crop") as live:
        while True:
            began_s = time.monotonic()
            try:
                shown = screen.rendered(read(), console, height=console.height, footer=FOOTER)
            except QueryError as e:
                shown = screen.message(str(e), datetime.now(UTC), FOOTER)
            live.update(shown, refresh=True)
            took_s = time.monotonic() - began_s
            time.sleep(max(interval_s - took_s, took_s))
