"""`streamgauge sql "SELECT …"`: query the tables from the command line."""

from __future__ import annotations

import contextlib
import datetime as dt
import decimal
import io
import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import polars as pl

from analytics.query.errors import QueryError
from analytics.query.query_pool import QueryPool
from analytics.storage.location import StoreLocation, locate
from ingest.ready_file import silence
from streamgauge.allowed_values import Duration, WholeNumber
from streamgauge.flags_from_settings import settings_options
from streamgauge.running_parts import load_with_running_parts
from streamgauge.settings import Settings

MAX_ROWS = 1_000_000
MAX_CELL_CHARS = 60


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

    QUERY is one SELECT, WITH, FROM, DESCRIBE or SUMMARIZE statement, or - to read it from stdin. A separate process reads the
    store directly: analytics may be running or stopped.
    """
    if query == "-":
        query = sys.stdin.read()
    if form == "parquet" and output is None and sys.stdout.isatty():
        raise click.UsageError("cannot write Parquet to a terminal. Pass --output or redirect.")
    stores = [load_with_running_parts({"data": folder, "store": store}) for folder in folders or (None,)]
    try:
        location, *others = locations = [locate(settings.store, settings.data) for settings in stores]
        _check_each_is_one_store(locations)
        tables = QueryPool(location, untrusted=False, others=others)
        with contextlib.closing(tables):
            rows = tables.query(query, max_rows=max_rows, timeout_s=timeout)
    except QueryError as e:
        raise click.ClickException(
            " ".join([str(e), *(f"{sentence}." for sentence in _silent(stores))])
        ) from None
    for sentence in _silent(stores):
        click.echo(f"{sentence}: newer rows are missing.", err=True)
    rendered = render(rows, form)
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


def render(rows: pl.DataFrame, form: str, *, max_cell_chars: int = MAX_CELL_CHARS) -> bytes:
    """The rows as `table`, `json`, `csv` or `parquet`."""
    if form == "parquet":
        sink = io.BytesIO()
        rows.write_parquet(sink)
        return sink.getvalue()
    if form == "json":
        lines = (
            json.dumps(json_value(row), ensure_ascii=False, allow_nan=False)
            for row in rows.iter_rows(named=True)
        )
        return ("[" + ",\n ".join(lines) + "]\n").encode()
    if form == "csv":
        return _csv(rows)
    return _table(rows, max_cell_chars).encode()


def json_value(value: Any) -> Any:
    """Convert to JSON types: times as ISO 8601, other types as text, NaN and infinities as null."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(k): json_value(v) for k, v in value.items()}
    if isinstance(value, list | tuple | pl.Series):
        return [json_value(v) for v in value]
    if isinstance(value, dt.datetime):
        return value.isoformat().replace("+00:00", "Z")
    if isinstance(value, dt.date | dt.time):
        return value.isoformat()
    if isinstance(value, decimal.Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, dt.timedelta):
        return f"PT{f'{value.total_seconds():.6f}'.rstrip('0').rstrip('.')}S"
    return str(value)


def _csv(rows: pl.DataFrame) -> bytes:
    columns = [
        pl.Series(name, [_cell(v) for v in rows[name]], pl.String) if _needs_text(kind) else rows[name]
        for name, kind in rows.schema.items()
    ]
    return pl.DataFrame(columns).write_csv().encode() if columns else b""


def _needs_text(kind: pl.DataType) -> bool:
    return kind.is_nested() or kind.is_temporal() or isinstance(kind, pl.Binary | pl.Decimal)


def _cell(value: Any) -> str | None:
    found = json_value(value)
    if found is None or isinstance(found, str):
        return found
    return json.dumps(found, ensure_ascii=False)


def _table(rows: pl.DataFrame, max_cell_chars: int) -> str:
    """Aligned columns: numbers right-aligned, NULL empty."""
    if not rows.width:
        return "(no columns)\n"
    cells = []
    for name, kind in rows.schema.items():
        shown = [_short("" if (text := _cell(v)) is None else text, max_cell_chars) for v in rows[name]]
        width = max([len(name), *(len(text) for text in shown)])
        pad = str.rjust if kind.is_numeric() else str.ljust
        cells.append([pad(text, width) for text in (name, *shown)] + ["─" * width])
    lines = ["  ".join(column[i] for column in cells).rstrip() for i in range(rows.height + 1)]
    lines.insert(1, "  ".join(column[-1] for column in cells))
    return "\n".join(lines) + f"\n({rows.height} row{'' if rows.height == 1 else 's'})\n"


def _short(text: str, max_chars: int) -> str:
    text = " ".join(text.splitlines())
    return text if len(text) <= max_chars else text[: max_chars - 1] + "…"
