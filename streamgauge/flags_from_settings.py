"""Command-line flags generated from the settings model.

Unset flags have no value, so they do not override the environment or the configuration file.
"""

from __future__ import annotations

import os
import tomllib
import types
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import click
import cloup
from pydantic import ByteSize, SecretStr, ValidationError

from streamgauge.allowed_values import DURATION, in_words, one_of
from streamgauge.settings import GROUPS, Settings, config_file, correct_name, setting_sources

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
    """Add the flags of these settings and --config to a command. Unset flags are passed as None or ()."""
    if len(names) <= MAX_UNGROUPED:
        decorators = [_option(name) for name in names]
    else:
        ordered = [name for name in Settings.model_fields if name in names]
        by_group = [(title, [n for n in ordered if help_layout(n)[0] == title]) for title in GROUPS]
        decorators = [
            cloup.option_group(title, *map(_option, members)) for title, members in by_group if members
        ]

    config: Decorator = cloup.option(
        "--config", type=click.Path(path_type=Path), metavar="FILE", expose_value=False, callback=_use_config,
        help="Configuration file.  [default: ./streamgauge.toml]",
    )  # fmt: skip

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        for decorator in reversed([*decorators, config]):
            command = decorator(command)
        return command

    return decorate


def _use_config(ctx: click.Context, param: click.Parameter, value: Path | None) -> None:
    """In the environment, for the settings and for child processes."""
    if value is not None:
        os.environ["STREAMGAUGE_CONFIG"] = str(value)


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
        return _size(default)
    if isinstance(default, float):
        return f"{default:g}" + ("s" if default and help_layout(name)[1] == "DURATION" else "")
    return str(default)


def load(given: Mapping[str, Any]) -> Settings:
    """Load settings from flags, environment and file. Raises click.UsageError with one line that names the invalid setting."""
    return load_used(given, Settings.model_fields)[0]


def load_used(given: Mapping[str, Any], used: Collection[str]) -> tuple[Settings, dict[str, str]]:
    """As `load`, for a command that uses only the settings `used`.

    Flags must be valid, too. Other invalid settings have their defaults in the result; the dictionary has a line for each.
    """
    flags = {k: v for k, v in given.items() if v is not None and v != ()}
    defaults: dict[str, Any] = {}
    invalid: dict[str, str] = {}
    while True:
        try:
            return Settings(**flags, **defaults), invalid
        except ValidationError as e:
            lines = {str(error["loc"][0]): _one_line(error, flags) for error in e.errors()}
            if not lines.keys() <= Settings.model_fields.keys() - {*used, *flags, *defaults}:
                raise click.UsageError("; ".join(lines.values())) from None
            invalid |= lines
            defaults |= {n: Settings.model_fields[n].get_default(call_default_factory=True) for n in lines}
        except ValueError as e:  # a configuration file that is not TOML
            prefix = (
                f"{config_file()}: " if isinstance(e, tomllib.TOMLDecodeError | UnicodeDecodeError) else ""
            )
            raise click.UsageError(prefix + str(e).splitlines()[0]) from None


def _one_line(error: Any, given: Collection[str]) -> str:
    message = error["msg"].removeprefix("Value error, ")
    name = str(error["loc"][0])
    if error["type"] == "extra_forbidden":
        similar = correct_name(name)
        hint = f" Did you mean {similar!r}?" if similar else ""
        return f"unknown setting {name!r} in {config_file()}.{hint} `streamgauge config reference` lists all settings."
    source = setting_sources(given)[name]
    origin = "" if source.startswith("flag") else f" ({source})"
    if error["type"] != "value_error":
        secret = _type(Settings.model_fields[name].annotation) in (SecretStr, dict) or name == "store"
        value = "the value" if secret else repr(error["input"])
        message = f"{value} is not {allowed_values(name)}"
    # The message about a combination names its settings.
    return f"{message}{origin}." if message.startswith("--") else f"{flag(name)}{origin}: {message}."


def allowed_values(name: str) -> str:
    """What a setting accepts, in words."""
    field = Settings.model_fields[name]
    kind, annotation = _type(field.annotation), field.annotation
    if kind is bool:
        return "true or false"
    if kind is Literal:
        return one_of(get_args(annotation))
    if kind is dict:
        return 'a JSON object such as {"security_protocol": "SSL"}'
    bounds = {
        key: _size(value) if kind is ByteSize else f"{value:g}"
        for key, bound in (("least", "ge"), ("above", "gt"), ("most", "le"))
        for value in [getattr(m, bound, None) for m in field.metadata]
        if value is not None
    }
    if kind is ByteSize:
        return in_words("a size", example="64MiB", **_unless_zero(bounds))
    if kind is float and help_layout(name)[1] == "DURATION":
        return in_words("a duration", example=DURATION, **_unless_zero(bounds))
    if kind in (int, float):
        return in_words("a whole number" if kind is int else "a number", **bounds)
    return "text in quotes"


def _unless_zero(bounds: dict[str, str]) -> dict[str, str]:
    """No size and no duration is below 0, so this bound is not worth a word."""
    return {key: value for key, value in bounds.items() if (key, value) != ("least", "0")}


def _size(value: int) -> str:
    return ByteSize(value).human_readable().replace(".0", "") if value else "0"


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
