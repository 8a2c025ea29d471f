"""The timings of one stream in plain Python: what `analytics.timing` computes for a whole batch with polars.

At low traffic a commit holds one or two streams, and setting up polars' queries costs more than their events do. Both ways
give the same values: a test holds them together.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from analytics.dialects.shape import OUTPUT_KINDS
from analytics.tally import EventColumns

BURST_NS = 1_000_000
"""Reads no further apart than this came as one."""


class Timing(NamedTuple):
    """The timings of one stream; None = unknown or undefined."""

    ttst_ns: int | None = None
    span_ns: int | None = None
    """aM - a1; None with several choices or M < 2."""
    last_output_seq: int | None = None
    icl_p50_ns: float | None = None
    icl_p95_ns: float | None = None
    icl_p99_ns: float | None = None
    icl_max_ns: int | None = None
    stall_count: int | None = None
    """0 when there was output but no gap; None without output."""
    stalled_ns: int | None = None
    burstiness: float | None = None
    listed_tokens: int | None = None
    """Sum of the tokens that the events list; None unless every output event does."""


NOTHING = Timing()


def timing_of(events: EventColumns, *, stall_floor_ns: int, stall_factor: float) -> Timing:
    """The timings of one stream's events."""
    outputs = [i for i, kind in enumerate(events.kind) if kind in OUTPUT_KINDS]
    if not outputs:
        return NOTHING
    choices = _by_choice(events, outputs)
    gaps = sorted(b - a for times in choices for a, b in pairwise(times))
    first = min(choices, key=lambda times: times[0])  # of equal ones the lowest index: they are in that order
    only = choices[0] if len(choices) == 1 else []
    median = quantile(gaps, 0.5)
    stalls = [] if median is None else [g for g in gaps if g > max(stall_floor_ns, stall_factor * median)]
    listed = all(events.tokens[i] is not None for i in outputs)
    return Timing(
        ttst_ns=first[1] - first[0] if len(first) > 1 else None,
        span_ns=only[-1] - only[0] if len(only) > 1 else None,
        last_output_seq=outputs[-1],
        icl_p50_ns=median,
        icl_p95_ns=quantile(gaps, 0.95),
        icl_p99_ns=quantile(gaps, 0.99),
        icl_max_ns=gaps[-1] if gaps else None,
        stall_count=len(stalls),
        stalled_ns=sum(stalls),
        burstiness=_burstiness(events, outputs),
        listed_tokens=sum(t for t in events.tokens if t is not None) if listed else None,
    )


def quantile(ordered: Sequence[int], q: float) -> float | None:
    """Linear between the two nearest values, as `quantile_cont`; None of nothing."""
    if not ordered:
        return None
    place = q * (len(ordered) - 1)
    below = int(place)
    if below + 1 >= len(ordered):
        return float(ordered[-1])
    return ordered[below] + (ordered[below + 1] - ordered[below]) * (place - below)


def _by_choice(events: EventColumns, outputs: Sequence[int]) -> list[list[int]]:
    """Times of the output events of each choice, by the choice's index."""
    at_ns, choice_of = events.at_ns, events.choice
    if not events.more_choices and all(not choice_of[i] for i in outputs):
        return [[at_ns[i] for i in outputs]]
    pairs = [(choice_of[i] or 0, i) for i in outputs]
    pairs += [(choice, i) for i, choice in events.more_choices]
    pairs.sort()
    found: dict[int, list[int]] = {}
    for choice, i in pairs:
        found.setdefault(choice, []).append(at_ns[i])
    return list(found.values())


def _burstiness(events: EventColumns, outputs: Sequence[int]) -> float | None:
    if len(outputs) < 2:
        return None
    times: list[int] = []
    sizes: list[int] = []
    last_read = -1
    for i in outputs:
        if events.read_seq[i] == last_read:
            sizes[-1] += events.bytes[i]
        else:
            last_read = events.read_seq[i]
            times.append(events.at_ns[i])
            sizes.append(events.bytes[i])
    near = [False] * len(times)
    for i in range(1, len(times)):
        if times[i] - times[i - 1] <= BURST_NS:
            near[i] = near[i - 1] = True
    largest = sizes.index(max(sizes))
    near[largest] = True
    total = sum(sizes)
    return sum(size for size, counts in zip(sizes, near, strict=True) if counts) / total if total else None
