"""`streamgauge report`: one HTML file about the requests of a store, or of files that `streamgauge open` reads."""

from __future__ import annotations

import contextlib
import tempfile
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import click

from streamgauge.analytics.html_report.document import NOT_OF_SESSIONS, render, session_range
from streamgauge.analytics.html_report.sections import SECTIONS
from streamgauge.analytics.query.query_errors import QueryError
from streamgauge.analytics.query.query_pool import QueryPool
from streamgauge.analytics.reports import Query, overview
from streamgauge.analytics.reports.selection import FILTERS, Selection
from streamgauge.analytics.storage.location import SQLITE, locate
from streamgauge.commands.open_files import check_whole, store_files
from streamgauge.commands.store_commands import instant
from streamgauge.commands.top.command import MAX_ROWS, filter_options
from streamgauge.ingest.ready_file import read_of_running, silence
from streamgauge.settings.flags import load_with_running_parts, settings_options
from streamgauge.settings.values import parse_duration_s

TIMEOUT_S = 60.0
DEFAULT_LENGTH = "24h"


@click.command("report")
@click.argument("files", nargs=-1, metavar="[FILE]…", type=click.Path(path_type=Path))
@click.option(
    "--since", metavar="DURATION|TIME", help="Begin of the range, or how long before its end.  [default: 24h; all of FILE]"
)  # fmt: skip
@click.option(
    "--until", metavar="DURATION|TIME", help="End of the range, or how long ago.  [default: now; of a stopped store, its end]"
)  # fmt: skip
@filter_options
@click.option(
    "--session", "session_ids", multiple=True, metavar="ID", help="Show it turn by turn; repeatable."
)
@click.option("--without", multiple=True, type=click.Choice([*SECTIONS]), help="Leave out this section; repeatable.")  # fmt: skip
@click.option("--title", default="", help="Title of the report.")
@click.option(
    "--output", type=click.Path(path_type=Path, dir_okay=False), help="File to write.  [default: streamgauge-report-TIME.html]"
)  # fmt: skip
@click.option("--force", is_flag=True, help="Replace an existing file.")
@settings_options("data", "store", "price_file")
def report_command(
    files: tuple[Path, ...], since: str | None, until: str | None, session_ids: tuple[str, ...], without: tuple[str, ...], title: str,
    output: Path | None, force: bool, **given: Any,
) -> int:  # fmt: skip
    """Write an HTML file with the diagnosis, latency, spend and sessions.

    \b
    streamgauge report --since 7d
    streamgauge report --data ~/.local/share/streamgauge/runs/claude-20261130-081500
    streamgauge report session.har --price-file prices.csv

    The file needs no network, and has no script and no text of prompts. Without FILE, it is about the requests of a data folder, whose
    analytics may run or not; with FILE, about those of files that `streamgauge open` reads. With --session and without --since, it is
    about these sessions only.
    """
    chosen = {name: given.pop(name) for name in FILTERS}
    path = output or Path(f"streamgauge-report-{datetime.now().astimezone():%Y%m%d-%H%M%S}.html")
    if path.exists() and not force:
        raise click.UsageError(f"{path} exists already. Pass --force to replace it, or another --output.")
    if (given["data"] or given["store"]) if files else given["price_file"]:
        raise click.UsageError("pass either FILE, with or without --price-file, or --data and --store.")
    damaged: list[Path] = []
    note, is_live = None, False
    with contextlib.ExitStack() as closing:
        if files:
            folder = closing.enter_context(tempfile.TemporaryDirectory(prefix="streamgauge-report-"))
            data, *_, damaged = store_files(files, Path(folder) / "data", {"price_file": given["price_file"]})
            location = locate(SQLITE, data)
        else:
            settings = load_with_running_parts({name: given[name] for name in ("data", "store")})
            location, note = locate(settings.store, settings.data), silence(settings.data, "analyze")
            is_live = read_of_running(settings.data / "run" / "analyze.json") is not None
        tables = closing.enter_context(contextlib.closing(QueryPool(location, untrusted=False)))
        query = partial(tables.query, max_rows=MAX_ROWS, timeout_s=TIMEOUT_S)
        try:
            of_sessions = session_range(query, session_ids)
            if session_ids and of_sessions is None:
                raise click.ClickException(
                    "no request of this session is stored. The page Sessions and the view sessions have the ids."
                )
            if of_sessions is not None and since is None and until is None:
                selection, without = of_sessions, (*without, *NOT_OF_SESSIONS)
            else:
                since = since or ("forever" if files else DEFAULT_LENGTH)
                selection = _selection(query, since, until, is_live=is_live)
            now = datetime.now(UTC).astimezone()
            zone, selection = now.tzinfo or UTC, selection.filtered(chosen)
            html = render(query, selection, zone, now, title=title, session_ids=session_ids, without=without)
        except QueryError as e:
            raise click.ClickException(f"{e} {note}." if note else str(e)) from None
    if note is not None:
        click.echo(f"{note}: newer rows are missing.", err=True)
    try:
        with path.open("wb" if force else "xb") as file:
            file.write(html)
    except OSError as e:
        raise click.ClickException(f"cannot write {path}: {e.strerror}. Pass another --output.") from None
    click.echo(str(path))
    check_whole(files, damaged)
    return 0


def _selection(query: Query, since: str, until: str | None, *, is_live: bool) -> Selection:
    """The time range. Raises click.UsageError and QueryError."""
    newest: datetime | None = query("SELECT max(started_at) AS at FROM streams")["at"][0]
    now = datetime.now(UTC)
    end = instant(until) or (now if is_live or newest is None else newest + timedelta(seconds=1))
    try:
        length_s = parse_duration_s(since)
    except ValueError:
        begin = instant(since)
    else:
        begin = overview.data_began(query) if length_s is None else end - timedelta(seconds=length_s)
    begin = begin or end - timedelta(minutes=1)
    if begin >= end:
        raise click.UsageError(
            f"the range from {begin:%Y-%m-%d %H:%M:%S} to {end:%Y-%m-%d %H:%M:%S} is empty. Correct --since or --until."
        )
    return Selection(since=begin.astimezone(UTC), until=end.astimezone(UTC))
