"""Format durations, counts, rates, shares and sizes as text. Pure. Unknown values (None, NaN) become "–", never 0."""

from __future__ import annotations

import math
from datetime import timedelta
from typing import TypeGuard

UNKNOWN = "–"
UNITS_S = {"d": 86400, "h": 3600, "m": 60, "s": 1, "w": 604800}
"""Units of the lengths of time ranges. The first one that fits is used in addresses."""
MARKDOWN_SIGNS = frozenset("\\`*_{}[]()<>#+-.!|$~:&")


def known(value: float | None) -> TypeGuard[float]:
    """Whether a value is neither None nor NaN."""
    return value is not None and not (isinstance(value, float) and math.isnan(value))


def duration(value_ns: float | None) -> str:
    """Three significant digits with a unit: 850 µs, 12.3 ms, 1.24 s, 3 min 20 s, 0 s."""
    if not known(value_ns):
        return UNKNOWN
    size = abs(value_ns)
    if size == 0:
        return "0 s"
    if size < 999_500:
        return f"{_three_digits(value_ns / 1e3)} µs"
    if size < 999.5e6:
        return f"{_three_digits(value_ns / 1e6)} ms"
    if size < 59.95e9:
        return f"{_three_digits(value_ns / 1e9)} s"
    seconds = round(value_ns / 1e9)
    minutes, rest = divmod(seconds, 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min"


def span(length: timedelta) -> str:
    """The length of a time range: 15 min, 6 h, 7 d."""
    minutes = length.total_seconds() / 60
    if minutes < 1:
        return f"{length.total_seconds():.0f} s"
    if minutes < 60:
        return f"{minutes:.0f} min"
    if minutes < 48 * 60:
        return f"{minutes / 60:.3g} h"
    return f"{minutes / 1440:.3g} d"


def plural(number: int, noun: str) -> str:
    """The noun, with an `s` unless there is one."""
    return noun if number == 1 else f"{noun}s"


def count(value: float | None) -> str:
    """Exact up to 99,999, then rounded: 123 k, 4.56 M."""
    if not known(value):
        return UNKNOWN
    if abs(value) < 100_000:
        return f"{value:,.0f}"
    for divisor, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= divisor:
            return f"{_three_digits(value / divisor)} {letter}"
    return f"{value:,.0f}"


def rate(value: float | None, unit: str = "tok/s") -> str:
    """A rate per second: 41.2 tok/s."""
    if not known(value):
        return UNKNOWN
    return f"{_three_digits(value) if abs(value) < 1000 else count(value)} {unit}".strip()


def factor(value: float | None) -> str:
    """A ratio as a factor: 14.4×."""
    return f"{_three_digits(value)}×" if known(value) else UNKNOWN


def share(value: float | None) -> str:
    """A ratio as a percentage: 0.0213 → 2.13 %."""
    if not known(value):
        return UNKNOWN
    return f"{_three_digits(value * 100)} %"


def size(value_bytes: float | None) -> str:
    """Bytes in powers of 1024: 12.3 KiB."""
    if not known(value_bytes):
        return UNKNOWN
    amount = float(value_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(amount) < 1024 or unit == "GiB":
            return f"{amount:.0f} B" if unit == "B" else f"{_three_digits(amount)} {unit}"
        amount /= 1024
    return UNKNOWN


def change(now: float | None, before: float | None) -> float | None:
    """Relative change: +0.25 for an increase by a quarter. None if either value is unknown or `before` is 0."""
    if not known(now) or not known(before) or before == 0:
        return None
    return (now - before) / before


def markdown(name: str) -> str:
    """A name as text in Markdown, whatever signs it has."""
    return "".join(f"\\{sign}" if sign in MARKDOWN_SIGNS else sign for sign in name)


def _three_digits(value: float) -> str:
    size = abs(value)
    if size >= 99.95:
        return f"{value:.0f}"
    if size >= 9.995:
        return f"{value:.1f}"
    return f"{value:.2f}"
