"""The `streamgauge` command.

Invalid input and failed starts print one line to stderr and exit with code 2. Each command imports its code only when it runs.
"""

from __future__ import annotations

import importlib
import logging
import os
import sys
from typing import Any

import click
import cloup

from streamgauge import __version__
from streamgauge.command_settings import ANALYZE, DASHBOARD, SERVE, SHIP, TAP, UP
from streamgauge.flags_from_settings import flag, load, settings_options
from streamgauge.log_format import configure_logging
from streamgauge.settings import RENAMED, Settings, unknown_variables

SECTIONS = {
    "Run": ("up", "demo", "tap", "ship", "analyze", "dashboard", "serve"),
    "Query": ("sql", "export"),
    "Operate": ("status", "rebuild", "config", "version"),
    "Develop": ("read", "simulate"),
}
COMMAND_ORDER = [name for names in SECTIONS.values() for name in names]
LAZY_COMMANDS = {
    "demo": ("streamgauge.demo:demo_command", "Run everything with simulated traffic."),
    "sql": ("streamgauge.sql:sql_command", "Query the tables."),
    "export": ("streamgauge.export:export_command", "Export tables and views to a DuckDB file."),
    "status": ("streamgauge.status:status_command", "Show the counters of the pipeline and check that they reconcile."),
    "rebuild": ("streamgauge.rebuild:rebuild_command", "Restore a damaged or missing catalog."),
    "config": ("streamgauge.config:config_command", "Check the configuration."),
    "read": ("streamgauge.read:read_command", "Decode recorded responses: text, tool calls, tokens, events, outcome."),
    "simulate": ("streamgauge.simulator.command:simulate_command", "Run a simulated LLM upstream."),
}  # fmt: skip
"""Import path and summary of commands in other modules. Only the command that runs is imported."""
LIBRARIES = ("duckdb", "polars", "kafka-python", "opentelemetry-sdk", "streamlit", "uvloop", "msgspec")


