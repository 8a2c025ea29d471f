"""Values that flags and settings accept: how they are parsed, and how messages name them (`a whole number from 1 to 256`).

Imports only click and the standard library, because `streamgauge --help` imports it.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import click

_UNITS_S = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
DURATION = "500ms, 30s or 5m"
"""Examples of durations."""


def parse_duration_s(text: str | None) -> float | None:
    """Seconds of a positive duration; None for `forever` or an empty text. Raises ValueError."""
    if text is None or text.strip().lower() in ("", "forever", "none"):
        return None
    seconds = _seconds(text)
    if not seconds:
        raise ValueError(f"{text!r} is not a duration such as 7d, 36h, 90m or forever")
    return seconds


def parse_seconds(value: object) -> object:
    """Seconds of a duration or of a plain number; other values are returned unchanged."""
    seconds = _seconds(value) if isinstance(value, str) else None
    return value if seconds is None else seconds


def _seconds(text: str) -> float | None:
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(ms|[smhdw])\s*", text.lower())
    return float(found[1]) * _UNITS_S[found[2]] if found else None


def check_age(text: str | None) -> str | None:
    """The text. Raises ValueError unless it is a duration with a unit, or `forever`."""
    parse_duration_s(text)
    return text


def parse_interface(text: str) -> tuple[str, tuple[int, ...]]:
    """Interface and ports of `INTERFACE[:PORT[,PORT]]`. Raises ValueError."""
    interface, colon, ports = text.partition(":")
    numbers = tuple(int(port) if port.isdecimal() else 0 for port in ports.split(",")) if colon else ()
    if not interface or not all(0 < number < 65536 for number in numbers):
        raise ValueError(f"{text!r} is not an interface with ports such as lo:4000")
    return interface, numbers


def parse_capture(value: object) -> object:
    """Globs of request paths: `*` for true, None for false. Raises ValueError for a text that matches no path."""
    text = str(value).strip().lower()
    if text in ("true", "1", "yes", "on"):
        return "*"
    if text in ("false", "0", "no", "off", "none", ""):
        return None
    # A misspelt "ture" would be a glob that matches nothing, and the text would be missing without a word.
    if isinstance(value, str) and not all(glob[0] in "/*" for glob in value.replace(",", " ").split()):
        raise ValueError(f"{value!r} is not true, false, or globs of paths such as /v1/chat/*,/v1/messages")
    return value


def text_pairs(value: Any, *, what: str) -> Iterable[tuple[Any, Any]]:
    """Keys and values. Items that are not texts are converted with `str`. Raises ValueError, which names `what` is expected."""
    if isinstance(value, str) and value.lstrip().startswith("{"):
        try:
            value = json.loads(value)
        except ValueError as e:
            raise ValueError(f"the value is not JSON: {e}") from None
    if isinstance(value, Mapping):
        return value.items()
    items = [value] if isinstance(value, str) else value
    if not isinstance(items, list | tuple) or not all("=" in str(item) for item in items):
        raise ValueError(f"the value is not {what}")
    return [tuple(str(item).partition("=")[::2]) for item in items]  # type: ignore[misc]


def in_words(
    kind: str, *, least: object = None, above: object = None, most: object = None, example: str = ""
) -> str:
    """`kind` with its bounds and an example. `least` and `most` are allowed, `above` is not."""
    if least is not None and most is not None:
        bounds = f" from {least} to {most}"
    else:
        limits = (("greater than", above), ("of at least", least), ("of at most", most))
        bounds = "".join(f" {word} {limit}" for word, limit in limits if limit is not None)
    comma = "," if bounds else ""
    return f"{kind}{bounds}" + (f"{comma} such as {example}" if example else "")


def one_of(values: Sequence[object]) -> str:
    """`a, b or c`."""
    texts = [str(value) for value in values]
    return " or ".join([", ".join(texts[:-1]), texts[-1]] if len(texts) > 1 else texts)


class WholeNumber(click.IntRange):
    """A whole number within bounds."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter:
            self.fail(
                f"{value!r} is not {in_words('a whole number', least=self.min, most=self.max)}.", param, ctx
            )


class Number(click.FloatRange):
    """A number within bounds."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return _finite(super().convert(value, param, ctx))
        except (click.BadParameter, ValueError):
            self.fail(f"{value!r} is not {in_words('a number', least=self.min, most=self.max)}.", param, ctx)


class Duration(click.FloatRange):
    """A duration with a unit, or a number of seconds. The value is in seconds."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        seconds: Any = parse_seconds(value)
        try:
            return _finite(super().convert(seconds, param, ctx))
        except (click.BadParameter, ValueError):
            least = f"{self.min:g}s" if self.min is not None else None
            most = f"{self.max:g}s" if self.max is not None else None
            allowed = in_words("a duration", least=least, most=most, example=DURATION)
            self.fail(f"{value!r} is not {allowed}.", param, ctx)


def _finite(number: float) -> float:
    if not math.isfinite(number):
        raise ValueError("not a finite number")
    return number


class Address(click.ParamType[str]):
    """HOST:PORT."""

    name = "address"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        from streamgauge.ingest.listening import split_address  # sockets, which `--help` need not import

        try:
            split_address(value)
        except ValueError as e:
            self.fail(f"{e}.", param, ctx)
        return value


def format_option(more: str = "") -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add `--format table|json`, passed as `form`. `more` is appended to the help text."""
    return click.option(
        "--format", "form", type=click.Choice(["table", "json"]), default="table", show_default=True,
        help=f"Output format.{more}",
    )  # fmt: skip


def print_report(found: Any, text: str, form: str) -> None:
    """Print what a command found in the format of `format_option`: `found` as JSON, or `text`."""
    if form == "json":
        print_json(found)
    else:
        click.echo(text)


def print_json(found: Any) -> None:
    """Print one JSON document to stdout."""
    click.echo(json.dumps(found, ensure_ascii=False, allow_nan=False, indent=1))
