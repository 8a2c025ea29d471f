"""Parse durations: a number and a unit, such as `500ms`, `30s`, `5m`, `36h`, `7d`, `2w`."""

from __future__ import annotations

import re

_UNITS_S = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}


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
