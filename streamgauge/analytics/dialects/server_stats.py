"""Statistics that servers report about their processing: times in ns, rates in tok/s, counts in tokens, and the raw value.

The ending of a name determines the unit, for all vendors. Times are in seconds unless the name says otherwise. Members of nested
objects are named by their path, such as `speculative_decoding.num_draft_tokens`.
`streamgauge.analytics.schema.server_timing_names` lists the names that the view `server_timing` reads.

The server's own time to first token, from its statistics. No I/O, no clock.

This is the column `ttft_ns` of the view `server_timing` for one stream, by the same rules, for metrics.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from streamgauge.analytics.dialects.events import ServerStat
from streamgauge.analytics.dialects.tolerant_json import compact, finite_number
from streamgauge.analytics.schema.server_timing_names import MAX_VALUE, SERVER_TIMING_NAMES

MAX_STATS = 64
MAX_RAW_CHARS = 200
MAX_DEPTH = 3

_RATES = ("per_second", "per_sec", "tokens_per_s", "_tps", "per-second", "throughput")
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
    """One stat for each scalar member of an object and of the objects in it, or for those in `only`."""
    stats: list[ServerStat] = []
    if isinstance(values, Mapping):
        _add_members(stats, source, "", values, only)
    return stats


def stat_of(source: str, name: str, raw: Any, unit: str, factor: float = 1.0) -> ServerStat:
    """A reported number times `factor`, which converts it to `unit`. The value of other types is None."""
    number = finite_number(raw)
    text = raw if isinstance(raw, str) else compact(raw)
    return ServerStat(source, name, None if number is None else number * factor, unit, text[:MAX_RAW_CHARS])


def _add_members(
    stats: list[ServerStat], source: str, path: str, values: Mapping[str, Any], only: frozenset[str] | None
) -> None:
    for name, raw in values.items():
        if len(stats) >= MAX_STATS:
            return
        if raw is None or isinstance(raw, list) or (only is not None and name not in only):
            continue
        if isinstance(raw, dict):
            if path.count(".") < MAX_DEPTH - 1:
                _add_members(stats, source, f"{path}{name}.", raw, only)
            continue
        stats.append(stat_of(source, path + name, raw, *unit_of(name)))


SERVER_TIMING = "server-timing"
_DURATION = re.compile(r"\bdur\s*=\s*\"?([\d.]+)")


def server_timing_stats(header: str) -> list[ServerStat]:
    """The durations in a `Server-Timing` header (W3C), which are in ms: `queue;dur=1.5, ttft;desc="first token";dur=8`."""
    stats = []
    for entry in header.split(",")[:MAX_STATS]:
        name, _, parameters = entry.strip().partition(";")
        duration = _DURATION.search(parameters)
        ms = finite_number(duration[1]) if duration else None
        if duration and ms is not None:
            stats.append(ServerStat(SERVER_TIMING, name.strip(), ms * 1e6, "ns", duration[1]))
    return stats


_NONE: dict[str, str] = {}


def reported_ttft_ns(stats: Iterable[tuple[int | None, ServerStat]]) -> float | None:
    """ns from the request at the server to the first token. None if the server does not report it.

    `stats`: statistics of one stream in the order of their events, headers first.
    """
    found: dict[str, float] = {}
    for _, stat in stats:
        column = SERVER_TIMING_NAMES.get(stat.source, _NONE).get(stat.name)
        if column is not None and stat.value is not None and 0 <= stat.value <= MAX_VALUE:
            found[column] = stat.value
    ttft_ns = found.get("ttft_ns")
    if ttft_ns is None and "queue_ns" in found:
        prefill_ns = found.get("prefill_ns")
        if prefill_ns is None and "prefill_start_ns" in found and "prefill_end_ns" in found:
            prefill_ns = found["prefill_end_ns"] - found["prefill_start_ns"]
        ttft_ns = None if prefill_ns is None else found["queue_ns"] + prefill_ns
    return ttft_ns if ttft_ns is None or ttft_ns >= 0 else None
