"""The `streamgauge` command.

Invalid input and failed starts print one line to stderr and exit with code 2. Each command imports its code only when it runs.
"""

from __future__ import annotations

import importlib
import os
import sys

import click
import cloup
from click.shell_completion import CompletionItem, get_completion_class

from streamgauge import __version__
from streamgauge.settings.values import format_option, one_of, print_report

SECTIONS = {
    "Run": ("run", "open", "up", "demo", "tap", "capture", "ship", "analyze", "dashboard", "serve"),
    "Query": ("top", "report", "sql", "export", "import", "mcp"),
    "Operate": (
        "status",
        "alerts",
        "silence",
        "mark",
        "prices",
        "rebuild",
        "forget",
        "config",
        "completion",
        "version",
    ),
    "Develop": ("read", "simulate"),
}
COMMAND_ORDER = [name for names in SECTIONS.values() for name in names]
LAZY_COMMANDS = {
    "run": ("streamgauge.commands.run:run_command", "Run a command, and measure its model requests."),
    "open": ("streamgauge.commands.open_files:open_command", "Measure the requests in files: HAR, packets, recorded responses."),
    "up": ("streamgauge.commands.process_commands:up", "Run tap, analytics and dashboard; with --kafka also ship."),
    "demo": ("streamgauge.commands.demo:demo_command", "Run everything with simulated traffic."),
    "tap": ("streamgauge.commands.process_commands:tap", "Run the tap: forward requests and write the record log."),
    "capture": ("streamgauge.commands.process_commands:capture", "Record the requests that packets show, without a proxy."),
    "ship": ("streamgauge.commands.process_commands:ship", "Send the record log to Kafka."),
    "analyze": ("streamgauge.commands.process_commands:analyze", "Run analytics: measure streams and write the tables."),
    "dashboard": ("streamgauge.commands.process_commands:dashboard", "Run the dashboard on the tables of a data folder."),
    "serve": ("streamgauge.commands.process_commands:serve", "Run the read-only SQL server."),
    "top": ("streamgauge.commands.top.command:top_command", "Show the diagnosis and the traffic in the terminal."),
    "report": ("streamgauge.commands.report:report_command", "Write an HTML file with the diagnosis, latency, spend and sessions."),
    "sql": ("streamgauge.commands.sql:sql_command", "Query the tables."),
    "export": ("streamgauge.commands.store_commands:export_command", "Export tables to a DuckDB file, or requests as a trace."),
    "import": ("streamgauge.commands.store_commands:import_command", "Import the streams of a file that export wrote."),
    "mcp": ("streamgauge.mcp_server.command:mcp_command", "Run the MCP server for agents."),
    "status": ("streamgauge.commands.status:status_command", "Show the counters of the pipeline and check that they reconcile."),
    "alerts": ("streamgauge.commands.alerts:alerts_command", "Show the alerts that fire, and those that resolved recently."),
    "silence": ("streamgauge.commands.mark:silence_command", "Send no messages about some alerts for a time."),
    "mark": ("streamgauge.commands.mark:mark_command", "Store a marker, such as a deployment."),
    "prices": ("streamgauge.commands.prices:prices_command", "Import price catalogs, and show the models without a price."),
    "rebuild": ("streamgauge.commands.store_commands:rebuild_command", "Restore a damaged or missing catalog."),
    "forget": ("streamgauge.commands.store_commands:forget_command", "Delete all data of one caller."),
    "config": ("streamgauge.commands.config:config_command", "Check the configuration."),
    "version": ("streamgauge.cli:version_command", "Print the version."),
    "completion": ("streamgauge.cli:completion_command", "Print the completion code of a shell."),
    "read": ("streamgauge.python_api.recorded_response:read_command", "Decode recorded responses: text, tool calls, tokens, outcome."),
    "simulate": ("streamgauge.simulator.server:simulate_command", "Run a simulated LLM upstream."),
}  # fmt: skip
"""Import path and summary of each command. Only the command that runs is imported, so that `--help` is quick."""


