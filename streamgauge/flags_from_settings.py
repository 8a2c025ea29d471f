"""Command-line flags generated from the settings model.

Unset flags have no value, so they do not override the environment or the configuration file.
"""

from __future__ import annotations

import json
import tomllib
import types
from collections.abc import Callable, Iterable
from typing import Any, get_args, get_origin

import click
import cloup
from pydantic import ByteSize, SecretStr, ValidationError

from streamgauge.settings import GROUPS, Settings, config_file

MAX_UNGROUPED = 10
"""Commands with more settings show them in groups."""
Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


class SettingOption(cloup.Option):
    """Option without a default value. `--help` shows the default of the setting."""

    def __init__(self, *args: Any, shown_default: str | None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.shown_default = shown_default

    def get_help_extra(self, ctx: click.Context) -> Any:
        extra = super().get_help_extra(ctx)
        if self.shown_default is not None:
            extra["default"] = self.shown_default
        return extra


def flag(name: str) -> str:
    """The flag of a setting: `dashboard_port` → `--dashboard-port`."""
    return "--" + name.replace("_", "-")


def settings_options(*names: str) -> Decorator:
    """Add the flags of these settings to a command. Unset flags are passed as None or ()."""
    if len(names) <= MAX_UNGROUPED:
        decorators = [_option(name) for name in names]
    else:
        ordered = [name for name in Settings.model_fields if name in names]
        by_group = [(title, [n for n in ordered if help_layout(n)[0] == title]) for title in GROUPS]
        decorators = [
            cloup.option_group(title, *map(_option, members)) for title, members in by_group if members
        ]

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        for decorator in reversed(decorators):
            command = decorator(command)
        return command

    return decorate


def help_layout(name: str) -> tuple[str, str | None]:
    """Group and metavar of a setting in `--help`. Switches have no metavar."""
    extra: Any = Settings.model_fields[name].json_schema_extra
    return extra["group"], extra["metavar"]


def _option(name: str) -> Decorator:
    field = Settings.model_fields[name]
    kind = _type(field.annotation)
    attributes: dict[str, Any] = {"help": field.description, "default": None, "cls": SettingOption}
    if kind is bool:
        attributes |= {"is_flag": True, "shown_default": None}
    else:
        attributes |= {"metavar": help_layout(name)[1], "shown_default": default_text(name)}
        attributes |= {"multiple": kind is tuple}
    return cloup.option(flag(name), name, **attributes)


def _type(annotation: Any) -> Any:
    """The type of a field: `str | None` → str, `tuple[X, ...]` → tuple."""
    if get_origin(annotation) is types.UnionType:
        annotation = next(a for a in get_args(annotation) if a is not type(None))
    return get_origin(annotation) or annotation


def default_text(name: str) -> str | None:
    """The default of a setting in the notation of the flag, or None."""
    if name == "tap_name":
        return "host name"
    default = Settings.model_fields[name].get_default(call_default_factory=True)
    if default in (None, (), {}, ""):
        return None
    if isinstance(default, bool):
        return str(default).lower()
    if isinstance(default, ByteSize):
        return default.human_readable().replace(".0", "") if default else "0"
    if isinstance(default, float):
        return f"{default:g}" + ("s" if default and help_layout(name)[1] == "DURATION" else "")
    return str(default)


def load(given: dict[str, Any]) -> Settings:
    """Load settings from flags, environment and file. Raises click.UsageError with one line that names the invalid setting."""
    values = {k: v for k, v in given.items() if v is not None and v != ()}
    if isinstance(values.get("kafka_options"), str):
        try:
            values["kafka_options"] = json.loads(values["kafka_options"])
        except ValueError as e:
            raise click.UsageError(f"--kafka-options is not JSON: {e}") from None
    try:
        return Settings(**values)
    except ValidationError as e:
        raise click.UsageError("; ".join(_one_line(error, values) for error in e.errors())) from None
    except ValueError as e:  # invalid TOML, or invalid JSON in the environment
        prefix = f"{config_file()}: " if isinstance(e, tomllib.TOMLDecodeError) else ""
        raise click.UsageError(prefix + str(e).splitlines()[0]) from None


def _one_line(error: Any, given: dict[str, Any]) -> str:
    if not error["loc"]:  # a combination of settings is invalid; the message names them
        return str(error["msg"]).removeprefix("Value error, ")
    name = str(error["loc"][0])
    if error["type"] == "extra_forbidden":
        return (
            f"unknown setting {name!r} in {config_file()}. `streamgauge config reference` lists all settings."
        )
    source = "" if name in given else f" (STREAMGAUGE_{name.upper()} or the configuration file)"
    message = error["msg"].removeprefix("Value error, ")
    if error["type"].startswith("byte_size"):
        message = f"{error['input']!r} is not a size such as 64MiB"
    return f"{flag(name)}{source}: {message}"


def flags(settings: Settings, names: Iterable[str]) -> list[str]:
    """The settings as flags for a child process. Leaves out settings that may contain secrets."""
    argv: list[str] = []
    for name in names:
        value = getattr(settings, name)
        if value is None or isinstance(value, SecretStr | dict) or name == "store":
            continue
        if isinstance(value, bool):
            argv += [flag(name)] if value else []
        elif isinstance(value, tuple):
            for item in value:
                argv += [flag(name), str(item)]
        else:
            argv += [flag(name), str(value)]
    return argv
