"""HopMeasures of one hop, on made-up streams."""

from __future__ import annotations

import random
from bisect import bisect_left
from itertools import accumulate, pairwise

import pytest

from streamgauge.analytics.hops.comparison import Comparison, Stall, Stream, compare
from streamgauge.analytics.measures.stream_latency import quantile
from streamgauge.analytics.schema.hop_columns import HopMeasures
from tests.analytics.hops.hop_streams import MS, stream

START_NS = 10 * MS
"""t0 of the inner streams after that of the outer ones."""


def measured(outer: Stream, inner: Stream) -> HopMeasures:
    return compare(outer, inner, START_NS).measures


def delays_ms(outer: Stream, inner: Stream) -> tuple[float | None, float | None]:
    """(median, maximum)"""
    found = measured(outer, inner)
    return tuple(
        None if ns is None else ns / MS for ns in (found.added_event_p50_ns, found.added_event_max_ns)
    )


def test_each_event_has_the_delay_to_the_inner_event_with_the_same_characters() -> None:
    inner = stream((10, 5), (20, 5), (30, 5))
    outer = stream((22, 5), (33, 5), (45, 5))
    assert measured(outer, inner) == HopMeasures(
        added_ttft_ns=12 * MS,
        added_tail_ns=5 * MS,
        added_event_p50_ns=3 * MS,
        added_event_p95_ns=round(4.8 * MS),
        added_event_max_ns=5 * MS,
        aligned_event_count=3,
        merged_event_count=0,
        split_event_count=0,
        buffered_share=0.0,
        gateway_stall_count=0,
    )


def test_merged_chunks_are_measured_from_the_last_of_them() -> None:
    found = measured(stream((31, 10), (42, 5)), stream((10, 5), (20, 5), (30, 5)))
    assert (found.aligned_event_count, found.merged_event_count, found.split_event_count) == (2, 1, 0)
    assert found.added_event_max_ns == 2 * MS


def test_split_chunks_are_measured_from_the_chunk_they_continue() -> None:
    found = measured(stream((21, 2), (22, 2), (23, 1), (41, 5)), stream((10, 5), (30, 5)))
    assert (found.aligned_event_count, found.merged_event_count, found.split_event_count) == (4, 0, 2)
    assert found.added_event_max_ns == 3 * MS


def test_channels_and_choices_are_aligned_separately() -> None:
    inner = stream(
        (10, 5, "reasoning"), (20, 5, "text"), (30, 4, "text", 1), (40, 0, "tool_call"), (50, 9, "tool_call")
    )
    outer = stream(
        (21, 5, "reasoning"), (63, 9, "tool_call"), (64, 5, "text"), (65, 4, "text", 1), (66, 0, "tool_call")
    )
    found = measured(outer, inner)
    assert found.aligned_event_count == 5
    assert found.added_event_p50_ns == 16 * MS
    assert found.added_event_max_ns == 34 * MS


def test_channels_that_the_gateway_joins_are_aligned_as_one() -> None:
    inner = stream((10, 5, "reasoning"), (20, 5, "text"), (30, 5, "text"))
    outer = stream((22, 5, "text"), (33, 5, "text"), (44, 5, "text"))
    assert delays_ms(outer, inner) == (3, 4)


def test_changed_text_has_no_delays_but_the_other_channels_do() -> None:
    inner = stream((10, 5, "reasoning"), (20, 5, "text"))
    outer = stream((23, 5, "reasoning"), (90, 6, "text"))
    assert delays_ms(outer, inner) == (3, 3)
    found = measured(stream((90, 6)), stream((20, 5)))
    assert found == HopMeasures(added_ttft_ns=70 * MS, added_tail_ns=60 * MS)


def test_what_a_client_received_before_it_left_is_aligned() -> None:
    inner = stream((10, 5), (20, 5), (30, 5), (40, 5))
    outer = stream((22, 5), (33, 5), outcome="client_abort")
    found = measured(outer, inner)
    assert (found.aligned_event_count, found.added_event_max_ns) == (2, 3 * MS)
    assert found.added_tail_ns is None, "the gateway reads on without the client"


def test_an_event_before_its_inner_event_contradicts_the_alignment_unless_the_clock_error_explains_it() -> (
    None
):
    inner, outer = stream((10, 5), (20, 5)), stream((21, 5), (29, 5))
    assert delays_ms(outer, inner) == (None, None)
    assert compare(outer, inner, START_NS, clock_error_ns=MS).measures.aligned_event_count == 2


