"""Values that flags accept: their types, and their names in messages (`a whole number from 1 to 256`)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import click

from streamgauge.durations import parse_seconds
from streamgauge.ingest.addresses import split_address

DURATION = "500ms, 30s or 5m"
"""Examples of durations."""


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
        try:
            split_address(value)
        except ValueError as e:
            self.fail(f"{e}.", param, ctx)
        return value
