"""The commands that run a process of the pipeline, or with `up` all of them."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import cloup

from streamgauge.process_logging import configure_logging
from streamgauge.settings.flags import SettingsCommand, load_used, load_with_running_parts, settings_options
from streamgauge.settings.model import Settings, settings_of, unknown_variables
from streamgauge.settings.values import WholeNumber, parse_interface

if TYPE_CHECKING:
    from streamgauge.ingest.recording.options import RecordingOptions


@cloup.command(cls=SettingsCommand)
@settings_options(*settings_of("up"))
def up(**given: Any) -> int:
    """Run tap, analytics and dashboard; with --kafka also ship."""
    from streamgauge.commands.up import run

    # Invalid settings of other parts do not stop the tap: these parts report and refuse them on their own.
    settings, invalid = load_used(given, (*settings_of("tap"), "serve", "no_dashboard", "hung_after"))
    _prepare(settings)
    return run(settings, invalid)


@cloup.command(cls=SettingsCommand)
@settings_options(*settings_of("tap"))
def tap(**given: Any) -> int:
    """Run the tap: forward requests and write the record log."""
    from streamgauge.ingest.tap.main import run
    from streamgauge.settings.process_options import tap_options

    return run(tap_options(_load_settings(given)))


@cloup.command(cls=SettingsCommand)
@cloup.option(
    "--interface",
    metavar="NAME[:PORT,…]",
    help="Network interface, such as lo, eth0 or lo:4000; any = all. Needs CAP_NET_RAW.",
)
@cloup.option(
    "--pcap", type=click.Path(exists=True, path_type=Path, dir_okay=False), metavar="FILE",
    help="Read a pcap or pcapng file (also gzip, zstd) instead of an interface.",
)  # fmt: skip
@cloup.option(
    "--port", "ports", type=WholeNumber(1, 65535), multiple=True, metavar="N",
    help="Port of a server that speaks HTTP/1.x; repeatable.  [default: all]",
)  # fmt: skip
@cloup.option(
    "--admin",
    metavar="HOST:PORT",
    help="Address of /healthz, /readyz, /recordingz and /metrics, with --interface.",
)
@settings_options(*settings_of("capture"))
def capture(
    interface: str | None, pcap: Path | None, ports: tuple[int, ...], admin: str | None, **given: Any
) -> int:
    """Record the requests that packets show, without a proxy.

    The records go to the record log in the data folder, which `up` or `analyze` reads.
    """
    from streamgauge.settings.process_options import recording_options

    if (interface is None) == (pcap is None):
        raise click.UsageError("Pass either --interface NAME or --pcap FILE.", click.get_current_context())
    settings = _load_settings(given)
    options = recording_options(settings)
    if interface is not None:
        from streamgauge.ingest.capture.live import run

        try:
            name, more = parse_interface(interface)
        except ValueError as e:
            raise click.UsageError(f"--interface: {e}") from None
        return run(options, name, (*ports, *more), admin, settings.allowed_host)
    assert pcap is not None
    return _read_pcap(pcap, options, ports)


def _read_pcap(path: Path, options: RecordingOptions, ports: tuple[int, ...]) -> int:
    """Returns 1 if a part of the file cannot be read, or no request was found."""
    from streamgauge.ingest.capture.pcap import record_pcap

    with click.progressbar(length=100, label=f"Reading {path.name}", file=sys.stderr) as bar:
        report = asyncio.run(
            record_pcap(
                path, options, lambda read, size: bar.update(100 * read // max(1, size) - bar.pos), ports
            )
        )
    for number, line in enumerate(report.lines):
        click.echo(line, err=number > 0)
    return int(bool(report.problems) or not report.streams)


@cloup.command(cls=SettingsCommand)
@settings_options(*settings_of("ship"))
def ship(**given: Any) -> int:
    """Send the record log to Kafka."""
    from streamgauge.ingest.ship import run
    from streamgauge.settings.process_options import ship_options

    return run(ship_options(_load_settings(given)))


@cloup.command(cls=SettingsCommand)
@settings_options(*settings_of("analyze"))
def analyze(**given: Any) -> int:
    """Run analytics: measure streams and write the tables."""
    from streamgauge.analytics.main import run
    from streamgauge.settings.process_options import analyze_options

    return run(analyze_options(_load_settings(given)))


@cloup.command(cls=SettingsCommand)
@settings_options(*settings_of("dashboard"))
def dashboard(**given: Any) -> int:
    """Run the dashboard on the tables of a data folder."""
    sys.modules.pop("pandas", None)  # blocked by `streamgauge.cli.main`
    from streamgauge.settings.process_options import dashboard_options

    options = dashboard_options(_load_settings(given, use_running_parts=True))
    from streamgauge.dashboard.launch import run

    return run(options)


@cloup.command(cls=SettingsCommand)
@settings_options(*settings_of("serve"))
def serve(**given: Any) -> int:
    """Run the read-only SQL server.

    The server uses DuckDB's Quack protocol. Clients need a token.
    """
    from streamgauge.analytics.query.query_errors import QueryError
    from streamgauge.analytics.query.serve import run
    from streamgauge.settings.process_options import serve_options

    try:
        return run(serve_options(_load_settings(given, use_running_parts=True)))
    except QueryError as e:
        raise click.ClickException(str(e)) from None


def _load_settings(given: dict[str, Any], *, use_running_parts: bool = False) -> Settings:
    """Load the settings that a part uses, configure logging, and make new files private to the owner.

    `use_running_parts`: use the store of the running analytics, unless it is set.
    """
    settings = load_with_running_parts(given) if use_running_parts else load_used(given, given)[0]
    _prepare(settings)
    return settings


def _prepare(settings: Settings) -> None:
    configure_logging(settings.log_format)
    for name in unknown_variables():
        logging.getLogger("streamgauge").warning("ignoring the variable %s: it is not a setting.", name)
    os.umask(0o077)  # the data folder has prompts and text
