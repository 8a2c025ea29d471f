"""Times between the output events of one stream: gaps, quantiles, stalls, burstiness. No I/O, no clock.

Definitions (docs/explanation/measurement.md), each over the output events a1…aM of a stream:

- A gap (icl) lies between two consecutive output events of one choice; events of one read have gap 0.
- Quantiles interpolate linearly between the two nearest gaps, as DuckDB's `quantile_cont` does.
- A stall is a gap above max(`stall_floor_ns`, `stall_factor` × the stream's median gap).
- Burstiness is the share of output bytes that came in the largest read, or in reads at most 1 ms after or before another one
  with output. Output bytes are the data bytes of output events, by the read that completed them.

Plain Python, whose built-in sort and maps take less over a stream's lists than one query of polars takes to begin, and no
more per event than its grouping does over a large batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import compress
from operator import sub
from typing import NamedTuple

from analytics.decoded.decoded_event import OUTPUT_KINDS
from analytics.decoded.event_columns import EventColumns

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
_NON_REASONING = OUTPUT_KINDS - {"reasoning"}


def first_event_ns(events: EventColumns) -> int | None:
    """Time of the first event with data (ttfc)."""
    return events.at_ns[0] if events.at_ns else None


def first_output_ns(events: EventColumns) -> int | None:
    """Time of the first output event, whatever its channel (ttft)."""
    return next(compress(events.at_ns, map(OUTPUT_KINDS.__contains__, events.kind)), None)


def first_nonreasoning_output_ns(events: EventColumns) -> int | None:
    """Time of the first output event that carries more than reasoning (ttfo)."""
    found = next(compress(events.at_ns, map(_NON_REASONING.__contains__, events.kind)), None)
    if not events.more_than_reasoning:
        return found
    mixed = events.at_ns[events.more_than_reasoning[0]]
    return mixed if found is None else min(found, mixed)


def last_output_ns(events: EventColumns) -> int | None:
    """Time of the last output event."""
    return next(compress(reversed(events.at_ns), map(OUTPUT_KINDS.__contains__, reversed(events.kind))), None)


def timing_of(events: EventColumns, *, stall_floor_ns: int, stall_factor: float) -> Timing:
    """The timings of one stream's events."""
    made = list(map(OUTPUT_KINDS.__contains__, events.kind))
    if True not in made:
        return NOTHING
    times = list(compress(events.at_ns, made))
    choices = [times] if _is_one_choice(events, made) else _by_choice(events, made)
    gaps: list[int] = []
    for own in choices:
        gaps += map(sub, own[1:], own)
    gaps.sort()
    first = min(choices, key=lambda own: own[0])  # of equal ones the lowest index: they are in that order
    only = choices[0] if len(choices) == 1 else []
    median = quantile(gaps, 0.5)
    stalls: list[int] = []
    if median is not None and gaps[-1] > (limit_ns := max(stall_floor_ns, stall_factor * median)):
        stalls = [gap for gap in gaps if gap > limit_ns]
    listed = None not in compress(events.tokens, made)
    return Timing(
        ttst_ns=first[1] - first[0] if len(first) > 1 else None,
        span_ns=only[-1] - only[0] if len(only) > 1 else None,
        last_output_seq=len(made) - 1 - made[::-1].index(True),
        icl_p50_ns=median,
        icl_p95_ns=quantile(gaps, 0.95),
        icl_p99_ns=quantile(gaps, 0.99),
        icl_max_ns=gaps[-1] if gaps else None,
        stall_count=len(stalls),
        stalled_ns=sum(stalls),
        burstiness=_burstiness(
            events, made, times, apart=bool(only) and len(only) > 1 and gaps[0] > BURST_NS
        ),
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


def _is_one_choice(events: EventColumns, made: Sequence[bool]) -> bool:
    return (
        not events.more_choices and len({choice or 0 for choice in set(compress(events.choice, made))}) == 1
    )


def _by_choice(events: EventColumns, made: Sequence[bool]) -> list[list[int]]:
    """Times of the output events of each choice, by the choice's index."""
    at_ns = events.at_ns
    pairs = [(choice or 0, i) for i, choice in compress(enumerate(events.choice), made)]
    pairs += [(choice, i) for i, choice in events.more_choices]
    pairs.sort()
    found: dict[int, list[int]] = {}
    for choice, i in pairs:
        found.setdefault(choice, []).append(at_ns[i])
    return list(found.values())


def _burstiness(
    events: EventColumns, made: Sequence[bool], times: Sequence[int], *, apart: bool
) -> float | None:
    """`apart`: no two output events are within a burst of each other, so each came with a read of its own."""
    if len(times) < 2:
        return None
    sizes = list(compress(events.bytes, made))
    if apart:
        total = sum(sizes)
        return max(sizes) / total if total else None
    read_times: list[int] = []
    read_sizes: list[int] = []
    last_read = -1
    for read, at_ns, size in zip(compress(events.read_seq, made), times, sizes, strict=True):
        if read == last_read:
            read_sizes[-1] += size
        else:
            last_read = read
            read_times.append(at_ns)
            read_sizes.append(size)
    near = [False] * len(read_times)
    for i in range(1, len(read_times)):
        if read_times[i] - read_times[i - 1] <= BURST_NS:
            near[i] = near[i - 1] = True
    near[read_sizes.index(max(read_sizes))] = True
    total = sum(read_sizes)
    return sum(compress(read_sizes, near)) / total if total else None
