"""The commands that run a part of the pipeline: `up`, `tap`, `ship`, `analyze`, `dashboard` and `serve`."""

from __future__ import annotations

import logging
import os
import sys
from typing import Any

import click
import cloup

from streamgauge.command_settings import ANALYZE, DASHBOARD, SERVE, SHIP, TAP, UP
from streamgauge.flags_from_settings import load_used, settings_options
from streamgauge.log_format import configure_logging
from streamgauge.settings import Settings, unknown_variables


@cloup.command()
@settings_options(*UP)
def up(**given: Any) -> int:
    """Run tap, analytics and dashboard; with --kafka also ship."""
    from streamgauge.up import run

    settings, invalid = load_used(given, (*TAP, "serve", "no_dashboard", "hung_after"))
    _prepare(settings)
    return run(settings, invalid)


@cloup.command()
@settings_options(*TAP)
def tap(**given: Any) -> int:
    """Run the tap: forward requests and write the record log."""
    from streamgauge.ingest.tap.main import run
    from streamgauge.part_options import tap_options

    return run(tap_options(_load_settings(given)))


@cloup.command()
@settings_options(*SHIP)
def ship(**given: Any) -> int:
    """Send the record log to Kafka."""
    from streamgauge.ingest.ship import run
    from streamgauge.part_options import ship_options

    return run(ship_options(_load_settings(given)))


@cloup.command()
@settings_options(*ANALYZE)
def analyze(**given: Any) -> int:
    """Run analytics: measure streams and write the tables."""
    from streamgauge.analytics.main import run
    from streamgauge.part_options import analyze_options

    return run(analyze_options(_load_settings(given)))


@cloup.command()
@settings_options(*DASHBOARD)
def dashboard(**given: Any) -> int:
    """Run the dashboard on the tables of a data folder."""
    sys.modules.pop("pandas", None)  # blocked by `streamgauge.cli.main`
    from streamgauge.dashboard.launch import run
    from streamgauge.part_options import dashboard_options

    return run(dashboard_options(_load_settings(given, use_running_parts=True)))


@cloup.command()
@settings_options(*SERVE)
def serve(**given: Any) -> int:
    """Run the read-only SQL server.

    The server uses DuckDB's Quack protocol. Clients need a token.
    """
    from streamgauge.analytics.query.errors import QueryError
    from streamgauge.analytics.query.serve import run
    from streamgauge.part_options import serve_options

    try:
        return run(serve_options(_load_settings(given, use_running_parts=True)))
    except QueryError as e:
        raise click.ClickException(str(e)) from None


def _load_settings(given: dict[str, Any], *, use_running_parts: bool = False) -> Settings:
    """Load the settings that a part uses, configure logging, and make new files private to the owner.

    `use_running_parts`: use the store of the running analytics, unless it is set.
    """
    if use_running_parts:
        from streamgauge.running_parts import load_with_running_parts

        settings = load_with_running_parts(given)
    else:
        settings, _ = load_used(given, given)
    _prepare(settings)
    return settings


def _prepare(settings: Settings) -> None:
    configure_logging(settings.log_format)
    for name in unknown_variables():
        logging.getLogger("streamgauge").warning("ignoring the variable %s: it is not a setting.", name)
    os.umask(0o077)
