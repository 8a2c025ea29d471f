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

from streamgauge.analytics.storage.location import HIDDEN
from streamgauge.ingest.ready_file import read_ready_file
from streamgauge.settings.model import (
    COMMON,
    GROUPS,
    Settings,
    about,
    config_file,
    correction,
    setting_sources,
)
from streamgauge.settings.values import DURATION, in_words, one_of

MAX_UNGROUPED = 10
"""Commands with more settings show them in groups."""
HELP_ALL = "streamgauge.help_all"
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


class SettingsCommand(cloup.Command):
    """A command with many settings: `--help` shows those that most people use, `--help-all` the others too."""

    def format_params(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        # Only here and not for the options: completion and the generated reference have all of them.
        for group in self.option_groups:
            group.hidden = group.title != COMMON and HELP_ALL not in ctx.meta
        super().format_params(ctx, formatter)


def _help_all(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value:
        ctx.meta[HELP_ALL] = True
        click.echo(ctx.get_help(), color=ctx.color)
        ctx.exit()


def flag(name: str) -> str:
    """The flag of a setting: `tap_name` → `--tap-name`."""
    return "--" + name.replace("_", "-")


def settings_options(*names: str) -> Decorator:
    """Add the flags of these settings and --config to a command. Unset flags are passed as None or ()."""
    if len(names) <= MAX_UNGROUPED:  # headings for three flags would be longer than the flags
        decorators = [_option(name) for name in names]
    else:
        ordered = [name for name in Settings.model_fields if name in names]
        by_group = [(title, [n for n in ordered if about(n)["group"] == title]) for title in GROUPS]
        decorators = [
            cloup.option_group(title, *map(_option, members)) for title, members in by_group if members
        ]
        decorators.append(
            cloup.option(
                "--help-all", is_flag=True, is_eager=True, expose_value=False, callback=_help_all,
                help="Show all options and exit.",
            )
        )  # fmt: skip

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
        # Not a parameter: the settings model reads its file before it knows any flag.
        os.environ["STREAMGAUGE_CONFIG"] = str(value)


def _option(name: str) -> Decorator:
    field = Settings.model_fields[name]
    kind = _type(field.annotation)
    # Click's own default would be given to the model as a flag, and override the environment and the file.
    attributes: dict[str, Any] = {"help": field.description, "default": None, "cls": SettingOption}
    if kind is bool:
        attributes |= {"is_flag": True, "shown_default": None}
    else:
        attributes |= {"metavar": about(name)["metavar"], "shown_default": default_text(name)}
        attributes |= {"multiple": kind is tuple}
        if name == "capture_content":  # its value can be left out
            attributes |= {"is_flag": False, "flag_value": "*"}
    other = ["--label"] if name == "labels" else []  # one flag is one label
    return cloup.option(flag(name), *other, name, **attributes)


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
        return f"{default:g}" + ("s" if default and about(name)["metavar"] == "DURATION" else "")
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
            # A command must run although a setting of another part is wrong: `status` is how one finds out what is wrong. Such
            # settings get their defaults, and the loop ends, because each turn adds at least one.
            if not lines.keys() <= Settings.model_fields.keys() - {*used, *flags, *defaults}:
                raise click.UsageError("; ".join(lines.values())) from None
            invalid |= lines
            defaults |= {n: Settings.model_fields[n].get_default(call_default_factory=True) for n in lines}
        except RecursionError:
            raise click.UsageError(f"{config_file()}: it is nested too deeply.") from None
        except ValueError as e:  # a configuration file that is not TOML
            prefix = (
                f"{config_file()}: " if isinstance(e, tomllib.TOMLDecodeError | UnicodeDecodeError) else ""
            )
            raise click.UsageError(prefix + str(e).splitlines()[0]) from None


def _one_line(error: Any, given: Collection[str]) -> str:
    message = error["msg"].removeprefix("Value error, ")
    name = str(error["loc"][0])
    if error["type"] == "extra_forbidden":
        hint = " ".join(
            filter(None, (correction(name, repr), "`streamgauge config reference` lists all settings."))
        )
        return f"unknown setting {name!r} in {config_file()}. {hint}"
    source = setting_sources(given)[name]
    origin = "" if source.startswith("flag") else f" ({source})"
    if error["type"] != "value_error":
        # The input of a secret, or of a table that may have one, must not appear in a terminal or a log.
        secret = _type(Settings.model_fields[name].annotation) in (SecretStr, dict) or name == "store"
        value = "the value" if secret else repr(error["input"])
        message = f"{value} is not {allowed_values(name)}"
    # The message about a combination names its settings.
    return (
        f"{message}{origin}." if message.startswith("--") else f"{flag(name)}{origin}: {message.rstrip('.')}."
    )


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
    if kind is float and about(name)["metavar"] == "DURATION":
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
            continue  # every user of the machine sees the flags of a process; `up` passes these in the environment
        if isinstance(value, bool):
            argv += [flag(name)] if value else []
        elif isinstance(value, tuple):
            for item in value:
                argv += [flag(name), str(item)]
        else:
            argv += [flag(name), str(value)]
    return argv


def load_with_running_parts(given: Mapping[str, Any]) -> Settings:
    """As `load_used` for a command with the settings `given`. Store and topic are those of the parts that run on this data
    folder, unless they are set.

    Raises click.UsageError, also if the store that analytics uses requires a password.
    """
    settings, _ = load_used(given, given)
    running = settings_in_use(settings.data)
    running.pop("kafka_options", None)  # only the names are known: the values may be secrets
    # Flags, environment and file win: somebody who names another store wants to read that one.
    unset = {name: value for name, value in running.items() if name not in settings.model_fields_set}
    if HIDDEN in unset.get("store", ""):
        raise click.UsageError(
            f"the running analytics writes to {unset['store']}, which requires a password. "
            "Pass --store or set STREAMGAUGE_STORE."
        )
    return load_used({**given, **unset}, given)[0] if unset else settings


def settings_in_use(data: Path) -> dict[str, Any]:
    """Settings of the running parts: `store`, `kafka`, `kafka_topic`, and the names in `kafka_options`."""
    ship = read_ready_file(data / "run" / "ship.json") or {}
    used = {"kafka": ship.get("brokers"), "kafka_topic": ship.get("topic")}
    used |= read_ready_file(data / "run" / "analyze.json") or {}
    names = ("store", "kafka", "kafka_topic", "kafka_options")
    return {name: used[name] for name in names if used.get(name)}
