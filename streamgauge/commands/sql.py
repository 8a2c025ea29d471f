"""`streamgauge sql "SELECT …"`, and `StoreClient`, with which `status` queries the tables too.

The running analytics answers, else a process of this command: it needs the extra `analytics` and takes half a second longer. It also
serves commands that query several stores, and answers above `query_socket.MAX_RENDERED_BYTES`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from streamgauge.analytics.extras import extra_of, missing_package
from streamgauge.analytics.query.query_errors import AnswerTooLarge, QueryError
from streamgauge.analytics.query.query_socket import NotListening, ask
from streamgauge.analytics.storage.location import StoreLocation, locate, without_password
from streamgauge.ingest.ready_file import read_ready_file, silence
from streamgauge.settings.flags import load_with_running_parts, settings_options
from streamgauge.settings.model import Settings
from streamgauge.settings.values import Duration, WholeNumber

if TYPE_CHECKING:
    from streamgauge.analytics.query.query_pool import QueryPool

MAX_ROWS = 1_000_000
TIMEOUT_S = 20.0
"""Of the queries of `status`."""


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


class StoreClient:
    """Queries on the store of the settings, or on several stores together. Use it in a `with` statement."""

    def __init__(self, stores: Sequence[Settings]) -> None:
        self._stores = stores
        self._pool: QueryPool | None = None
        first = stores[0]
        # The socket of analytics on another store would give answers from there.
        running = read_ready_file(first.data / "run" / "analyze.json") or {}
        self._asks_analytics = len(stores) == 1 and running.get("store") == without_password(first.store)

    def __enter__(self) -> StoreClient:
        return self

    def __exit__(self, *_: object) -> None:
        if self._pool is not None:
            self._pool.close()

    def rows(self, sql: str) -> list[dict[str, Any]]:
        """The rows of one SELECT, with times as text. Raises QueryError, and click.ClickException as `rendered`."""
        found: list[dict[str, Any]] = json.loads(
            self.rendered(sql, "json", max_rows=MAX_ROWS, timeout_s=TIMEOUT_S)
        )
        return found

    def rendered(self, sql: str, form: str, *, max_rows: int, timeout_s: float) -> bytes:
        """The rows of one SELECT, as `streamgauge.analytics.query.render` writes them.

        Raises QueryError, and click.ClickException if analytics does not answer and the extra `analytics` is missing.
        """
        if self._asks_analytics:
            try:
                return ask(self._stores[0].data, sql, form, max_rows=max_rows, timeout_s=timeout_s)
            except NotListening:
                self._asks_analytics = (
                    False  # each further try could wait for the greeting of a stopped process
                )
            except AnswerTooLarge as too_large:
                try:
                    return self._by_own_process(sql, form, max_rows, timeout_s)
                except click.ClickException:
                    raise too_large from None
        return self._by_own_process(sql, form, max_rows, timeout_s)

    def _by_own_process(self, sql: str, form: str, max_rows: int, timeout_s: float) -> bytes:
        try:
            from streamgauge.analytics.query.query_pool import QueryPool
            from streamgauge.analytics.query.render import render
        except ModuleNotFoundError as e:
            if extra_of(e.name) is None:
                raise
            places = " and ".join(str(settings.data) for settings in self._stores)
            raise click.ClickException(
                f"cannot query {places}: analytics does not answer, and {missing_package(e.name)}"
            ) from None
        if self._pool is None:
            location, *others = (locate(settings.store, settings.data) for settings in self._stores)
            self._pool = QueryPool(location, untrusted=False, others=others)
        return render(self._pool.query(sql, max_rows=max_rows, timeout_s=timeout_s), form)
