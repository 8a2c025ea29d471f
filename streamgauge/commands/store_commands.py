"""`streamgauge export`: copy a time range of the tables to a DuckDB file. `streamgauge import`: store its streams through the running
analytics. `streamgauge rebuild`: restore the catalog. `streamgauge forget`: delete one caller's rows and bytes.

The work is in `streamgauge.analytics.storage.export`, `.rebuild` and `.forget`, which load DuckDB: they are imported when a command runs.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import time
import uuid
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from streamgauge.analytics.schema.clients import is_client_id
from streamgauge.analytics.schema.dimensions import OTHER
from streamgauge.ingest.labels import CLIENT_APP
from streamgauge.ingest.private_files import make_private_folder, write_json
from streamgauge.ingest.ready_file import read_of_running
from streamgauge.settings.flags import load, load_with_running_parts, settings_options
from streamgauge.settings.model import Settings
from streamgauge.settings.values import WholeNumber, format_option, parse_duration_s, print_report

if TYPE_CHECKING:
    from streamgauge.analytics.storage.forget import Forgotten
    from streamgauge.analytics.storage.location import StoreLocation


IMPORT_POLL_S = 0.2


class _Rows(dict[str, int]):
    """Rows by table. Each is also printed when it is set, because the commands may run for minutes."""

    def __setitem__(self, table: str, rows: int) -> None:
        super().__setitem__(table, rows)
        click.echo(f"{table:<24} {rows:>12} rows", err=True)


@click.command("export")
@click.option(
    "--duckdb", "path", type=click.Path(path_type=Path, dir_okay=False), help="DuckDB file to write."
)
@click.option(
    "--trace",
    nargs=2,
    type=(click.Choice(["mooncake", "weka"]), click.Path(path_type=Path)),
    metavar="mooncake|weka PATH",
    help="Write a trace without text for benchmark tools: a JSONL file, or a folder with a JSON file per session.",
)
@click.option(
    "--block-size",
    type=WholeNumber(min=1, max=65_536),
    metavar="TOKENS",
    help="Block size of the trace.  [default: mooncake 512, weka 64]",
)
@click.option(
    "--sessions",
    is_flag=True,
    help="Mooncake: write sessions, with the delay after the previous request. Not for AIPerf.",
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
    data: Path | None,
    store: str | None,
    path: Path | None,
    trace: tuple[str, Path] | None,
    block_size: int | None,
    sessions: bool,
    since: str | None,
    until: str | None,
    form: str,
) -> int:
    """Export tables to a DuckDB file, or requests as a trace.

    Analytics may be running or stopped.
    """
    from streamgauge.analytics.storage.export import export
    from streamgauge.analytics.storage.location import locate

    if (path is None) == (trace is None):
        raise click.UsageError("Pass either --duckdb or --trace.")
    settings = load_with_running_parts({"data": data, "store": store})
    location, begin, end = locate(settings.store, settings.data), instant(since), instant(until)
    if trace is not None:
        from streamgauge.commands.trace_export import export_trace

        about = export_trace(
            location, *trace, since=begin, until=end, block_size=block_size, by_session=sessions
        )
        print_report(
            about, "{path}: {requests} requests in blocks of {block_size} tokens".format(**about), form
        )
        return 0
    assert path is not None
    tables = _Rows()
    streams = export(location, path, since=begin, until=end, report=tables.__setitem__)
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


@click.command("import")
@click.argument("path", metavar="FILE", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@settings_options("data")
@format_option()
def import_command(data: Path | None, path: Path, form: str) -> int:
    """Import the streams of a file that export wrote.

    Streams that the store already has are skipped. Analytics must be running.
    """
    from streamgauge.analytics.intake.import_job import FOLDER

    settings = load({"data": data})
    request = settings.data / FOLDER / f"{uuid.uuid4()}.json"
    done = request.with_suffix(".done")
    if read_of_running(settings.data / "run" / "analyze.json") is not None:
        make_private_folder(request.parent)
        write_json(request, {"file": str(path.absolute())})
    shown = 0
    try:
        while not done.exists():
            if read_of_running(settings.data / "run" / "analyze.json") is None:
                raise click.ClickException(
                    f"cannot import {path}: analytics does not run on {settings.data}. Start it, or pass --data."
                )
            with contextlib.suppress(OSError, ValueError):  # it is done
                streams = json.loads(request.read_bytes()).get("streams", 0)
                if streams > shown:
                    shown = streams
                    click.echo(f"{streams} streams …", err=True)
            time.sleep(IMPORT_POLL_S)
        found = json.loads(done.read_bytes())
    finally:
        request.unlink(missing_ok=True)
        done.unlink(missing_ok=True)
    if "error" in found:
        raise click.ClickException(
            f"cannot import {path}: {found['error']}. Nothing is stored twice: repeat it."
        )
    report = {"file": str(path), **found}
    print_report(
        report, f"{path}: {found['streams']} streams imported, {found['skipped']} were stored already", form
    )
    return 0


@click.command("rebuild")
@settings_options("data")
@click.option("--from-files", is_flag=True, help="Read the Parquet files, even if there is a backup.")
@format_option()
def rebuild_command(data: Path | None, from_files: bool, form: str) -> int:
    """Restore a damaged or missing catalog.

    Reads the last backup of DATA/catalog.sqlite, else the Parquet files. Analytics must be stopped. Exit code 1 if rows could not be
    restored.
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
        done = rebuild(location, use_backup=not from_files, report=tables.__setitem__)
    found = {
        "catalog": str(location.catalog),
        "source": done.source.name.lower(),
        "tables": tables,
        "missing_rows": done.missing_rows,
        "damaged": done.damaged and str(done.damaged),
    }
    lines = [f"restored {location.catalog} from {done.source.value}."]
    if done.damaged is not None:
        lines.append(f"The former catalog is kept: {done.damaged}.")
    if done.missing_rows is None:
        lines.append(
            "Rows that were in no Parquet file yet (up to 5 minutes) could not be restored. Their number is unknown, because "
            "neither the former catalog nor its backup can be read."
        )
    elif done.missing_rows:
        lines.append(f"{done.missing_rows} rows could not be restored: their Parquet files are missing.")
    print_report(found, "\n".join(lines), form)
    return 0 if done.missing_rows == 0 else 1


