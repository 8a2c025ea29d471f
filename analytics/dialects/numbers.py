"""Numbers as servers write them: 12, 12.0, "12", null, true. Anything that is not a number is None, never 0."""

from __future__ import annotations

from typing import Any


def whole_number(value: Any) -> int | None:
    """A count such as tokens: whole and not negative."""
    if type(value) is int:
        return value if 0 <= value < 2**53 else None
    if isinstance(value, float):
        return int(value) if value.is_integer() and 0 <= value < 2**53 else None
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 16:
        return int(value)
    return None


def finite_number(value: Any) -> float | None:
    """A finite number, also when sent as a string ("0.35"; "350ms" is None)."""
    if isinstance(value, str) and len(value) <= 40:
        try:
            value = float(value)
        except ValueError:
            return None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if -1e300 < value < 1e300 else None
