"""Statistics that servers report about their processing: times in ns, rates in tok/s, counts in tokens, and the raw value.

The ending of a name determines the unit, for all vendors. Times are in seconds unless the name says otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from analytics.decoded.reports import ServerStat
from analytics.decoded.tolerant_json import compact
from analytics.dialects.numbers import finite_number

MAX_STATS = 64
MAX_RAW_CHARS = 200

_RATES = ("per_second", "per_sec", "tokens_per_s", "_tps", "per-second")
_TIMES = ("time", "latency", "duration", "to_first_token", "to-first-token", "seconds")
_TOKENS = ("tokens", "_n", "token_count", "tokens_count")


def unit_of(name: str) -> tuple[str, float]:
    """Return (unit, factor that converts to it) for a number of this name."""
    name = name.lower()
    if name.endswith(_RATES) or "tokens_per_sec" in name or name == "tps":
        return "tok/s", 1.0
    if name.endswith(("_ms", "-ms")):
        return "ns", 1e6
    if name.endswith(("_us", "-us")):
        return "ns", 1e3
    if name.endswith(("_ns", "-ns")):
        return "ns", 1.0
    if name.endswith(_TIMES) or "_time_" in name or "-time-" in name:
        return "ns", 1e9
    if name.endswith(_TOKENS):
        return "tokens", 1.0
    return "1", 1.0


def stats_of(source: str, values: Any, *, only: frozenset[str] | None = None) -> list[ServerStat]:
    """One stat for each scalar member of an object, or for those in `only`."""
    if not isinstance(values, Mapping):
        return []
    stats: list[ServerStat] = []
    for name, raw in values.items():
        if raw is None or isinstance(raw, (dict, list)) or (only is not None and name not in only):
            continue
        unit, factor = unit_of(name)
        number = finite_number(raw)
        value = None if number is None else number * factor
        text = raw if isinstance(raw, str) else compact(raw)
        stats.append(ServerStat(source, name, value, unit, text[:MAX_RAW_CHARS]))
        if len(stats) >= MAX_STATS:
            break
    return stats
