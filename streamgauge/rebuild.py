"""`streamgauge rebuild`: restore a damaged or missing catalog."""

from __future__ import annotations

from pathlib import Path

import click

from streamgauge.flags import load, settings_options
from streamgauge.values import format_option, print_json


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
    if not location.backup.exists() and next(Path(str(location.tables)).rglob("*.parquet"), None) is None:
        raise click.ClickException(
            f"cannot rebuild {location.catalog}: no backup and no Parquet file found. Check --data."
        )
    tables: dict[str, int] = {}

    def report(table: str, rows: int) -> None:
        tables[table] = rows
        click.echo(f"{table:<16} {rows:>12} rows", err=True)

    with lock_data_folder(settings.data):
        source = rebuild(location, use_backup=not from_files, report=report)
    if form == "json":
        print_json({"catalog": str(location.catalog), "source": source.name.lower(), "tables": tables})
    else:
        click.echo(
            f"restored {location.catalog} from {source.value}. A damaged file is kept in the same folder."
        )
    return 0
