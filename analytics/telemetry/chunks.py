"""Times between output chunks, put into buckets a stream at a time: a hundred thousand a second are too many to add singly.

Gaps are those of `analytics.measures.timing` (the icl of docs/explanation/measurement.md): between consecutive output events of one choice.
Sorted, the bounds cut them by bisection, so that a stream costs about as much as sorting its gaps does (polars' queries cost
more here: a commit's events are few for it).
"""

from __future__ import annotations

from bisect import bisect_right
from operator import sub

from analytics.decoded.event_columns import EventColumns
from analytics.telemetry.series import Distribution
from analytics.telemetry.spans import output_times

_NS = 1e9


def count_chunks(events: EventColumns, into: Distribution) -> None:
    """Add the gaps of a stream, in seconds."""
    gaps_ns: list[int] = []
    for times in output_times(events):
        gaps_ns += map(sub, times[1:], times)
    gaps_ns.sort()
    at = 0
    for bucket, bound in enumerate((*into.bounds, float("inf"))):
        if at == len(gaps_ns):
            return
        end = bisect_right(gaps_ns, bound * _NS, at)
        if end > at:
            total_s = sum(gaps_ns[at:end]) / _NS
            into.add_many(bucket, end - at, total_s, gaps_ns[at] / _NS, gaps_ns[end - 1] / _NS)
            at = end
