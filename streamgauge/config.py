"""`streamgauge config check`: what is in force, and where it comes from."""

from __future__ import annotations

import os
from pathlib import Path

import click
from pydantic import SecretStr

from streamgauge.options import load
from streamgauge.settings import CONFIG_FILE, Settings


@click.group("config")
def config_command() -> None:
    """Look at the configuration."""


@config_command.command()
def check() -> int:
    """Read environment and file as every command does, and print what is in force. Secrets are never printed."""
    settings = load({})
    path = Path(os.environ.get("STREAMGAUGE_CONFIG", CONFIG_FILE))
    click.echo(f"# file: {path if path.is_file() else f'{path} (not there)'}")
    for name, field in Settings.model_fields.items():
        value = getattr(settings, name)
        if isinstance(value, SecretStr):
            shown = "(set)"
        elif name == "upstream":
            shown = " ".join(f"{u.name}={u.url}" for u in value) or "(none)"
        else:
            shown = "(none)" if value is None else str(value)
        mark = "" if value == field.get_default(call_default_factory=True) else "   # not the default"
        click.echo(f"{name} = {shown}{mark}")
    return 0
