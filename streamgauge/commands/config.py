"""`streamgauge config`: print the effective settings, or the configuration reference."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
from pydantic import SecretStr

from streamgauge.analytics.storage.location import without_password
from streamgauge.settings.flags import default_text, flag, load_used, settings_options
from streamgauge.settings.model import (
    GROUPS,
    Settings,
    about,
    config_file,
    setting_sources,
    unknown_variables,
    variable,
)
from streamgauge.settings.process_options import Fault, prices, start_faults
from streamgauge.settings.values import format_option, print_json, print_report

TABLES = ("objectives", "budgets", "clients", "labels", "saved_views")


@click.group("config")
def config_command() -> None:
    """Check the configuration."""


@config_command.command()
@settings_options(*Settings.model_fields)
@format_option(" table prints TOML.")
def check(form: str, **given: Any) -> int:
    """Check all settings and print them with the source of each and without secrets.

    Exit code 2 if a part would not start with them. `up` refuses to start only for faults of the tap.
    """
    settings, invalid = load_used(given, ())
    sources = setting_sources([name for name, value in given.items() if value is not None and value != ()])
    sources |= {name: f"{sources[name]}, invalid: the default is shown" for name in invalid}
    faults = [
        *(Fault(", ".join(about(name)["commands"]), line) for name, line in invalid.items()),
        *start_faults(settings),
    ]
    if form == "json":
        print_json(_as_json(settings, sources, faults))
    else:
        _print_toml(settings, sources)
    for fault in faults:
        click.echo(f"streamgauge: {fault.part}: {fault.message}", err=True)
    if faults:
        click.get_current_context().exit(2)
    return 0


def _as_json(settings: Settings, sources: Mapping[str, str], faults: Sequence[Fault]) -> dict[str, Any]:
    path = config_file()
    return {
        "file": str(path) if path.is_file() else None,
        "faults": [fault._asdict() for fault in faults],
        "prices": _count_prices(settings),
        "ignored_variables": [*unknown_variables()],
        "settings": {name: _setting(settings, name, sources[name]) for name in Settings.model_fields},
        "default_objective": settings.all_objectives[-1].table(),
    }


def _count_prices(settings: Settings) -> int | None:
    """None without a price file, or with one that is among the faults."""
    with contextlib.suppress(click.UsageError):
        return None if settings.price_file is None else len(prices(settings))
    return None


def _setting(settings: Settings, name: str, source: str) -> dict[str, Any]:
    hidden = _hidden(name, getattr(settings, name)) is not None
    return {"value": None if hidden else _plain(settings, name), "source": source, "hidden": hidden}


def _plain(settings: Settings, name: str) -> Any:
    """A value as JSON and TOML have it."""
    value: Any = getattr(settings, name)
    if name in ("objectives", "budgets"):
        return [one.table() for one in value]
    if name == "clients":
        return {client.client_id: client.name for client in settings.clients}
    if name == "labels":
        return [
            {key: value for key, value in asdict(label).items() if value is not False}
            for label in settings.labels
        ]
    if name == "saved_views":
        return {view.name: view.address for view in settings.saved_views}
    if isinstance(value, tuple):
        return [str(item) for item in value]
    return value if isinstance(value, bool | int | float | dict | None) else str(value)


def _print_toml(settings: Settings, sources: Mapping[str, str]) -> None:
    path = config_file()
    click.echo(f"# file: {path if path.is_file() else f'{path} (not found)'}")
    if (count := _count_prices(settings)) is not None:
        click.echo(f"# {settings.price_file} has {count} prices.")
    for name in unknown_variables():
        click.echo(f"# {name} is ignored: it is not a setting.")
    for name in Settings.model_fields:
        if name not in TABLES:
            click.echo(f"{_assignment(name, getattr(settings, name))}  # {sources[name]}")
    for name in TABLES:  # last, because in TOML a table ends only at the next one
        found = _plain(settings, name)
        heading = f"[[{name}]]" if isinstance(found, list) else f"[{name}]"
        for table in found if isinstance(found, list) else [found] if found else []:
            click.echo(f"\n{heading}  # {sources[name]}")
            for key, value in table.items():
                click.echo(f"{key if re.fullmatch('[a-z0-9_]+', key) else _toml(key)} = {_toml(value)}")
    default = settings.all_objectives[-1]
    click.echo(f"\n# All other streams: {', '.join(f'{k} {v}' for k, v in default.table().items())}")


def _assignment(name: str, value: Any) -> str:
    """A line of TOML. A comment if the setting has no value or is a secret."""
    if value is None:
        return f"# {name} = (not set)"
    hidden = _hidden(name, value)
    return f"{name} = {_toml(value)}" if hidden is None else f"# {name} = {hidden}"


def _hidden(name: str, value: Any) -> str | None:
    """What replaces a value that is, or may contain, a secret. None for other values."""
    if isinstance(value, SecretStr):
        return "(set)"
    if isinstance(value, dict) and value:
        return f"(set: {', '.join(value)})"
    if name == "store" and (shown := without_password(value)) != value:
        return _toml(shown)
    return None


def _toml(value: Any) -> str:
    if isinstance(value, bool | int | float):
        return str(value).lower()
    if isinstance(value, dict):
        return "{}"
    if isinstance(value, tuple):
        return "[" + ", ".join(_toml(str(item)) for item in value) + "]"
    return json.dumps(str(value), ensure_ascii=False)  # a JSON string is a TOML string


@config_command.command()
@format_option(" table prints Markdown.")
def reference(form: str) -> int:
    """Print the reference of all settings."""
    described = [_described(name) for name in Settings.model_fields]
    print_report(described, reference_text().removesuffix("\n"), form)
    return 0


def _described(name: str) -> dict[str, Any]:
    layout = about(name)
    return {
        "name": name, "group": layout["group"], "flag": flag(name), "variable": variable(name),
        "metavar": layout["metavar"],
        "default": default_text(name), "meaning": Settings.model_fields[name].description,
    }  # fmt: skip


_INTRODUCTION = Path(__file__).with_name("configuration.md")
"""The beginning of the configuration reference."""


def reference_text() -> str:
    """The configuration reference: a table for each group of settings."""
    lines = [_INTRODUCTION.read_text("utf-8")]
    for group in GROUPS:
        lines += [
            f"## {group}",
            "",
            "| flag | environment and file | default | meaning |",
            "|---|---|---|---|",
        ]
        for name, field in Settings.model_fields.items():
            default, metavar = default_text(name), about(name)["metavar"]
            if about(name)["group"] == group:
                cells = (
                    f"`{flag(name)}{f' {metavar}' if metavar else ''}`",
                    f"`STREAMGAUGE_{name.upper()}`, `{name}`",
                    f"`{default}`" if default else "",
                    field.description or "",
                )
                lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
        lines.append("")
    return "\n".join(lines)
