"""`streamgauge export`: copy a time range of the tables to a DuckDB file. `streamgauge rebuild`: restore the catalog.

The work is in `streamgauge.analytics.storage.export` and `.rebuild`, which load DuckDB: they are imported when a command runs.
"""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import click

from streamgauge.flags import load, load_with_running_parts, settings_options
from streamgauge.values import format_option, parse_duration_s, print_report


class _Rows(dict[str, int]):
    """Rows by table. Each is also printed when it is set, because the commands may run for minutes."""

    def __setitem__(self, table: str, rows: int) -> None:
        super().__setitem__(table, rows)
        click.echo(f"{table:<24} {rows:>12} rows", err=True)


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
    tables = _Rows()
    streams = export(
        locate(settings.store, settings.data),
        path,
        since=instant(since),
        until=instant(until),
        report=tables.__setitem__,
    )
    size_bytes = path.stat().st_size
    found = {"file": str(path), "streams": streams, "size_bytes": size_bytes, "tables": tables}
    print_report(found, f"{path}: {streams} streams, {size_bytes / 2**20:.1f} MiB", form)
    return 0


def instant(text: str | None) -> dt.datetime | None:
    """A duration before now (`24h`), or an ISO 8601 time, UTC unless it has an offset. Raises click.BadParameter."""
    try:
        seconds = parse_duration_s(text)
    except ValueError:
        try:
            found = dt.datetime.fromisoformat(str(text))
        except ValueError:
            raise click.BadParameter(
                f"{text!r} is neither a duration such as 24h nor a time such as 2026-11-22T07:00:00Z"
            ) from None
        return found if found.tzinfo else found.replace(tzinfo=dt.UTC)
    return dt.datetime.now(dt.UTC) - dt.timedelta(seconds=seconds) if seconds is not None else None


@click.command("rebuild")
@settings_options("data")
@click.option("--from-files", is_flag=True, help="Ignore the backup and read the Parquet files.")
@format_option()
def rebuild_command(data: Path | None, from_files: bool, form: str) -> int:
    """Restore a damaged or missing catalog.

    Reads the last backup of DATA/catalog.sqlite, else the Parquet files. Analytics must be stopped.
    """
    from streamgauge.analytics.storage.data_folder_lock import lock_data_folder
    from streamgauge.analytics.storage.location import SQLITE, locate
    from streamgauge.analytics.storage.rebuild import rebuild

    settings = load({"data": data})
    location = locate(SQLITE, settings.data)
    # Without this check a wrong --data would get a catalog of its own, without rows.
    if not location.backup.exists() and next(Path(str(location.tables)).rglob("*.parquet"), None) is None:
        raise click.ClickException(
            f"cannot rebuild {location.catalog}: no backup and no Parquet file found. Check --data."
        )
    tables = _Rows()
    with lock_data_folder(settings.data):
        source = rebuild(location, use_backup=not from_files, report=tables.__setitem__)
    found = {"catalog": str(location.catalog), "source": source.name.lower(), "tables": tables}
    text = f"restored {location.catalog} from {source.value}. A damaged file is kept in the same folder."
    print_report(found, text, form)
    return 0
