"""Chunk latencies compared with a slow implementation of their definitions."""

import itertools
from fractions import Fraction
from typing import Any

import duckdb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamgauge.analytics.decoding.stream_output import EventColumns
from streamgauge.analytics.dialects.events import OUTPUT_KINDS
from streamgauge.analytics.measures.stream_latency import NO_OUTPUT, ChunkLatencies, chunk_latencies, quantile
from streamgauge.analytics.schema.stall_limit import StallLimit

STALL = StallLimit(floor_ns=500_000_000, factor=5.0)
STEPS = st.sampled_from(
    [0, 1, 999_999, 1_000_000, 1_000_001, 20_000_000, 400_000_000, 500_000_000, 500_000_001, 3 * 10**9]
)


@st.composite
def columns(draw: st.DrawFn) -> EventColumns:
    """The events of one stream: any kinds, several per read, several choices, some with tokens."""
    events = EventColumns()
    at_ns = read = 0
    choices = draw(st.sampled_from([1, 1, 2, 3]))
    listed = draw(st.sampled_from([None, 1, 2]))
    for i in range(draw(st.integers(0, 14))):
        if i == 0 or draw(st.booleans()):
            at_ns += draw(STEPS)
            read += 1
        kind = draw(
            st.sampled_from(["text", "text", "text", "reasoning", "tool_call", "start", "usage", "terminal"])
        )
        choice = draw(st.integers(0, choices - 1))
        events.read_seq.append(read)
        events.at_ns.append(at_ns)
        events.kind.append(kind)
        events.event_name.append("")
        events.choice.append(choice if kind in OUTPUT_KINDS else None)
        events.chars.append(3)
        events.tokens.append(listed if kind in OUTPUT_KINDS or draw(st.booleans()) else None)
        events.bytes.append(draw(st.integers(1, 9)))
        events.finish_reason.append(None)
        if choices > 1 and kind in OUTPUT_KINDS and draw(st.booleans()):
            events.more_choices.append((i, (choice + 1) % choices))
    return events


def reference(events: EventColumns) -> ChunkLatencies:
    """A literal implementation of the definitions."""
    outputs = [i for i in range(len(events)) if events.kind[i] in OUTPUT_KINDS]
    if not outputs:
        return NO_OUTPUT
    times: dict[int, list[int]] = {}
    for i in outputs:
        for choice in [events.choice[i] or 0, *(c for at, c in events.more_choices if at == i)]:
            times.setdefault(choice, []).append(events.at_ns[i])
    gaps = [b - a for one in times.values() for a, b in itertools.pairwise(one)]
    first_choice = min(times, key=lambda c: (times[c][0], c))
    m = len(outputs)
    median = reference_quantile(gaps, Fraction(1, 2))
    stalls = [] if median is None else [g for g in gaps if g > STALL.floor_ns and g > 5 * median]
    single = next(iter(times.values())) if len(times) == 1 else []
    return ChunkLatencies(
        ttst_ns=times[first_choice][1] - times[first_choice][0] if len(times[first_choice]) >= 2 else None,
        output_span_ns=single[-1] - single[0] if len(single) >= 2 else None,
        last_output_seq=outputs[-1],
        icl_p50_ns=as_float(median),
        icl_p95_ns=as_float(reference_quantile(gaps, Fraction(95, 100))),
        icl_p99_ns=as_float(reference_quantile(gaps, Fraction(99, 100))),
        icl_max_ns=max(gaps, default=None),
        stall_count=len(stalls),
        stalled_ns=sum(stalls),
        burstiness=reference_burstiness(events, outputs) if m >= 2 else None,
        listed_tokens=sum(t or 0 for t in events.tokens)
        if all(events.tokens[i] is not None for i in outputs)
        else None,
    )


def reference_quantile(values: list[int], q: Fraction) -> Fraction | None:
    if not values:
        return None
    index = q * (len(values) - 1)
    below, part = index // 1, index % 1
    ordered = sorted(values)
    return ordered[below] + part * (ordered[min(below + 1, len(values) - 1)] - ordered[below])


def as_float(value: Fraction | None) -> float | None:
    return None if value is None else float(value)


def reference_burstiness(events: EventColumns, outputs: list[int]) -> float:
    reads: dict[int, tuple[int, int]] = {}
    for i in outputs:
        at_ns, size = reads.get(events.read_seq[i], (events.at_ns[i], 0))
        reads[events.read_seq[i]] = (at_ns, size + events.bytes[i])
    biggest = max(reads, key=lambda r: (reads[r][1], -r))
    counted = [
        size
        for read, (at_ns, size) in reads.items()
        if read == biggest
        or any(other != read and abs(at_ns - t) <= 1_000_000 for other, (t, _) in reads.items())
    ]
    return sum(counted) / sum(size for _, size in reads.values())


def close(latencies: ChunkLatencies) -> Any:
    return tuple(pytest.approx(v, rel=1e-9) if isinstance(v, float) else v for v in latencies)


@settings(max_examples=300, deadline=None)
@given(columns())
def test_chunk_latencies_match_the_definitions(events: EventColumns) -> None:
    assert tuple(chunk_latencies(events, STALL)) == close(reference(events))


@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(0, 10**10), min_size=1), st.sampled_from([0.5, 0.95, 0.99]))
def test_quantile_equals_duckdbs_quantile_cont(values: list[int], q: float) -> None:
    row = duckdb.execute(
        "SELECT quantile_cont(v, ?) FROM (SELECT unnest(?::BIGINT[]) AS v)", [q, values]
    ).fetchone()
    assert row is not None
    assert quantile(sorted(values), q) == pytest.approx(row[0], rel=1e-9)


def outputs_at(*times_ns: int) -> EventColumns:
    events = EventColumns()
    for i, at_ns in enumerate(times_ns):
        events.read_seq.append(i)
        events.at_ns.append(at_ns)
        events.kind.append("text")
        events.event_name.append("")
        events.choice.append(0)
        events.chars.append(1)
        events.tokens.append(None)
        events.bytes.append(10)
        events.finish_reason.append(None)
    return events


def timed(*times_ns: int) -> ChunkLatencies:
    return chunk_latencies(outputs_at(*times_ns), STALL)


def test_stall_exceeds_both_limits() -> None:
    ms = 1_000_000
    even = [100 * ms * i for i in range(10)]  # median 100 ms: both limits are 500 ms
    assert timed(*even, even[-1] + 500 * ms).stall_count == 0
    assert timed(*even, even[-1] + 501 * ms)[7:9] == (1, 501 * ms)
    slow = [200 * ms * i for i in range(10)]  # median 200 ms: the limit is 1 s
    assert timed(*slow, slow[-1] + 1000 * ms).stall_count == 0
    assert timed(*slow, slow[-1] + 1001 * ms).stall_count == 1


def test_burstiness_distinguishes_buffered_from_streamed_responses() -> None:
    ms = 1_000_000
    assert timed(*(20 * ms * i for i in range(100))).burstiness == 0.01
    assert timed(*(i * ms for i in range(100))).burstiness == 1.0
    assert timed(0, 20 * ms, 40 * ms, 41 * ms).burstiness == 0.75
    assert timed(5).burstiness is None


def test_single_output_event_has_no_gap_and_no_stall() -> None:
    assert timed(5) == ChunkLatencies(last_output_seq=0, stall_count=0, stalled_ns=0)


def test_no_output_has_no_latencies() -> None:
    assert timed() == NO_OUTPUT
