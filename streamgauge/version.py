"""`streamgauge version`."""

from __future__ import annotations

import platform
from importlib.metadata import version

import click

from ingest.tap.relay_choice import is_native
from streamgauge import __version__
from streamgauge.output_format import format_option, print_json

LIBRARIES = ("duckdb", "polars", "kafka-python", "opentelemetry-sdk", "streamlit", "uvloop", "msgspec")


@click.command("version")
@click.option("--verbose", is_flag=True, help="Also print the versions of Python and libraries.")
@format_option()
def version_command(verbose: bool, form: str) -> int:
    """Print the version.

    `relay` is what the tap uses with --relay auto.
    """
    versions = {"streamgauge": __version__, "relay": "native" if is_native("auto") else "python"}
    if verbose:
        versions |= {"python": platform.python_version()} | {name: version(name) for name in LIBRARIES}
    if form == "json":
        print_json(versions)
    else:
        click.echo("\n".join(f"{name} {found}" for name, found in versions.items()))
    return 0
