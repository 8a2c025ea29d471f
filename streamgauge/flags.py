"""Command-line flags made from the settings model, so that a setting is described once.

A flag that was not given is not passed on: precedence (flags > environment > file > default) is the model's business.
"""

from __future__ import annotations

import json
import tomllib
import types
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin

import click
from pydantic import SecretStr, ValidationError
from pydantic.fields import FieldInfo

from streamgauge.settings import Settings, config_file

Command = TypeVar("Command", bound=Callable[..., Any])


def flag(name: str) -> str:
    """The flag of a field: `dashboard_port` → `--dashboard-port`."""
    return "--" + name.replace("_", "-")


def settings_options(*names: str) -> Callable[[Command], Command]:
    """Give a click command the flags of these fields; the command takes them as keyword arguments, unset ones as None."""

    def decorate(command: Command) -> Command:
        for name in reversed(names):
            command = _option(name, Settings.model_fields[name])(command)
        return command

    return decorate


def _option(name: str, field: FieldInfo) -> Callable[[Command], Command]:
    kind = _kind(field.annotation)
    default = field.get_default(call_default_factory=True)
    text = field.description or ""
    if kind is bool:
        return click.option(flag(name), name, is_flag=True, default=None, help=text)
    if default not in (None, (), {}) and not isinstance(default, SecretStr):
        text = f"{text} [default: {default}]"
    if kind is tuple:
        return click.option(flag(name), name, multiple=True, metavar="[NAME=]URL", default=None, help=text)
    return click.option(flag(name), name, metavar=_metavar(name, kind), default=None, help=text)


def _kind(annotation: Any) -> Any:
    """The bare type of a field: `str | None` → str, `tuple[X, ...]` → tuple."""
    if get_origin(annotation) in (types.UnionType,):
        annotation = next(a for a in get_args(annotation) if a is not type(None))
    return get_origin(annotation) or annotation


def _metavar(name: str, kind: Any) -> str:
    if name in ("listen", "admin", "kafka", "otlp_listen"):
        return "HOST:PORT"
    return {int: "N", float: "SECONDS", dict: "JSON", Path: "PATH", SecretStr: "SECRET"}.get(kind, "TEXT")


def load(given: dict[str, Any]) -> Settings:
    """Settings from flags, environment and file. Raises click.UsageError in one line that names the culprit."""
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
    except ValueError as e:  # the file is not TOML, or a JSON value in the environment is broken
        place = f"{config_file()}: " if isinstance(e, tomllib.TOMLDecodeError) else ""
        raise click.UsageError(place + str(e).splitlines()[0]) from None


def _one_line(error: Any, given: dict[str, Any]) -> str:
    if not error["loc"]:  # two settings together are wrong; the message names them
        return str(error["msg"]).removeprefix("Value error, ")
    name = str(error["loc"][0])
    if error["type"] == "extra_forbidden":
        return f"unknown setting {name!r} in {config_file()}; `streamgauge config reference` lists all"
    place = (
        flag(name)
        if name in given
        else f"{flag(name)} (STREAMGAUGE_{name.upper()} or the configuration file)"
    )
    return f"{place}: {error['msg'].removeprefix('Value error, ')}"


def flags(settings: Settings, names: Iterable[str]) -> list[str]:
    """The same settings as flags for a child process. What may hold secrets is left out: it goes by environment."""
    argv: list[str] = []
    for name in names:
        value = getattr(settings, name)
        if value is None or isinstance(value, SecretStr | dict) or name == "store":
            continue
        if isinstance(value, bool):
            argv += [flag(name)] if value else []
        elif isinstance(value, tuple):
            for upstream in value:
                argv += [flag(name), f"{upstream.name}={upstream.url}"]
        else:
            argv += [flag(name), str(value)]
    return argv