def test_first_output_older_than_the_inner_stream_has_no_added_ttft() -> None:
    assert measured(stream((5, 3), (40, 5)), stream((10, 5))).added_ttft_ns is None
    inner, outer = stream((10, 5), (20, 5)), stream((19, 5), (31, 5))
    assert measured(outer, inner).added_ttft_ns is None
    assert compare(outer, inner, START_NS, clock_error_ns=MS).measures.added_ttft_ns == 9 * MS


def test_streams_without_events_have_only_times() -> None:
    outer, inner = stream(end_ns=30 * MS, streamed=False), stream(end_ns=15 * MS, streamed=False)
    assert measured(outer, inner) == HopMeasures(added_tail_ns=5 * MS)


# -- buffering ---------------------------------------------------------------------------------------------------------


def test_output_released_at_the_end_is_buffered() -> None:
    inner = stream(*((10 * i, 5) for i in range(11)))
    outer = stream(*((115 + i / 100, 5) for i in range(11)))
    assert measured(outer, inner).buffered_share == 1


def test_transit_is_not_buffering_even_if_longer_than_the_gaps() -> None:
    inner = stream(*((10 * i, 5) for i in range(11)))
    outer = stream(*((10 * i + 10 + 35 + i % 2, 5) for i in range(11)))
    assert measured(outer, inner).buffered_share == 0


def test_output_that_leaves_long_before_the_next_arrives_is_not_buffered() -> None:
    inner = stream(*((100 * i, 5) for i in range(11)))
    outer = stream(*((100 * i + 10 + 30 * (i % 2), 5) for i in range(11)))
    assert measured(outer, inner).buffered_share == 0


def test_half_of_the_output_held_until_the_next_is_half_buffered() -> None:
    inner = stream(*((10 * i, 5) for i in range(11)))
    outer = stream(*((10 * i + 21 - 10 * (i % 2), 5) for i in range(11)))
    assert measured(outer, inner).buffered_share == 0.5


# -- any schedule ------------------------------------------------------------------------------------------------------


def cut(rng: random.Random, total: int) -> list[int]:
    """Sizes of chunks."""
    ends = sorted({*rng.sample(range(1, total), rng.randint(0, min(40, total - 1))), total})
    return [end - start for start, end in pairwise([0, *ends])]


@pytest.mark.parametrize("seed", range(40))
def test_delays_are_those_of_the_characters_for_any_way_to_cut_the_text(seed: int) -> None:
    rng = random.Random(seed)
    total = rng.randint(1, 300)
    inner_sizes, outer_sizes = cut(rng, total), cut(rng, total)
    inner_ms = list(accumulate(rng.choice((0, 1, 7, 40)) for _ in inner_sizes))
    arrived_ms = [ms for ms, size in zip(inner_ms, inner_sizes, strict=True) for _ in range(size)]
    outer_ms, last_ms, expected = [], 0.0, []
    for end in accumulate(outer_sizes):
        last_ms = max(last_ms, arrived_ms[end - 1] + 10 + rng.random() * 30)
        outer_ms.append(round(last_ms, 3))
        expected.append(outer_ms[-1] - arrived_ms[end - 1] - 10)
    found = measured(
        stream(*zip(outer_ms, outer_sizes, strict=True)), stream(*zip(inner_ms, inner_sizes, strict=True))
    )
    assert found.added_event_p50_ns == pytest.approx(quantile(sorted(expected), 0.5) * MS, abs=2)
    assert found.added_event_p95_ns == pytest.approx(quantile(sorted(expected), 0.95) * MS, abs=2)
    assert found.added_event_max_ns == pytest.approx(max(expected) * MS, abs=2)
    outer_ends, inner_ends = list(accumulate(outer_sizes)), list(accumulate(inner_sizes))
    assert found.merged_event_count == sum(
        bisect_left(outer_ends, a) == bisect_left(outer_ends, b) for a, b in pairwise(inner_ends)
    )
    assert found.split_event_count == sum(
        bisect_left(inner_ends, a) == bisect_left(inner_ends, b) for a, b in pairwise(outer_ends)
    )


# -- stalls ------------------------------------------------------------------------------------------------------------


