"""The server's own time to first token, from its statistics. No I/O, no clock.

This is the column `ttft_ns` of the view `server_timing` for one stream, by the same rules, for metrics.
"""

from __future__ import annotations

from collections.abc import Iterable

from streamgauge.analytics.dialects.events import ServerStat
from streamgauge.analytics.schema.server_timing_names import MAX_VALUE, SERVER_TIMING_NAMES

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
