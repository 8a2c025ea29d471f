"""The `streamgauge` command: one function per subcommand, each a thin map from settings to a part's options.

Wrong input ends in one line on stderr and exit code 2, whoever finds it: click, the settings model, or the part that cannot
start. Parts are imported when their command runs, so that `--help` is quick.
"""

from __future__ import annotations

import importlib
import logging
import os
import sys
from typing import Any

import click

from streamgauge import __version__
from streamgauge.flags import load, settings_options
from streamgauge.log_format import configure_logging
from streamgauge.settings import Settings, misspelt_environment

TAP = (
    "upstream", "listen", "admin", "data", "workers", "tap_name", "record_log_max_bytes", "record_log_max_age", "tap_queue",
    "connect_timeout", "headers_timeout", "idle_timeout", "idle_output_timeout", "max_request_bytes",
    "drain_timeout", "upstream_ca", "upstream_cert", "upstream_key", "tls_cert", "tls_key", "no_x_forwarded",
    "forwarded", "via", "preserve_host", "client_key", "log_format",
)  # fmt: skip
SHIP = ("data", "kafka", "kafka_topic", "kafka_options", "capture_content", "capture_routes", "log_format")
ANALYZE = (
    "data", "kafka", "kafka_topic", "kafka_options", "store", "lake_path",
    "retain_events", "retain_streams", "retain_rollups", "tap_gone_after", "capture_content", "capture_routes",
    "stall_floor", "stall_factor", "metrics", "semconv", "no_spans", "no_otlp", "export_unsampled", "otlp_listen", "otlp_token",
    "log_format",
)  # fmt: skip
SERVE = ("data", "store", "sql_host", "sql_port", "sql_token", "log_format")
DASHBOARD = (
    "data",
    "store",
    "dashboard_host",
    "dashboard_port",
    "dashboard_token",
    "dashboard_oidc",
    "slo_ttft",
    "slo_itl",
    "slo_error_rate",
    "log_format",
)
UP = tuple(dict.fromkeys((*TAP, *SHIP, *ANALYZE, *DASHBOARD, "no_dashboard", "serve", *SERVE)))

ELSEWHERE = {
    "demo": "streamgauge.demo:demo_command",
    "simulate": "streamgauge.simulator.command:simulate_command",
    "sql": "streamgauge.sql:sql_command",
    "status": "streamgauge.status:status_command",
    "export": "streamgauge.export:export_command",
    "rebuild": "streamgauge.rebuild:rebuild_command",
    "read": "streamgauge.read:read_command",
    "config": "streamgauge.config:config_command",
}
ORDER = [
    "up",
    "demo",
    "sql",
    "status",
    "read",
    "tap",
    "ship",
    "analyze",
    "dashboard",
    "serve",
    "export",
    "rebuild",
    "simulate",
    "config",
    "version",
]