def stall(outer: Stream, seq: int, cause: str = "upstream") -> Stream:
    """The outer stream with a stall that event `seq` ended."""
    at_ns, until_ns = outer.events["at_ns"][seq - 1], outer.events["at_ns"][seq]
    return outer._replace(stalls=[*outer.stalls, Stall(seq, at_ns, until_ns - at_ns, cause)])


def blamed(outer: Stream, inner: Stream) -> list[int]:
    return list(compare(outer, inner, START_NS).gateway_stall_seqs)


def test_a_gap_with_output_at_the_gateway_is_its_stall() -> None:
    inner = stream((0, 5), (10, 5), (20, 5))
    assert blamed(stall(stream((11, 5), (1011, 5), (1012, 5)), 1), inner) == [1]


def test_a_gap_of_the_model_server_is_not_the_gateways_stall() -> None:
    inner = stream((0, 5), (1000, 5), (1010, 5))
    assert blamed(stall(stream((11, 5), (1011, 5), (1021, 5)), 1), inner) == []


def test_a_constant_transit_does_not_make_the_gateway_guilty() -> None:
    inner = stream((0, 5), (1000, 5))
    assert blamed(stall(stream((2010, 5), (3011, 5)), 1), inner) == []


def test_a_gateway_that_collects_chunks_makes_the_stall_although_the_last_of_them_is_fresh() -> None:
    inner = stream((0, 5), *((100 * i, 5) for i in range(1, 11)))
    assert blamed(stall(stream((11, 5), (1011, 50)), 1), inner) == [1]


def test_a_stall_before_a_tool_call_is_aligned_by_the_call() -> None:
    inner = stream((0, 5), (5, 0, "tool_call"), (10, 9, "tool_call"))
    outer = stream((11, 5), (1011, 0, "tool_call"), (1012, 9, "tool_call"))
    assert blamed(stall(outer, 1), inner) == [1]


def test_stalls_of_client_and_tap_keep_their_cause() -> None:
    inner = stream((0, 5), (10, 5), (20, 5))
    outer = stream((11, 5), (1011, 5), (2012, 5))
    assert blamed(stall(stall(outer, 1, "client"), 2, "tap"), inner) == []


def test_a_gateway_that_does_not_read_makes_the_stall() -> None:
    """The tap of the inner stream then stops reading, so the model server's output arrives late there too."""
    inner = stall(stream((0, 5), (1000, 5)), 1, "client")
    assert blamed(stall(stream((11, 5), (1011, 5)), 1), inner) == [1]


def test_blame_of_random_stalls_of_both_is_right() -> None:
    rng = random.Random(7)
    right = wrong = 0
    for _ in range(200):
        inner_ms, outer_ms, truth = [0.0], [12.0], []
        for i in range(1, 60):
            gap = rng.uniform(5, 30)
            by = rng.choices(("", "upstream", "gateway"), (50, 1, 1))[0]
            inner_ms.append(inner_ms[-1] + gap + (700 if by == "upstream" else 0))
            sent = max(outer_ms[-1], inner_ms[-1] + 10 + rng.uniform(1, 4))
            outer_ms.append(sent + (rng.uniform(700, 1500) if by == "gateway" else 0))
            if outer_ms[-1] - outer_ms[-2] > 500:
                truth.append((i, by))
        outer = stream(*((ms, 4) for ms in outer_ms))
        for seq, _ in truth:
            outer = stall(outer, seq)
        found = blamed(outer, stream(*((ms, 4) for ms in inner_ms)))
        assert compare(
            outer, stream(*((ms, 4) for ms in inner_ms)), START_NS
        ).measures.gateway_stall_count == len(found)
        right += sum((seq in found) == (by == "gateway") for seq, by in truth)
        wrong += sum((seq in found) != (by == "gateway") for seq, by in truth)
    assert right > 300
    assert wrong <= 0.01 * right


# -- attempts ----------------------------------------------------------------------------------------------------------


def test_a_failed_attempt_that_the_client_did_not_receive_has_no_measures_and_no_changes() -> None:
    failed = stream((10, 3), outcome="upstream_reset", end_ns=15 * MS)
    assert compare(stream((60, 5), (70, 5)), failed, START_NS) == Comparison()


def test_the_last_attempt_is_measured_if_it_also_failed() -> None:
    outer = stream(outcome="http_error", http_status=500, end_ns=30 * MS)
    inner = stream(outcome="http_error", http_status=429, end_ns=15 * MS)
    found = compare(outer, inner, START_NS)
    assert found.measures == HopMeasures()
    assert ("status", "500", "429") in found.changes
