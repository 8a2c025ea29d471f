"""`streamgauge export`: copy a time range of the tables to a DuckDB file."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import click

from streamgauge.flags import load_with_running_parts, settings_options
from streamgauge.values import format_option, print_json


@click.command("export")
@click.option(
    "--duckdb", "path", type=click.Path(path_type=Path, dir_okay=False), required=True, help="File to write."
)
@click.option(
    "--since",
    metavar="DURATION|TIME",
    help="Copy streams that started at or after this time: 24h (ago) or 2026-11-22T07:00:00Z.",
)
@click.option("--until", metavar="DURATION|TIME", help="Copy streams that started before this time.")
@settings_options("data", "store")
@format_option()
def export_command(
    data: Path | None, store: str | None, path: Path, since: str | None, until: str | None, form: str
) -> int:
    """Export tables and views to a DuckDB file.

    Analytics may be running or stopped.
    """
    from streamgauge.analytics.storage.export import export
    from streamgauge.analytics.storage.location import locate

    settings = load_with_running_parts({"data": data, "store": store})
    tables: dict[str, int] = {}

    def report(table: str, rows: int) -> None:
        tables[table] = rows
        click.echo(f"{table:<24} {rows:>12} rows", err=True)

    streams = export(
        locate(settings.store, settings.data),
        path,
        since=instant(since),
        until=instant(until),
        report=report,
    )
    size_bytes = path.stat().st_size
    if form == "json":
        print_json({"file": str(path), "streams": streams, "size_bytes": size_bytes, "tables": tables})
    else:
        click.echo(f"{path}: {streams} streams, {size_bytes / 2**20:.1f} MiB")
    return 0


def instant(text: str | None) -> dt.datetime | None:
    """A duration before now (`24h`), or an ISO 8601 time, UTC unless it has an offset. Raises click.BadParameter."""
    from streamgauge.values import parse_duration_s

    if text is None:
        return None
    try:
        seconds = parse_duration_s(text)
    except ValueError:
        try:
            found = dt.datetime.fromisoformat(text)
        except ValueError:
            raise click.BadParameter(
                f"{text!r} is neither a duration such as 24h nor a time such as 2026-11-22T07:00:00Z"
            ) from None
        return found if found.tzinfo else found.replace(tzinfo=dt.UTC)
    return dt.datetime.now(dt.UTC) - dt.timedelta(seconds=seconds) if seconds is not None else None
