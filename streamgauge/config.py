"""`streamgauge config`: what is in force, and the reference of all settings."""

from __future__ import annotations

import click
from pydantic import SecretStr

from analytics.storage.dsn import without_password
from streamgauge.flags import flag, load
from streamgauge.settings import Settings, config_file


@click.group("config")
def config_command() -> None:
    """Look at the configuration."""


@config_command.command()
def check() -> int:
    """Read environment and file as every command does, and print what is in force. Secrets are never printed."""
    settings = load({})
    path = config_file()
    click.echo(f"# file: {path if path.is_file() else f'{path} (not there)'}")
    for name, field in Settings.model_fields.items():
        value = getattr(settings, name)
        if isinstance(value, SecretStr):
            shown = "(set)"
        elif isinstance(value, dict):  # its values may be secrets
            shown = " ".join(value) or "(none)"
        elif name == "store":
            shown = without_password(value)
        elif name == "upstream":
            shown = " ".join(f"{u.name}={u.url}" for u in value) or "(none)"
        else:
            shown = "(none)" if value is None else str(value)
        mark = "" if value == field.get_default(call_default_factory=True) else "   # not the default"
        click.echo(f"{name} = {shown}{mark}")
    return 0


@config_command.command()
def reference() -> int:
    """Print docs/reference/configuration.md, made from the settings model."""
    click.echo(reference_text(), nl=False)
    return 0


def reference_text() -> str:
    """The reference page: a row for each setting."""
    lines = [
        "# Configuration",
        "",
        "Every setting can be given as a flag, as an environment variable, or in `streamgauge.toml` in the working",
        "directory (`STREAMGAUGE_CONFIG` names another file). Flags go before the environment, the environment before",
        "the file, the file before the default. `streamgauge config check` prints what is in force.",
        "",
        "Secrets are never printed, and belong in files rather than in flags (which show in the process list):",
        "`STREAMGAUGE_SECRETS_DIR` names a folder in which the file `streamgauge_client_key` is the setting `client_key`,",
        "and so on for any setting. It comes after the environment and before `streamgauge.toml`. A Kubernetes secret mounted",
        "as a volume, a Docker secret and systemd's `LoadCredential=` (found without being named) are such folders.",
        "",
        "Made by `streamgauge config reference`; a test keeps it true.",
        "",
        "| flag | environment | in the file | default | meaning |",
        "|---|---|---|---|---|",
    ]
    for name, field in Settings.model_fields.items():
        default = field.get_default(call_default_factory=True)
        if name == "tap_name":
            shown = "the host's name"
        else:
            shown = (
                ""
                if default in (None, (), {})
                else f"`{str(default).lower() if default is False else default}`"
            )
        cells = (
            f"`{flag(name)}`",
            f"`STREAMGAUGE_{name.upper()}`",
            f"`{name}`",
            shown,
            field.description or "",
        )
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    lines += [
        "",
        'Several upstreams in the file: `upstream = ["litellm=http://localhost:4000", "vllm=http://localhost:8000"]`;',
        "in the environment they are separated by spaces. The tap takes the OpenTelemetry trace context from its clients;",
        "nothing else is read from the environment.",
        "",
    ]
    return "\n".join(lines)
