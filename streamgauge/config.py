"""`streamgauge config`: print the effective settings, or the configuration reference."""

from __future__ import annotations

import json
from typing import Any

import click
from pydantic import SecretStr

from analytics.storage.location import without_password
from streamgauge.flags_from_settings import default_text, flag, help_layout, load, settings_options
from streamgauge.settings import GROUPS, Settings, config_file, setting_sources, unknown_variables


@click.group("config")
def config_command() -> None:
    """Check the configuration."""


@config_command.command()
@settings_options(*Settings.model_fields)
def check(**given: Any) -> int:
    """Check all settings and print them as TOML, with the source of each and without secrets."""
    settings = load(given)
    sources = setting_sources([name for name, value in given.items() if value is not None and value != ()])
    path = config_file()
    click.echo(f"# file: {path if path.is_file() else f'{path} (not found)'}")
    for name in unknown_variables():
        click.echo(f"# {name} is ignored: it is not a setting.")
    for name in Settings.model_fields:
        click.echo(f"{_assignment(name, getattr(settings, name))}  # {sources[name]}")
    return 0


def _assignment(name: str, value: Any) -> str:
    """A line of TOML. A comment if the setting has no value or is a secret."""
    if value is None:
        return f"# {name} = (not set)"
    if isinstance(value, SecretStr):
        return f"# {name} = (set)"
    if isinstance(value, dict) and value:  # the values may be secrets
        return f"# {name} = (set: {', '.join(value)})"
    if name == "store" and (shown := without_password(value)) != value:
        return f"# {name} = {_toml(shown)}"
    return f"{name} = {_toml(value)}"


def _toml(value: Any) -> str:
    if isinstance(value, bool | int | float):
        return str(value).lower()
    if isinstance(value, dict):
        return "{}"
    if isinstance(value, tuple):
        return "[" + ", ".join(_toml(str(item)) for item in value) + "]"
    return json.dumps(str(value), ensure_ascii=False)  # a JSON string is a TOML string


@config_command.command()
def reference() -> int:
    """Print the reference of all settings as Markdown."""
    click.echo(reference_text(), nl=False)
    return 0


_INTRODUCTION = """\
# Configuration

This page is generated from the code by `make reference`.

Every setting is a flag, an environment variable, and a key of `streamgauge.toml` in the working directory: `--tap-queue`,
`STREAMGAUGE_TAP_QUEUE`, `tap_queue`. `--config` or `STREAMGAUGE_CONFIG` names another file. Precedence: flags, environment,
secrets folder, file, default. `streamgauge config check` prints the effective settings with their sources. Unknown keys and
misspelt variables are errors.

| type | values |
|---|---|
| `BYTES` | a number of bytes, or a size: `64MiB`, `2GiB`, `500kB` |
| `DURATION` | `500ms`, `30s`, `5m`, `2h`, `7d`, `2w`. A plain number is seconds, except for ages, which require a unit |

Pass secrets in files: flags are visible in the process list. `STREAMGAUGE_SECRETS_DIR` names a folder with a file for each
setting, such as `streamgauge_client_key` for `client_key`. Kubernetes and Docker secrets mounted as a volume, and systemd's
`LoadCredential=` (detected automatically), are such folders. No command prints secrets.

In the file, several upstreams are a list: `upstream = ["litellm=http://localhost:4000", "vllm=http://localhost:8000"]`. In
the environment they are separated by spaces.
"""


def reference_text() -> str:
    """The configuration reference: a table for each group of settings."""
    lines = [_INTRODUCTION]
    for group in GROUPS:
        lines += [
            f"## {group}",
            "",
            "| flag | environment and file | default | meaning |",
            "|---|---|---|---|",
        ]
        for name, field in Settings.model_fields.items():
            default, (field_group, metavar) = default_text(name), help_layout(name)
            if field_group == group:
                cells = (
                    f"`{flag(name)}{f' {metavar}' if metavar else ''}`",
                    f"`STREAMGAUGE_{name.upper()}`, `{name}`",
                    f"`{default}`" if default else "",
                    field.description or "",
                )
                lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
        lines.append("")
    return "\n".join(lines)