class LazyGroup(cloup.Group):
    """A group that imports the commands of `LAZY_COMMANDS` when they run."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return COMMAND_ORDER

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in LAZY_COMMANDS:
            return None
        module, _, name = LAZY_COMMANDS[cmd_name][0].partition(":")
        command: click.Command = getattr(importlib.import_module(module), name)
        return command

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Without an import of the commands, as click's own would do."""
        names = [name for name in COMMAND_ORDER if name.startswith(incomplete)]
        items = [CompletionItem(name, help=LAZY_COMMANDS[name][1]) for name in names]
        return [*items, *click.Command.shell_complete(self, ctx, incomplete)]

    def list_sections(self, ctx: click.Context, include_default_section: bool = True) -> list[cloup.Section]:
        commands = {name: click.Command(name, help=summary) for name, (_, summary) in LAZY_COMMANDS.items()}
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
      streamgauge open session.har                     requests that a HAR or pcap file has
      streamgauge run -- claude                        a coding agent, or any program with an SDK
      streamgauge up --upstream http://localhost:4000  a real gateway; send clients to port 4100
      streamgauge sql "SELECT outcome, count(*) FROM streams GROUP BY 1"

    Flags override STREAMGAUGE_* environment variables, which override ./streamgauge.toml (or --config).
    """
    if not {"-h", "--help"} & set(click.get_current_context().args):
        _check_variables()


def main() -> None:
    """Entry point of the console script."""
    _exit_with_parent()  # first: the parent may end while this process imports
    # DuckDB imports pandas, if installed, to check the type of bound values. Only the dashboard needs pandas. Blocking
    # the import saves 0.3 s and 40 MB.
    sys.modules.setdefault("pandas", None)  # type: ignore[arg-type]
    try:
        # Not standalone: click would print usage errors on several lines, and `up` shows the last line of a part.
        code = cli.main(prog_name="streamgauge", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as e:
        e.show()
        sys.exit(2)
    except click.NoSuchOption as e:
        from streamgauge.settings.flags import flag
        from streamgauge.settings.model import PARTS_OF_UP, REMOVED, RENAMED, Settings, about, correction

        name = e.option_name.removeprefix("--").replace("-", "_")
        hint = correction(name, flag) if name in {*RENAMED, *REMOVED} else None
        if e.ctx is not None and name in ("port", "host", "address", "bind"):
            addresses = [flag(p.name) for p in e.ctx.command.params if p.name and p.name.endswith("listen")]
            hint = f"Pass {one_of([f'{address} HOST:PORT' for address in addresses])}." if addresses else None
        if name in Settings.model_fields:
            commands = about(name)["commands"]
            commands += ("up",) if set(commands) & set(PARTS_OF_UP) else ()
            hint = f"It is an option of {one_of(list(dict.fromkeys(commands)))}."
        _fail(f"unknown option {e.option_name}. {hint}" if hint else e.format_message())
    except click.UsageError as e:
        hint = f" (see `{e.ctx.command_path} --help`)" if e.ctx else ""
        _fail(f"{e.format_message()}{hint}")
    except click.ClickException as e:
        _fail(e.format_message())
    except click.Abort:
        sys.exit(130)
    except ModuleNotFoundError as e:
        from streamgauge.analytics.extras import extra_of, missing_package

        if extra_of(e.name) is None:
            _report_error(f"unexpected error: no module {e.name}")
            raise
        _fail(f"cannot run this command: {missing_package(e.name)}")
    except (OSError, ValueError) as e:
        import logging

        if logging.getLogger().isEnabledFor(logging.DEBUG):
            raise
        _fail(str(e))
    except Exception as e:
        _report_error(f"unexpected error: {type(e).__qualname__}")
        raise
    sys.exit(code if isinstance(code, int) else 0)


def _check_variables() -> None:
    """Raises click.UsageError for variables with a misspelt or former name, as for such keys in the configuration file."""
    # The model takes a quarter of a second to import, which `version` and `completion` need not spend.
    if not any(name.startswith("STREAMGAUGE_") for name in os.environ):
        return
    from streamgauge.settings.model import unknown_variables

    wrong = [f"{name}. {correction}" for name, correction in unknown_variables().items() if correction]
    if wrong:
        raise click.UsageError(
            f"unknown environment variable {' '.join(wrong)} Correct it, or unset it if it is not for Streamgauge."
        )


def _fail(message: str) -> None:
    print(f"streamgauge: {' '.join(message.split())}", file=sys.stderr)
    _report_error(message)
    sys.exit(2)


def _report_error(message: str) -> None:
    """Why this part ends, for the `up` that started it."""
    from streamgauge.process_logging import LAST_ERROR

    LAST_ERROR.write(message)


def _exit_with_parent() -> None:
    """Stop a part when the `up` that started it ends, even if killed."""
    parent = os.environ.pop("STREAMGAUGE_PARENT", None)
    if parent is None:
        return
    from streamgauge.ingest.processes import end_with_parent

    end_with_parent(int(parent))


LIBRARIES = ("duckdb", "polars", "kafka-python", "opentelemetry-sdk", "streamlit", "uvloop", "msgspec")


@click.command("version")
@click.option("--verbose", is_flag=True, help="Also print the versions of Python and libraries.")
@format_option()
def version_command(verbose: bool, form: str) -> int:
    """Print the version.

    The line `relay` shows what --relay auto selects here: native or python. The line `code` shows whether the tap's code is compiled or
    interpreted.
    """
    import platform
    from importlib.metadata import version

    from streamgauge.ingest.tap import is_compiled
    from streamgauge.ingest.tap.relay.choice import uses_native_code

    versions = {
        "streamgauge": __version__,
        "relay": "native" if uses_native_code("auto") else "python",
        "code": "compiled" if is_compiled() else "interpreted",
    }
    if verbose:
        versions |= {"python": platform.python_version()} | {name: version(name) for name in LIBRARIES}
    print_report(versions, "\n".join(f"{name} {found}" for name, found in versions.items()), form)
    return 0


COMPLETE_VARIABLE = "_STREAMGAUGE_COMPLETE"
"""Environment variable by which the shell asks the command for completions."""


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion_command(ctx: click.Context, shell: str) -> int:
    """Print the completion code of a shell.

    \b
    bash  streamgauge completion bash > ~/.local/share/bash-completion/completions/streamgauge
    zsh   streamgauge completion zsh > "${fpath[1]}/_streamgauge"
    fish  streamgauge completion fish > ~/.config/fish/completions/streamgauge.fish
    """
    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(ctx.find_root().command, {}, "streamgauge", COMPLETE_VARIABLE).source())
    return 0