class LazyGroup(cloup.Group):
    """A group that imports the commands of `LAZY_COMMANDS` when they run."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return COMMAND_ORDER

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in LAZY_COMMANDS:
            return super().get_command(ctx, cmd_name)
        module, _, name = LAZY_COMMANDS[cmd_name][0].partition(":")
        command: click.Command = getattr(importlib.import_module(module), name)
        return command

    def list_sections(self, ctx: click.Context, include_default_section: bool = True) -> list[cloup.Section]:
        lazy = {name: click.Command(name, help=summary) for name, (_, summary) in LAZY_COMMANDS.items()}
        commands: dict[str, click.Command] = {**self.commands, **lazy}
        return [cloup.Section(title, {n: commands[n] for n in names}) for title, names in SECTIONS.items()]


@cloup.group(
    cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110}
)
@cloup.version_option(__version__, message="streamgauge %(version)s")
def cli() -> None:
    """Measure every stream through an LLM gateway: time to first token, inter-token latency, errors, in SQL.

    \b
    Start here:
      streamgauge demo                                 simulated gateway and traffic
      streamgauge up --upstream http://localhost:4000  a real gateway; send clients to port 4100
      streamgauge sql "SELECT outcome, count(*) FROM streams GROUP BY 1"

    Flags override STREAMGAUGE_* environment variables, which override ./streamgauge.toml (or --config).
    """
    if not {"-h", "--help"} & set(click.get_current_context().args):
        _check_variables()


@cli.command()
@settings_options(*UP)
def up(**given: Any) -> int:
    """Run tap, analytics and dashboard together; with --kafka also ship."""
    from streamgauge.up import run

    return run(_load_settings(given))


@cli.command()
@settings_options(*TAP)
def tap(**given: Any) -> int:
    """Run the tap: forward requests and write the record log."""
    from ingest.tap.main import run
    from streamgauge.part_options import tap_options

    return run(tap_options(_load_settings(given)))


@cli.command()
@settings_options(*SHIP)
def ship(**given: Any) -> int:
    """Send the record log to Kafka."""
    from ingest.ship import run
    from streamgauge.part_options import ship_options

    return run(ship_options(_load_settings(given)))


@cli.command()
@settings_options(*ANALYZE)
def analyze(**given: Any) -> int:
    """Run analytics: measure streams and write the tables."""
    from analytics.main import run
    from streamgauge.part_options import analyze_options

    return run(analyze_options(_load_settings(given)))


@cli.command()
@settings_options(*DASHBOARD)
def dashboard(**given: Any) -> int:
    """Run the dashboard on the tables of a data folder."""
    sys.modules.pop("pandas", None)  # blocked by `main`
    from dashboard.launch import run
    from streamgauge.part_options import dashboard_options

    return run(dashboard_options(_load_settings(given, use_running_parts=True)))


@cli.command()
@settings_options(*SERVE)
def serve(**given: Any) -> int:
    """Run the read-only SQL server.

    The server uses DuckDB's Quack protocol. Clients need a token.
    """
    from analytics.query.errors import QueryError
    from analytics.query.serve import run
    from streamgauge.part_options import serve_options

    try:
        return run(serve_options(_load_settings(given, use_running_parts=True)))
    except QueryError as e:
        raise click.ClickException(str(e)) from None


@cli.command()
@click.option("--verbose", is_flag=True, help="Also print the versions of Python and libraries.")
def version(verbose: bool) -> int:
    """Print the version."""
    click.echo(f"streamgauge {__version__}")
    if verbose:
        from importlib.metadata import version as version_of

        click.echo(f"python {sys.version.split()[0]}")
        for name in LIBRARIES:
            click.echo(f"{name} {version_of(name)}")
    return 0


def main() -> None:
    """Entry point of the console script."""
    _exit_with_parent()
    # DuckDB imports pandas, if installed, to check the type of bound values. Only the dashboard needs pandas. Blocking
    # the import saves 0.3 s and 40 MB.
    sys.modules.setdefault("pandas", None)  # type: ignore[arg-type]
    try:
        code = cli.main(prog_name="streamgauge", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as e:
        e.show()
        sys.exit(2)
    except click.NoSuchOption as e:
        former = RENAMED.get(e.option_name.removeprefix("--").replace("-", "_"))
        _fail(f"{e.option_name} is now {flag(former)}." if former else e.format_message())
    except click.UsageError as e:
        hint = f" (see `{e.ctx.command_path} --help`)" if e.ctx else ""
        _fail(f"{e.format_message()}{hint}")
    except click.ClickException as e:
        _fail(e.format_message())
    except click.Abort:
        sys.exit(130)
    except (OSError, ValueError) as e:
        if logging.getLogger().isEnabledFor(logging.DEBUG):
            raise
        _fail(str(e))
    sys.exit(code if isinstance(code, int) else 0)


def _check_variables() -> None:
    """Raises click.UsageError for variables with a misspelt or former name, as for such keys in the configuration file."""
    wrong = [f"{name} (did you mean {correct}?)" for name, correct in unknown_variables().items() if correct]
    if wrong:
        raise click.UsageError(
            f"unknown environment variable {', '.join(wrong)}. Correct it, or unset it if it is not for Streamgauge."
        )


def _load_settings(given: dict[str, Any], *, use_running_parts: bool = False) -> Settings:
    """Load the settings, configure logging, and make new files private to the owner.

    `use_running_parts`: use the store of the running analytics, unless it is set.
    """
    if use_running_parts:
        from streamgauge.running_parts import load_with_running_parts

        settings = load_with_running_parts(given)
    else:
        settings = load(given)
    configure_logging(settings.log_format)
    for name in unknown_variables():
        logging.getLogger("streamgauge").warning("ignoring the variable %s: it is not a setting.", name)
    os.umask(0o077)
    return settings


def _fail(message: str) -> None:
    print(f"streamgauge: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(2)


def _exit_with_parent() -> None:
    """Stop a part when the `up` that started it ends, even if killed."""
    parent = os.environ.pop("STREAMGAUGE_PARENT", None)
    if parent is None:
        return
    import ctypes
    import signal

    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGTERM)
    if os.getppid() != int(parent):  # the parent ended before the prctl call
        sys.exit(1)
