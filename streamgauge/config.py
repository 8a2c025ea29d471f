"""`streamgauge config`: print the effective settings, or the configuration reference."""

from __future__ import annotations

from typing import Any

import click
from pydantic import SecretStr

from analytics.storage.location import without_password
from streamgauge.flags_from_settings import default_text, flag, help_layout, load
from streamgauge.settings import GROUPS, Settings, config_file


@click.group("config")
def config_command() -> None:
    """Check the configuration."""


@config_command.command()
def check() -> int:
    """Print the settings from environment and file, without secrets."""
    settings = load({})
    path = config_file()
    click.echo(f"# file: {path if path.is_file() else f'{path} (not found)'}")
    for name, field in Settings.model_fields.items():
        value = getattr(settings, name)
        mark = "" if value == field.get_default(call_default_factory=True) else "   # not the default"
        click.echo(f"{name} = {_printable(name, value)}{mark}")
    return 0


def _printable(name: str, value: Any) -> str:
    if isinstance(value, SecretStr):
        return "(set)"
    if isinstance(value, dict):  # the values may be secrets
        return " ".join(value) or "(none)"
    if name == "store":
        return without_password(value)
    if name == "upstream":
        return " ".join(f"{u.name}={u.url}" for u in value) or "(none)"
    return "(none)" if value is None else str(value)


@config_command.command()
def reference() -> int:
    """Print the reference of all settings as Markdown."""
    click.echo(reference_text(), nl=False)
    return 0


_INTRODUCTION = """\
# Configuration

This page is generated from the code by `make reference`.

Every setting is a flag, an environment variable, and a key of `streamgauge.toml` in the working directory
(`STREAMGAUGE_CONFIG` names another file): `--tap-queue`, `STREAMGAUGE_TAP_QUEUE`, `tap_queue`. Precedence: flags,
environment, secrets folder, file, default. `streamgauge config check` prints the effective settings.

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
