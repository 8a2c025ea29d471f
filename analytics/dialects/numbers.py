"""Numbers as servers write them: 12, 12.0, "12", null, true. What is no number is None, never 0."""

from __future__ import annotations

from typing import Any


def count(value: Any) -> int | None:
    """A count (tokens, pieces): whole and not negative."""
    if type(value) is int:
        return value if 0 <= value < 2**53 else None
    if isinstance(value, float):
        return int(value) if value.is_integer() and 0 <= value < 2**53 else None
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 16:
        return int(value)
    return None


def measure(value: Any) -> float | None:
    """A finite number, also when it was sent as a string ("0.35", "350ms" is none)."""
    if isinstance(value, str) and len(value) <= 40:
        try:
            value = float(value)
        except ValueError:
            return None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if -1e300 < value < 1e300 else None
