"""`streamgauge sql "SELECT …"`: query the tables from the command line."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import click

from streamgauge.analytics.query.errors import QueryError
from streamgauge.analytics.storage.location import StoreLocation, locate
from streamgauge.flags import load_with_running_parts, settings_options
from streamgauge.ingest.ready_file import silence
from streamgauge.settings import Settings
from streamgauge.store_client import MAX_ROWS, StoreClient
from streamgauge.values import Duration, WholeNumber


@click.command("sql")
@click.argument("query")
@click.option(
    "--data", "folders", type=click.Path(path_type=Path), metavar="FOLDER", multiple=True,
    help="Data folder; repeatable, to query several stores together.  [default: streamgauge-data]",
)  # fmt: skip
@settings_options("store")
@click.option(
    "--format", "form", type=click.Choice(["table", "json", "csv", "parquet"]), default="table", show_default=True,
    help="Output format.",
)  # fmt: skip
@click.option(
    "--output", type=click.Path(path_type=Path, dir_okay=False), help="Write to this file instead of stdout."
)
@click.option(
    "--max-rows", type=WholeNumber(1, MAX_ROWS), metavar="N", default=MAX_ROWS, show_default=True,
    help="Fail if the result has more rows.",
)  # fmt: skip
@click.option(
    "--timeout", type=Duration(0.1, 300), metavar="DURATION", default="25s", show_default=True,
    help="Time limit of the query.",
)  # fmt: skip
def sql_command(
    query: str,
    folders: tuple[Path, ...],
    store: str | None,
    form: str,
    output: Path | None,
    max_rows: int,
    timeout: float,
) -> int:
    """Query the tables.

    QUERY is one SELECT, WITH, FROM, DESCRIBE or SUMMARIZE statement, the EXPLAIN of one, or - to read it from stdin. A process of
    the running analytics answers. While analytics is stopped, this command reads the store itself, which needs the extra `analytics`.
    """
    if query == "-":
        query = sys.stdin.read()
    if form == "parquet" and output is None and sys.stdout.isatty():
        raise click.UsageError("cannot write Parquet to a terminal. Pass --output or redirect.")
    stores = [load_with_running_parts({"data": folder, "store": store}) for folder in folders or (None,)]
    try:
        _check_each_is_one_store([locate(settings.store, settings.data) for settings in stores])
        with StoreClient(stores) as tables:
            rendered = tables.rendered(query, form, max_rows=max_rows, timeout_s=timeout)
    except QueryError as e:
        raise click.ClickException(
            " ".join([str(e), *(f"{sentence}." for sentence in _silent(stores))])
        ) from None
    for sentence in _silent(stores):
        click.echo(f"{sentence}: newer rows are missing.", err=True)
    try:
        if output is not None:
            output.write_bytes(rendered)
        else:
            sys.stdout.buffer.write(rendered)
            sys.stdout.buffer.flush()
    except BrokenPipeError:
        sys.stderr.close()  # otherwise Python prints a second error at exit
    return 0


def _check_each_is_one_store(locations: Sequence[StoreLocation]) -> None:
    """Raise QueryError if a store occurs twice: its rows would count twice."""
    seen = set()
    for location in locations:
        store = location.catalog.resolve() if location.catalog else location.dsn
        if store in seen:
            raise QueryError(
                f"cannot query {location.label} twice: two --data name it. Pass each store once."
            )
        seen.add(store)


def _silent(stores: Sequence[Settings]) -> list[str]:
    """A sentence for each store whose analytics does not respond."""
    found = [silence(settings.data, "analyze") for settings in stores]
    return [sentence for sentence in found if sentence is not None]
