"""`streamgauge version`."""

from __future__ import annotations

import platform
from importlib.metadata import version

import click

from streamgauge import __version__
from streamgauge.ingest.tap.relay_choice import uses_native_code
from streamgauge.output_format import format_option, print_json

LIBRARIES = ("duckdb", "polars", "kafka-python", "opentelemetry-sdk", "streamlit", "uvloop", "msgspec")


@click.command("version")
@click.option("--verbose", is_flag=True, help="Also print the versions of Python and libraries.")
@format_option()
def version_command(verbose: bool, form: str) -> int:
    """Print the version.

    The line `relay` shows what --relay auto selects here: native or python.
    """
    versions = {"streamgauge": __version__, "relay": "native" if uses_native_code("auto") else "python"}
    if verbose:
        versions |= {"python": platform.python_version()} | {name: version(name) for name in LIBRARIES}
    if form == "json":
        print_json(versions)
    else:
        click.echo("\n".join(f"{name} {found}" for name, found in versions.items()))
    return 0