@click.command("forget")
@click.option("--client", metavar="ID|NAME", help="Client id, or its name in the settings.")
@click.option("--session", metavar="ID", help="Session id, as in the tables.")
@click.option("--label", metavar="NAME=VALUE", help="Value of a label, as sent or as in the tables.")
@click.option("--dry-run", is_flag=True, help="Only count. Analytics may run.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@settings_options("data", "store", "kafka", "kafka_topic")
@format_option()
def forget_command(
    client: str | None,
    session: str | None,
    label: str | None,
    dry_run: bool,
    yes: bool,
    form: str,
    **given: Any,
) -> int:
    """Delete all data of one caller.

    No byte of its ids remains in the data folder. Analytics and `ship` must be stopped; the tap may run. After an interruption,
    repeat the command.
    """
    from streamgauge.analytics.storage.data_folder_lock import lock_data_folder
    from streamgauge.analytics.storage.forget import Caller, client_named, find, forget
    from streamgauge.analytics.storage.location import locate

    if sum(one is not None for one in (client, session, label)) != 1:
        raise click.UsageError("Pass either --client, --session or --label.")
    settings = load_with_running_parts(given)
    location = locate(settings.store, settings.data)
    if location.catalog is not None and not location.catalog.exists():
        raise click.ClickException(f"cannot forget: {settings.data} has no store. Check --data.")
    if client is not None:
        names = {one.name: one.client_id for one in settings.clients}
        client_id = client if is_client_id(client) else names.get(client) or client_named(location, client)
        if client_id is None:
            raise click.ClickException(
                f"cannot forget: no client has the name {client!r}. Pass its client id."
            )
        caller = Caller("client", client_id)
    elif label is not None:
        caller = Caller("label", _stored_label(settings, label), label.partition("=")[0])
    else:
        caller = Caller("session", str(session))
    with contextlib.nullcontext() if dry_run else lock_data_folder(settings.data):
        if dry_run or not yes:
            found = find(location, settings.data, caller)
        if not dry_run:
            if not yes:
                click.echo("\n".join(_lines(found)), err=True)
                click.confirm(f"Delete all data of the {caller}?", abort=True, err=True)
            found = forget(location, settings.data, caller, lambda step: click.echo(f"{step} …", err=True))
    notes = _notes(settings, location, found)
    report = {"caller": str(caller), "dry_run": dry_run, **asdict(found), "notes": notes}
    title = f"{'would delete' if dry_run else 'deleted'} the data of the {caller}"
    print_report(report, "\n".join([title, *_lines(found), *(f"note: {note}" for note in notes)]), form)
    return 0


def _stored_label(settings: Settings, text: str) -> str:
    """The value of `NAME=VALUE` as the tables have it."""
    from streamgauge.settings.process_options import client_key

    name, sep, value = text.partition("=")
    if not (name and sep and value):
        raise click.BadParameter(f"{text!r} is not a label such as team=search", param_hint="--label")
    if value == OTHER:
        raise click.BadParameter(
            f"{OTHER} is no value: it has the sums of all less frequent ones", param_hint="--label"
        )
    declared = next((one for one in settings.labels if one.name == name), None)
    if declared is None or declared.kind == CLIENT_APP or is_client_id(value):  # the last is a hash
        return value
    return declared.recorded(value, client_key(settings)) or value


def _lines(found: Forgotten) -> list[str]:
    lines = [f"  {table:<24} {rows:>12} rows" for table, rows in found.tables.items()]
    if found.log_records:
        lines.append(f"  {'record log':<24} {found.log_records:>12} records")
    return lines or ["  no rows"]


def _notes(settings: Settings, location: StoreLocation, found: Forgotten) -> list[str]:
    """What still has data of the caller, or may have."""
    notes = [
        f"the topic {settings.kafka_topic} in Kafka, if taps ship to it, keeps the records for its retention",
        "backups and exports outside of the data folder keep the rows for as long as you keep them",
    ]
    if location.dsn:
        notes.append(
            "PostgreSQL's WAL archive and a bucket with versions keep what was deleted for their retention. The logs of taps on "
            "other machines keep shipped records for some minutes"
        )
    if {"clients", "objectives", "budgets"} & found.tables.keys():
        notes.append("the settings name the caller: remove it there, or the next start stores it again")
    if found.shared_traces:
        notes.append(f"{found.shared_traces} traces also have streams of others, and keep their ids there")
    if found.obstacle:
        notes.append(found.obstacle)
    return notes