class LazyGroup(click.Group):
    """A group whose commands that live elsewhere are imported when they are asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return ORDER

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        place = ELSEWHERE.get(cmd_name)
        if place is None:
            return super().get_command(ctx, cmd_name)
        module, _, name = place.partition(":")
        command: click.Command = getattr(importlib.import_module(module), name)
        return command


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, message="streamgauge %(version)s")
def cli() -> None:
    """Measure every stream that passes an LLM gateway: time to first token, inter-token latency, errors, in SQL.

    \b
    Start here:
      streamgauge demo                                a simulated gateway, and everything to look at
      streamgauge up --upstream http://localhost:4000 stand in front of a real one, then point clients at :4100
      streamgauge sql "SELECT outcome, count(*) FROM streams GROUP BY 1"

    Flags go before STREAMGAUGE_* environment variables, these before ./streamgauge.toml (or STREAMGAUGE_CONFIG).
    """


@cli.command()
@settings_options(*UP)
def up(**given: Any) -> int:
    """Run everything on this machine: tap, analytics, dashboard (with --kafka also ship)."""
    from streamgauge.up import run

    return run(_begin(given))


@cli.command()
@settings_options(*TAP)
def tap(**given: Any) -> int:
    """Run the tap alone: forward requests, append what passed to the local log."""
    from ingest.tap.main import run
    from streamgauge.part_options import tap_options

    return run(tap_options(_begin(given)))


@cli.command()
@settings_options(*SHIP)
def ship(**given: Any) -> int:
    """Move the local log to Kafka, and trim what has arrived there."""
    from ingest.ship import run
    from streamgauge.part_options import ship_options

    return run(ship_options(_begin(given)))


@cli.command()
@settings_options(*ANALYZE)
def analyze(**given: Any) -> int:
    """Read the log, measure each stream, write the tables."""
    from analytics.main import run
    from streamgauge.part_options import analyze_options

    return run(analyze_options(_begin(given)))


@cli.command()
@settings_options(*DASHBOARD)
def dashboard(**given: Any) -> int:
    """Run the dashboard alone, over the tables of a data folder."""
    sys.modules.pop("pandas", None)  # `main` had it left out
    from dashboard.launch import run
    from streamgauge.part_options import dashboard_options

    return run(dashboard_options(_begin(given)))


@cli.command()
@settings_options(*SERVE)
def serve(**given: Any) -> int:
    """Answer read-only SQL over the network (DuckDB's Quack protocol), with a token."""
    from analytics.query.errors import QueryError
    from analytics.query.serve import run
    from streamgauge.part_options import serve_options

    try:
        return run(serve_options(_begin(given)))
    except QueryError as e:
        raise click.ClickException(str(e)) from None


@cli.command()
@click.option("--verbose", is_flag=True, help="Also the versions of what it runs on.")
def version(verbose: bool) -> int:
    """Print the version."""
    click.echo(f"streamgauge {__version__}")
    if verbose:
        from importlib.metadata import version as of

        click.echo(f"python {sys.version.split()[0]}")
        for name in (
            "duckdb",
            "polars",
            "kafka-python",
            "opentelemetry-sdk",
            "streamlit",
            "uvloop",
            "msgspec",
        ):
            click.echo(f"{name} {of(name)}")
    return 0


def main() -> None:
    """Entry point of the console script."""
    _die_with_parent()
    # Of each value that a statement is given DuckDB asks pandas, if that is installed, whether it is one of pandas' own.
    # None is, and only the dashboard needs it: a command without it starts 0.3 s sooner, with 40 MB less.
    sys.modules.setdefault("pandas", None)  # type: ignore[arg-type]
    try:
        code = cli.main(prog_name="streamgauge", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as e:
        e.show()
        sys.exit(2)
    except click.UsageError as e:
        where = f" (see `{e.ctx.command_path} --help`)" if e.ctx else ""
        _fail(f"{e.format_message()}{where}")
    except click.ClickException as e:
        _fail(e.format_message())
    except click.Abort:
        sys.exit(130)
    except (OSError, ValueError) as e:
        if logging.getLogger().isEnabledFor(logging.DEBUG):
            raise
        _fail(str(e))
    sys.exit(code if isinstance(code, int) else 0)


def _begin(given: dict[str, Any]) -> Settings:
    """What every running part does first. All that it writes is for its owner only."""
    settings = load(given)
    configure_logging(settings.log_format)
    for name, meant in misspelt_environment().items():
        logging.getLogger("streamgauge").warning("%s is no setting: did you mean %s?", name, meant)
    os.umask(0o077)
    return settings


def _fail(message: str) -> None:
    print(f"streamgauge: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(2)


def _die_with_parent() -> None:
    """A part that `up` started ends with it, even when `up` is killed and can tell nobody."""
    parent = os.environ.pop("STREAMGAUGE_PARENT", None)
    if parent is None:
        return
    import ctypes
    import signal

    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGTERM)
    if os.getppid() != int(parent):  # it died before we asked
        sys.exit(1)
