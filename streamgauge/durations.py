"""Ages as people write them in settings: 7d, 36h, 90m, 30s, 2w, forever."""

from __future__ import annotations

import re

_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}


def parse_duration_s(text: str | None) -> float | None:
    """Seconds of `7d`, `36h`, `90m`, `30s`, `2w`; None for `forever` or nothing. Raises ValueError."""
    if text is None or text.strip().lower() in ("", "forever", "none"):
        return None
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([smhdw])\s*", text.lower())
    if not found or float(found[1]) <= 0:
        raise ValueError(f"{text!r} is no age: 7d, 36h, 90m or forever")
    return float(found[1]) * _UNITS_S[found[2]]
